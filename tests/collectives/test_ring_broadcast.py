from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms.ring import ring_all_reduce, ring_broadcast
from collectives.execution import channels
from collectives.schedule import ScheduleError
from collectives.schedule_checker import check_schedule


@given(st.integers(1, 9), st.integers(0, 20), st.data())
def test_the_root_gives_everybody_its_tensor(
    ranks: int, elements: int, data: st.DataObject
) -> None:
    schedule = ring_broadcast(ranks, elements, data.draw(st.integers(0, ranks - 1)))
    check_schedule(schedule)
    assert schedule.wanted.nodes.tolist() == (list(range(ranks)) if elements else [])


def test_it_uses_the_connections_of_the_ring() -> None:
    for rank in range(5):
        targets, sources = channels(ring_all_reduce(5, 5), rank)
        for root in range(5):
            further_targets, further_sources = channels(ring_broadcast(5, 10, root), rank)
            assert set(further_targets) <= set(targets)
            assert set(further_sources) <= set(sources)


def test_a_root_must_be_a_rank() -> None:
    with pytest.raises(ScheduleError, match="from rank 3; expected 0 to 2"):
        ring_broadcast(3, 1, 3)
