"""Losses on a link: what a gap in the numbers makes a switch ask for, and what it answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import QUESTION, Flag, Kind, Reduction
from tests.packet.hopsum.packets import Packet, add
from tests.packet.hopsum.star import SERVER_PORT, contribution, result, send, star, up
from tests.packet.hopsum.switches import EngineSwitch, Switch

GROUP = 17


def numbered(packet: Packet, sequence: int, *, repair: bool = False, **fields: object) -> Packet:
    """The packet with a number on its link."""
    changed = replace(packet, sequence=sequence, sequenced=True, repair=repair)
    return replace(changed, **fields)  # type: ignore[arg-type]


def from_child(switch: Switch, fragment: int, sequence: int, child: int = 0) -> list[Packet]:
    """Frames sent back to a child that sends a fragment under a sequence number."""
    packet = numbered(contribution(switch, child, fragment), sequence)
    return [sent for port, sent in send(switch, child + 1, packet) if port == child + 1]


def total(switch: Switch, fragment: int = 0) -> list[Packet]:
    """The sum of both children, at the server."""
    return up(switch, *(contribution(switch, child, fragment) for child in (0, 1)))


def request_of_sum(sequence: int, at_server: Packet) -> Packet:
    """The parent's request when a sum like this shows that an earlier one is missing."""
    return numbered(at_server, sequence, kind=Kind.REQUEST, tos=URGENT)


def replicate(switch: Switch, *ports: int) -> None:
    """Let the switch sum for job 1's results too."""
    switch.multicast(GROUP, ports)
    switch.insert(
        "replication", {"job": 1, "tree": 0, "epoch": 1}, "replicate", group=GROUP, clear=1
    )


def total_down(switch: Switch, fragment: int = 0, **fields: object) -> Packet:
    """The result of a fragment as its parent sends it."""
    packet = result(switch, fragment=fragment, kind=Kind.REPLICATED, hops=())
    return replace(packet, **fields)  # type: ignore[arg-type]


def request_of_result(sequence: int, switch: Switch) -> Packet:
    """The request of a child that misses a result."""
    packet = contribution(switch, 0, kind=Kind.REQUEST, hops=(), tos=URGENT)
    return numbered(packet, sequence)


# --- requests


def test_frames_in_order_cause_no_requests(switch: Switch) -> None:
    star(switch)
    assert [from_child(switch, n, n) for n in range(4)] == [[]] * 4
    assert Outcome.REQUESTED not in switch.counted()


def test_a_gap_is_asked_for_with_the_frame_that_showed_it(switch: Switch) -> None:
    star(switch)
    from_child(switch, 0, 0)
    [asked] = from_child(switch, 2, 2)
    assert asked.on_link == (1, False)
    assert asked == contribution(switch, 0, 2, kind=Kind.REQUEST, tos=URGENT)
    assert switch.counted()[Outcome.REQUESTED] == 1


def test_a_request_goes_back_to_who_sent_the_frame(switch: Switch) -> None:
    star(switch)
    frame = numbered(contribution(switch), 1).frame()
    [(port, asked)] = switch.send(1, frame)
    assert port == 1
    assert (asked[:6], asked[6:12]) == (frame[6:12], frame[:6])
    assert (asked[26:30], asked[30:34]) == (frame[30:34], frame[26:30])


def test_each_frame_asks_for_one_the_latest_first(switch: Switch) -> None:
    star(switch)
    asked = [from_child(switch, n % 4, n)[0].sequence for n in (4, 5, 6, 7)]
    assert asked == [3, 2, 1, 0]
    assert from_child(switch, 8 % 4, 8)[0].sequence == 1, "seven before the newest: once more"


def test_missing_frames_are_requested_again_until_too_old(switch: Switch) -> None:
    star(switch)
    asked = {n: [p.sequence for p in from_child(switch, n % 4, n)] for n in range(1, 80)}
    assert {n for n, numbers in asked.items() if numbers} == {1, 7, 15, 23, 31, 39, 47, 55, 63}
    assert {number for numbers in asked.values() for number in numbers} == {0}


