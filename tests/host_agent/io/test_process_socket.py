"""The agent's socket: who may connect, submit and attend, and how much of it."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hopsum.host_agent.io import process_socket
from hopsum.host_agent.io.process_socket import SocketInUse
from hopsum.host_agent.io.socket_peers import peer_of
from hopsum.host_agent.node.real import RealEnvironment
from hopsum.host_agent.process_calls import CALL
from tests.support.agent_socket import JOB, Host, Process, as_user, attending, barrier
from tests.support.machine import PATIENCE, unique
from tests.support.other_user import NOBODY


def test_a_name_is_taken_once(host: Host, tmp_path: Path) -> None:
    with pytest.raises(SocketInUse, match=f"cannot listen for processes at {host.socket.name}"):
        Host(host.socket.name)
    path = str(tmp_path / "agent")
    first = Host(path)
    with pytest.raises(SocketInUse):
        Host(path)
    first.socket.close()
    # Of one that was killed the file is left.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as killed:
        killed.bind(path)
    again = Host(path)
    Process(again)
    again.socket.close()
    assert not Path(path).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_who_holds_the_agents_address_is_named() -> None:
    """Any user can take it when the agent has died."""
    name = unique("agent")
    listen = (
        "import os, socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        f"s.bind('\\0{name}'); s.listen(); os.setuid({NOBODY}); s.listen(); "
        "print('here', flush=True); input()"
    )
    command = [sys.executable, "-c", listen]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as taker:  # type: ignore[call-overload]
        assert taker.stdout.readline() == b"here\n"
        holder = rf"Address already in use, by process {taker.pid} \(.*\) of user nobody"
        with pytest.raises(SocketInUse, match=holder):
            Host(f"@{name}")


def test_a_job_that_is_refused(host: Host) -> None:
    process = Process(host)
    process.submit("x", ["h9"])
    assert process.hear() == {"kind": "refused", "why": "job x: no host h9"}


def test_connections_are_bounded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_socket, "MOST_CONNECTIONS", 2)
    kept = [Process(host), Process(host)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as third:
        third.connect(f"\0{host.socket.name[1:]}")
        host.turn()
        said = json.loads(third.recv(1 << 17))
    assert said["kind"] == "ended"
    assert said["why"].startswith("2 processes are connected, 2 of ")
    kept.pop().socket.close()
    host.turn()
    assert Process(host)


def test_an_agent_without_descriptors_goes_on(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever uses up the agent's descriptors keeps newcomers out, and ends no job."""
    real = socket.socket.accept

    def full(self: socket.socket) -> tuple[socket.socket, Any]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    process = Process(host)
    monkeypatch.setattr(socket.socket, "accept", full)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as late:
        late.connect(f"\0{host.socket.name[1:]}")
        host.turn()
        assert "could not be accepted: Too many open files" in caplog.text
        monkeypatch.setattr(socket.socket, "accept", real)
        host.turn()
        assert json.loads(late.recv(1 << 17))["kind"] == "hello"
    process.say({"kind": "attend", "job": JOB, "rank": 0})


def test_jobs_are_handed_in_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(f"@{unique('agent')}")
    go_on = threading.Event()
    monkeypatch.setattr(host.socket, "_submit", lambda *_, **__: go_on.wait(PATIENCE) and JOB)
    process = Process(host)
    try:
        for number in range(process_socket.MOST_WAITING + 1):
            process.submit(f"job{number}", ["h1"])
        assert "4 jobs are being submitted; expected at most 4" in process.hear()["why"]
    finally:
        go_on.set()
        host.socket.close()


