"""Messages between agent and controller, over streams that end and are opened again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.collectives.messages import network_message, plan_message
from hopsum.host_agent.session import AgentLost, AgentSession, AllDone, NodeSession, PlanChanged
from hopsum.network.loaders import load_network
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.channel import ControllerError


def said(session: AgentSession) -> list[str | None]:
    return [message.WhichOneof("message") for message in session.take_output()]


def test_messages_wait_for_a_stream() -> None:
    session = AgentSession("here", 1, "h1")
    woken: list[str] = []
    session.wake = lambda: woken.append("output")
    session.ready()
    assert session.take_output() == [] and not woken
    session.connected()
    assert woken == ["output"]
    assert said(session) == ["register", "ready"]
    session.progress(3)
    assert woken == ["output"] * 2
    assert said(session) == ["progress"]
    session.beat()
    assert said(session) == ["heartbeat"]


def test_a_restarted_controller_hears_where_the_agent_is() -> None:
    session = AgentSession("here", 1, "h1")
    session.connected()
    session.ready()
    session.receive(pb.ControllerMessage(start=pb.Start()))
    session.progress(4)
    session.ask_boundary(2)
    session.take_output()
    session.disconnected()
    report = pb.Report(retransmissions=7)
    session.finished(report)
    session.connected()
    register, finished, boundary = session.take_output()
    assert (register.register.state, register.register.round) == (pb.FINISHED, 4)
    assert finished.finished.report == report
    assert boundary.boundary.number == 2
    # It is not said twice on one stream.
    assert said(session) == []


def test_news_is_delivered_and_the_end_is_known() -> None:
    session = AgentSession("here", 1, "h1")
    news: list[str] = []
    session.news = lambda: news.append("news")
    session.connected()
    session.receive(pb.ControllerMessage(lost=pb.Lost(host="h2", reason="gone")))
    assert session.events() == [AgentLost("h2", "gone")] and not session.over
    session.receive(pb.ControllerMessage(all_done=pb.AllDone()))
    assert session.events() == [AllDone({})] and session.over
    assert news == ["news"] * 2
    refused = AgentSession("here", 1, "h1")
    refused.receive(pb.ControllerMessage(refused=pb.Refused(reason="no such job")))
    assert refused.over
    with pytest.raises(ControllerError, match="rejected by the controller: no such job"):
        refused.events()


@pytest.mark.parametrize("late", [False, True])
def test_a_plan_that_follows_the_welcome_closely_is_not_lost(late: bool) -> None:
    """An agent begins under the newest plan; afterwards a newer one is an event."""
    network = load_network("star:2")
    request = PlanRequest(1, 1, ("h1",), ("ps",), window=32)
    old, new = (plan_job(network, replace(request, epoch=epoch)) for epoch in (1, 2))
    session = AgentSession("here", 1, "h1")
    session.connected()
    welcome = pb.Welcome(network=network_message(network), plan=plan_message(old))
    session.receive(pb.ControllerMessage(welcome=welcome))
    if late:
        assert session.assignment is not None
    session.receive(pb.ControllerMessage(plan=plan_message(new)))
    assert session.events() == ([PlanChanged(new)] if late else [])
    assert session.assignment is not None
    assert session.assignment.plan == (old if late else new)


def test_a_host_says_hello_on_every_stream_and_reports_on_none() -> None:
    session = NodeSession("here", "h1", 42, "this", "1")
    session.report(pb.NodeReport())
    for _ in range(2):
        session.connected()
        (hello,) = session.take_output()
        assert hello.hello == pb.Hello(host="h1", memory=42, machine="this", instance="1")
        session.report(pb.NodeReport())
        assert [m.WhichOneof("message") for m in session.take_output()] == ["report"]
        session.disconnected()
    session.receive(pb.NodeCommand(refused=pb.Refused(reason="no")))
    assert session.over and [c.refused.reason for c in session.commands()] == ["no"]
