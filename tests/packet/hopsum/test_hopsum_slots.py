"""Contributions and slots: every row of the switch's table, and what it must survive."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import reduce

import pytest

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import LANE_REDUCTIONS, ROOT_REDUCTIONS, Flag, Hop, Reduction
from tests.oracles.reference_values import combine, wrapped
from tests.packet.hopsum.packets import LAST_HOP, add, lanes_of
from tests.packet.hopsum.star import contribution, result, send, send_all, star, up
from tests.packet.hopsum.switches import Switch

HALF = 2**31
SUMS = {Reduction.SUM, Reduction.REDUCE_SUM}
OTHERS = sorted({*LANE_REDUCTIONS, *ROOT_REDUCTIONS} - SUMS)


# --- the rows of the table


def test_a_sum_leaves_with_the_last_child(switch: Switch) -> None:
    star(switch, 3)
    parts = [contribution(switch, child, fan_in=3, weight=child + 1) for child in range(3)]
    assert up(switch, *parts[:2]) == []
    assert switch.counted() == {Outcome.AGGREGATED: 2}
    total = add(*(part.values for part in parts))
    assert up(switch, parts[2]) == [parts[2].popped(values=total, weight=6)]
    assert switch.counted() == {Outcome.AGGREGATED: 2, Outcome.COMPLETED: 1}


def test_a_newer_fragment_takes_the_slot_over(switch: Switch) -> None:
    star(switch)
    old, new = contribution(switch, 0, 1), contribution(switch, 0, 5)
    assert up(switch, old, new) == []
    assert switch.counted() == {Outcome.AGGREGATED: 2, Outcome.TAKEN_OVER: 1}
    other = contribution(switch, 1, 5)
    assert up(switch, other) == [other.popped(values=add(new.values, other.values), weight=2)]


def test_a_complete_or_cleared_slot_is_taken_over_without_loss(switch: Switch) -> None:
    star(switch)
    up(switch, contribution(switch, 0, 0), contribution(switch, 1, 0))  # complete
    up(switch, contribution(switch, 0, 1))
    send(switch, 8, result(switch, fragment=1))  # incomplete and cleared: bypass finished it
    up(switch, contribution(switch, 0, 4), contribution(switch, 0, 5))
    assert Outcome.TAKEN_OVER not in switch.counted()


@pytest.mark.parametrize("change", [{"epoch": 2}, {"epoch": 2, "fragment": 0}])
def test_a_newer_epoch_takes_over_for_any_fragment(switch: Switch, change: dict[str, int]) -> None:
    star(switch)
    up(switch, contribution(switch, 0, 4))
    new = [replace(contribution(switch, child, 4), **change) for child in (0, 1)]  # type: ignore[arg-type]
    assert up(switch, *new) == [new[1].popped(values=add(new[0].values, new[1].values), weight=2)]


def test_an_older_fragment_is_flagged_stale_and_adds_nothing(switch: Switch) -> None:
    star(switch)
    up(switch, contribution(switch, 0, 4))
    late = contribution(switch, 1, 0)
    assert up(switch, late) == [late.popped(flags=Flag.STALE)]
    assert switch.counted() == {Outcome.AGGREGATED: 1, Outcome.STALE: 1}
    new = [contribution(switch, child, 4) for child in (0, 1)]
    assert up(switch, new[1]) == [new[1].popped(values=add(new[0].values, new[1].values), weight=2)]


def test_an_older_epoch_is_stale_even_with_a_newer_fragment(switch: Switch) -> None:
    star(switch)
    up(switch, contribution(switch, 0, 0, epoch=2))
    late = contribution(switch, 1, 4, epoch=1)
    assert up(switch, late) == [late.popped(flags=Flag.STALE)]


def test_a_fragment_of_a_cleared_slot_is_flagged_stale(switch: Switch) -> None:
    """H5: no ghost opens after the clear."""
    star(switch)
    parts = [contribution(switch, child, 0) for child in (0, 1)]
    up(switch, *parts)
    send(switch, 8, result(switch))
    assert up(switch, parts[0]) == [parts[0].popped(flags=Flag.STALE)]
    assert switch.counted()[Outcome.STALE] == 1


def test_a_child_seen_in_a_complete_slot_makes_it_emit_again(switch: Switch) -> None:
    """H3: the sum may have been lost above."""
    star(switch)
    parts = [contribution(switch, child, 0, exponent=9 + child) for child in (0, 1)]
    total = add(*(part.values for part in parts))
    up(switch, *parts)
    for _ in range(2):
        for part in parts:
            assert up(switch, part) == [part.popped(values=total, weight=2, exponent=10)]
    assert switch.counted()[Outcome.RE_EMITTED] == 4


def test_a_child_seen_in_an_incomplete_slot_is_a_duplicate(switch: Switch) -> None:
    """H4: a network's duplicates and a worker's repeats count once."""
    star(switch)
    parts = [contribution(switch, child, 0) for child in (0, 1)]
    assert up(switch, parts[0], parts[0], parts[0]) == []
    assert switch.counted() == {Outcome.AGGREGATED: 1, Outcome.DUPLICATE: 2}
    total = add(*(part.values for part in parts))
    assert up(switch, parts[1]) == [parts[1].popped(values=total, weight=2)]


def test_fan_in_one_forwards_at_once_and_again(switch: Switch) -> None:
    """H21."""
    star(switch, 1)
    part = contribution(switch, 0, 0, fan_in=1, weight=5, exponent=3)
    assert up(switch, part, part) == [part.popped(), part.popped()]
    assert switch.counted() == {Outcome.COMPLETED: 1, Outcome.RE_EMITTED: 1}
    send(switch, 8, result(switch))
    assert up(switch, part) == [part.popped(flags=Flag.STALE)]


@pytest.mark.parametrize(
    ("flags", "aggregate", "outcome"),
    [
        (Flag.STALE, True, Outcome.FORWARDED),
        (Flag.BYPASS, True, Outcome.BYPASSED),
        (Flag.STALE | Flag.BYPASS, True, Outcome.BYPASSED),
        (Flag.BYPASS, False, Outcome.BYPASSED),
        (0, False, Outcome.FORWARDED),
    ],
)
def test_packets_not_to_be_aggregated_are_forwarded(
    switch: Switch, flags: int, aggregate: bool, outcome: Outcome
) -> None:
    star(switch)
    opened = contribution(switch, 0, 0)
    up(switch, opened)
    first = Hop(aggregate=aggregate, child=1, fan_in=2, port=8)
    part = contribution(switch, 1, 0, flags=flags, hops=(first, LAST_HOP))
    assert send(switch, 2, part) == [(8, part.popped())]
    assert switch.counted() == {Outcome.AGGREGATED: 1, outcome: 1}
    last = contribution(switch, 1, 0)
    assert up(switch, last) == [last.popped(values=add(opened.values, last.values), weight=2)]


# --- what the sum is made of


def test_weights_add_up_and_flags_and_exponents_gather(switch: Switch) -> None:
    star(switch, 3)
    parts = [
        contribution(switch, 0, fan_in=3, weight=2, flags=Flag.ECN, exponent=120),
        contribution(switch, 1, fan_in=3, weight=300, exponent=140),
        contribution(switch, 2, fan_in=3, weight=1, exponent=130, worker=77),
    ]
    total = add(*(part.values for part in parts))
    sum_of_all = parts[2].popped(values=total, weight=303, flags=Flag.ECN, exponent=140)
    assert up(switch, *parts) == [sum_of_all]


@pytest.mark.parametrize("flags", [Flag.OVERFLOW, Flag.ECN, Flag.OVERFLOW | Flag.ECN])
@pytest.mark.parametrize("which", [0, 1])
def test_a_flag_that_came_in_goes_out_whoever_brought_it(
    switch: Switch, flags: int, which: int
) -> None:
    star(switch)
    parts = [contribution(switch, child, flags=flags * (child == which)) for child in (0, 1)]
    total = add(*(part.values for part in parts))
    assert up(switch, *parts) == [parts[1].popped(values=total, weight=2, flags=flags)]
    assert up(switch, parts[0]) == [parts[0].popped(values=total, weight=2, flags=flags)]
    assert Outcome.OVERFLOW not in switch.counted(), "nothing wrapped around here"


def test_flags_of_an_earlier_fragment_are_forgotten(switch: Switch) -> None:
    star(switch)
    up(switch, *(contribution(switch, child, 0, flags=Flag.ECN, exponent=99) for child in (0, 1)))
    parts = [contribution(switch, child, 4) for child in (0, 1)]
    total = add(*(part.values for part in parts))
    assert up(switch, *parts) == [parts[1].popped(values=total, weight=2)]


@pytest.mark.parametrize("reduction", OTHERS)
def test_other_reductions_than_sums(switch: Switch, reduction: Reduction) -> None:
    star(switch, 3)
    rng = random.Random(5)
    rows = [
        tuple(wrapped(rng.getrandbits(32)) for _ in range(switch.build.lanes)) for _ in range(3)
    ]
    parts = [
        contribution(switch, child, fan_in=3, reduction=reduction, values=row)
        for child, row in enumerate(rows)
    ]
    expected = reduce(lambda a, b: combine(a, b, reduction)[0], rows)
    assert up(switch, *parts) == [parts[2].popped(values=expected, weight=3)]
    assert Outcome.OVERFLOW not in switch.counted()


def test_overflow_is_flagged_and_sticks(switch: Switch) -> None:
    """H11: the lane wraps, a later addition that does not wrap keeps the flag."""
    star(switch, 3)
    rows = [lanes_of(switch.build.lanes, seed) for seed in range(3)]
    rows[0] = (*rows[0][:-1], HALF - 1)
    rows[1] = (*rows[1][:-1], 1)
    rows[2] = (*rows[2][:-1], 5)
    parts = [contribution(switch, c, fan_in=3, values=row) for c, row in enumerate(rows)]
    expected = parts[2].popped(values=add(*rows), weight=3, flags=Flag.OVERFLOW)
    assert expected.values[-1] == 5 - HALF
    assert up(switch, *parts) == [expected]
    assert switch.counted() == {
        Outcome.AGGREGATED: 2,
        Outcome.COMPLETED: 1,
        Outcome.OVERFLOW: 1,
    }
    assert up(switch, parts[2]) == [expected], "an emission again has the flag too"


# --- serial numbers


@pytest.mark.parametrize("start", [0, HALF - 6, 2**32 - 6])
def test_fragments_run_on_through_2_31_and_2_32(switch: Switch, start: int) -> None:
    """L5: an empty register takes no part in the comparison, and numbers wrap."""
    star(switch)
    for fragment in (f % 2**32 for f in range(start, start + 12)):
        parts = [
            contribution(switch, child, fragment, values=lanes_of(switch.build.lanes, child))
            for child in (0, 1)
        ]
        total = add(*(part.values for part in parts))
        assert up(switch, *parts) == [parts[1].popped(values=total, weight=2)]
    assert switch.counted() == {Outcome.AGGREGATED: 12, Outcome.COMPLETED: 12}


@pytest.mark.parametrize(
    ("lead", "outcome"),
    [
        (4, Outcome.TAKEN_OVER),
        (HALF - 4, Outcome.TAKEN_OVER),
        (HALF, Outcome.STALE),
        (HALF + 4, Outcome.STALE),
        (2**32 - 4, Outcome.STALE),
    ],
)
@pytest.mark.parametrize("held", [0, HALF, 2**32 - 4])
def test_newer_is_ahead_by_less_than_half(
    switch: Switch, held: int, lead: int, outcome: Outcome
) -> None:
    star(switch)
    values = lanes_of(switch.build.lanes, 1)
    up(switch, contribution(switch, 0, held, values=values))
    up(switch, contribution(switch, 1, (held + lead) % 2**32, values=values))
    assert switch.counted()[outcome] == 1


@pytest.mark.parametrize(
    ("held", "epoch", "outcome"),
    [
        (1, 2, Outcome.TAKEN_OVER),
        (1, 0x8000, Outcome.TAKEN_OVER),
        (1, 0x8001, Outcome.STALE),
        (2, 1, Outcome.STALE),
        (0xFFFF, 1, Outcome.TAKEN_OVER),
        (1, 0xFFFF, Outcome.STALE),
    ],
)
def test_epochs_wrap_too(switch: Switch, held: int, epoch: int, outcome: Outcome) -> None:
    star(switch)
    up(switch, contribution(switch, 0, 4, epoch=held), contribution(switch, 1, 4, epoch=epoch))
    assert switch.counted()[outcome] == 1


# --- what goes wrong in networks


def test_a_packet_delayed_by_a_window_is_stale(switch: Switch) -> None:
    """H6, H9: nothing of f joins f + W or f + 2W."""
    star(switch)
    late = contribution(switch, 1, 0)
    for fragment in (0, 4, 8):
        parts = [contribution(switch, child, fragment) for child in (0, 1)]
        up(switch, parts[0])
        if fragment:
            assert up(switch, late) == [late.popped(flags=Flag.STALE)]
        total = add(*(part.values for part in parts))
        assert up(switch, parts[1]) == [parts[1].popped(values=total, weight=2)]


def test_slots_of_a_window_are_apart(switch: Switch) -> None:
    """H13: fragments of one window in any order; slot = base + f mod W."""
    star(switch, base=60)  # the last slots of 64
    first = [contribution(switch, 0, fragment) for fragment in (5, 7, 4, 6)]
    second = [contribution(switch, 1, fragment) for fragment in (4, 6, 5, 7)]
    assert up(switch, *first) == []
    by_fragment = {part.fragment: part for part in first}
    assert up(switch, *second) == [
        part.popped(values=add(by_fragment[part.fragment].values, part.values), weight=2)
        for part in second
    ]


@pytest.mark.parametrize("other", [{"job": 2}, {"tree": 1}], ids=str)
def test_two_jobs_or_trees_on_one_slot_never_mix(switch: Switch, other: dict[str, int]) -> None:
    """H10: whoever is there last has it; no sum has a part of both."""
    star(switch)
    star(switch, **other)
    one = [contribution(switch, child) for child in (0, 1)]
    two = [contribution(switch, child, worker=9, **other) for child in (0, 1)]
    assert up(switch, one[0], two[0], one[1], two[1]) == []
    assert switch.counted() == {Outcome.AGGREGATED: 4, Outcome.TAKEN_OVER: 3}
    total = add(two[1].values, two[0].values)
    assert up(switch, two[0]) == [two[0].popped(values=total, weight=2)]


def test_two_trees_of_a_job_have_sums_of_their_own(switch: Switch) -> None:
    """L6."""
    star(switch, tree=0, base=0)
    star(switch, tree=3, base=4)
    zero = [contribution(switch, child, 2, tree=0) for child in (0, 1)]
    three = [replace(part, tree=3, values=part.values[::-1]) for part in zero]
    arrived = up(switch, zero[0], three[0], three[1], zero[1])
    assert arrived == [
        parts[1].popped(values=add(parts[0].values, parts[1].values), weight=2)
        for parts in (three, zero)
    ]


def test_an_empty_slot_has_no_owner(switch: Switch) -> None:
    """S6: (1, 0, epoch 1, fragment 0) joins no zeroed register, for any reduction."""
    star(switch)
    values = tuple(-1 for _ in range(switch.build.lanes))
    parts = [
        contribution(switch, child, 0, reduction=Reduction.AND, values=values) for child in (0, 1)
    ]
    assert up(switch, *parts) == [parts[1].popped(weight=2)]


def test_many_packets_flood_one_slot(switch: Switch) -> None:
    """H23: no contribution is lost or counted twice when they come as fast as they can."""
    fan_in, rounds = 7, 20
    star(switch, fan_in)
    rng = random.Random(3)
    for turn in range(rounds):
        parts = [contribution(switch, c, 4 * turn, fan_in=fan_in) for c in range(fan_in)]
        flood = [(child + 1, part) for child, part in enumerate(parts)] * 3
        rng.shuffle(flood)
        arrived = send_all(switch, flood)
        total = add(*(part.values for part in parts))
        assert arrived
        assert {(port, p.values, p.weight) for port, p in arrived} == {(8, total, fan_in)}
    counted = switch.counted()
    assert counted[Outcome.COMPLETED] == rounds
    assert counted[Outcome.AGGREGATED] == rounds * (fan_in - 1)
    repeats = counted.get(Outcome.DUPLICATE, 0) + counted.get(Outcome.RE_EMITTED, 0)
    assert repeats == 2 * rounds * fan_in


# --- plans that do not agree


def test_a_fan_in_other_than_the_admitted_one_is_malformed(switch: Switch) -> None:
    star(switch, 2)
    assert up(switch, contribution(switch, 0, fan_in=3)) == []
    assert up(switch, contribution(switch, 0, fan_in=1)) == []
    assert switch.counted() == {Outcome.MALFORMED: 2}


def test_a_fan_in_other_than_the_slots_is_malformed(switch: Switch) -> None:
    """The plan changed under a fragment without a new epoch."""
    star(switch, 2)
    up(switch, contribution(switch, 0))
    switch.delete("admission", {"job": 1, "tree": 0, "ingress_port": 2})
    switch.admit_children(2, 2, fan_in=3)
    assert up(switch, contribution(switch, 1, fan_in=3)) == []
    assert switch.counted() == {Outcome.AGGREGATED: 1, Outcome.MALFORMED: 1}


def test_a_reduction_other_than_the_slots_is_malformed(switch: Switch) -> None:
    star(switch)
    up(switch, contribution(switch, 0))
    assert up(switch, contribution(switch, 1, reduction=Reduction.AND)) == []
    assert switch.counted() == {Outcome.AGGREGATED: 1, Outcome.MALFORMED: 1}
    last = contribution(switch, 1)
    assert up(switch, last)[0].weight == 2


def test_one_child_too_many_spoils_no_sum(switch: Switch) -> None:
    star(switch)
    switch.admit_children(3, 4)
    parts = [contribution(switch, child) for child in (0, 1, 2)]
    total = add(parts[0].values, parts[1].values)
    assert len(up(switch, *parts)) == 1
    assert switch.counted()[Outcome.MALFORMED] == 1
    assert up(switch, parts[0]) == [parts[0].popped(values=total, weight=2)]
