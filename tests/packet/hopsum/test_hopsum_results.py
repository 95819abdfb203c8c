"""Results: what they clear, where they go, and what a late or repeated one does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import Flag, Hop, Kind
from tests.packet.hopsum.packets import Packet, add
from tests.packet.hopsum.star import SERVER_PORT, contribution, result, send, star, up
from tests.packet.hopsum.switches import Switch

EPOCH = 1
GROUP = 17


def replicated(switch: Switch, fragment: int = 0, **fields: object) -> Packet:
    """The server's result for all workers."""
    packet = result(switch, fragment=fragment, kind=Kind.REPLICATED, hops=())
    return replace(packet, **fields)  # type: ignore[arg-type]


def replicate_to(switch: Switch, *ports: int, clear: int = 1, epoch: int = EPOCH) -> None:
    """Have the switch copy job 1's results to ports."""
    switch.multicast(GROUP, ports)
    switch.insert(
        "replication", {"job": 1, "tree": 0, "epoch": epoch}, "replicate", group=GROUP, clear=clear
    )


def is_cleared(switch: Switch, fragment: int = 0) -> bool:
    """Whether the slot of a fragment that child 0 has contributed is cleared."""
    late = (Outcome.STALE, Outcome.ANSWERED)
    before = sum(switch.counted().get(outcome, 0) for outcome in late)
    send(switch, 1, contribution(switch, 0, fragment))
    return sum(switch.counted().get(outcome, 0) for outcome in late) > before


# --- along the stack


def test_a_result_follows_its_stack_and_clears(switch: Switch) -> None:
    star(switch)
    up(switch, contribution(switch, 0))
    down = result(switch, hops=(Hop(clear=True, port=1), Hop(port=5), Hop(clear=True, port=3)))
    assert send(switch, SERVER_PORT, down) == [(1, down.popped())]
    assert switch.counted() == {Outcome.AGGREGATED: 1, Outcome.CLEARED: 1}
    assert is_cleared(switch)


def test_a_result_arrives_at_its_worker_with_no_stack(switch: Switch) -> None:
    star(switch)
    down = result(switch, 1, flags=Flag.OVERFLOW | Flag.ECN, exponent=140, tos=0x28)
    ((port, arrived),) = send(switch, SERVER_PORT, down)
    assert (port, arrived) == (2, down.popped())
    assert arrived.hops == ()


def test_a_result_that_clears_nothing_is_still_delivered(switch: Switch) -> None:
    star(switch)
    up(switch, contribution(switch, 0))
    down = result(switch, clear=False)
    assert send(switch, SERVER_PORT, down) == [(1, down.popped())]
    assert switch.counted() == {Outcome.AGGREGATED: 1, Outcome.RESULT: 1}
    assert not is_cleared(switch)


def test_a_slot_is_cleared_once_however_many_results_pass(switch: Switch) -> None:
    """One result a worker passes a shared switch."""
    star(switch, 3)
    up(switch, *(contribution(switch, child, fan_in=3) for child in range(3)))
    for child in range(3):
        down = result(switch, child)
        assert send(switch, SERVER_PORT, down) == [(child + 1, down.popped())]
    assert switch.counted()[Outcome.CLEARED] == 1
    assert switch.counted()[Outcome.RESULT] == 2


@pytest.mark.parametrize(
    "other",
    [{"fragment": 0}, {"fragment": 8}, {"epoch": 2}, {"tree": 1}, {"job": 2}],
    ids=str,
)
def test_a_clear_names_exactly_what_it_clears(switch: Switch, other: dict[str, int]) -> None:
    """H8: a clear of another fragment leaves a half-full slot alone."""
    star(switch)
    star(switch, job=2)
    star(switch, tree=1)
    parts = [contribution(switch, child, 4) for child in (0, 1)]
    up(switch, parts[0])
    down = replace(result(switch, fragment=4), **other)  # type: ignore[arg-type]
    assert send(switch, SERVER_PORT, down) == [(1, down.popped())]
    assert switch.counted() == {Outcome.AGGREGATED: 1, Outcome.RESULT: 1}
    total = add(*(part.values for part in parts))
    assert up(switch, parts[1]) == [parts[1].popped(values=total, weight=2)]


def test_a_lost_clear_leaks_no_slot(switch: Switch) -> None:
    """H7: the next fragment needs no clear."""
    star(switch)
    for fragment in (0, 4, 8):
        parts = [contribution(switch, child, fragment) for child in (0, 1)]
        total = add(*(part.values for part in parts))
        assert up(switch, *parts) == [parts[1].popped(values=total, weight=2)]
    down = result(switch, fragment=0)
    assert send(switch, SERVER_PORT, down) == [(1, down.popped())]
    assert not is_cleared(switch, 8)


