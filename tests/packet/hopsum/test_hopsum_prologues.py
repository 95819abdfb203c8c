"""Packets without lanes: exponents are all that they bring up and down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import Kind, Reduction
from tests.packet.hopsum.packets import Packet
from tests.packet.hopsum.star import SERVER_PORT, contribution, result, send, star, up
from tests.packet.hopsum.switches import Switch
from tests.packet.hopsum.test_hopsum_repairs import (
    from_child,
    numbered,
    replicate,
    request_of_result,
    request_of_sum,
    total_down,
)

BARE: dict[str, object] = {"values": (), "reduction": Reduction.NONE}


def parts(switch: Switch, fragment: int = 0) -> list[Packet]:
    """Both children's prologues."""
    return [contribution(switch, child, fragment, exponent=120 + child, **BARE) for child in (0, 1)]


def test_exponents_and_weights_combine_without_lanes(switch: Switch) -> None:
    star(switch)
    both = parts(switch)
    [sent] = up(switch, *both)
    assert sent == both[1].popped(weight=2, exponent=121)


def test_a_result_without_lanes_is_kept_for_who_missed_it(switch: Switch) -> None:
    star(switch)
    replicate(switch, 1, 2)
    both = parts(switch)
    up(switch, *both)
    down = total_down(switch, exponent=121, **BARE)
    assert [sent for _, sent in send(switch, SERVER_PORT, down)] == [down, down]
    again = replace(down, tos=URGENT)
    assert send(switch, 1, both[0]) == [(1, again)]
    assert send(switch, 1, request_of_result(0, switch)) == [(1, again)]


def test_a_lost_sum_without_lanes_is_sent_again_to_who_asks(switch: Switch) -> None:
    star(switch)
    up(switch, *parts(switch))
    [later] = up(switch, *(contribution(switch, child, 1) for child in (0, 1)))
    [(port, again)] = send(switch, SERVER_PORT, request_of_sum(0, later))
    assert port == SERVER_PORT
    assert (again.fragment, again.exponent, again.values) == (0, 121, ())
    assert again.on_link == (0, True)


def test_a_slot_has_the_lanes_of_its_fragment_only(switch: Switch) -> None:
    """With a window of 4, fragments 0, 4 and 8 share a slot."""
    star(switch)
    first, last = ([contribution(switch, child, f) for child in (0, 1)] for f in (0, 8))
    [before] = up(switch, *first)
    up(switch, *parts(switch, 4))
    [after] = up(switch, *last)
    assert len(before.values) == len(after.values) == switch.build.lanes
    assert after.values == tuple(a + b for a, b in zip(*(p.values for p in last), strict=True))


def test_packets_with_lanes_are_refused_by_slots_without(switch: Switch) -> None:
    star(switch)
    replicate(switch, 1, 2)
    bare, full = parts(switch), contribution(switch, 1)
    assert up(switch, bare[0], full) == []
    assert up(switch, bare[1])[0].weight == 2
    send(switch, SERVER_PORT, total_down(switch, **BARE))
    assert send(switch, 2, full) == []
    assert switch.counted()[Outcome.MALFORMED] == 2


def test_a_packet_without_lanes_leaves_the_request_to_the_next(switch: Switch) -> None:
    star(switch)
    bare = numbered(contribution(switch, 0, 1, **BARE), 1)
    assert send(switch, 1, bare) == [], "1 came, 0 has not"
    [asked] = from_child(switch, 2, 2)
    assert (asked.sequence, len(asked.values)) == (0, switch.build.lanes)


@pytest.mark.parametrize("kind", [Kind.REQUEST, Kind.CONTRIBUTION])
def test_requests_have_lanes(switch: Switch, kind: Kind) -> None:
    star(switch)
    up(switch, *parts(switch))
    packet = replace(parts(switch, 1)[0], kind=kind, sequenced=True)
    send(switch, SERVER_PORT if kind is Kind.REQUEST else 1, packet)
    assert (Outcome.MALFORMED in switch.counted()) == (kind is Kind.REQUEST)


def test_a_result_along_a_stack_needs_no_lanes(switch: Switch) -> None:
    star(switch)
    up(switch, *parts(switch))
    down = result(switch, exponent=121, **BARE)
    assert send(switch, SERVER_PORT, down) == [(1, down.popped())]
    assert switch.counted()[Outcome.CLEARED] == 1
