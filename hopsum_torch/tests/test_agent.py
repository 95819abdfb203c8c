"""This process's end of the agent's socket."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

from hopsum_torch import packets, turns
from hopsum_torch.agent import ALL, LARGE_BYTES, MANY_CALLS, PARTS, AgentClient, connect
from hopsum_torch.errors import GroupLost, HopsumError, SumRefused

SECONDS = 60.0
DOCUMENT = Path(__file__).parents[2] / "docs/agent-socket.md"


def packet_of(written: str) -> bytes:
    """Return the packet that the document shows, as JSON or in hexadecimal."""
    return written.encode() if written.startswith("{") else bytes.fromhex(written)


EXAMPLES = [
    (line.split()[0], packet_of(line.split(maxsplit=1)[1]))
    for line in DOCUMENT.read_text().split("```")[1].splitlines()
    if line
]


@pytest.fixture
def server() -> Any:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(f"\0hopsum-test-{secrets.token_hex(6)}")
    listening.listen()
    yield listening
    listening.close()


def name_of(server: socket.socket) -> str:
    return "@" + server.getsockname()[1:].decode()


def answer_sums(server: socket.socket) -> None:
    """Be an agent that says at once that sums are over; an invalid message after a barrier."""
    agent, _ = server.accept()
    agent.send(json.dumps({"kind": "hello", "version": 9, "host": "h1"}).encode())
    agent.send(json.dumps({"kind": "started", "ranks": ["h1"], "rooted": False}).encode())
    while (packet := agent.recv(1 << 17)) and packet != b'{"kind": "leave"}':
        if packet[0] == packets.SUM:
            agent.send(packets.END.pack(packets.DONE, packets.CALL.unpack(packet)[5]))
        if packet[0] == packets.BARRIER:
            agent.send(packets.END.pack(packets.DONE, 1000))
    agent.close()


def attend_alone(server: socket.socket) -> AgentClient:
    """Return a connection to that agent, in a job."""
    agent = connect(name_of(server))
    assert agent is not None
    agent.attend(7, 0, ["h1"], SECONDS)
    return agent


def test_the_documents_examples(server: socket.socket) -> None:
    """An agent that says what stands there hears what stands there."""
    heard: list[Any] = []

    def be_agent() -> None:
        agent, _ = server.accept()
        for who, packet in EXAMPLES:
            if who == "agent":
                agent.send(packet)
            else:
                data, descriptors, *_ = socket.recv_fds(agent, 1 << 17, 1)
                heard.append(data)
                for descriptor in descriptors:
                    os.close(descriptor)
            if b"submitted" in packet:
                # The next line is another answer to the same.
                socket.recv_fds(agent, 1 << 17, 1)
        agent.close()

    thread = threading.Thread(target=be_agent)
    thread.start()
    agent = connect(name_of(server))
    assert agent is not None
    assert agent.host == "h1"
    assert agent.submit("training", ["h1", "h2"], SECONDS) == 7
    with pytest.raises(HopsumError, match=r"^job training: no host h9"):
        agent.submit("training", ["h1", "h9"], SECONDS)
    agent.attend(7, 0, ["h1", "h2"], SECONDS)
    ends: list[Any] = []
    ended = threading.Event()

    def then(error: HopsumError | None) -> None:
        ends.append(error)
        ended.set()

    def begin(*described: Any, fill: Any) -> None:
        ended.clear()
        agent.sum("a sum", *described, fill, lambda _: None, then)
        assert ended.wait(SECONDS)

    begin(1000, np.dtype(np.int32), "sum", ALL, fill=lambda _: (40, None))
    begin(1024, np.dtype(np.float32), "max", PARTS, fill=lambda _: (0, ("nan", 17)))
    ended.clear()
    agent.copy("a copy", 1000, 1, lambda _: None, lambda _: None, then)
    assert ended.wait(SECONDS)
    agent.barrier("a barrier", then)
    begin(8, np.dtype(np.float32), "sum", ALL, fill=lambda _: (129, (packets.PASSED, 0)))
    agent.close()
    thread.join(SECONDS)
    assert heard == [packet for who, packet in EXAMPLES if who == "process"]
    assert ends[0] is None
    assert isinstance(ends[1], SumRefused)
    assert str(ends[1]) == ("a sum: a NaN cannot be compared; rank 0 (h1): element 17 is nan")
    agent.turns.thread.join(SECONDS)
    assert ends[2:4] == [None, None]
    assert isinstance(ends[4], GroupLost)
    assert "job 7: agent on h2 is lost (h2 is rank 1)" in str(ends[4])
    with pytest.raises(GroupLost, match="agent on h2 is lost"):
        agent.barrier("another", then)


@pytest.mark.parametrize(
    ("size", "calls", "in_background"),
    [(LARGE_BYTES // 2, 1, False), (LARGE_BYTES, 1, True), (4, MANY_CALLS + 1, True)],
    ids=["small", "large", "many"],
)
def test_large_results_and_many_are_taken_in_the_background(
    server: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    calls: int,
    in_background: bool,
) -> None:
    monkeypatch.setattr(turns, "SWEEP_SECONDS", SECONDS)

    thread = threading.Thread(target=answer_sums, args=(server,))
    thread.start()
    agent = attend_alone(server)
    by: list[str] = []
    over = threading.Event()

    def then(error: HopsumError | None) -> None:
        by.append(threading.current_thread().name)
        over.set()

    call = size // 4, np.dtype(np.int32), "sum", ALL, lambda _: (1, None), lambda _: None
    for _ in range(calls):
        assert not by
        agent.sum("a sum", *call, then)
    assert over.wait(SECONDS if in_background else 0.1) == in_background
    assert agent.turns.until(lambda: len(by) == calls, SECONDS)
    assert by[0] == ("hopsum agent" if in_background else threading.current_thread().name)
    agent.close()
    agent.turns.until(lambda: False)
    thread.join(SECONDS)


@pytest.mark.parametrize("size", [4, LARGE_BYTES])
def test_a_result_that_cannot_be_taken_ends_its_call_alone(
    server: socket.socket, size: int
) -> None:
    """Its memory is used again, and the thread that reads goes on."""
    thread = threading.Thread(target=answer_sums, args=(server,))
    thread.start()
    agent = attend_alone(server)
    ends: list[Exception | None] = []
    memories = set()

    def refuse(values: Any) -> None:
        memories.add(values.ctypes.data)
        raise ValueError("no room")

    call = size // 4, np.dtype(np.int32), "sum", ALL, lambda _: (1, None)
    for number, drain in enumerate((refuse, refuse, lambda _: None)):
        agent.sum("a sum", *call, drain, ends.append)
        assert agent.turns.until(lambda number=number: len(ends) > number, SECONDS)
    assert [str(end) for end in ends] == ["no room", "no room", "None"]
    assert len(memories) == 1
    assert agent.turns.thread.is_alive()
    agent.close()
    agent.turns.until(lambda: False)
    thread.join(SECONDS)


def test_an_invalid_message_ends_all_calls(server: socket.socket) -> None:
    thread = threading.Thread(target=answer_sums, args=(server,))
    thread.start()
    agent = attend_alone(server)
    ends: list[Exception | None] = []
    agent.barrier("a barrier", ends.append)
    assert agent.turns.until(lambda: len(ends) == 1, SECONDS)
    assert isinstance(ends[0], GroupLost)
    assert "the agent of h1 sent b'" in str(ends[0])
    assert "expected a message as agents of version 9 send" in str(ends[0])
    agent.turns.thread.join(SECONDS)
    assert not agent.turns.thread.is_alive()
    thread.join(SECONDS)


def test_connecting_without_a_listener() -> None:
    assert connect("@hopsum-nobody") is None
    assert connect("/nowhere/agent") is None


def test_an_agent_of_another_version_is_reported(server: socket.socket) -> None:
    def be_agent() -> None:
        agent, _ = server.accept()
        agent.send(json.dumps({"kind": "hello", "version": 10, "host": "h1"}).encode())

    threading.Thread(target=be_agent).start()
    with pytest.raises(HopsumError, match="it speaks version 10 and hopsum_torch 9; install"):
        connect(name_of(server))


@pytest.fixture
def anothers() -> Any:
    """A socket at which another user's process listens."""
    if os.geteuid() != 0:
        pytest.skip("needs root to act as another user")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"\0hopsum-test-{secrets.token_hex(6)}")
        # The kernel reports the user that called listen().
        os.seteuid(12345)
        try:
            listening.listen()
        finally:
            os.seteuid(0)
        yield listening


