"""The event log: the last events, and the number of each kind."""

from __future__ import annotations

from hopsum.controller.telemetry.event_log import EventKind, EventLog


def test_the_last_events_are_kept_and_all_are_counted() -> None:
    dates = iter(range(100))
    log = EventLog(lambda: next(dates), kept=3)
    for _ in range(5):
        log.add(EventKind.OUTAGE, "switch s1 unreachable")
    log.add(EventKind.FAILOVER, "around switch s1", job=7, epoch=2)
    assert [(event.number, event.date) for event in log] == [(4, 3), (5, 4), (6, 5)]
    assert [*log][-1].job == 7
    assert log.counts[EventKind.OUTAGE] == 5
    assert log.counts[EventKind.FAILOVER] == 1
    assert log.counts[EventKind.REPLAN] == 0
