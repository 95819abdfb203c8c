"""The agent's end of the socket at which processes submit tensors."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hopsum.host_agent.io import process_connection, process_socket
from hopsum.host_agent.io.attendance import ProcessGone
from hopsum.host_agent.io.process_connection import MOST_REQUESTS, Request
from hopsum.host_agent.io.process_socket import ProcessSocket, SocketInUse
from hopsum.host_agent.io.socket_peers import peer_of
from hopsum.host_agent.node.real import RealEnvironment
from hopsum.host_agent.process_calls import (
    ALL,
    BARRIER,
    CALL,
    COPY,
    DONE,
    PARTS,
    ROOT,
    SUM,
    CallPacket,
    done_packet,
    read_call,
)
from hopsum.protocol.errors import OperationError
from tests.support.machine import PATIENCE, unique
from tests.support.other_user import NOBODY
from tests.support.paths import ROOT as CHECKOUT

JOB = 7
DOCUMENT = (CHECKOUT / "docs/agent-socket.md").read_text()
EXAMPLES = [tuple(line.split(maxsplit=1)) for line in DOCUMENT.split("```")[1].splitlines() if line]
"""Who sends, and a packet as JSON or in hexadecimal."""
FLOAT32, INT32 = 0, 1
MAX, MIN, AND = 1, 2, 3


SUMMED = CallPacket(SUM, INT32, 0, 0, ALL, number=0, memory=0, elements=4, magnitude=1, element=0)
COPIED = SUMMED._replace(kind=COPY, target=PARTS, magnitude=0)


def barrier(number: int) -> CallPacket:
    return CallPacket(BARRIER, 0, 0, 0, 0, number, 0, 0, 0, 0)


class Host:
    """An agent's socket, and what its loop would do."""

    def __init__(self, name: str) -> None:
        self.watched: set[int] = set()
        self.submitted: list[tuple[str, list[str], bool]] = []
        self.users: list[int] = []
        self.socket = ProcessSocket(
            "h1", name, self._submit, self.watched.add, self.watched.discard
        )

    def _submit(self, name: str, ranks: Sequence[str], *, immediate: bool, user: int) -> int:
        self.users.append(user)
        if "h9" in ranks:
            raise OperationError(f"job {name}: no host h9")
        self.submitted.append((name, list(ranks), immediate))
        return JOB

    def turn(self) -> None:
        readable = select.poll()
        for descriptor in self.watched:
            readable.register(descriptor, select.POLLIN)
        self.socket.turn({descriptor for descriptor, _ in readable.poll(0)})


