"""What a host's environment in real time tells controllers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from hopsum.host_agent.node.real import RealEnvironment
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol import hopsum_pb2_grpc as pb_grpc


class Recorder(pb_grpc.ControllerServicer):
    """A controller that listens to a stream until the agent ends it."""

    def __init__(self) -> None:
        self.heard: list[pb.AgentMessage] = []
        self.ended = threading.Event()

    def Attend(self, messages: Iterator[pb.AgentMessage], context: Any) -> Iterator[Any]:
        self.heard += messages
        self.ended.set()
        return iter(())


@contextmanager
def listening(address: str) -> Iterator[Recorder]:
    recorder = Recorder()
    server = grpc.server(ThreadPoolExecutor(1))
    pb_grpc.add_ControllerServicer_to_server(recorder, server)
    server.add_insecure_port(address)
    server.start()
    try:
        yield recorder
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize("leader", [0, 1, 2])
def test_why_a_job_failed_reaches_the_controller_that_leads(tmp_path: Path, leader: int) -> None:
    """The others of several do not listen."""
    addresses = [f"unix:{tmp_path}/{number}" for number in range(3)]
    node = cast(Any, SimpleNamespace(address=",".join(addresses)))
    here = RealEnvironment("h1", lambda number: None, lambda number: None, node)
    with listening(addresses[leader]) as recorder:
        here.report_failure(7, "no room for a tensor")
        assert recorder.ended.wait(30)
    here.close()
    register, last = recorder.heard
    # A worker that registers as new in a job that has started would have lost its part.
    assert (register.register.job, register.register.state) == (7, pb.FAILED)
    assert last.failed.reason == "no room for a tensor"
