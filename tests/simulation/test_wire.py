"""Paths between processes that communicate over TCP."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from hopsum.simulation.events import EventQueue
from hopsum.simulation.wire import Way, WireOptions

SLOW = WireOptions(latency=1.0, jitter=0.0)


def arrivals(sends: list[float], partitions: list[tuple[float, float]]) -> list[int]:
    """Return the order in which what is sent at these times arrives."""
    queue, arrived = EventQueue(), list[int]()
    way = Way(queue, SLOW)
    for number, time in enumerate(sends):
        queue.at(time, partial(way.send, partial(arrived.append, number)))
    for start, stop in partitions:
        queue.at(start, way.part)
        queue.at(stop, way.join)
    while queue.step():
        pass
    return arrived


def test_what_was_under_way_arrives_before_what_a_partition_has_held() -> None:
    assert arrivals([0.0, 0.6], [(0.5, 2.0)]) == [0, 1]


@given(
    st.lists(st.integers(0, 60), max_size=12).map(sorted),
    st.lists(st.integers(0, 60), max_size=6, unique=True).map(sorted),
)
def test_partitions_change_no_order(sends: list[int], ends: list[int]) -> None:
    pairs = [(a / 10 + 0.05, b / 10 + 0.05) for a, b in zip(ends[::2], ends[1::2], strict=False)]
    assert arrivals([time / 10 for time in sends], pairs) == [*range(len(sends))]
