"""Reductions to the root and broadcasts from it: packets have lanes one way and none the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import Flag, Kind, Reduction, carries_lanes
from tests.packet.hopsum.packets import Packet, add, lanes_of
from tests.packet.hopsum.star import SERVER_PORT, contribution, result, send, star, up
from tests.packet.hopsum.switches import CPU_PORT, Switch
from tests.packet.hopsum.test_hopsum_inspector import INSPECT, inspect, packet_out
from tests.packet.hopsum.test_hopsum_repairs import (
    numbered,
    replicate,
    request_of_result,
    request_of_sum,
    total_down,
)

BROADCAST, REDUCE = Reduction.BROADCAST, Reduction.REDUCE_SUM
ROOTED = [BROADCAST, REDUCE]


def shaped(switch: Switch, packet: Packet, reduction: Reduction) -> Packet:
    """The packet under that reduction: with lanes only if such packets have any."""
    going_up = packet.kind == Kind.CONTRIBUTION or bool(packet.hops)
    carries = carries_lanes(reduction, up=going_up and packet.kind != Kind.RESULT)
    values = packet.values or lanes_of(switch.build.lanes, 5)
    return replace(packet, reduction=reduction, values=values if carries else ())


def parts(
    switch: Switch, reduction: Reduction, fragment: int = 0, **fields: object
) -> list[Packet]:
    """Both children's contributions."""
    both = (contribution(switch, child, fragment) for child in (0, 1))
    return [shaped(switch, replace(part, **fields), reduction) for part in both]  # type: ignore[arg-type]


def down(switch: Switch, reduction: Reduction, fragment: int = 0, **fields: object) -> Packet:
    """The result for all."""
    return shaped(switch, total_down(switch, fragment, **fields), reduction)


def request_of(switch: Switch, reduction: Reduction, number: int = 0) -> Packet:
    """What a child sends that has missed a result and then seen one of this reduction."""
    return shaped(switch, request_of_result(number, switch), reduction)


def finished(switch: Switch, reduction: Reduction, fragment: int = 0) -> Packet:
    """Sum a fragment and deliver its result, which the slot keeps; return the result."""
    up(switch, *parts(switch, reduction, fragment))
    sent = down(switch, reduction, fragment)
    assert send(switch, SERVER_PORT, sent) == [(1, sent), (2, sent)]
    return sent


@pytest.fixture
def tree(switch: Switch) -> Switch:
    """A switch with two children that sums, and copies results."""
    star(switch)
    replicate(switch, 1, 2)
    return switch


# --- up


def test_broadcasts_collect_weights_and_exponents_only(tree: Switch) -> None:
    both = parts(tree, BROADCAST, exponent=3)
    assert up(tree, *both) == [both[1].popped(weight=2)]


@pytest.mark.parametrize("reduction", ROOTED)
def test_a_complete_sum_is_sent_again_as_it_was(tree: Switch, reduction: Reduction) -> None:
    both = parts(tree, reduction)
    [first] = up(tree, *both)
    assert up(tree, both[0]) == [replace(first, worker=0)]


@pytest.mark.parametrize("last", ROOTED)
@pytest.mark.parametrize("first", [Reduction.SUM, Reduction.NONE, *ROOTED])
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_slot_has_the_lanes_of_its_fragment_only(
    tree: Switch, first: Reduction, last: Reduction, is_kept: bool
) -> None:
    """With a window of 4, fragments 0, 4 and 8 share a slot."""
    for fragment, reduction in enumerate((first, last, first)):
        both = parts(tree, reduction, 4 * fragment)
        values = add(*(part.values for part in both))
        sent = both[1].popped(values=values, weight=2)
        assert up(tree, *both) == [sent]
        assert up(tree, both[1]) == [sent]
        if is_kept:
            send(tree, SERVER_PORT, down(tree, reduction, 4 * fragment))


# --- down, and kept


@pytest.mark.parametrize("reduction", ROOTED)
def test_results_along_a_stack_clear(tree: Switch, reduction: Reduction) -> None:
    both = parts(tree, reduction)
    up(tree, *both)
    sent = shaped(tree, result(tree), reduction)
    assert send(tree, SERVER_PORT, sent) == [(1, sent.popped())]
    assert tree.counted()[Outcome.CLEARED] == 1
    assert up(tree, both[0]) == [both[0].popped(flags=Flag.STALE)]


@pytest.mark.parametrize("opened_by", ["contributions", "the result"])
def test_a_late_contribution_to_a_reduction_gets_the_kept_result(
    tree: Switch, opened_by: str
) -> None:
    """It had lanes, its answer has none."""
    late = parts(tree, REDUCE)[1]
    if opened_by == "contributions":
        kept = finished(tree, REDUCE)
    else:
        kept = down(tree, REDUCE, exponent=9, flags=Flag.OVERFLOW)
        send(tree, SERVER_PORT, kept)
    assert send(tree, 2, late) == [(2, replace(kept, worker=1, tos=URGENT))]
    assert tree.counted()[Outcome.ANSWERED] == 1


@pytest.mark.parametrize("opened_by", ["contributions", "the result"])
def test_a_late_contribution_to_a_broadcast_asks_the_server(tree: Switch, opened_by: str) -> None:
    """It is too short to bring the kept result back."""
    late = parts(tree, BROADCAST)[1]
    if opened_by == "contributions":
        finished(tree, BROADCAST)
    else:
        send(tree, SERVER_PORT, down(tree, BROADCAST))
    assert send(tree, 2, late) == [(SERVER_PORT, late.popped(flags=Flag.STALE))]
    assert Outcome.ANSWERED not in tree.counted()


# --- requests


