from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.choices import Collective
from hopsum.collectives.schedule import (
    Ranges,
    Schedule,
    ScheduleError,
    make_step,
    part,
)
from tests.support.halves import all_gather_of, reduce_scatter_of


def test_parts_cover_the_range_without_overlap() -> None:
    parts = [part(3, 13, 4, i) for i in range(4)]
    assert parts == [(3, 5), (5, 8), (8, 10), (10, 13)]


@pytest.mark.slow
@given(st.integers(1, 12), st.integers(0, 100))
def test_a_ring_sends_its_share(ranks: int, elements: int) -> None:
    schedule = ring_all_reduce(ranks, elements)
    total = sum(t.stop - t.start for t in schedule.transfers())
    assert total == 2 * (ranks - 1) * elements
    for half in (reduce_scatter_of(schedule), all_gather_of(schedule)):
        assert 2 * sum(t.stop - t.start for t in half.transfers()) == total


@pytest.mark.slow
@given(st.integers(1, 7), st.integers(0, 50), st.data())
def test_volumes_are_those_of_the_transfers(ranks: int, elements: int, data: st.DataObject) -> None:
    period = data.draw(st.sampled_from([p for p in (1, 2, 3, 5) if ranks % p == 0]))
    cuts = sorted(data.draw(st.lists(st.integers(0, elements), min_size=ranks, max_size=ranks)))
    step = make_step(
        range(ranks),
        ranks,
        cuts,
        elements,
        combine=True,
        repeat=data.draw(st.integers(1, 12)),
        period=period,
    )
    nothing = Ranges.of([])
    schedule = Schedule(
        "test", Collective.REDUCE, ranks, elements, (step,), nothing, nothing, relays=1
    )
    sent = [0] * ranks
    for transfer in schedule.transfers():
        sent[transfer.source] += transfer.stop - transfer.start
    assert step.volumes().tolist() == sent


def test_a_nodes_transfers_are_those_of_the_whole_list() -> None:
    schedule = ring_all_reduce(5, 23)
    transfers = list(schedule.transfers())
    for rank in range(5):
        assert list(schedule.sends(rank)) == [t for t in transfers if t.source == rank]
        assert list(schedule.receives(rank)) == [t for t in transfers if t.target == rank]


def test_repetitions_move_ranges_on_by_one_place() -> None:
    schedule = ring_all_reduce(3, 9)
    step = schedule.steps[0]
    assert step.starts.tolist() == [0, 3, 6]
    assert step.ranges(1)[0].tolist() == [6, 0, 3]
    assert [t.start for t in schedule.transfers() if t.turn == (0, 1)] == [6, 0, 3]


def test_chains_are_steps_that_wait_for_each_other() -> None:
    steps = [make_step(0, 1, 0, 1, combine=True, after=after) for after in ((), (), (0,), (1,))]
    whole = Ranges.whole(range(2), 1)
    schedule = Schedule("test", Collective.ALL_REDUCE, 2, 1, tuple(steps), whole, whole)
    assert schedule.chains == (0, 1, 0, 1)
    joined = replace(schedule, steps=(*steps, make_step(0, 1, 0, 1, combine=True, after=(2, 3))))
    assert joined.chains == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sources": 2}, r"step 0, row \[0\]: there is no node \[2\]; expected 0 to 1"),
        ({"targets": 0}, r"step 0, row \[0\]: node \[0\] sends to itself"),
        ({"stops": 5}, r"step 0, row \[0\]: range \[0\] to \[5\]; expected one inside 0 to 4"),
        ({"after": (0,)}, r"step 0 waits for steps \[0\]: expected earlier ones only"),
        ({"repeat": 0}, r"step 0: repeat 0: expected 1 or more"),
        ({"period": 2}, r"step 0: 1 rows in groups of 2: expected whole groups"),
    ],
)
def test_a_wrong_form_is_refused(wrong: dict[str, int], message: str) -> None:
    fields = {"sources": 0, "targets": 1, "starts": 0, "stops": 4, "combine": True} | wrong
    whole = Ranges.whole(range(2), 4)
    with pytest.raises(ScheduleError, match=message):
        Schedule("test", Collective.ALL_REDUCE, 2, 4, (make_step(**fields),), whole, whole)


def test_a_ring_of_no_ranks_is_refused() -> None:
    with pytest.raises(ScheduleError, match="ring: 0 ranks: expected at least one"):
        ring_all_reduce(0, 4)
