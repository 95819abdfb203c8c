from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.choices import Collective
from hopsum.collectives.schedule import Ranges, Schedule, ScheduleError, Step, make_step
from hopsum.collectives.schedule_checker import check_schedule
from tests.support.halves import all_gather_of, reduce_scatter_of


@pytest.mark.slow
@given(st.integers(1, 12), st.integers(0, 100))
def test_rings_are_proved(ranks: int, elements: int) -> None:
    ring = ring_all_reduce(ranks, elements)
    for schedule in (ring, reduce_scatter_of(ring), all_gather_of(ring)):
        check_schedule(schedule)


def all_reduce(ranks: int, elements: int, *steps: Step) -> Schedule:
    whole = Ranges.whole(range(ranks), elements)
    return Schedule("test", Collective.ALL_REDUCE, ranks, elements, steps, whole, whole)


def test_a_missing_turn_is_found() -> None:
    schedule = ring_all_reduce(3, 9)
    short = replace(schedule.steps[1], repeat=1)
    with pytest.raises(
        ScheduleError,
        match=r"ring all-reduce: rank 0, element 6: the contribution of rank 1 is missing; "
        r"expected exactly once",
    ):
        check_schedule(replace(schedule, steps=(schedule.steps[0], short)))


def test_a_doubled_contribution_is_found() -> None:
    schedule = ring_all_reduce(3, 9)
    again = make_step(0, 2, 4, 5, combine=True, after=(1,))
    with pytest.raises(
        ScheduleError, match="rank 2, element 4: the contribution of rank 0 is there more than once"
    ):
        check_schedule(replace(schedule, steps=(*schedule.steps, again)))


def test_an_overwritten_duplicate_is_harmless() -> None:
    check_schedule(
        all_reduce(
            2,
            4,
            make_step(0, 1, 0, 4, combine=True),
            make_step(1, 0, 0, 4, combine=True, after=(0,)),
            make_step(1, 0, 0, 4, combine=False, after=(1,)),
        )
    )


def test_exchanges_read_the_state_before_the_step() -> None:
    check_schedule(all_reduce(2, 4, make_step([0, 1], [1, 0], 0, 4, combine=True)))


def test_many_may_add_at_once_but_not_copy() -> None:
    up = make_step([1, 2, 3], 0, 0, 4, combine=True)
    down = make_step(0, [1, 2, 3], 0, 4, combine=False, after=(0,))
    check_schedule(all_reduce(4, 4, up, down))
    with pytest.raises(
        ScheduleError, match=r"step 0: rank 0, element 0: several transfers copy there at once"
    ):
        check_schedule(all_reduce(4, 4, replace(up, combine=False), down))


def test_additions_of_two_steps_need_no_order() -> None:
    first = make_step(1, 0, 0, 4, combine=True)
    second = make_step(2, 0, 0, 4, combine=True)
    down = make_step(0, [1, 2], 0, 4, combine=False, after=(0, 1))
    check_schedule(all_reduce(3, 4, first, second, down))


def test_a_step_that_does_not_wait_is_found() -> None:
    first = make_step(1, 0, 0, 4, combine=True)
    second = make_step(2, 0, 2, 4, combine=True)
    third = make_step(2, 0, 0, 2, combine=True)
    down = make_step(0, [1, 2], 0, 4, combine=False, after=(0, 2))
    with pytest.raises(
        ScheduleError,
        match=r"steps 1 and 3 both use element 2 of rank 2, and neither waits for the other; ",
    ):
        check_schedule(all_reduce(3, 4, first, second, third, down))


def test_an_overwrite_that_does_not_wait_for_the_reader_is_found() -> None:
    up = make_step(1, 0, 0, 4, combine=True)
    down = make_step(0, 1, 0, 4, combine=False)
    with pytest.raises(ScheduleError, match=r"steps 0 and 1 both use element 0 of rank 1"):
        check_schedule(all_reduce(2, 4, up, down))
    late = make_step(0, 1, 0, 4, combine=False, after=(0,))
    stray = make_step(1, 2, 0, 4, combine=True)
    with pytest.raises(ScheduleError, match=r"steps 1 and 2 both use element 0 of rank 1"):
        check_schedule(all_reduce(3, 4, up, late, stray))


def test_a_range_left_out_is_found() -> None:
    schedule = reduce_scatter_of(ring_all_reduce(3, 9))
    wanted = Ranges.of([(0, 3, 6), (1, 6, 9), (2, 0, 2)])
    with pytest.raises(
        ScheduleError, match=r"reduce-scatter: wanted: all ranks together: elements 2 to 3 are left"
    ):
        check_schedule(replace(schedule, wanted=wanted))
    with pytest.raises(ScheduleError, match=r"given: rank 1: elements 0 to 9 are left out"):
        check_schedule(replace(schedule, given=Ranges.whole([0, 2], 9)))


def test_a_relay_holds_nothing_at_first() -> None:
    up = make_step([0, 1], 2, 0, 4, combine=True)
    down = make_step(2, [0, 1], 0, 4, combine=False, after=(0,))
    schedule = replace(all_reduce(2, 4), relays=1, steps=(up, down))
    check_schedule(schedule)
    with pytest.raises(ScheduleError, match="relay 0 is a relay; expected ranks only"):
        check_schedule(replace(schedule, given=Ranges.whole(range(3), 4)))


def test_broadcast_and_reduce_have_one_root() -> None:
    one, whole = Ranges.whole([1], 4), Ranges.whole(range(3), 4)
    down = make_step(1, [0, 2], 0, 4, combine=False)
    up = make_step([0, 2], 1, 0, 4, combine=True)
    broadcast = Schedule("test", Collective.BROADCAST, 3, 4, (down,), one, whole)
    reduce = Schedule("test", Collective.REDUCE, 3, 4, (up,), whole, one)
    check_schedule(broadcast)
    check_schedule(reduce)
    with pytest.raises(ScheduleError, match=r"reduce: wanted: rank 2 holds elements; expected"):
        check_schedule(replace(reduce, wanted=Ranges.whole([1, 2], 4)))


def test_turns_of_a_repeated_step_are_seen_by_others() -> None:
    schedule = ring_all_reduce(4, 8)
    # In its second turn the ring sends elements 6 and 7 from rank 0.
    stray = make_step(1, 0, 7, 8, combine=True)
    with pytest.raises(ScheduleError, match=r"steps 0 and 2 both use element 7 of rank [01]"):
        check_schedule(replace(schedule, steps=(*schedule.steps, stray)))


def test_many_ranks_are_proved_in_several_passes() -> None:
    check_schedule(ring_all_reduce(130, 1000))


def test_a_fault_in_a_later_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum.collectives.schedule_checker._BUDGET", 1000)
    schedule = ring_all_reduce(9, 90)
    check_schedule(schedule)
    again = make_step(0, 2, 84, 86, combine=True, after=(1,))
    with pytest.raises(ScheduleError, match=r"rank 2, element 84: .* more than once"):
        check_schedule(replace(schedule, steps=(*schedule.steps, again)))