@pytest.mark.parametrize("repair", [False, True])
def test_late_and_repeated_frames_are_not_requested(switch: Switch, repair: bool) -> None:
    star(switch)
    from_child(switch, 1, 1)
    send(switch, 1, numbered(contribution(switch), 0, repair=repair))
    assert [from_child(switch, n % 4, n) for n in range(2, 20)] == [[]] * 18


def test_an_old_repair_is_no_new_beginning(switch: Switch) -> None:
    star(switch)
    from_child(switch, 0, 1000)
    send(switch, 1, numbered(contribution(switch, 0, 1), 5, repair=True))
    assert from_child(switch, 2, 1001) == []


def test_sequence_numbers_restart_with_epochs_and_neighbours(switch: Switch) -> None:
    star(switch)
    for number, epoch, missing in ((500, 1, []), (2, 2, [1]), (1, 1, []), (3, 2, [0]), (0, 2, [])):
        packet = numbered(contribution(switch, 0, epoch=epoch), number)
        asked = [sent.sequence for port, sent in send(switch, 1, packet) if port == 1]
        assert asked == missing, (number, epoch)


def test_children_are_counted_apart(switch: Switch) -> None:
    star(switch)
    from_child(switch, 0, 0)
    [asked] = from_child(switch, 1, 1, child=1)
    assert asked.sequence == 0
    assert from_child(switch, 1, 1) == []


def test_numbers_wrap_around(switch: Switch) -> None:
    star(switch)
    from_child(switch, 0, 65534)
    [asked] = from_child(switch, 1, 0)
    assert asked.sequence == 65535


def test_a_gap_in_results_is_asked_for_from_the_parent(switch: Switch) -> None:
    star(switch)
    replicate(switch, 1, 2)
    frame = numbered(total_down(switch, 1), 1).frame()
    [(_, asked)] = [sent for sent in switch.send(SERVER_PORT, frame) if sent[0] == SERVER_PORT]
    packet = Packet.read(asked)
    assert (packet.kind, packet.on_link, packet.tos) == (Kind.REQUEST, (0, False), URGENT)
    assert (asked[:6], asked[30:34]) == (frame[6:12], frame[26:30]), "to the server"
    assert asked[6:12].hex() == "020048530000"


# --- answering


def test_sums_are_numbered_one_by_one(switch: Switch) -> None:
    star(switch)
    sums = [sent for n in range(3) for sent in total(switch, n)]
    assert [sent.on_link for sent in sums] == [(0, False), (1, False), (2, False)]
    again = up(switch, contribution(switch, 0, 1))
    assert [sent.on_link for sent in again] == [(3, False)], "a sum that goes out again"


def test_a_sum_is_sent_again_under_its_number(switch: Switch) -> None:
    star(switch)
    [first], [second] = total(switch, 0), total(switch, 1)
    [(port, again)] = send(switch, SERVER_PORT, request_of_sum(0, second))
    assert port == SERVER_PORT
    assert again == replace(first, tos=URGENT)
    assert again.on_link == (0, True)
    assert switch.counted()[Outcome.REPEATED] == 1


@pytest.mark.parametrize("number", [1, 4, 65535])
def test_requests_for_unsent_frames_are_not_answered(switch: Switch, number: int) -> None:
    star(switch)
    [sent] = total(switch)
    assert send(switch, SERVER_PORT, request_of_sum(number, sent)) == []
    assert switch.counted()[Outcome.UNANSWERED] == 1


def test_a_sum_whose_result_is_here_is_not_sent_again(switch: Switch) -> None:
    star(switch)
    replicate(switch, 1, 2)
    [sent] = total(switch)
    send(switch, SERVER_PORT, total_down(switch))
    assert send(switch, SERVER_PORT, request_of_sum(0, sent)) == []


def test_a_result_is_kept_and_sent_again_to_who_asks(switch: Switch) -> None:
    star(switch)
    replicate(switch, 1, 2)
    total(switch)
    down = total_down(switch, exponent=130, flags=1)
    copies = send(switch, SERVER_PORT, numbered(down, 9))
    assert [(p, sent, sent.on_link) for p, sent in copies if p != SERVER_PORT] == [
        (1, down, (0, False)),
        (2, down, (0, False)),
    ]
    [(port, again)] = send(switch, 1, request_of_result(0, switch))
    assert (port, again, again.on_link) == (1, replace(down, tos=URGENT), (0, True))


