"""Idle-timeout notifications of table entries (P4Runtime specification 1.5, section 16.4)."""

from __future__ import annotations

from collections.abc import Callable

from p4switch.ir import Table
from p4switch.proto import p4r
from p4switch.targets.v1model.engine import Engine, TableEntry

Key = tuple[str, TableEntry]


class IdleEntries:
    """Idle entries to report: each once per timeout."""

    def __init__(
        self, engine: Engine, entry_message: Callable[[Table, TableEntry], p4r.TableEntry]
    ) -> None:
        self._engine = engine
        self._entry_message = entry_message
        self._reported_us: dict[Key, int] = {}

    def due(self, now_us: int) -> p4r.IdleTimeoutNotification | None:
        """Return a notification of the entries that are idle now; None if there are none."""
        notice = p4r.IdleTimeoutNotification()
        reported: dict[Key, int] = {}
        for key in self._engine.idle_entries(now_us):
            name, entry = key
            before = self._reported_us.get(key)
            if before is not None and (now_us - before) * 1000 < entry.idle_timeout_ns:
                reported[key] = before
                continue
            reported[key] = now_us
            notice.table_entry.append(self._entry_message(self._engine.table(name), entry))
        self._reported_us = reported
        return notice if notice.table_entry else None
