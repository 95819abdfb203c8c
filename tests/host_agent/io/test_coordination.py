"""Coordination over TCP: processes that agree on an order, die, come twice or never."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from random import Random

import pytest

from hopsum.coordination.encoding import VERSION, framed, preface
from hopsum.coordination.events import Start
from hopsum.coordination.failure import (
    IterationMismatch,
    OperatorError,
    ProcessLost,
    ProcessRefused,
)
from hopsum.coordination.messages import Frame, Leave
from hopsum.coordination.operators import Operator
from hopsum.coordination.tree import CoordinationTree, balanced_tree
from hopsum.host_agent.io import coordination as module
from hopsum.host_agent.io.coordination import OPTIONS, Address
from tests.support.machine import PATIENCE, loopback, until
from tests.support.paths import ROOT, SUPPORT
from tests.support.waiting_coordinator import WaitingCoordinator

PATIENT = replace(OPTIONS, links=replace(OPTIONS.links, silence=1000.0))
"""No process is lost by silence, only by its connection."""

Group = list[WaitingCoordinator]


def free_addresses(count: int) -> list[Address]:
    return [(address, 9800) for address in loopback(count)]


def operator(name: str, *shape: int) -> Operator:
    return Operator(name, shape or (8,), "float32")


@pytest.fixture(params=["tree", "ring"])
def tree(request: pytest.FixtureRequest) -> CoordinationTree:
    tree = balanced_tree([f"w{rank}" for rank in range(6)], fan_out=2)
    return replace(tree, ring=(3, 0, 5, 1, 4, 2)) if request.param == "ring" else tree


@pytest.fixture
def addresses(tree: CoordinationTree) -> list[Address]:
    """Where each process of the group listens."""
    return free_addresses(len(tree.names))


@pytest.fixture
def group(tree: CoordinationTree, addresses: list[Address]) -> Iterator[Group]:
    with ExitStack() as stack:
        members = [
            stack.enter_context(closing(WaitingCoordinator(tree, rank, addresses, PATIENT)))
            for rank in range(len(tree.names))
        ]
        yield members


def test_all_start_in_one_order_from_different_orders(group: Group) -> None:
    for member in group:
        member.start()
    random = Random(1)
    names = [f"gradient {number}" for number in range(5)]
    for step in range(1, 6):
        for member in group:
            member.begin_iteration(step)
            for name in random.sample(names, len(names)):
                member.ready(operator(name))
        orders = [[member.next_start().name for _ in names] for member in group]
        assert sorted(orders[0]) == names
        assert all(order == orders[0] for order in orders)
    for member in group:
        member.leave()
    for member in group:
        until(lambda member=member: member.done, "the others' leaves")


def test_the_end_does_not_wait_for_messages_that_nobody_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a ring a process answers nothing to the one before it but its first bytes."""
    monkeypatch.setattr(module, "FAREWELL_SECONDS", 1000.0)
    ranks = range(4)
    tree = replace(balanced_tree([f"w{rank}" for rank in ranks], fan_out=2), ring=tuple(ranks))
    addresses = free_addresses(len(ranks))
    members = [WaitingCoordinator(tree, rank, addresses, PATIENT) for rank in ranks]
    for member in members:
        member.start()
    for step in (1, 2, 3):
        for member in members:
            member.begin_iteration(step)
            member.ready(operator("first"))
        for member in members:
            member.next_start()
    for member in members:
        member.leave()
    for member in members:
        member.close()


@pytest.mark.parametrize("dead", [0, 5])
def test_a_dead_process_is_named_everywhere(
    group: Group, tree: CoordinationTree, dead: int
) -> None:
    for member in group:
        member.start()
        member.begin_iteration(1)
        member.ready(operator("first"))
    for member in group:
        member.next_start()
    group[dead].close()
    for member in group:
        if member is not group[dead]:
            with pytest.raises(ProcessLost) as caught:
                member.next_start()
            assert caught.value.name == tree.names[dead]


@pytest.mark.slow
def test_a_killed_process_is_named_by_all_others() -> None:
    script = SUPPORT / "coordinated_process.py"
    addresses = free_addresses(4)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), json.dumps(addresses)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
        processes[2].kill()
        said = [process.communicate(timeout=PATIENCE)[0] for process in processes]
        assert said == ["w2\n", "w2\n", "", "w2\n"]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("late", [0, 1])
def test_a_process_that_never_comes_is_named(late: int) -> None:
    """Of two: a third one might not have come either, on a busy machine, when the time is up."""
    tree = balanced_tree(["a", "b"], fan_out=2)
    options = replace(OPTIONS, links=replace(OPTIONS.links, join=0.3))
    with closing(WaitingCoordinator(tree, 1 - late, free_addresses(2), options)) as member:
        member.start()
        with pytest.raises(ProcessLost, match=f"process {tree.names[late]} is lost"):
            member.next_start()


def test_the_second_process_of_a_name_is_refused_and_the_first_goes_on() -> None:
    tree = balanced_tree(["a", "b"], fan_out=2)
    root, leaf = tree.root, 1 - tree.root
    addresses = free_addresses(2)
    elsewhere = list(addresses)
    elsewhere[leaf] = (addresses[leaf][0], addresses[leaf][1] + 1)
    with (
        closing(WaitingCoordinator(tree, root, addresses, PATIENT)) as parent,
        closing(WaitingCoordinator(tree, leaf, addresses, PATIENT)) as first,
        closing(WaitingCoordinator(tree, leaf, elsewhere, PATIENT)) as second,
    ):
        for member in (parent, first):
            member.start()
            member.begin_iteration(1)
            member.ready(operator("one"))
        assert first.next_start() == parent.next_start()
        second.start()
        with pytest.raises(ProcessRefused, match="another process of this name"):
            second.next_start()
        second.close()
        for member in (parent, first):
            member.ready(operator("two"))
        assert first.next_start() == parent.next_start()


