"""The width of values: which there are, and that it goes wherever a slot's sum or result goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import Reduction, Width
from tests.oracles.reference_values import combine, is_known
from tests.packet.hopsum.packets import Packet
from tests.packet.hopsum.star import SERVER_PORT, contribution, send, star, up
from tests.packet.hopsum.switches import Switch
from tests.packet.hopsum.test_hopsum_inspector import inspect
from tests.packet.hopsum.test_hopsum_repairs import (
    numbered,
    replicate,
    request_of_result,
    request_of_sum,
    total_down,
)
from tests.packet.hopsum.test_hopsum_rooted_trees import shaped

NARROW = (Width.WIDTH_16, Width.WIDTH_8)
MIXED = [(a, b) for a in Width for b in Width if a is not b]


def parts_of(switch: Switch, width: Width, fragment: int = 0) -> list[Packet]:
    """Both children's contributions."""
    return [contribution(switch, child, fragment, width=width) for child in (0, 1)]


def total_of(parts: list[Packet]) -> tuple[int, ...]:
    """Their sum."""
    first, second = parts
    return combine(first.values, second.values, Reduction.SUM, Width(first.width))[0]


@pytest.mark.parametrize("code", range(16))
def test_only_numbers_have_widths_and_only_three(switch: Switch, code: int) -> None:
    star(switch)
    reduction = Reduction(code) if code in list(Reduction) else Reduction.SUM
    expected = Counter[Outcome]()
    for width in range(16):
        # Those that are known come first, and have a slot each.
        frame = bytearray(shaped(switch, contribution(switch, 0, width % 4), reduction).frame())
        byte = frame[44] = code << 4 | width
        assert switch.send(1, bytes(frame)) == []
        expected[Outcome.AGGREGATED if is_known(byte) else Outcome.MALFORMED] += 1
        assert switch.counted() == expected, f"{byte:#x}"


@pytest.mark.parametrize(("width", "other"), MIXED)
def test_another_width_than_the_slots_is_malformed(
    switch: Switch, width: Width, other: Width
) -> None:
    star(switch)
    parts = parts_of(switch, width)
    up(switch, parts[0])
    assert up(switch, replace(parts[1], width=other)) == []
    assert switch.counted() == {Outcome.AGGREGATED: 1, Outcome.MALFORMED: 1}
    [sent] = up(switch, parts[1])
    assert (sent.weight, sent.width, sent.values) == (2, width, total_of(parts))
    assert up(switch, replace(parts[0], width=other)) == [], "complete, but not of this width"
    assert switch.counted()[Outcome.MALFORMED] == 2
    assert up(switch, parts[0])[0].values == total_of(parts)


@pytest.mark.parametrize(("width", "other"), MIXED)
def test_fragments_of_all_widths_share_slots(switch: Switch, width: Width, other: Width) -> None:
    star(switch)
    for fragment, each in ((0, width), (4, other), (8, width)):
        parts = parts_of(switch, each, fragment)
        [sent] = up(switch, *parts)
        assert (sent.width, sent.values) == (each, total_of(parts))
    up(switch, contribution(switch, 0, 12, width=other))
    parts = parts_of(switch, width, 16)
    assert up(switch, *parts)[0].values == total_of(parts), "it took an unfinished sum over"


@pytest.mark.parametrize(("width", "other"), MIXED)
def test_a_sum_is_repaired_in_its_own_width(switch: Switch, width: Width, other: Width) -> None:
    """The request is a copy of a frame of another width."""
    star(switch)
    parts = parts_of(switch, width)
    [lost] = up(switch, *parts)
    [shows] = up(switch, *parts_of(switch, other, 1))
    [(port, again)] = send(switch, SERVER_PORT, request_of_sum(0, shows))
    assert (port, again) == (SERVER_PORT, replace(lost, tos=URGENT))
    assert again.width == width


@pytest.mark.parametrize("before", ["nothing", "sum"])
@pytest.mark.parametrize(("width", "other"), MIXED)
def test_a_result_is_kept_in_its_own_width(
    switch: Switch, width: Width, other: Width, before: str
) -> None:
    """After a sum, and after a reboot."""
    star(switch)
    replicate(switch, 1, 2)
    parts = parts_of(switch, width)
    if before == "sum":
        up(switch, *parts)
    down = total_down(switch, width=width)
    copies = send(switch, SERVER_PORT, down)
    assert [(port, sent.width) for port, sent in copies] == [(1, width), (2, width)]
    assert send(switch, 2, parts[1]) == [(2, replace(down, worker=1, tos=URGENT))]
    request = replace(request_of_result(0, switch), width=other)
    assert send(switch, 1, request) == [(1, replace(down, tos=URGENT))]
    assert send(switch, 2, replace(parts[1], width=other)) == []
    assert switch.counted()[Outcome.MALFORMED] == 1


@pytest.mark.parametrize("width", Width)
def test_the_controller_sees_the_width(switch: Switch, width: Width) -> None:
    star(switch)
    up(switch, contribution(switch, width=width))
    assert inspect(switch, 0).packet.width == width


@pytest.mark.parametrize("width", NARROW)
def test_a_request_has_the_width_of_the_frame_that_showed_the_loss(
    switch: Switch, width: Width
) -> None:
    star(switch)
    late = numbered(contribution(switch, 0, 1, width=width), 1)
    [(port, asks)] = send(switch, 1, late)
    assert (port, asks.width, asks.on_link) == (1, width, (0, False))
