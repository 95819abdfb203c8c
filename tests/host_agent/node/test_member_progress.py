"""A member's reports of its progress and its end to the controller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hopsum.collectives.choices import DataType
from hopsum.collectives.messages import network_message, plan_message
from hopsum.collectives.task_messages import workload_message
from hopsum.collectives.workload import WorkloadSpec
from hopsum.host_agent.node.member import PROGRESS_SECONDS, Member, PeerGone
from hopsum.host_agent.node.work import Work
from hopsum.host_agent.session import AgentSession
from hopsum.host_agent.task import task_from
from hopsum.network.topologies import make_topology
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol import hopsum_pb2 as pb


def test_progress_of_many_tensors_is_reported_together() -> None:
    received: list[int] = []
    stream: Any = SimpleNamespace(job=1, host="h1", progress=received.append)
    unused: Any = None
    member = Member(stream, unused, unused, unused)
    member.tick(7.0)
    assert (received, member.deadline) == ([], None)
    member.round = 1
    assert member.deadline is not None
    member.tick(7.0)
    assert (received, member.deadline) == ([1], None)
    for number in range(2, 9):
        member.round = number
        member.tick(7.001)
    assert (received, member.deadline) == ([1], 7.0 + PROGRESS_SECONDS)
    member.tick(7.0 + PROGRESS_SECONDS)
    assert (received, member.deadline) == ([1, 8], None)


def test_a_server_that_comes_back_when_all_workers_are_done_is_over_without_a_start() -> None:
    """Its stream ends with the release, before the controller learns that it is ready."""
    network = make_topology("star:2")
    plan = plan_job(network, PlanRequest(1, 1, ("h1",), ("h2",)))
    session = AgentSession("controller", 1, "h2")
    unused: Any = None
    environment: Any = SimpleNamespace(use_links=lambda job, ports, links: None)
    member = Member(session, environment, lambda machine: None, unused)
    session.connected()
    task = pb.Task(workload=workload_message(WorkloadSpec("random", 1, 8, 1, DataType.INT32, 1)))
    welcome = pb.Welcome(network=network_message(network), plan=plan_message(plan), task=task)
    session.receive(pb.ControllerMessage(welcome=welcome))
    member.advance(0.0)
    assert session.state == pb.READY
    assert not member.over
    session.receive(pb.ControllerMessage(all_done=pb.AllDone()))
    member.advance(0.0)
    assert member.over


def working_member(host: str) -> tuple[Member, AgentSession]:
    """A member of a job of h1 and h2, with a plan, whose tensors are never made."""
    network = make_topology("star:2")
    plan = plan_job(network, PlanRequest(1, 1, ("h1", "h2"), ("ps",)))
    session = AgentSession("controller", 1, host)
    environment: Any = SimpleNamespace(
        work=lambda assignment: Work(task_from(assignment.task)),
        too_much=lambda needed, what: None,
        use_links=lambda job, ports, links: None,
        put=lambda job, work: 1,
        gradient_seconds=0.0,
    )
    unused: Any = None
    member = Member(session, environment, lambda machine: None, unused)
    session.connected()
    task = pb.Task(workload=workload_message(WorkloadSpec("random", 2, 8, 1, DataType.INT32, 1)))
    welcome = pb.Welcome(network=network_message(network), plan=plan_message(plan), task=task)
    session.receive(pb.ControllerMessage(welcome=welcome))
    member.advance(0.0)
    assert not member.over
    return member, session


@pytest.mark.parametrize("lost", ["h1", "h2"])
def test_a_worker_that_is_released_without_the_others_fails(lost: str) -> None:
    """It waited for their parts for ever: the controller took them, or this one, for lost."""
    member, session = working_member("h1")
    why = pb.Lost(host=lost, reason="silent for 31 s")
    session.receive(pb.ControllerMessage(start=pb.Start()))
    session.receive(pb.ControllerMessage(all_done=pb.AllDone(lost=[why])))
    with pytest.raises(PeerGone, match=f"agent on {lost} is lost: silent for 31 s"):
        member.advance(1.0)


@pytest.mark.parametrize("lost", [[], [pb.Lost(host="h2", reason="it ended")]])
def test_a_server_that_is_released_has_done_its_part(lost: list[pb.Lost]) -> None:
    member, session = working_member("ps")
    session.receive(pb.ControllerMessage(all_done=pb.AllDone(lost=lost)))
    member.advance(1.0)
    assert member.over
