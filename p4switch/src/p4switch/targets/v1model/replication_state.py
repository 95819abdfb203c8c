"""Multicast groups and clone sessions of an engine, with checks."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace

from p4switch.ir import Program
from p4switch.midend.architecture import PSA, architecture_of
from p4switch.midend.psa import CPU_PORT, RECIRCULATE_PORT
from p4switch.targets.v1model.engine import (
    CloneSession,
    ControlError,
    Engine,
    EngineOptions,
    Replica,
)

LARGEST_PORT = 511
LARGEST_GROUP = 0xFFFF
LARGEST_CLONE_SESSION = 0x7FFF
"""BMv2's RegisterAccess::MAX_MIRROR_SESSION_ID."""


class ReplicationState(Engine):
    """The replication part of `state.ControlState`, and the lock of its whole state."""

    def __init__(self, program: Program, options: EngineOptions | None = None) -> None:
        self.program = program
        self.options = options or EngineOptions()
        self.lock = threading.RLock()
        self.multicast: dict[int, tuple[Replica, ...]] = {}
        self.sessions: dict[int, CloneSession] = {}
        is_psa = architecture_of(program.package) is PSA
        self._named_ports = (CPU_PORT, RECIRCULATE_PORT) if is_psa else ()

    @abstractmethod
    def _on_multicast_group(self, group: int, replicas: tuple[Replica, ...] | None) -> None:
        """React to a new, changed or (None) removed multicast group."""

    @abstractmethod
    def _on_clone_session(self, session: int, value: CloneSession | None) -> None:
        """React to a new, changed or (None) removed clone session."""

    def set_multicast_group(self, group: int, replicas: Sequence[Replica] | None) -> None:
        """See `Engine`."""
        with self.lock:
            if not 1 <= group <= LARGEST_GROUP:
                raise ControlError(
                    "INVALID_ARGUMENT", f"multicast group {group} is not in 1..{LARGEST_GROUP}"
                )
            if replicas is None:
                if group not in self.multicast:
                    raise ControlError("NOT_FOUND", f"no multicast group {group}")
                self._on_multicast_group(group, None)
                del self.multicast[group]
                return
            checked = _checked_replicas(f"multicast group {group}", replicas, self._named_ports)
            self._on_multicast_group(group, checked)
            self.multicast[group] = checked

    def multicast_groups(self) -> dict[int, tuple[Replica, ...]]:
        """See `Engine`."""
        with self.lock:
            return dict(self.multicast)

    def set_clone_session(self, session: int, value: CloneSession | None) -> None:
        """See `Engine`."""
        with self.lock:
            if not 0 <= session <= LARGEST_CLONE_SESSION:
                raise ControlError(
                    "INVALID_ARGUMENT",
                    f"clone session {session} is not in 0..{LARGEST_CLONE_SESSION}",
                )
            if value is None:
                if session not in self.sessions:
                    raise ControlError("NOT_FOUND", f"no clone session {session}")
                self._on_clone_session(session, None)
                del self.sessions[session]
                return
            if value.length < 0:
                raise ControlError(
                    "INVALID_ARGUMENT", f"clone session {session}: negative length {value.length}"
                )
            where = f"clone session {session}"
            replicas = _checked_replicas(where, value.replicas, self._named_ports)
            checked = replace(value, replicas=replicas)
            self._on_clone_session(session, checked)
            self.sessions[session] = checked

    def clone_sessions(self) -> dict[int, CloneSession]:
        """See `Engine`."""
        with self.lock:
            return dict(self.sessions)


def _checked_replicas(
    where: str, replicas: Sequence[Replica], named_ports: Collection[int]
) -> tuple[Replica, ...]:
    for replica in replicas:
        if not 0 <= replica.port <= LARGEST_PORT and replica.port not in named_ports:
            raise ControlError(
                "INVALID_ARGUMENT", f"{where}: port {replica.port} is not in 0..{LARGEST_PORT}"
            )
        if not 0 <= replica.instance <= LARGEST_GROUP:
            raise ControlError(
                "INVALID_ARGUMENT",
                f"{where}: instance {replica.instance} is not in 0..{LARGEST_GROUP}",
            )
    if len(set(replicas)) != len(replicas):
        raise ControlError("INVALID_ARGUMENT", f"{where}: a port and instance are given twice")
    return tuple(replicas)
