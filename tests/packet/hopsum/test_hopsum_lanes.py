"""The arithmetic of the lanes: both forms, every size of packet, all edges."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import reduce

import pytest

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import LANE_REDUCTIONS, ROOT_REDUCTIONS, Flag, Reduction
from tests.oracles.reference_switch import COMBINED_BY
from tests.packet.hopsum.packets import add, wrapped
from tests.packet.hopsum.star import contribution, star, up
from tests.packet.hopsum.switches import Build, Switch

BUILDS = [Build(lanes, per_lane) for per_lane in (False, True) for lanes in (32, 64, 96, 256, 352)]
MAX, MIN = 2**31 - 1, -(2**31)
EDGES = (0, 1, -1, 2, -2, MAX, MIN, MAX - 1, MIN + 1, 0x5555_5555, -0x5555_5556, 1 << 30, 1 << 16)
PAIRS = [(a, b) for a in EDGES for b in EDGES]


@pytest.fixture(params=BUILDS, ids=str)
def built(request: pytest.FixtureRequest, make_switch: Callable[[Build], Switch]) -> Switch:
    """A switch of every build."""
    return make_switch(request.param)


def rows_of_pairs(lanes: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All pairs of edge values, spread over packets so that neighbours differ."""
    rows = []
    for start in range(0, len(PAIRS), lanes):
        chunk = PAIRS[start : start + lanes]
        chunk += PAIRS[: lanes - len(chunk)] * (lanes // len(PAIRS) + 1)
        chunk = chunk[:lanes]
        rows.append((tuple(a for a, _ in chunk), tuple(b for _, b in chunk)))
    return rows


@pytest.mark.slow
def test_edges_add_up_modulo_2_32(built: Switch) -> None:
    """No carry leaves its lane, and the flag comes when some lane wrapped (H11)."""
    star(built)
    for turn, (left, right) in enumerate(rows_of_pairs(built.build.lanes)):
        parts = [
            contribution(built, child, 4 * turn, values=values)
            for child, values in enumerate((left, right))
        ]
        wraps = any(wrapped(a + b) != a + b for a, b in zip(left, right, strict=True))
        flags = Flag.OVERFLOW if wraps else 0
        total = add(left, right)
        assert up(built, *parts) == [parts[1].popped(values=total, weight=2, flags=flags)]


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1, -1])
def test_one_wrapping_lane_is_found_wherever_it_is(built: Switch, sign: int) -> None:
    lanes = built.build.lanes
    star(built)
    places = sorted({0, 1, 31, 32, 63, 64, 65, lanes - 33, lanes - 32, lanes - 2, lanes - 1})
    counted = 0
    for turn, place in enumerate(p for p in places if 0 <= p < lanes):
        rows = [[sign * -5] * lanes, [sign * 3] * lanes]
        rows[0][place] = MAX if sign > 0 else MIN
        rows[1][place] = sign
        parts = [
            contribution(built, child, 4 * turn, values=tuple(row))
            for child, row in enumerate(rows)
        ]
        expected = parts[1].popped(values=add(*rows), weight=2, flags=Flag.OVERFLOW)
        assert expected.values[place] == (MIN if sign > 0 else MAX)
        assert up(built, *parts) == [expected]
        counted += 1
    assert built.counted()[Outcome.OVERFLOW] == counted


@pytest.mark.slow
def test_sums_one_below_the_limit_do_not_overflow(built: Switch) -> None:
    star(built)
    lanes = built.build.lanes
    rows = [[MAX - 1, MIN + 1] * (lanes // 2), [1, -1] * (lanes // 2)]
    parts = [contribution(built, child, values=tuple(row)) for child, row in enumerate(rows)]
    assert up(built, *parts) == [parts[1].popped(values=(MAX, MIN) * (lanes // 2), weight=2)]
    assert Outcome.OVERFLOW not in built.counted()


@pytest.mark.slow
@pytest.mark.parametrize("reduction", COMBINED_BY)
def test_edges_combine_lane_by_lane(built: Switch, reduction: Reduction) -> None:
    """No borrow leaves its lane, and nothing is an overflow."""
    star(built)
    combine = COMBINED_BY[reduction]
    for turn, (left, right) in enumerate(rows_of_pairs(built.build.lanes)):
        parts = [
            contribution(built, child, 4 * turn, values=values, reduction=reduction)
            for child, values in enumerate((left, right))
        ]
        total = tuple(map(combine, left, right))
        assert up(built, *parts) == [parts[1].popped(values=total, weight=2)]
    assert Outcome.OVERFLOW not in built.counted()


@pytest.mark.slow
def test_random_values_of_seven(built: Switch) -> None:
    star(built, 7)
    rng = random.Random(built.build.lanes)
    for turn, reduction in enumerate((*LANE_REDUCTIONS, *ROOT_REDUCTIONS, Reduction.SUM)):
        rows = [
            tuple(wrapped(rng.getrandbits(32)) for _ in range(built.build.lanes)) for _ in range(7)
        ]
        parts = [
            contribution(built, c, 4 * turn, fan_in=7, values=row, reduction=reduction)
            for c, row in enumerate(rows)
        ]
        total = add(*rows)
        if reduction in COMBINED_BY:
            total = tuple(reduce(COMBINED_BY[reduction], lane) for lane in zip(*rows, strict=True))
        (arrived, again) = up(built, *parts, parts[3])
        assert arrived.values == total
        assert again.values == total
        assert arrived.flags == (0 if reduction in COMBINED_BY else Flag.OVERFLOW)