def test_a_late_child_gets_the_kept_result(switch: Switch) -> None:
    star(switch)
    replicate(switch, 1, 2)
    total(switch)
    down = total_down(switch)
    send(switch, SERVER_PORT, down)
    late = contribution(switch, 1)
    [(port, answer)] = send(switch, 2, late)
    assert (port, answer) == (2, replace(down, worker=1, tos=URGENT))
    assert answer.on_link == (None, False)
    assert switch.counted()[Outcome.ANSWERED] == 1


def test_a_port_of_several_children_gets_no_kept_result(switch: Switch) -> None:
    """Whoever forwards behind it would copy each one's answer to all; the server knows whom."""
    switch.admit_children(1, 0b11, fan_in=2)
    switch.admit_results(SERVER_PORT)
    replicate(switch, 1)
    for child in (0, 1):
        send(switch, 1, contribution(switch, child))
    send(switch, SERVER_PORT, total_down(switch))
    [(port, question)] = send(switch, 1, contribution(switch, 1))
    assert (port, question.flags) == (SERVER_PORT, Flag.STALE)


@pytest.mark.parametrize("result_is_here", [False, True])
def test_a_copy_under_the_same_number_goes_no_further(switch: Switch, result_is_here: bool) -> None:
    """A late original after its repair, or a frame doubled on the link."""
    star(switch)
    replicate(switch, 1, 2)
    parts = [numbered(contribution(switch, child), 0) for child in (0, 1)]
    up(switch, *parts)
    if result_is_here:
        send(switch, SERVER_PORT, total_down(switch))
    assert send(switch, 1, parts[0]) == []
    assert switch.counted()[Outcome.DUPLICATE] == 1
    assert len(send(switch, 1, numbered(contribution(switch), 1))) == 1, "sent once more"


def test_a_late_sum_of_an_older_epoch_has_no_number(switch: Switch) -> None:
    star(switch)
    total(switch, 0)
    newer = [contribution(switch, child, 1, epoch=2) for child in (0, 1)]
    assert up(switch, *newer)[0].on_link == (0, False)
    assert up(switch, contribution(switch, 0, 0))[0].on_link == (None, False)
    newer = [contribution(switch, child, 2, epoch=2) for child in (0, 1)]
    assert up(switch, *newer)[0].on_link == (1, False)


def test_a_result_that_was_here_before_goes_no_further(switch: Switch) -> None:
    star(switch)
    replicate(switch, 1, 2)
    total(switch)
    assert len(send(switch, SERVER_PORT, total_down(switch))) == 2
    assert send(switch, SERVER_PORT, total_down(switch)) == []
    assert switch.counted()[Outcome.DUPLICATE] == 1


# --- what is kept by a slot that no contribution has opened


def replicate_also(switch: Switch, epoch: int) -> None:
    """Let another plan's results come by the same ports."""
    switch.insert(
        "replication", {"job": 1, "tree": 0, "epoch": epoch}, "replicate", group=GROUP, clear=1
    )


@pytest.mark.parametrize("before", ["nothing", "cleared", "unfinished", "complete", "older epoch"])
def test_a_result_is_kept_by_a_slot_that_holds_nothing_newer(switch: Switch, before: str) -> None:
    """After a reboot, after contributions that bypassed the switch, under a new plan."""
    star(switch)
    replicate(switch, 1, 2)
    replicate_also(switch, 2)
    parts = [contribution(switch, child, 0) for child in (0, 1)]
    if before == "older epoch":
        parts = [contribution(switch, child, 4) for child in (0, 1)]
    up(switch, *parts[: {"nothing": 0, "unfinished": 1}.get(before, 2)])
    if before == "cleared":
        send(switch, SERVER_PORT, total_down(switch))
    epoch = 2 if before == "older epoch" else 1
    down = total_down(switch, 4, epoch=epoch, exponent=130, flags=1, reduction=Reduction.MAX)
    copies = send(switch, SERVER_PORT, down)
    assert [(port, sent, sent.on_link[1]) for port, sent in copies] == [
        (1, down, False),
        (2, down, False),
    ]
    assert switch.counted()[Outcome.KEPT] == 1

    [number] = {sent.on_link[0] for _, sent in copies}
    assert number is not None
    [(port, again)] = send(switch, 1, replace(request_of_result(number, switch), epoch=epoch))
    assert (port, again) == (1, replace(down, tos=URGENT))
    late = contribution(switch, 1, 4, epoch=epoch, reduction=Reduction.MAX)
    [(port, answer)] = send(switch, 2, late)
    assert (port, answer) == (2, replace(down, worker=1, tos=URGENT))
    assert send(switch, SERVER_PORT, down) == [], "it has gone on from here before"


