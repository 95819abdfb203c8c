"""Tensors that a process hands to its host's agent."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from host_agent.io.process_socket import HEAD, AgentSocket, SumRefused, socket_name
from host_agent.node.process import ProcessGone, ProcessTensors
from tests.support.machine import PATIENCE, unique

JOB = 4711


class Host:
    """An agent that adds 1 to whatever it is given, in a thread."""

    def __init__(self, name: str) -> None:
        self.source = ProcessTensors(name, JOB, workers=3)
        self.source.prepare()
        self.sums = 0
        self.failure: Exception | None = None
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        try:
            following = self.source.first()
            while following is not None:
                name, tensor = following
                self.sums += 1
                following = self.source.after(name, tensor + tensor.dtype.type(1))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.failure = error

    def end(self) -> None:
        """Return when the agent is through."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@pytest.fixture
def name() -> str:
    """A host's name; its agent's socket is the machine's."""
    return unique("a")


@contextmanager
def host(name: str) -> Iterator[Host]:
    agent = Host(name)
    yield agent
    agent.source.close()
    agent.end()


def test_sums_come_back_in_place_until_a_goodbye(name: str) -> None:
    with host(name) as agent:
        process = AgentSocket(name, JOB, PATIENCE)
        assert process.workers == 3
        for dtype in (np.float32, np.int32):
            for size in (1, 7, 300_000):
                values = np.arange(size, dtype=dtype)
                process.sum(values)
                assert values.dtype == dtype
                np.testing.assert_array_equal(values, np.arange(1, size + 1))
        process.close()
        agent.end()
        assert agent.failure is None
        assert agent.sums == 6


def test_a_process_may_come_before_its_agent(name: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(AgentSocket, name, JOB, PATIENCE)
        with host(name):
            coming.result(PATIENCE).close()


def test_one_process_a_host(name: str) -> None:
    with host(name):
        first = AgentSocket(name, JOB, PATIENCE)
        with pytest.raises(
            SumRefused, match=rf"job 4711 on host {name}: no agent takes tensors within"
        ):
            AgentSocket(name, JOB, 0.0)
        first.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
def test_tensors_are_not_given_to_another_users_process(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(socket_name(name, JOB))
        # Who listens is who asks the kernel to.
        os.seteuid(12345)
        try:
            stranger.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(SumRefused, match=rf"process {os.getpid()} of user 12345 takes"):
            AgentSocket(name, JOB, PATIENCE)


def test_a_process_that_waits_is_told_that_the_job_has_ended(name: str) -> None:
    source = ProcessTensors(name, JOB, workers=3)
    source.prepare()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(source.first)
        process = AgentSocket(name, JOB, PATIENCE)
        waiting = threading.Thread(target=lambda: (first.result(), source.close()))
        waiting.start()
        with pytest.raises(
            SumRefused, match=f"the job has ended at {name}; `hopsum job 4711` says why"
        ):
            process.sum(np.ones(5, np.float32))
        with pytest.raises(SumRefused, match="the agent is gone"):
            process.sum(np.ones(5, np.float32))
        waiting.join()


def test_an_agent_that_waits_for_a_process_can_end(name: str) -> None:
    source = ProcessTensors(name, JOB, workers=3)
    source.prepare()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(source.first)
        source.close()
        with pytest.raises(OSError, match=r"Invalid argument|Bad file descriptor"):
            first.result(PATIENCE)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"", "the process on {name} is gone, without a goodbye"),
        (HEAD.pack(3, 100) + bytes(399), "the process on {name} is gone, without a goodbye"),
        (HEAD.pack(9, 1), r"the process on {name} sends 9; expected one of \[3, 4\]"),
    ],
)
def test_what_is_no_tensor_ends_the_job(name: str, said: bytes, complaint: str) -> None:
    with ExitStack() as stack:
        agent = stack.enter_context(host(name))
        process = stack.enter_context(socket.socket(socket.AF_UNIX))
        process.connect(socket_name(name, JOB))
        process.sendall(said)
        process.shutdown(socket.SHUT_WR)
        agent.end()
        assert isinstance(agent.failure, ProcessGone)
        with pytest.raises(ProcessGone, match=complaint.format(name=name)):
            raise agent.failure
