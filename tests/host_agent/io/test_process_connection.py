"""What a process says at its agent's socket, and the memory that it shares."""

from __future__ import annotations

import fcntl
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsum.host_agent.io import process_connection
from hopsum.host_agent.io.attendance import ProcessGone
from hopsum.host_agent.io.process_connection import MOST_REQUESTS, Request
from hopsum.host_agent.process_calls import ALL, CALL, DONE, PARTS, ROOT, done_packet, read_call
from tests.support.agent_socket import (
    COPIED,
    FLOAT32,
    JOB,
    SUMMED,
    Host,
    Process,
    as_user,
    attending,
    barrier,
)
from tests.support.paths import ROOT as CHECKOUT

DOCUMENT = (CHECKOUT / "docs/agent-socket.md").read_text()
EXAMPLES = [tuple(line.split(maxsplit=1)) for line in DOCUMENT.split("```")[1].splitlines() if line]
"""Who sends, and a packet as JSON or in hexadecimal."""
MAX, MIN, AND = 1, 2, 3
INT8 = 3


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


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


def sparse(process: Process, size: int, *, flags: int = 0) -> None:
    """Share memory of which the process has no page."""
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    process.say({"kind": "memory", "memory": 0, "bytes": size}, descriptor)
    os.close(descriptor)


def test_memory_of_huge_pages_is_not_mapped(host: Host) -> None:
    """A hole gives its pages back, and reading there ends the agent if others have taken them."""
    process = Process(host)
    try:
        sparse(process, 1 << 21, flags=os.MFD_HUGETLB)
    except OSError as error:
        pytest.skip(f"no huge pages: {error}")
    assert "it has huge pages" in process.hear()["why"]


def test_a_user_leaves_most_addresses_to_others(host: Host) -> None:
    greedy, other = as_user(host, 1001), as_user(host, 1002)
    sparse(greedy, 1 << 46)
    assert f"{1 << 46} bytes, and {1 << 41} are left to its user" in greedy.hear()["why"]
    other.share(4096)
    other.say({"kind": "attend", "job": JOB, "rank": 0})


def test_a_call_has_no_more_elements_than_words_of_checks_can_say(host: Host) -> None:
    process = Process(host)
    sparse(process, 1 << 31)
    process.say(SUMMED._replace(type=INT8, elements=1 << 31))
    assert "2147483648 elements: expected at most 2147483647" in process.hear()["why"]


def test_a_process_that_never_reads_is_ended(host: Host) -> None:
    process = Process(host)
    process.say({"kind": "attend", "job": JOB, "rank": 0})
    attendance = host.socket.attendance(JOB)
    for call in range(2 * MOST_REQUESTS):
        attendance.done(0, call)
    host.turn()
    with pytest.raises(ProcessGone):
        attendance.take()


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


def test_pending_calls_are_bounded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_connection, "MOST_REQUESTS", 3)
    process = Process(host)
    for call in range(4):
        process.say(barrier(call))
    assert "3 calls are pending" in process.hear()["why"]


@pytest.mark.parametrize("answered", [False, True])
def test_calls_that_the_job_has_taken_are_bounded(
    host: Host, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """They wait for ranks that may never call."""
    monkeypatch.setattr(process_connection, "MOST_OPEN", 3)
    [process] = attending(host, 0)
    attendance = host.socket.attendance(JOB)
    for call in range(4):
        process.say(barrier(call))
        attendance.take()
        if answered:
            attendance.done(0, call)
            assert process.hear() == {"done": done_packet(call)}
    if not answered:
        assert "3 calls are pending" in process.hear()["why"]


def test_a_reason_comes_before_the_end_whatever_was_sent_besides(host: Host) -> None:
    """A socket that is closed with messages unread ends the other at once, with a reset."""
    process = Process(host)
    for message in (b"[]", CALL.pack(*barrier(0)), CALL.pack(*barrier(1))):
        process.socket.send(message)
    host.turn()
    assert "no object" in process.hear()["why"]
    assert process.socket.recv(1) == b""


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