@pytest.mark.parametrize("reduction", ROOTED)
def test_a_gap_is_asked_for_with_the_frame_that_showed_it(
    tree: Switch, reduction: Reduction
) -> None:
    """With lanes or without: from the child with the stack, from the parent without."""
    sent = numbered(parts(tree, reduction, 1)[0], 1)
    [(port, asked)] = send(tree, 1, sent)
    assert (port, asked) == (1, replace(sent, kind=Kind.REQUEST, tos=URGENT))
    assert asked.on_link == (0, False)
    sent = numbered(down(tree, reduction, 1), 1)
    [asked] = [left for port, left in send(tree, SERVER_PORT, sent) if port == SERVER_PORT]
    assert asked == replace(sent, kind=Kind.REQUEST, tos=URGENT)
    assert asked.on_link == (0, False)


@pytest.mark.parametrize("asks", [Reduction.SUM, *ROOTED])
@pytest.mark.parametrize("lost", [Reduction.SUM, Reduction.NONE, *ROOTED])
def test_a_lost_sum_is_sent_again_if_the_request_is_as_long(
    tree: Switch, lost: Reduction, asks: Reduction
) -> None:
    [first] = up(tree, *parts(tree, lost))
    [later] = up(tree, *parts(tree, asks, 1))
    out = send(tree, SERVER_PORT, request_of_sum(0, later))
    if first.values and not later.values:
        assert out == []
        assert tree.counted()[Outcome.UNANSWERED] == 1
        return
    [(port, again)] = out
    assert (port, again, again.on_link) == (SERVER_PORT, replace(first, tos=URGENT), (0, True))


@pytest.mark.parametrize("asks", [Reduction.SUM, *ROOTED])
@pytest.mark.parametrize("lost", [Reduction.SUM, Reduction.NONE, *ROOTED])
def test_a_lost_result_is_sent_again_if_the_request_is_as_long(
    tree: Switch, lost: Reduction, asks: Reduction
) -> None:
    kept = finished(tree, lost)
    asked = request_of(tree, asks)
    out = send(tree, 1, asked)
    if kept.values and not asked.values:
        assert out == []
        assert tree.counted()[Outcome.UNANSWERED] == 1
        return
    [(port, again)] = out
    assert (port, again, again.on_link) == (1, replace(kept, tos=URGENT), (0, True))


# --- what is refused


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (REDUCE, BROADCAST),
        (REDUCE, Reduction.SUM),
        (REDUCE, Reduction.REDUCE_MAX),
        (BROADCAST, REDUCE),
        (BROADCAST, Reduction.NONE),
        (Reduction.SUM, REDUCE),
        (Reduction.NONE, BROADCAST),
    ],
)
@pytest.mark.parametrize("is_kept", [False, True])
def test_two_reductions_do_not_share_a_fragment(
    tree: Switch, first: Reduction, second: Reduction, is_kept: bool
) -> None:
    ours, other = parts(tree, first), parts(tree, second)[1]
    if is_kept:
        finished(tree, first)
        assert send(tree, 2, other) == []
    else:
        assert up(tree, ours[0], other) == []
        assert up(tree, ours[1])[0].weight == 2
    assert tree.counted()[Outcome.MALFORMED] == 1


FRAMES: dict[str, tuple[int, bool, dict[str, object]]] = {
    "contribution": (1, True, {}),
    "result": (SERVER_PORT, False, {"kind": Kind.RESULT}),
    "replicated": (SERVER_PORT, False, {"kind": Kind.REPLICATED, "hops": ()}),
    "request for a sum": (SERVER_PORT, True, {"kind": Kind.REQUEST}),
    "request for a result": (1, False, {"kind": Kind.REQUEST, "hops": ()}),
    "inspection": (CPU_PORT, False, {"kind": Kind.INSPECT, "hops": ()}),
}
"""By name: the port at which a frame arrives, whether it is like a contribution, its fields."""


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("code", range(16))
def test_lanes_are_there_exactly_where_they_belong(tree: Switch, name: str, code: int) -> None:
    port, going_up, fields = FRAMES[name]
    carries = False
    if code in list(Reduction):
        carries = carries_lanes(Reduction(code), up=going_up)
    for given in (False, True):
        # A frame that is well-formed with these lanes, and then says the reduction.
        packet = contribution(tree, reduction=Reduction.SUM if given else Reduction.NONE)
        packet = replace(packet, **fields)  # type: ignore[arg-type]
        frame = bytearray(replace(packet, values=packet.values if given else ()).frame())
        frame[44] = code << 4
        before = tree.counted().get(Outcome.MALFORMED, 0)
        out = packet_out(INSPECT, bytes(frame)) if port == CPU_PORT else bytes(frame)
        tree.send(port, out)
        refused = tree.counted().get(Outcome.MALFORMED, 0) - before
        is_question = packet.kind in (Kind.REQUEST, Kind.INSPECT)
        bare_question = not given and (packet.kind == Kind.INSPECT or code == Reduction.NONE)
        fine = code in list(Reduction) and given == carries and not (is_question and bare_question)
        assert refused == (not fine), given


# --- what the controller sees


@pytest.mark.parametrize("reduction", [Reduction.NONE, *ROOTED])
def test_the_controller_sees_the_lanes_that_a_slot_has(tree: Switch, reduction: Reduction) -> None:
    finished(tree, Reduction.SUM, 4)  # it shares the slot with fragment 8
    zeros = (0,) * tree.build.lanes
    both = parts(tree, reduction, 8)
    up(tree, *both)
    shown = inspect(tree, 0).packet
    assert (shown.fragment, shown.reduction) == (8, reduction)
    assert shown.values == (add(*(part.values for part in both)) or zeros)
    kept = down(tree, reduction, 8)
    send(tree, SERVER_PORT, kept)
    assert inspect(tree, 0).packet.values == (kept.values or zeros)
