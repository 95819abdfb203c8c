"""Streams of agents that attend a job."""

from __future__ import annotations

import asyncio

import pytest

from hopsum.controller.jobs import cluster
from hopsum.controller.jobs.cluster import AgentStream
from hopsum.protocol import hopsum_pb2 as pb


def test_an_agent_that_does_not_read_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its unread messages are bounded; it reconnects, and starts over."""
    monkeypatch.setattr(cluster, "MOST_MESSAGES", 5)

    async def main() -> None:
        stream = AgentStream(1)
        for _ in range(20):
            stream.put(pb.ControllerMessage(waiting=pb.Waiting()))
        received = [await stream.next() for _ in range(6)]
        assert received[-1] is None
        assert None not in received[:-1]

    asyncio.run(main())
