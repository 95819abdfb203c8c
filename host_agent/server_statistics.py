"""A server's counters, and its report on a late fragment."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopsum.host_agent.c_structures import c_fields


class ServerStatistics(ctypes.Structure):
    """A server's counters: `struct server_counters` of datapath/server.c, which explains each."""

    _fields_ = c_fields("datapath/server.c", "server_counters")

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> int: ...

    def counts(self) -> dict[str, int]:
        """Return all counters by name."""
        return {name: getattr(self, name) for name, *_ in self._fields_}

    def __repr__(self) -> str:
        return f"ServerStatistics({self.counts()})"


@dataclass(frozen=True, slots=True)
class Missing:
    """The oldest unfinished fragment: its number, opening time (seconds), and missing workers."""

    fragment: int
    since: float
    workers: tuple[str, ...]
