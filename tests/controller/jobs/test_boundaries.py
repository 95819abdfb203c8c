"""Boundaries of a job: when the controller cuts tensors anew, and whom it informs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from hopsum.collectives.messages import plan_from
from hopsum.collectives.plan import HostPart, JobPlan
from hopsum.controller.jobs.tracker import Outgoing, Tracker
from hopsum.network.loaders import load_network
from hopsum.protocol import hopsum_pb2 as pb

NETWORK = load_network("star:4")
RING = HostPart(Fraction(1, 2), order=("h1", "h2"))
STAR = HostPart(Fraction(1, 2), root="h3", parents={"h1": "h3", "h2": "h3"})
PLAN = JobPlan(1, 1, ("h1", "h2"), (), 256, 1, host_parts=(RING, STAR), period=10)
OTHER = replace(PLAN, epoch=2, host_parts=(replace(RING, weight=Fraction(1)),))
HOSTS = ("h1", "h2", "h3")


def running(plan: JobPlan = PLAN) -> Tracker:
    tracker = Tracker(NETWORK, plan)
    for host in HOSTS:
        tracker.register(host, 0.0)
    for host in HOSTS:
        tracker.receive(host, pb.AgentMessage(ready=pb.Ready()), 0.0)
    assert tracker.started
    return tracker


def ask(tracker: Tracker, host: str, number: int) -> Outgoing:
    return tracker.receive(host, pb.AgentMessage(boundary=pb.Boundary(number=number)), 0.0)


def received(messages: Outgoing) -> dict[str, tuple[int, JobPlan]]:
    return {host: (m.cut.number, plan_from(m.cut.plan)) for host, m in messages}


def test_a_boundary_is_decided_on_when_all_workers_have_asked() -> None:
    tracker = running()
    assert ask(tracker, "h3", 1) == ask(tracker, "h1", 1) == []
    assert received(ask(tracker, "h2", 1)) == dict.fromkeys(HOSTS, (1, PLAN))
    # A repeated request, after a new connection, has the same answer.
    assert received(ask(tracker, "h1", 1)) == {"h1": (1, PLAN)}
    assert ask(tracker, "h1", 2) == []
    assert received(ask(tracker, "h2", 2)) == dict.fromkeys(HOSTS, (2, PLAN))
    assert tracker.open_boundary is None


def test_a_boundary_waits_for_a_pending_decision() -> None:
    tracker = running()
    tracker.deliberate = True
    for host in ("h1", "h2"):
        assert ask(tracker, host, 1) == []
    assert tracker.open_boundary == 1
    assert received(tracker.decide(1, OTHER)) == {"h1": (1, OTHER), "h2": (1, OTHER)}
    assert received(ask(tracker, "h3", 1)) == {"h3": (1, OTHER)}
    with pytest.raises(ValueError, match="boundary 1 is decided already"):
        tracker.decide(1, PLAN)


def test_an_idle_relay_hears_of_the_next_boundary_that_is_decided_on() -> None:
    tracker = running()
    for number in (1, 2, 3):
        ask(tracker, "h1", number)
        ask(tracker, "h2", number)
    assert received(ask(tracker, "h3", 1)) == {"h3": (3, PLAN)}
    assert ask(tracker, "h3", 4) == []


def test_a_restarted_controller_answers_the_furthest_boundary_with_the_plan_it_kept() -> None:
    kept = replace(PLAN, epoch=2)
    tracker = running(kept)
    assert not tracker.decided
    # h2 had asked for boundary 5, which may or may not have been answered; h1 is one behind.
    assert ask(tracker, "h2", 5) == ask(tracker, "h1", 4) == []
    assert received(ask(tracker, "h1", 5)) == {"h1": (5, kept), "h2": (5, kept)}
    assert tracker.decided


def test_a_new_epoch_of_a_job_with_boundaries_is_no_cut() -> None:
    tracker = running()
    ask(tracker, "h1", 1)
    ask(tracker, "h2", 1)
    assert {m.WhichOneof("message") for _, m in tracker.adopt(OTHER)} == {"plan"}
    assert received(ask(tracker, "h3", 1)) == {"h3": (1, PLAN)}


def test_a_relay_cannot_start_over() -> None:
    tracker = running()
    tracker.leave("h3", 1.0)
    (_, refused), *_ = tracker.register("h3", 1.0)
    assert "a relay cannot join it again" in refused.refused.reason
    assert tracker.agents["h3"].state == pb.FAILED
    tracker = running()
    tracker.leave("h3", 1.0)
    ((_, welcome), *_) = tracker.register("h3", 1.0, pb.RUNNING)
    assert welcome.HasField("welcome")