def test_tensors_are_not_given_to_another_users_process(anothers: socket.socket) -> None:
    with pytest.raises(HopsumError, match=rf"process {os.getpid()} of user 12345 listens"):
        connect(name_of(anothers))


def test_tensors_are_given_to_the_account_that_agents_run_as(
    anothers: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/how-to/several-machines.md starts them; only root can make accounts."""

    def be_agent() -> None:
        agent, _ = anothers.accept()
        agent.send(json.dumps({"kind": "hello", "version": 9, "host": "h1"}).encode())

    account = pwd.struct_passwd(("hopsum", "x", 12345, 12345, "", "/", "/bin/false"))
    monkeypatch.setattr(pwd, "getpwnam", {"hopsum": account}.__getitem__)
    threading.Thread(target=be_agent, daemon=True).start()
    agent = connect(name_of(anothers))
    assert agent is not None
    assert agent.host == "h1"
    agent.close()


@pytest.mark.parametrize("what", ["submit", "attend"])
def test_an_agent_that_goes_before_it_is_asked_is_named(server: socket.socket, what: str) -> None:
    """Rank 0 tells the others why there is no job, if it learns that itself."""

    def greet() -> None:
        agent, _ = server.accept()
        agent.send(json.dumps({"kind": "hello", "version": 9, "host": "h1"}).encode())
        agent.close()

    greeting = threading.Thread(target=greet)
    greeting.start()
    agent = connect(name_of(server))
    assert agent is not None
    greeting.join(SECONDS)
    try:
        with pytest.raises(HopsumError, match="agent of h1: Broken pipe"):
            if what == "submit":
                agent.submit("training", ["h1"], SECONDS)
            else:
                agent.attend(7, 0, ["h1"], SECONDS)
    finally:
        agent.close()


def test_a_job_that_does_not_begin_in_time(server: socket.socket) -> None:
    def be_agent() -> None:
        agent, _ = server.accept()
        agent.send(json.dumps({"kind": "hello", "version": 9, "host": "h1"}).encode())
        done.wait(SECONDS)

    done = threading.Event()
    threading.Thread(target=be_agent).start()
    agent = connect(name_of(server))
    assert isinstance(agent, AgentClient)
    with pytest.raises(HopsumError, match=r"job 9: waited 0\.05 s for it to begin; `hopsum job 9`"):
        agent.attend(9, 0, ["h1"], 0.05)
    done.set()
