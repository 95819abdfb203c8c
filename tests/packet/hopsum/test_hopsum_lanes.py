"""The arithmetic of the lanes: both forms, all sizes of packets, all widths, all edges."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import reduce
from itertools import product

import pytest

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import (
    LANE_REDUCTIONS,
    ROOT_REDUCTIONS,
    VALUE_REDUCTIONS,
    Flag,
    Reduction,
    Width,
)
from tests.oracles.reference_values import combine, packed, wrapped
from tests.packet.hopsum.star import contribution, star, up
from tests.packet.hopsum.switches import Build, Switch

BUILDS = [Build(lanes) for lanes in (32, 96, 256)] + [Build(32, True), Build(96, True)]
LARGE = [Build(64), Build(352)] + [Build(lanes, True) for lanes in (64, 256, 352)]
"""Others, up to a minute each to compile."""
REDUCTIONS = (*LANE_REDUCTIONS, *ROOT_REDUCTIONS)
SUMS = Reduction.SUM, Reduction.REDUCE_SUM
COMBINATIONS = [
    (reduction, width)
    for reduction in REDUCTIONS
    for width in Width
    if width is Width.WIDTH_32 or reduction in VALUE_REDUCTIONS
]
Values = tuple[int, ...]


@pytest.fixture(
    params=BUILDS + [pytest.param(each, marks=pytest.mark.long) for each in LARGE], ids=str
)
def built(request: pytest.FixtureRequest, make_switch: Callable[[Build], Switch]) -> Switch:
    """A switch of every build."""
    return make_switch(request.param)


def largest(width: Width) -> int:
    """The largest value."""
    return (1 << width.bits - 1) - 1


def pairs_of_edges(width: Width) -> list[tuple[int, int]]:
    """All pairs of values near the ends of their range, near 0, and with other patterns."""
    most = largest(width)
    pattern = 0x5555_5555 & most
    edges = (0, 1, -1, 2, -2, most, -most - 1, most - 1, -most, pattern, -pattern - 1)
    edges += ((most + 1) // 2, 1 << width.bits // 2)
    return [(a, b) for a in edges for b in edges]


def rows_of_edges(lanes: int, width: Width) -> list[tuple[Values, Values]]:
    """These pairs as lanes, spread over packets so that neighbours differ."""
    pairs, count = pairs_of_edges(width), lanes * width.per_lane
    rows = []
    for start in range(0, len(pairs), count):
        chunk = pairs[start : start + count]
        chunk += pairs * (count // len(pairs) + 1)
        a, b = zip(*chunk[:count], strict=True)
        rows.append((packed(a, width), packed(b, width)))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("width", Width)
def test_edges_combine_value_by_value(built: Switch, width: Width) -> None:
    """No carry or borrow leaves its value, and the flag comes when some value wrapped (H11)."""
    star(built)
    wraps = Counter[Reduction]()
    reductions = [reduction for reduction, each in COMBINATIONS if each is width]
    cases = product(reductions, rows_of_edges(built.build.lanes, width))
    for turn, (reduction, rows) in enumerate(cases):
        parts = [
            contribution(built, child, 4 * turn, values=lanes, reduction=reduction, width=width)
            for child, lanes in enumerate(rows)
        ]
        total, over = combine(*rows, reduction, width)
        flags = Flag.OVERFLOW if over else 0
        assert up(built, *parts) == [parts[1].popped(values=total, weight=2, flags=flags)]
        wraps[reduction] += over
    assert built.counted().get(Outcome.OVERFLOW, 0) == wraps.total()
    assert {reduction for reduction, times in wraps.items() if times} == {*SUMS}


@pytest.mark.slow
@pytest.mark.parametrize("width", Width)
def test_one_wrapping_value_is_found_wherever_it_is(built: Switch, width: Width) -> None:
    count = built.build.lanes * width.per_lane
    most = largest(width)
    star(built)
    places = {0, 1, 2, 3, 31, 32, 63, 64, 65, count - 33, count - 32, count - 2, count - 1}
    places &= {*range(count)}
    cases = [*product((1, -1), sorted(places))]
    for turn, (sign, place) in enumerate(cases):
        rows = [[sign * -5] * count, [sign * 3] * count]
        rows[0][place] = most if sign > 0 else -most - 1
        rows[1][place] = sign
        parts = [
            contribution(built, child, 4 * turn, values=packed(row, width), width=width)
            for child, row in enumerate(rows)
        ]
        total = [sign * -2] * count
        total[place] = -most - 1 if sign > 0 else most
        expected = parts[1].popped(values=packed(total, width), weight=2, flags=Flag.OVERFLOW)
        assert up(built, *parts) == [expected]
    assert built.counted()[Outcome.OVERFLOW] == len(cases)


@pytest.mark.slow
@pytest.mark.parametrize("width", Width)
def test_sums_one_below_the_limit_do_not_overflow(built: Switch, width: Width) -> None:
    star(built)
    most, half = largest(width), built.build.lanes * width.per_lane // 2
    rows = [(most - 1, -most) * half, (1, -1) * half]
    parts = [
        contribution(built, child, values=packed(row, width), width=width)
        for child, row in enumerate(rows)
    ]
    total = packed((most, -most - 1) * half, width)
    assert up(built, *parts) == [parts[1].popped(values=total, weight=2)]
    assert Outcome.OVERFLOW not in built.counted()


@pytest.mark.slow
def test_random_values_of_seven(built: Switch) -> None:
    star(built, 7)
    rng = random.Random(built.build.lanes)
    for turn, (reduction, width) in enumerate((*COMBINATIONS, (Reduction.SUM, Width.WIDTH_32))):
        rows = [
            tuple(wrapped(rng.getrandbits(32)) for _ in range(built.build.lanes)) for _ in range(7)
        ]
        parts = [
            contribution(built, c, 4 * turn, fan_in=7, values=row, reduction=reduction, width=width)
            for c, row in enumerate(rows)
        ]
        total = reduce(lambda a, b: combine(a, b, reduction, width)[0], rows)
        (arrived, again) = up(built, *parts, parts[3])
        assert arrived.values == total
        assert again.values == total
        assert (arrived.reduction, arrived.width) == (reduction, width)
        assert arrived.flags == (Flag.OVERFLOW if reduction in SUMS else 0)