class Process:
    """A process of the host, by hand."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name = host.socket.name
        self.socket.connect(f"\0{name[1:]}" if name.startswith("@") else name)
        host.turn()
        assert self.hear()["kind"] == "hello"

    def say(self, message: dict[str, Any] | bytes | CallPacket, *descriptors: int) -> None:
        if isinstance(message, CallPacket):
            message = CALL.pack(*message)
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        socket.send_fds(self.socket, [data], descriptors)
        self._host.turn()

    def submit(self, name: str, ranks: list[str]) -> None:
        self.say({"kind": "submit", "name": name, "ranks": ranks, "immediate": False})

    def hear(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        # Submissions are answered by a thread.
        while not select.select([self.socket], [], [], 0.001)[0]:
            assert time.monotonic() < deadline, "the agent says nothing"
            self._host.turn()
        data = self.socket.recv(1 << 17)
        assert data, "the agent has ended the connection"
        if data[0] == DONE:
            return {"done": data}
        message: dict[str, Any] = json.loads(data)
        return message

    def share(self, size: int, *, sealed: bool = True) -> np.ndarray[Any, np.dtype[np.uint8]]:
        descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        if sealed:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.say({"kind": "memory", "memory": 0, "bytes": size}, descriptor)
        return np.memmap(os.fdopen(descriptor, "r+b"), np.uint8)


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host(f"@{unique('agent')}")
    yield made
    made.socket.close()


def test_the_documents_examples(host: Host) -> None:
    """The agent understands the process's messages, and its answers are those of the document."""
    assert len(EXAMPLES) >= 14
    process = Process(host)
    attendance = host.socket.attendance(JOB)
    attendance.start(["h1", "h2"], rooted=True)
    requests: list[Request] = []
    said: list[dict[str, Any]] = [{"kind": "hello", "version": 9, "host": "h1"}]
    expected = []
    for who, written in EXAMPLES:
        message = json.loads(written) if written[0] == "{" else {"kind": "call"}
        packet = b"" if written[0] == "{" else bytes.fromhex(written)
        if who == "agent":
            expected.append({"done": packet} if packet else message)
        if who == "process":
            if message["kind"] == "memory":
                process.share(message["bytes"])
            else:
                process.say(packet or message)
            if message["kind"] in ("submit", "attend"):
                said.append(process.hear())
            for rank, request in attendance.take():
                assert rank == 0
                requests.append(request)
        elif message["kind"] == "refused":
            process.submit("training", ["h1", "h9"])
            said.append(process.hear())
        elif message["kind"] == "call":
            attendance.done(0, requests[-1].call)
            said.append(process.hear())
        elif message["kind"] == "failed":
            whose = {int(rank): text for rank, text in message["whose"].items()}
            attendance.failed(0, message["call"], message["why"], whose)
            said.append(process.hear())
        elif message["kind"] == "ended":
            attendance.close(message["why"])
            said.append(process.hear())
    assert said == expected
    assert [request.kind for request in requests] == [
        *("sum", "sum", "copy", "barrier", "sum", "leave")
    ]
    assert [request.call for request in requests] == [0, 1, 2, 3, 4, -1]
    first, second, third, _, fifth, _ = requests
    assert first.tensor is not None and second.tensor is not None
    assert (first.tensor.dtype, len(first.tensor), first.magnitude) == (np.int32, 1000, 40)
    assert (first.reduction, second.reduction) == ("sum", "max")
    assert (second.tensor.dtype, second.fault) == (np.float32, ("nan", 17))
    assert (fifth.reduction, fifth.fault, fifth.magnitude) == ("sum", ("passed", 0), 129)
    assert third.tensor is not None
    assert (third.tensor.dtype, len(third.tensor)) == (np.int32, 1000)
    assert [each.target for each in requests[:3]] == [ALL, PARTS, ROOT + 1]
    assert host.submitted == [("training", ["h1", "h2"], False)]


