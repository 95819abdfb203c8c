"""Processes that attend a job as its ranks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hopsum.host_agent.io.attendance import ProcessGone
from hopsum.host_agent.process_calls import done_packet
from tests.support.agent_socket import JOB, Host, Process, as_user, attending, barrier

FORKING = """
import os, socket, sys
name, *messages = sys.argv[1:]
connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connected.connect("\\0" + name[1:])
connected.recv(1000)
for message in messages:
    connected.send(message.encode())
if not os.fork():
    sys.stdin.read()
"""
"""A process that leaves its socket to a child, which ends with its standard input."""


def test_one_process_attends_a_job(host: Host) -> None:
    first, second = Process(host), Process(host)
    first.say({"kind": "attend", "job": JOB, "rank": 0})
    second.say({"kind": "attend", "job": JOB, "rank": 0})
    assert (
        "another process attends it as rank 0; expected one process a rank" in second.hear()["why"]
    )


@pytest.mark.parametrize("early", [True, False])
def test_each_rank_of_a_host_has_a_place(host: Host, early: bool) -> None:
    attendance, ranks = host.socket.attendance(JOB), ["h2", "h1", "h1"]
    if not early:
        attendance.start(ranks, rooted=True)
    first, second, stranger = attending(host, 2, 1, 0)
    if early:
        attendance.start(ranks, rooted=True)
    started = {"kind": "started", "ranks": ranks, "rooted": True}
    assert first.hear() == second.hear() == started
    assert "rank 0 is not here; expected one of 1, 2" in stranger.hear()["why"]
    second.say(barrier(5))
    first.say(barrier(6))
    assert sorted((rank, request.call) for rank, request in attendance.take()) == [(1, 5), (2, 6)]
    attendance.done(1, 5)
    attendance.failed(2, 6, "because", {0: "of this"})
    assert second.hear() == {"done": done_packet(5)}
    assert first.hear() == {
        "kind": "failed",
        "call": 6,
        "why": "because",
        "whose": {"0": "of this"},
    }
    # One that leaves may go, the other is missed, by its rank.
    second.say({"kind": "leave"})
    assert [(rank, request.kind) for rank, request in attendance.take()] == [(1, "leave")]
    for process in (second, first):
        assert attendance.take() == []
        process.socket.close()
        host.turn()
    with pytest.raises(
        ProcessGone, match="job 7: the process of rank 2 on h1 disconnected without leaving"
    ):
        attendance.take()


def test_the_one_rank_of_a_host_has_the_number_that_the_job_says(host: Host) -> None:
    """The ranks of a training may have another order than the hosts of a job given by number."""
    [process] = attending(host, 0)
    attendance = host.socket.attendance(JOB)
    attendance.start(["h2", "h1"], rooted=False)
    assert process.hear()["kind"] == "started"
    process.say(barrier(0))
    [(rank, _)] = attendance.take()
    assert rank == 1
    [other] = attending(host, 1)
    assert "another process attends it as rank 1" in other.hear()["why"]


def test_a_job_is_attended_by_processes_of_one_user(host: Host) -> None:
    first, other = as_user(host, 1001), as_user(host, 1002)
    first.say({"kind": "attend", "job": JOB, "rank": 0})
    other.say({"kind": "attend", "job": JOB, "rank": 1})
    assert "job 7 belongs to user 1001 on this host" in other.hear()["why"]


@pytest.mark.parametrize("goodbye", [True, False])
def test_a_process_that_ends_silently_is_named(host: Host, goodbye: bool) -> None:
    process = Process(host)
    process.say({"kind": "attend", "job": JOB, "rank": 0})
    if goodbye:
        process.say({"kind": "leave"})
    attendance = host.socket.attendance(JOB)
    assert len(attendance.take()) == goodbye
    process.socket.close()
    host.turn()
    if goodbye:
        assert attendance.take() == []
    else:
        with pytest.raises(
            ProcessGone, match="job 7: the process on h1 disconnected without leaving"
        ):
            attendance.take()


@pytest.mark.parametrize("goodbye", [True, False])
def test_the_end_of_a_process_that_has_forked_others_is_noticed(host: Host, goodbye: bool) -> None:
    """At once, after all its messages, though its socket is open in the others."""
    said = [{"kind": "attend", "job": JOB, "rank": 0}, *[{"kind": "leave"}] * goodbye]
    before = len(host.watched)
    with subprocess.Popen(
        [sys.executable, "-c", FORKING, host.socket.name, *map(json.dumps, said)],
        stdin=subprocess.PIPE,
    ) as process:
        while process.poll() is None:
            host.turn()
        assert process.returncode == 0
        attendance = host.socket.attendance(JOB)
        host.turn()
        assert len(host.watched) == before
        if goodbye:
            assert [(rank, request.kind) for rank, request in attendance.take()] == [(0, "leave")]
            assert attendance.take() == []
        else:
            with pytest.raises(ProcessGone, match="process on h1 disconnected without leaving"):
                attendance.take()


@pytest.mark.parametrize("started", [False, True])
def test_a_job_cannot_be_taken_in_advance(host: Host, started: bool) -> None:
    """Numbers of jobs are easily guessed; only who hands a job in gets its place."""
    intruder, owner = as_user(host, 1002), as_user(host, 1001)
    intruder.say({"kind": "attend", "job": JOB, "rank": 0})
    attendance = host.socket.attendance(JOB)
    if started:
        # The agents began before the answer to the submission came.
        attendance.start(["h1", "h2"], rooted=False)
        assert intruder.hear()["kind"] == "started"
        intruder.say(barrier(0))
    owner.submit("training", ["h1", "h2"])
    assert owner.hear() == {"kind": "submitted", "job": JOB}
    assert f"job {JOB} belongs to user 1001 on this host" in intruder.hear()["why"]
    if started:
        # Its calls may be among the sums already.
        with pytest.raises(ProcessGone, match="user 1002 attended it as rank 0"):
            attendance.take()
        return
    owner.say({"kind": "attend", "job": JOB, "rank": 0})
    attendance.start(["h1", "h2"], rooted=False)
    assert owner.hear()["kind"] == "started"
    owner.say(barrier(5))
    assert [request.call for _, request in attendance.take()] == [5]


def test_ranks_that_nobody_attends_as_are_known(host: Host) -> None:
    attendance = host.socket.attendance(JOB)
    attendance.start(["h1", "h2", "h1"], rooted=False)
    assert attendance.absent() == [0, 2]
    attending(host, 2)
    assert attendance.absent() == [0]
