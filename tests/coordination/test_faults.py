from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.coordination.failure import CoordinationError, ProcessLost, ProcessRefused
from hopsum.coordination.link import Link, LinkOptions
from hopsum.coordination.messages import Frame, Leave, Probe, Response
from hopsum.coordination.participant import Participant
from hopsum.coordination.tree import CoordinationTree, balanced_tree
from tests.coordination.test_negotiation import (
    all_started,
    begin,
    group_of,
    iterate,
    ready,
)
from tests.support.coordination_world import OPTIONS, operator, random_tree
from tests.support.search import examples
from tests.support.virtual_group import Costs, VirtualGroup

LINKS = LinkOptions(heartbeat=1.0, silence=5.0, join=30.0, resend=2.0)


@given(st.integers(0, 2**32 - 1))
def test_a_link_brings_every_message_once_and_in_order(seed: int) -> None:
    random = Random(seed)
    wires: tuple[list[Frame], list[Frame]] = ([], [])
    ends = [
        Link(0, 1, 11, wires[0].append, LINKS, 0.0, opens=True, watched=True),
        Link(1, 0, 22, wires[1].append, LINKS, 0.0, opens=False, watched=True),
    ]
    sent: list[list[Probe]] = [[], []]
    arrived: list[list[object]] = [[], []]
    now = 0.0
    steps = 0
    while steps < 60 or any(
        arrived[1 - side] != sent[side] or not ends[side].settled for side in (0, 1)
    ):
        steps += 1
        assert steps < 3000
        side = random.randrange(2)
        if steps < 60 and random.random() < 0.5:
            sent[side].append(Probe(steps, f"{side}", 0))
            ends[side].send(sent[side][-1], now)
        elif wires[side]:
            frame = wires[side].pop(random.randrange(len(wires[side])))
            if random.random() < 0.2:
                wires[side].append(frame)
            if random.random() < 0.7:
                arrived[1 - side] += ends[1 - side].receive(frame, now)
        else:
            now += random.random()
            for end in ends:
                end.tick(now)
        for end in ends:
            assert not end.silent(now) or now > 5


def test_a_repeated_message_is_acknowledged_at_once_and_not_taken_twice() -> None:
    frames: list[Frame] = []
    link = Link(1, 0, 22, frames.append, LINKS, 0.0, opens=False, watched=True)
    again = Frame(0, 1, 11, 0, 1, 0, Leave())
    assert link.receive(again, 0.1) == [Leave()]
    assert frames == []
    assert link.receive(again, 0.2) == []
    assert frames == [Frame(1, 0, 22, 11, 0, 1, None)]


def test_a_stream_costs_a_heartbeat_and_nothing_else() -> None:
    frames: list[Frame] = []
    link = Link(0, 1, 11, frames.append, LINKS, 0.0, opens=True, watched=True)
    link.send(Leave(), 0.0)
    assert [frame.sequence for frame in frames] == [1]
    assert link.receive(Frame(1, 0, 22, 11, 1, 1, Leave()), 0.5) == [Leave()]
    assert link.settled
    link.tick(0.9)
    assert len(frames) == 1
    assert link.deadline == 1.0
    link.tick(1.0)
    assert frames[1:] == [Frame(0, 1, 11, 22, 0, 1, None)]
    assert not link.silent(5.4)
    assert link.silent(5.5)


@pytest.mark.parametrize("dead", [0, 1, 3, 6])
@pytest.mark.parametrize("iteration", [1, 2])
def test_a_dead_process_is_named_everywhere_in_time(dead: int, iteration: int) -> None:
    group = group_of(7)
    for number in range(1, iteration + 1):
        iterate(group, number, "a")
    died = group.now
    group.kill(dead)
    group.run(died + 20)
    latency = 0.001
    bound = OPTIONS.links.silence + 2 * group.tree.height * latency
    for rank, participant in enumerate(group.participants):
        if rank == dead:
            continue
        failure = participant.failure
        assert isinstance(failure, ProcessLost)
        assert failure.name == f"w{dead}"
        assert group.failed_at[rank] <= died + bound
        with pytest.raises(ProcessLost, match=f"process w{dead} is lost: not heard by w"):
            participant.ready(operator("x"), group.now)


def test_a_broken_connection_is_noticed_sooner() -> None:
    group = group_of(7)
    begin(group, 1)
    leaf = 6
    parent = group.tree.parents[leaf]
    group.kill(leaf)
    group.call(group.now, parent, lambda p: p.disconnected(leaf, "connection reset", group.now))
    group.run(group.now + 0.1)
    for rank in range(6):
        assert "w6 is lost: connection reset" in str(group.participants[rank].failure)


