"""Counters of the data path, which count in C."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from hopsum.host_agent.c_structures import c_fields


class Counters(ctypes.Structure):
    """Counters in packets; the structure in C explains each."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> int: ...

    def counts(self) -> dict[str, int]:
        """Return all counters by name."""
        return {name: getattr(self, name) for name, *_ in self._fields_}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.counts()})"


class ServerStatistics(Counters):
    """A server's counters: `struct server_counters` of datapath/server.h."""

    _fields_ = c_fields("datapath/server.h", "server_counters")


class WorkerStatistics(Counters):
    """A worker's counters, of all its streams: `struct worker_counters` of datapath/stream.h."""

    _fields_ = c_fields("datapath/stream.h", "worker_counters")