@pytest.mark.parametrize("newer", ["parent", "child"])
def test_processes_of_different_versions_say_so(
    newer: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One end is played by the test: it opens, or answers, with the next version's preface."""
    tree = balanced_tree(["a", "b"], fan_out=2)
    root, leaf = tree.root, 1 - tree.root
    addresses = free_addresses(2)
    other = preface(VERSION + 1)
    versions = f"version {VERSION + 1}, those of this process version {VERSION}"
    if newer == "parent":
        with (
            socket.create_server(addresses[root]) as server,
            closing(WaitingCoordinator(tree, leaf, addresses, PATIENT)) as child,
        ):
            child.start()
            accepted, _ = server.accept()
            with accepted:
                assert accepted.recv(len(other)) == preface(VERSION)
                accepted.sendall(other + b"the rest in that version")
                name = tree.names[leaf]
                with pytest.raises(
                    ProcessRefused, match=f"process {name} is refused: .*{versions}"
                ):
                    child.next_start()
    else:
        with closing(WaitingCoordinator(tree, root, addresses, PATIENT)) as parent:
            parent.start()
            there = (addresses[leaf][0], 0)
            with socket.create_connection(addresses[root], PATIENCE, there) as sock:
                sock.sendall(other + b"the rest in that version")
                assert sock.recv(100) == preface(VERSION)
                assert sock.recv(100) == b""
            assert versions in caplog.text


def test_operators_that_differ_are_given_up_and_others_start(group: Group) -> None:
    for rank, member in enumerate(group):
        member.start()
        member.begin_iteration(1)
        member.ready(operator("wide", 7 if rank == 2 else 8))
    for member in group:
        with pytest.raises(OperatorError, match="wide cannot start"):
            member.next_start()
    for member in group:
        member.ready(operator("other"))
    assert {member.next_start().name for member in group} == {"other"}


@pytest.mark.parametrize("iteration", [1, 3])
def test_an_operator_left_out_is_an_error_everywhere(group: Group, iteration: int) -> None:
    names = ["a", "b", "c"]
    for member in group:
        member.start()
    # The one that leaves it out is last: the others' own calls would fail already.
    order = sorted(enumerate(group), key=lambda each: each[0] == 5)
    for step in range(1, iteration + 1):
        for rank, member in order:
            member.begin_iteration(step)
            # The last does, since those after it might hear of it before they have ended.
            left_out = ["b"] if (step, rank) == (iteration, 5) else []
            member.ready(*(operator(name) for name in names if name not in left_out))
            member.end_iteration()
        if step < iteration:
            for member in group:
                assert [member.next_start().name for _ in names]
    received = []
    for member in group:
        started = []
        without = f"operator b, iteration {iteration}: w5 ended"
        with pytest.raises(IterationMismatch, match=without) as caught:
            while True:
                started.append(member.next_start().name)
        received.append((str(caught.value), started))
    assert received == [received[0]] * len(group)
    assert "b" not in received[0][1]


def test_invalid_frames_end_only_their_connection(group: Group, addresses: list[Address]) -> None:
    for member in group:
        member.start()
    own, other = addresses[:2]
    with socket.create_connection(own, PATIENCE, (other[0], 0)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(100) == b""
    for member in group:
        member.begin_iteration(1)
        member.ready(operator("first"))
    assert {member.next_start().name for member in group} == {"first"}


def test_a_foreign_process_takes_no_place(group: Group, addresses: list[Address]) -> None:
    """A connection from another address than a process's is not accepted as its own."""
    group[0].start()
    own = addresses
    [elsewhere] = loopback(1)
    received = framed(Frame(1, 0, 77, 0, 1, 0, Leave()))
    for source in (elsewhere, own[2][0]):
        with socket.create_connection(own[0], PATIENCE, (source, 0)) as stranger:
            stranger.sendall(preface() + received)
            # It is closed, though it may have been greeted before.
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(100):
                    pass
    for member in group[1:]:
        member.start()
    for member in group:
        member.begin_iteration(1)
        member.ready(operator("first"))
    assert {member.next_start().name for member in group} == {"first"}


def until_closed(connection: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(100):
            pass


@pytest.mark.slow
def test_connections_that_have_not_said_whose_they_are_are_bounded(
    group: Group, addresses: list[Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More are turned away; when some of them have gone, processes get in."""
    monkeypatch.setattr(module, "MOST_UNHEARD", 4)
    group[0].start()
    own = addresses
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(own[0], PATIENCE, (own[2][0], 0)))
            for _ in range(12)
        ]
        for each in silent[4:]:
            until_closed(each)
        # The others go; it has noticed once it closes their connections too.
        for each in silent[:4]:
            each.shutdown(socket.SHUT_WR)
            until_closed(each)
    for member in group[1:]:
        member.start()
    for member in group:
        member.begin_iteration(1)
        member.ready(operator("first"))
    assert {member.next_start().name for member in group} == {"first"}


def test_operators_started_before_an_error_complete() -> None:
    """Others wait in that operator, so that each has to do it before it raises what ended all."""
    addresses = free_addresses(2)
    with closing(WaitingCoordinator(balanced_tree(["a", "b"]), 0, addresses)) as coordinator:
        # As after frames that start an operator and end the coordination in one read.
        participant = coordinator._participant  # noqa: SLF001
        participant._events.append(Start(operator("w", 3), 0.0, 1))  # noqa: SLF001
        participant.failure = IterationMismatch("v", 1, ("b",), "ended it without")
        assert len(coordinator.events()) == 1
        with pytest.raises(IterationMismatch):
            coordinator.events()
