"""Tensors that a process hands to its host's agent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from host_agent.node.process import ProcessGone, ProcessTensors
from host_agent.process_socket import HEAD, AgentSocket, SumRefused, socket_name

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
        self.thread.join(20)
        assert not self.thread.is_alive()


@contextmanager
def host(name: str) -> Iterator[Host]:
    agent = Host(name)
    yield agent
    agent.source.close()
    agent.end()


def test_sums_come_back_in_place_until_a_goodbye() -> None:
    with host("a1") as agent:
        process = AgentSocket("a1", JOB, 10)
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


def test_a_process_may_come_before_its_agent() -> None:
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(AgentSocket, "a2", JOB, 10)
        with host("a2"):
            coming.result(10).close()


def test_one_process_a_host() -> None:
    with host("a3"):
        first = AgentSocket("a3", JOB, 10)
        with pytest.raises(SumRefused, match=r"job 4711 on host a3: no agent takes tensors within"):
            AgentSocket("a3", JOB, 0.0)
        first.close()


def test_a_process_that_waits_is_told_that_the_job_has_ended() -> None:
    source = ProcessTensors("a4", JOB, workers=3)
    source.prepare()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(source.first)
        process = AgentSocket("a4", JOB, 10)
        waiting = threading.Thread(target=lambda: (first.result(), source.close()))
        waiting.start()
        with pytest.raises(SumRefused, match="the job has ended at a4; `hopsum job 4711` says why"):
            process.sum(np.ones(5, np.float32))
        with pytest.raises(SumRefused, match="the agent is gone"):
            process.sum(np.ones(5, np.float32))
        waiting.join()


def test_an_agent_that_waits_for_a_process_can_end() -> None:
    source = ProcessTensors("a5", JOB, workers=3)
    source.prepare()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(source.first)
        source.close()
        with pytest.raises(OSError, match=r"Invalid argument|Bad file descriptor"):
            first.result(10)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"", "the process on a6 is gone, without a goodbye"),
        (HEAD.pack(3, 100) + bytes(399), "the process on a6 is gone, without a goodbye"),
        (HEAD.pack(9, 1), r"the process on a6 sends 9; expected one of \[3, 4\]"),
    ],
)
def test_what_is_no_tensor_ends_the_job(said: bytes, complaint: str) -> None:
    with ExitStack() as stack:
        agent = stack.enter_context(host("a6"))
        process = stack.enter_context(socket.socket(socket.AF_UNIX))
        process.connect(socket_name("a6", JOB))
        process.sendall(said)
        process.shutdown(socket.SHUT_WR)
        agent.end()
        assert isinstance(agent.failure, ProcessGone)
        with pytest.raises(ProcessGone, match=complaint):
            raise agent.failure