def test_a_slot_that_keeps_a_result_serves_the_next_fragment(switch: Switch) -> None:
    star(switch)
    replicate(switch, 1, 2)
    send(switch, SERVER_PORT, total_down(switch, 0))
    parts = [contribution(switch, child, 4) for child in (0, 1)]
    [at_server] = up(switch, *parts)
    assert (at_server.values, at_server.weight) == (add(*(part.values for part in parts)), 2)
    assert switch.counted() == {Outcome.KEPT: 1, Outcome.AGGREGATED: 1, Outcome.COMPLETED: 1}


def test_a_late_result_takes_no_slot_of_a_newer_fragment(switch: Switch) -> None:
    star(switch)
    replicate(switch, 1, 2)
    parts = [contribution(switch, child, 4) for child in (0, 1)]
    up(switch, parts[0])
    assert len(send(switch, SERVER_PORT, total_down(switch, 0))) == 2
    assert up(switch, parts[1])[0].weight == 2
    send(switch, SERVER_PORT, total_down(switch, 4))
    assert len(send(switch, SERVER_PORT, total_down(switch, 0))) == 2
    assert send(switch, SERVER_PORT, total_down(switch, 4)) == [], "still kept"
    assert Outcome.KEPT not in switch.counted()


@pytest.mark.parametrize("other", [{"job": 2}, {"tree": 1}], ids=str)
def test_a_result_ends_no_sum_of_another_job(switch: Switch, other: dict[str, int]) -> None:
    star(switch)
    star(switch, **other)
    replicate(switch, 1, 2)
    parts = [contribution(switch, child, **other) for child in (0, 1)]
    up(switch, parts[0])
    assert len(send(switch, SERVER_PORT, total_down(switch))) == 2
    assert up(switch, parts[1])[0].weight == 2
    down = result(switch, **other)  # type: ignore[arg-type]
    assert send(switch, SERVER_PORT, down) == [(1, down.popped())]
    assert Outcome.KEPT not in switch.counted()
    send(switch, SERVER_PORT, total_down(switch))
    assert switch.counted()[Outcome.KEPT] == 1, "the slot was cleared"


def test_a_switch_that_only_forwards_results_keeps_none(switch: Switch) -> None:
    star(switch)
    switch.multicast(GROUP, (1, 2))
    switch.insert(
        "replication", {"job": 1, "tree": 0, "epoch": 1}, "replicate", group=GROUP, clear=0
    )
    assert len(send(switch, SERVER_PORT, total_down(switch))) == 2
    assert switch.counted() == {Outcome.RESULT: 1}


def test_a_sum_completed_by_a_repair_is_not_urgent(switch: Switch) -> None:
    star(switch)
    parts = [contribution(switch, child) for child in (0, 1)]
    up(switch, parts[0])
    [sent] = up(switch, numbered(parts[1], 0, repair=True, tos=0x20 | URGENT))
    values = add(*(part.values for part in parts))
    assert sent == parts[1].popped(values=values, weight=2, tos=0x20)
    assert sent.on_link == (0, False)