def test_a_process_that_never_comes_is_named() -> None:
    group = group_of(3, deliver=lambda frame: () if frame.source == 2 else (0,))
    group.kill(2)
    group.run(OPTIONS.links.join + 1)
    for rank in range(2):
        failure = str(group.participants[rank].failure)
        assert "w2 is lost: it did not connect to w0 within 20 s" in failure


def test_a_process_that_was_only_paused_learns_that_it_is_out() -> None:
    group = group_of(3)
    begin(group, 1)
    group.kill(2)
    group.run(group.now + 10)
    paused, root = group.participants[2], group.participants[0]
    assert isinstance(root.failure, ProcessLost)
    root.take_output()
    paused.tick(group.now)
    assert paused.failure is None
    for frame in paused.take_output():
        root.receive(frame, group.now)
    for frame in root.take_output():
        paused.receive(frame, group.now)
    assert str(paused.failure) == "process w2 is refused: it counts as dead at w0"


@pytest.mark.parametrize("children", [0, 2])
def test_a_second_process_of_one_name_is_refused_and_all_else_goes_on(children: int) -> None:
    group = group_of(7)
    rank = next(r for r in (6, 5, 4, 3, 2, 1) if len(group.tree.children[r]) == children)
    iterate(group, 1, "a")
    second = Participant(group.tree, rank, 99, group.now, OPTIONS)
    parent = group.participants[group.tree.parents[rank]]
    for frame in second.take_output():
        parent.receive(frame, group.now)
    for frame in parent.take_output():
        if frame.to == 99:
            second.receive(frame, group.now)
    assert isinstance(second.failure, ProcessRefused)
    assert f"process w{rank} is refused: another process of this name is connected" in str(
        second.failure
    )
    with pytest.raises(ProcessRefused):
        second.ready(operator("a"), group.now)
    iterate(group, 2, "a", "b")
    assert all_started(group) == ["a", "a", "b"]


def test_a_process_of_another_plan_is_refused_and_the_right_one_may_still_come() -> None:
    tree = balanced_tree(["w0", "w1", "w2"])
    other = balanced_tree(["w0", "w1", "w2"], fan_out=2)
    other = CoordinationTree(("w0", "w1", "x"), other.parents)
    root = Participant(tree, tree.root, 1, 0.0, OPTIONS)
    wrong, right = Participant(other, 2, 7, 0.0, OPTIONS), Participant(tree, 2, 8, 0.0, OPTIONS)
    for process in (wrong, right):
        for frame in process.take_output():
            root.receive(frame, 0.1)
        for frame in root.take_output():
            process.receive(frame, 0.2)
    assert "x was started for tree" in str(wrong.failure)
    assert "start all processes from one plan" in str(wrong.failure)
    assert right.failure is None
    assert root.failure is None


def test_foreign_frames_are_counted_and_ignored() -> None:
    group = group_of(3)
    begin(group, 1)
    participant = group.participants[0]
    for frame in (
        Frame(1, 2, 2, 0, 1, 0, Response(((1, "a"),))),
        Frame(17, 0, 2, 0, 1, 0, Response(((1, "a"),))),
        Frame(1, 0, 2, 12345, 9, 0, Response(((1, "a"),))),
    ):
        participant.receive(frame, group.now)
    assert participant.statistics.foreign == 3
    ready(group, "a")
    assert all_started(group) == ["a"]


def test_a_start_of_another_iteration_ends_the_coordination() -> None:
    group = group_of(2)
    root = group.tree.root
    begin(group, 3)
    ready(group, "a", 1 - root)
    wrong = Response(((2, "a"),))
    group.call(group.now, root, lambda p: p._neighbours.send(1 - root, wrong, group.now))  # noqa: SLF001
    group.run(group.now + 1)
    with pytest.raises(CoordinationError, match="iteration 3: a of iteration 2 starts without"):
        group.participants[1 - root].ready(operator("b"), group.now)


@pytest.mark.slow
@settings(max_examples=examples(20, of=60))
@given(st.integers(0, 2**32 - 1))
def test_all_agents_leave_in_order_under_loss(seed: int) -> None:
    random = Random(seed)

    def deliver(frame: Frame) -> Iterable[float]:
        return () if random.random() < 0.1 else (random.random() * 0.1,)

    tree = random_tree(random)
    group = VirtualGroup(tree, options=OPTIONS, costs=Costs(0.0, 0.01), deliver=deliver)
    for rank in range(len(tree.names)):
        group.call(random.random() * 9, rank, lambda p: p.leave(group.now))
    group.run(60.0)
    assert all(p.done and p.failure is None for p in group.participants)