def test_tensors_lie_in_memory_that_both_have(host: Host) -> None:
    process = Process(host)
    process.say({"kind": "attend", "job": JOB, "rank": 0})
    shared = process.share(4096)
    shared[:8].view(np.float32)[:] = (1.5, 2.5)
    process.say(SUMMED._replace(type=FLOAT32, reduction=MIN, elements=2))
    [(_, request)] = host.socket.attendance(JOB).take()
    assert request.tensor is not None
    assert request.reduction == "min"
    np.testing.assert_array_equal(request.tensor, np.float32([1.5, 2.5]))
    request.tensor[...] += 1
    assert shared[:8].view(np.float32).tolist() == [2.5, 3.5]


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"\xff", "expected a JSON object, or a call"),
        (b"[1]", "no object; expected a JSON object, or a call"),
        (b" " * (1 << 17) + b"{}", "longer than 131072 bytes"),
        ({"kind": "dance"}, "kind 'dance': expected submit, attend, memory or leave"),
        ({"kind": "submit", "name": "a", "ranks": "h1"}, "expected name and ranks"),
        (
            {"kind": "submit", "name": "a", "ranks": ["h1"], "immediate": "yes"},
            "and immediate, true or false",
        ),
        ({"kind": "attend", "job": 70000}, "job 70000: expected a number, 0 to 65535"),
        ({"kind": "attend", "job": 7}, "rank None: expected a number, 0 to 65535"),
        ({"kind": "memory", "memory": 1}, "0 descriptors received; expected one"),
        ({"kind": "memory", "memory": 4096}, "memory 4096: expected a number, 0 to 4095"),
        (CALL.pack(*SUMMED)[:-1], "expected a JSON object, or a call"),
        (CALL.pack(*SUMMED._replace(kind=DONE)), "expected a JSON object, or a call"),
        (SUMMED._replace(type=5), "type 5: expected 0 to 4: float32, int32, float32 in 16"),
        (SUMMED._replace(memory=5), "in memory 5: there is none of that number"),
        (SUMMED._replace(elements=1025), "1025 int32 in memory 0: there is 4096 bytes"),
        (SUMMED._replace(elements=(1 << 32) - 1), "in memory 0: there is 4096 bytes"),
        (SUMMED._replace(reduction=6), "reduction 6 of int32: expected 0 to 5: sum, max"),
        (SUMMED._replace(type=FLOAT32, reduction=AND), "reduction 3 of float32: expected 0 to 2"),
        (SUMMED._replace(fault=5), "fault 5: expected 0, or 1 to 4: nan, inf, -inf, passed"),
        (SUMMED._replace(fault=4), "fault 4 of sum of int32: expected a sum of float32 where"),
        (SUMMED._replace(fault=4, type=FLOAT32, reduction=MAX), "fault 4 of max of float32: exp"),
        (SUMMED._replace(fault=1, element=4), "element 4 of 4: expected .* one of the elements"),
        (SUMMED._replace(magnitude=(1 << 31) + 1), "magnitude 2147483649, .* at most 2.31"),
        (SUMMED._replace(target=PARTS), "target 1, 4 elements: expected 0 .all., 1 .parts., of"),
        (COPIED._replace(target=ALL), "copy with target 0, 4 elements: expected 1 .parts."),
        (COPIED._replace(target=ROOT), "copy with target 2, 4 elements: .* 0 ranks can share"),
        (COPIED._replace(elements=2000), "2000 int32 in memory 0: there is 4096 byte"),
    ],
)
def test_invalid_messages_end_the_connection(host: Host, said: Any, complaint: str) -> None:
    process = Process(host)
    process.share(4096)
    process.say(said)
    ended = process.hear()
    assert ended["kind"] == "ended"
    assert re.search(complaint, ended["why"]), ended["why"]
    assert process.socket.recv(100) == b""
    # And nobody else's.
    Process(host)


@pytest.mark.parametrize("target", [ALL, PARTS, ROOT + 2, (1 << 32) - 1])
def test_targets_are_of_the_job(host: Host, target: int) -> None:
    """Three elements cannot be shared by two ranks."""
    [process] = attending(host, 0)
    process.share(4096)
    host.socket.attendance(JOB).start(["h1", "h2"], rooted=False)
    assert process.hear() == {"kind": "started", "ranks": ["h1", "h2"], "rooted": False}
    process.say(COPIED._replace(target=ROOT + 1, elements=3))
    process.say(SUMMED._replace(target=PARTS))
    assert [each.target for _, each in host.socket.attendance(JOB).take()] == [ROOT + 1, PARTS]
    process.say(COPIED._replace(target=target, elements=3))
    complaint = process.hear()["why"]
    assert "expected 1 (parts), of elements that 2 ranks can share, or 2 + one of" in complaint


@pytest.mark.parametrize("number", [0, 123, (1 << 64) - 1])
def test_a_call_is_what_was_packed(number: int) -> None:
    call = SUMMED._replace(number=number, fault=3, element=2)
    assert read_call(CALL.pack(*call)) == call
    # 123 is the first character of JSON.
    assert done_packet(number)[0] == DONE


def test_memory_that_could_shrink_is_not_mapped(host: Host) -> None:
    process = Process(host)
    process.share(4096, sealed=False)
    assert "expected a memfd sealed with F_SEAL_SHRINK" in process.hear()["why"]


def test_one_process_attends_a_job(host: Host) -> None:
    first, second = Process(host), Process(host)
    first.say({"kind": "attend", "job": JOB, "rank": 0})
    second.say({"kind": "attend", "job": JOB, "rank": 0})
    assert (
        "another process attends it as rank 0; expected one process a rank" in second.hear()["why"]
    )