def test_a_sum_completed_by_a_repair_waits_in_its_jobs_queue(switch: Switch) -> None:
    if not isinstance(switch, EngineSwitch):
        pytest.skip("packets of one batch wait for each other in executors only")
    star(switch)
    up(switch, contribution(switch, 0, 9, tos=0x20))
    first = [contribution(switch, 1, f, flags=Flag.BYPASS, tos=0x40) for f in range(3)]
    repaired = numbered(contribution(switch, 1, 9), 0, repair=True, tos=0x20 | URGENT)
    out = [packet.fragment for _, packet in send(switch, 2, repaired, *first)]
    assert out == [0, 1, 2, 9]


def test_a_switch_that_only_forwards_takes_the_number_away(switch: Switch) -> None:
    star(switch)
    first = replace(contribution(switch).hops[0], aggregate=False)
    packet = contribution(switch, hops=(first, *contribution(switch).hops[1:]))
    [sent] = up(switch, numbered(packet, 7, repair=True))
    assert sent.on_link == (None, False)


def test_a_unicast_result_keeps_its_number_without_the_flags_of_the_link(switch: Switch) -> None:
    """The number is for its worker, past all switches."""
    star(switch)
    up(switch, contribution(switch, 0))
    down = result(switch)
    [(port, sent)] = send(switch, SERVER_PORT, numbered(down, 300, repair=True, tos=URGENT))
    assert (port, sent) == (1, replace(down.popped(), tos=URGENT))
    assert (sent.on_link, sent.sequence) == ((None, False), 300)


def test_a_question_for_a_unicast_result_passes_slots_of_any_state(switch: Switch) -> None:
    star(switch)
    asks = contribution(switch, 1, flags=QUESTION, reduction=Reduction.NONE, values=(), tos=URGENT)
    asks = replace(asks, sequence=300)
    for before in ((), (contribution(switch, 0),), (contribution(switch, 1),)):
        up(switch, *before)
        [sent] = up(switch, asks)
        assert sent == asks.popped()
        assert (sent.on_link, sent.sequence) == ((None, False), 300)


def test_a_question_for_a_contribution_passes_slots_of_any_state(switch: Switch) -> None:
    """It clears nothing, and a contribution past all switches keeps its number."""
    star(switch)
    asks = replace(
        result(switch),
        flags=QUESTION,
        reduction=Reduction.NONE,
        values=(),
        tos=URGENT,
        sequence=300,
    )
    asks = replace(asks, hops=tuple(replace(hop, clear=False) for hop in asks.hops))
    for before in ((), (contribution(switch, 0),), (contribution(switch, 1),)):
        up(switch, *before)
        [(port, sent)] = send(switch, SERVER_PORT, asks)
        assert (port, sent) == (1, asks.popped())
        assert (sent.on_link, sent.sequence) == ((None, False), 300)
    first = replace(contribution(switch).hops[0], aggregate=False)
    direct = contribution(switch, hops=(first, *contribution(switch).hops[1:]))
    [sent] = up(switch, numbered(direct, 300, repair=True, tos=URGENT))
    assert (sent.on_link, sent.sequence) == ((None, False), 300)


def test_a_reused_slot_answers_for_its_own_fragment_only(switch: Switch) -> None:
    star(switch)
    total(switch, 0)
    [sent] = total(switch, 4)
    assert send(switch, SERVER_PORT, request_of_sum(0, sent)) == []


# --- who may ask


@pytest.mark.parametrize(
    ("port", "outcome"), [(1, Outcome.MALFORMED), (5, Outcome.NOT_ADMITTED)], ids=["child", "none"]
)
def test_only_the_parent_asks_for_sums(switch: Switch, port: int, outcome: Outcome) -> None:
    star(switch)
    [sent] = total(switch)
    assert send(switch, port, request_of_sum(0, sent)) == []
    assert switch.counted()[outcome] == 1


def test_the_parent_does_not_ask_for_results(switch: Switch) -> None:
    star(switch)
    assert send(switch, SERVER_PORT, request_of_result(0, switch)) == []
    assert switch.counted() == {Outcome.MALFORMED: 1}


def test_a_request_of_another_job_is_not_answered(switch: Switch) -> None:
    star(switch)
    star(switch, job=2)
    [sent] = total(switch)
    assert send(switch, SERVER_PORT, replace(request_of_sum(0, sent), job=2)) == []
    assert switch.counted()[Outcome.UNANSWERED] == 1
