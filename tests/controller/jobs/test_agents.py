"""Messages to agents that attend a job."""

from __future__ import annotations

import asyncio

import pytest

from hopsum.controller.jobs import agents
from hopsum.controller.jobs.agents import AgentRegistry
from hopsum.controller.jobs.tracker import Tracker
from hopsum.network.loaders import load_network
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import make_plan
from hopsum.protocol import hopsum_pb2 as pb


def test_an_agent_that_does_not_read_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message queue is bounded; it reconnects, and starts over."""
    monkeypatch.setattr(agents, "MOST_MESSAGES", 5)
    network = load_network("star:2")
    plan = make_plan(network, PlanRequest(1, 1, ("h1", "h2"), ("ps",), window=32))

    async def main() -> None:
        registry = AgentRegistry(waits=lambda job: True)
        registry.add(Tracker(network, plan, pb.Task()))
        queue, refused = registry.connect("h1", 1, pb.EXPECTED, 0, 0.0)
        assert refused is None
        for second in range(1, 20):
            registry.receive("h1", 1, pb.AgentMessage(heartbeat=pb.Heartbeat()), second)
            registry.check(second)
        kept = [queue.get_nowait() for _ in range(queue.qsize())]
        assert len(kept) == 6
        assert kept[-1] is None

    asyncio.run(main())
