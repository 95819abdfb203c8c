"""The thread that keeps a session's stream open, and its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc

from hopsum.host_agent.io.session_thread import SessionThread
from hopsum.host_agent.session import AgentSession
from hopsum.protocol import hopsum_pb2 as pb


class SilentCall:
    """A stream whose controller says nothing."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def __iter__(self) -> Iterator[pb.ControllerMessage]:
        self.cancelled.wait()
        yield from ()

    def cancel(self) -> None:
        self.cancelled.set()


def test_a_stream_without_a_message_ends_when_it_is_closed() -> None:
    """A thread left inside grpcio's call can keep the process from exiting."""
    begun, call = threading.Event(), SilentCall()

    def attend(channel: grpc.Channel, messages: Iterator[pb.AgentMessage]) -> SilentCall:
        begun.set()
        return call

    session = AgentSession("unix:/nonexistent", 1, "h1", "incarnation")
    thread: SessionThread[pb.AgentMessage, pb.ControllerMessage] = SessionThread(
        session, attend, None
    )
    thread.start()
    assert begun.wait(60.0)
    thread.close(patience=0.0)
    assert call.cancelled.is_set()
    assert "controller client" not in {each.name for each in threading.enumerate()}