def test_submissions_of_a_user_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of processes that are gone: each has a thread."""
    monkeypatch.setattr(process_socket, "MOST_OF_USER", 2)
    host = Host(f"@{unique('agent')}")
    go_on = threading.Event()
    monkeypatch.setattr(host.socket, "_submit", lambda *_, **__: go_on.wait(PATIENCE) and JOB)
    try:
        for number in range(2):
            process = as_user(host, 1001)
            process.submit(f"job{number}", ["h1"])
            process.socket.close()
            host.turn()
        third = as_user(host, 1001)
        third.submit("job2", ["h1"])
        assert "job job2: user 1001 is submitting 2 jobs" in third.hear()["why"]
        other = as_user(host, 1002)
        other.submit("job3", ["h1"])
        go_on.set()
        assert other.hear()["kind"] == "submitted"
    finally:
        go_on.set()
        host.socket.close()


@pytest.mark.parametrize("fails", ["start", "submit"])
def test_a_submission_that_fails_is_answered(
    host: Host, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise {"start": RuntimeError, "submit": ValueError}[fails]("no more of it")

    if fails == "start":
        monkeypatch.setattr(threading.Thread, "start", fail)
    else:
        monkeypatch.setattr(host.socket, "_submit", fail)
    process = Process(host)
    process.submit("training", ["h1"])
    answer = process.hear()
    assert answer["kind"] == "refused"
    assert "no more of it" in answer["why"]


def test_submitters_that_are_gone_are_forgotten(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_socket, "MOST_OF_USER", 2)
    jobs = iter(range(100, 200))
    monkeypatch.setattr(host.socket, "_submit", lambda *_, **__: next(jobs))
    for _ in range(6):
        process = as_user(host, 1003)
        process.submit("training", ["h2"])
        assert process.hear()["kind"] == "submitted"
        process.socket.close()
        host.turn()
    assert len(host.socket._submitters) == 2  # noqa: SLF001


def test_users_have_unsigned_numbers() -> None:
    class Connected:
        def getsockopt(self, *_: object) -> bytes:
            return struct.pack("iII", 1, 2**32 - 2, 0)

    connected: Any = Connected()
    assert peer_of(connected).user == 2**32 - 2


def test_a_job_is_attended_by_the_user_who_handed_it_in(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, other = as_user(host, 1001), as_user(host, 1002)
    owner.submit("training", ["h1"])
    assert owner.hear() == {"kind": "submitted", "job": JOB}
    other.say({"kind": "attend", "job": JOB, "rank": 0})
    words = f"job {JOB} belongs to user 1001 on this host; expected a process of that user"
    assert words in other.hear()["why"]
    owner.say({"kind": "attend", "job": JOB, "rank": 0})
    host.socket.attendance(JOB).start(["h1"], rooted=False)
    assert owner.hear()["kind"] == "started"
    # Numbers of jobs that are not known yet cannot be taken in bulk.
    monkeypatch.setattr(process_socket, "MOST_OF_USER", 2)
    third = as_user(host, 1003)
    for job in (100, 101, 102):
        third.say({"kind": "attend", "job": job, "rank": 0})
    assert "job 102: user 1003 attends 2 jobs that this host does not know" in third.hear()["why"]


def test_jobs_that_never_begin_here_count_as_long_as_their_processes_are_there(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user whose jobs fail before they begin on this host can go on."""
    monkeypatch.setattr(process_socket, "MOST_OF_USER", 2)
    for job in range(100, 106):
        process = as_user(host, 1003)
        process.say({"kind": "attend", "job": job, "rank": 0})
        process.socket.close()
        host.turn()
    assert len(host.socket.attended) <= 2
    last = as_user(host, 1003)
    last.say({"kind": "attend", "job": JOB, "rank": 0})
    host.socket.attendance(JOB).start(["h1"], rooted=False)
    assert last.hear()["kind"] == "started"


def test_a_process_is_told_that_its_job_is_over_before_it_began_here(host: Host) -> None:
    process = Process(host)
    process.say({"kind": "attend", "job": JOB, "rank": 0})
    environment = RealEnvironment("h1", lambda descriptor: None, lambda descriptor: None)
    environment.processes = host.socket
    stream: Any = SimpleNamespace(job=JOB, fileno=lambda: 0, close=lambda: None)
    environment.leave(stream)
    assert process.hear() == {"kind": "ended", "why": f"job {JOB} is over on host h1"}
    assert not host.socket.attended
    environment.leave(stream)
    environment.close()


def test_a_job_is_awaited_while_the_process_that_submitted_it_is_connected(host: Host) -> None:
    process, other = Process(host), Process(host)
    assert not [*host.socket.awaited]
    process.submit("training", ["h1"])
    assert process.hear() == {"kind": "submitted", "job": JOB}
    other.say({"kind": "attend", "job": JOB, "rank": 0})
    host.turn()
    assert [*host.socket.awaited] == [JOB]
    process.socket.close()
    host.turn()
    assert not [*host.socket.awaited]
    host.socket.end(JOB, "withdrawn")
    why = f"job {JOB} is over on host h1: withdrawn"
    assert other.hear() == {"kind": "ended", "why": why}


def test_memories_of_a_user_are_bounded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a descriptor, whatever connection it comes by."""
    monkeypatch.setattr(process_socket, "most_memories_of_user", lambda: 2)
    first, second, greedy = (as_user(host, 1001) for _ in range(3))
    first.share(4096)
    second.share(4096)
    greedy.share(4096)
    assert "user 1001 shares 2 memories; expected at most 2" in greedy.hear()["why"]
    other = as_user(host, 1002)
    other.share(4096)
    other.say({"kind": "attend", "job": JOB, "rank": 0})


def test_a_user_leaves_most_descriptors_to_others() -> None:
    assert (
        0
        < process_socket.most_memories_of_user()
        <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // process_socket.USER_SHARE
    )


def test_a_connection_has_a_budget_a_turn(host: Host) -> None:
    """However many messages wait, the loop moves frames and hears others between them."""
    budget = process_socket.MOST_A_TURN
    [process] = attending(host, 0)
    for call in range(2 * budget):
        process.socket.send(CALL.pack(*barrier(call)))
    attendance = host.socket.attendance(JOB)
    for part in range(2):
        host.turn()
        calls = [request.call for _, request in attendance.take()]
        assert calls == list(range(part * budget, (part + 1) * budget))


def test_a_job_is_submitted_for_the_user_of_the_process(host: Host) -> None:
    for user in (1001, 1002):
        process = as_user(host, user)
        process.submit("training", ["h1", "h2"])
        assert process.hear()["kind"] == "submitted"
    assert host.users == [1001, 1002]