def attending(host: Host, *ranks: int) -> list[Process]:
    """Processes that have said which rank of the job each is."""
    processes = [Process(host) for _ in ranks]
    for process, rank in zip(processes, ranks, strict=True):
        process.say({"kind": "attend", "job": JOB, "rank": rank})
    return processes


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


def test_a_process_that_never_reads_is_ended(host: Host) -> None:
    process = Process(host)
    process.say({"kind": "attend", "job": JOB, "rank": 0})
    attendance = host.socket.attendance(JOB)
    for call in range(2 * MOST_REQUESTS):
        attendance.done(0, call)
    host.turn()
    with pytest.raises(ProcessGone):
        attendance.take()


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


# -- Somebody else's processes


def test_json_that_nests_deeply_ends_the_connection_only(host: Host) -> None:
    process = Process(host)
    process.say(b"[" * 100_000)
    ended = process.hear()
    assert ended["kind"] == "ended"
    assert "expected a JSON object" in ended["why"]
    assert Process(host)


def test_a_name_that_is_not_unicode_is_refused(host: Host) -> None:
    process = Process(host)
    process.say(b'{"kind": "submit", "name": "\\ud800", "ranks": ["h1"], "immediate": false}')
    assert "expected name and ranks as strings" in process.hear()["why"]
    assert not host.submitted


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


def test_pending_calls_are_bounded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_connection, "MOST_REQUESTS", 3)
    process = Process(host)
    for call in range(4):
        process.say(barrier(call))
    assert "3 calls are pending" in process.hear()["why"]


def test_a_reason_comes_before_the_end_whatever_was_sent_besides(host: Host) -> None:
    """A socket that is closed with messages unread ends the other at once, with a reset."""
    process = Process(host)
    for message in (b"[]", CALL.pack(*barrier(0)), CALL.pack(*barrier(1))):
        process.socket.send(message)
    host.turn()
    assert "no object" in process.hear()["why"]
    assert process.socket.recv(1) == b""


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


def as_user(host: Host, user: int) -> Process:
    """A process that connects as one of another user would."""

    def peer(connected: socket.socket) -> tuple[int, int]:
        return peer_of(connected)[0], user

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process_connection, "peer_of", peer)
        return Process(host)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("message", [barrier(0), {"kind": "attend", "job": JOB, "rank": 0}])
def test_descriptors_come_with_memory_only(host: Host, message: Any) -> None:
    process = Process(host)
    before = open_descriptors()
    with open(os.devnull) as null:  # noqa: PTH123 - a descriptor
        process.say(message, *[null.fileno()] * 4)
    assert "4 descriptors: expected none, or one with memory" in process.hear()["why"]
    # Its end of the connection is closed, what watched for its own, and none of theirs is left.
    host.turn()
    assert open_descriptors() == before - 2


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


def test_nothing_follows_leave(host: Host) -> None:
    """Or goodbyes without end fill the agent's memory."""
    [process] = attending(host, 0)
    process.say({"kind": "leave"})
    process.say({"kind": "leave"})
    assert "after leave: expected nothing" in process.hear()["why"]
    assert [each.kind for _, each in host.socket.attendance(JOB).take()] == ["leave"]
    assert host.socket.attendance(JOB).take() == []


def test_a_full_socket_does_not_hold_up_the_agent(host: Host) -> None:
    """What does not fit waits, and all of it arrives, with what ends the job behind it."""
    [process] = attending(host, 0)
    attendance = host.socket.attendance(JOB)
    most = MOST_REQUESTS // 2
    for call in range(most):
        attendance.done(0, call)
    attendance.close("the end")
    for call in range(most):
        assert process.hear() == {"done": done_packet(call)}
    assert process.hear() == {"kind": "ended", "why": "the end"}


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


def test_a_job_is_submitted_for_the_user_of_the_process(host: Host) -> None:
    for user in (1001, 1002):
        process = as_user(host, user)
        process.submit("training", ["h1", "h2"])
        assert process.hear()["kind"] == "submitted"
    assert host.users == [1001, 1002]