def test_a_clear_of_an_empty_switch_changes_nothing(switch: Switch) -> None:
    """After a reboot: the slot stays vacant and takes the next contribution."""
    star(switch)
    send(switch, SERVER_PORT, result(switch))
    assert switch.counted() == {Outcome.RESULT: 1}
    parts = [contribution(switch, child) for child in (0, 1)]
    assert up(switch, *parts)[0].weight == 2


@pytest.mark.parametrize("flags", [Flag.STALE, Flag.BYPASS])
def test_flags_of_a_result_do_not_stop_it(switch: Switch, flags: int) -> None:
    star(switch)
    up(switch, contribution(switch, 0))
    down = result(switch, flags=flags)
    assert send(switch, SERVER_PORT, down) == [(1, down.popped())]
    assert switch.counted()[Outcome.CLEARED] == 1


# --- replicated


def test_a_replicated_result_goes_to_the_group_and_clears(switch: Switch) -> None:
    star(switch)
    replicate_to(switch, 1, 2, 5)
    up(switch, contribution(switch, 0))
    down = replicated(switch)
    assert send(switch, SERVER_PORT, down) == [(1, down), (2, down), (5, down)]
    assert switch.counted() == {Outcome.AGGREGATED: 1, Outcome.CLEARED: 1}
    assert is_cleared(switch)


def test_a_switch_that_does_not_aggregate_replicates_without_clearing(switch: Switch) -> None:
    star(switch)
    replicate_to(switch, 3, clear=0)
    up(switch, contribution(switch, 0))
    assert send(switch, SERVER_PORT, replicated(switch)) == [(3, replicated(switch))]
    assert switch.counted() == {Outcome.AGGREGATED: 1, Outcome.RESULT: 1}
    assert not is_cleared(switch)


def test_a_replicated_result_never_goes_back(switch: Switch) -> None:
    star(switch)
    replicate_to(switch, 1, SERVER_PORT)
    assert [port for port, _ in send(switch, SERVER_PORT, replicated(switch))] == [1]


@pytest.mark.parametrize("other", [{"epoch": 2}, {"tree": 1}, {"job": 2}], ids=str)
def test_results_without_a_group_are_not_replicated(switch: Switch, other: dict[str, int]) -> None:
    """H28: by epoch, so that tables of two plans cannot loop a result."""
    star(switch)
    star(switch, job=2)
    star(switch, tree=1)
    replicate_to(switch, 1, 2)
    assert send(switch, SERVER_PORT, replace(replicated(switch), **other)) == []  # type: ignore[arg-type]
    assert switch.counted() == {Outcome.NOT_ADMITTED: 1}


def test_a_worker_that_left_gets_nothing_more(switch: Switch) -> None:
    """H28: the new plan has a group of its own; the old one stays until it is taken away."""
    star(switch)
    replicate_to(switch, 1, 2, 3)
    switch.multicast(GROUP + 1, (1, 3))
    switch.insert(
        "replication", {"job": 1, "tree": 0, "epoch": 2}, "replicate", group=GROUP + 1, clear=1
    )
    assert [p for p, _ in send(switch, SERVER_PORT, replicated(switch, epoch=2))] == [1, 3]
    switch.delete("replication", {"job": 1, "tree": 0, "epoch": 1})
    assert send(switch, SERVER_PORT, replicated(switch)) == []


def test_an_empty_group_clears_all_the_same(switch: Switch) -> None:
    star(switch)
    replicate_to(switch)
    up(switch, contribution(switch, 0))
    assert send(switch, SERVER_PORT, replicated(switch)) == []
    assert is_cleared(switch)


# --- from whom


@pytest.mark.parametrize("port", [1, 5])
@pytest.mark.parametrize("kind", [Kind.RESULT, Kind.REPLICATED])
def test_results_come_from_the_server_only(switch: Switch, port: int, kind: Kind) -> None:
    """A child, or a port that the job knows nothing of, clears nothing."""
    star(switch)
    replicate_to(switch, 1, 2)
    up(switch, contribution(switch, 0))
    down = replicated(switch) if kind == Kind.REPLICATED else result(switch)
    assert send(switch, port, down) == []
    assert switch.counted() == {Outcome.AGGREGATED: 1, Outcome.NOT_ADMITTED: 1}
    assert not is_cleared(switch)
