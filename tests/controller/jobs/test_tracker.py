"""Where the agents of a job are, and what each is sent."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.collectives.plan import HostPart
from hopsum.controller.jobs import tracker as tracker_module
from hopsum.controller.jobs.tracker import Outgoing, Tracker
from hopsum.network.loaders import load_network
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.liveness import RETURN_SECONDS
from tests.support.jobs import star, star_request


def kinds(messages: Outgoing) -> list[tuple[str, str | None]]:
    return [(host, message.WhichOneof("message")) for host, message in messages]


def say(**fields: Any) -> pb.AgentMessage:
    return pb.AgentMessage(**fields)


def lose(tracker: Tracker, host: str) -> Outgoing:
    """End an agent's stream, and let the others live on until it is lost."""
    tracker.leave(host, 0.0)
    return tracker.check(RETURN_SECONDS)


READY = say(ready=pb.Ready())
REPORT = pb.Report(retransmissions=1)
FINISHED = say(finished=pb.Finished(report=REPORT))


def started(tracker: Tracker | None = None) -> Tracker:
    tracker = tracker or Tracker(*star())
    for host in tracker.agents:
        tracker.register(host, 0.0)
    for host in tracker.agents:
        tracker.receive(host, READY, 0.0)
    assert tracker.underway
    return tracker


def test_the_barrier_opens_when_all_are_ready() -> None:
    tracker = Tracker(*star())
    assert kinds(tracker.register("h1", 0.0)) == [("h1", "welcome")]
    assert tracker.receive("h1", READY, 0.0) == []
    tracker.register("h2", 0.0)
    tracker.register("ps", 0.0)
    tracker.receive("ps", READY, 0.0)
    assert not tracker.started
    assert kinds(tracker.receive("h2", READY, 0.0)) == [
        ("h1", "start"),
        ("h2", "start"),
        ("ps", "start"),
    ]
    assert tracker.underway


def test_an_agents_final_report_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "MOST_REPORT_BYTES", 10)
    monkeypatch.setattr(tracker_module, "MOST_REASON", 10)
    tracker = started()
    long = pb.Report(forms=["levels"] * 10)
    out = tracker.receive("h1", say(finished=pb.Finished(report=long)), 1.0)
    assert "its report has 80 bytes; expected at most 10" in {m.lost.reason for _, m in out}
    assert tracker.agents["h1"].state == pb.FAILED
    tracker.receive("h2", say(failed=pb.Failed(reason="x" * 100)), 1.0)
    assert tracker.agents["h2"].reason == "x" * 10


def test_a_report_of_many_tensors_loses_their_times_and_not_the_job() -> None:
    """Of more than 524,288 tensors, which the controller does not keep."""
    tracker = started()
    tensors = (tracker_module.MOST_REPORT_BYTES >> 4) + 1
    times = pb.Intervals(starts=[1.0] * tensors, finishes=[2.0] * tensors)
    long = pb.Report(verdict=pb.Verdict(checked=7), intervals=times, retransmissions=1)
    tracker.receive("h1", say(finished=pb.Finished(report=long)), 1.0)
    assert tracker.failures() == {}
    kept = pb.Report(verdict=pb.Verdict(checked=7), retransmissions=1)
    assert tracker.reports() == {"h1": kept}


def test_all_are_released_when_every_worker_has_finished() -> None:
    tracker = started()
    assert tracker.receive("h1", FINISHED, 1.0) == []
    out = tracker.receive("h2", FINISHED, 1.0)
    assert kinds(out) == [("h1", "all_done"), ("h2", "all_done"), ("ps", "all_done")]
    assert tracker.released
    assert not tracker.over
    tracker.receive("ps", FINISHED, 1.0)
    assert tracker.over
    assert tracker.reports() == {"h1": REPORT, "h2": REPORT, "ps": REPORT}


def test_a_dead_agent_is_named_to_all_others() -> None:
    tracker = started(Tracker(*star(3)))
    assert tracker.check(1.0) == []
    out = lose(tracker, "h2")
    assert kinds(out) == [("h1", "lost"), ("h3", "lost"), ("ps", "lost")]
    assert out[0][1].lost == pb.Lost(host="h2", reason="its connection ended")
    assert not tracker.underway
    tracker.receive("h1", FINISHED, 1.0)
    out = tracker.receive("h3", say(failed=pb.Failed(reason="no result")), 1.0)
    assert kinds(out)[:2] == [("h1", "lost"), ("ps", "lost")]
    released = [message.all_done for _, message in out if message.HasField("all_done")]
    assert {lost.host: lost.reason for lost in released[0].lost} == {
        "h2": "its connection ended",
        "h3": "no result",
    }
    assert tracker.failures() == {"h2": "its connection ended", "h3": "no result"}


def test_the_first_failure_is_named_first() -> None:
    """The others may follow from it."""
    tracker = started(Tracker(*star(3)))
    tracker.receive("h3", say(failed=pb.Failed(reason="no result")), 1.0)
    tracker.receive("ps", say(failed=pb.Failed(reason="h3 is lost")), 1.0)
    lose(tracker, "h1")
    assert [*tracker.failures()] == ["h3", "ps", "h1"]


def test_silence_is_death_only_after_a_while() -> None:
    tracker = started()
    tracker.receive("h1", say(heartbeat=pb.Heartbeat()), 25.0)
    tracker.receive("ps", say(heartbeat=pb.Heartbeat()), 25.0)
    assert tracker.check(29.0) == []
    assert kinds(tracker.check(31.0)) == [("h1", "lost"), ("ps", "lost")]
    assert tracker.failures() == {"h2": "silent for 31 s"}
    assert tracker.check(32.0) == []


@pytest.mark.parametrize(
    ("host", "reason"),
    [("h9", "host h9 has no part in job 1"), ("h1", "has an agent in job 1 already")],
)
def test_foreign_processes_are_refused(host: str, reason: str) -> None:
    tracker = Tracker(*star())
    tracker.register("h1", 0.0)
    ((_, message),) = tracker.register(host, 0.0)
    assert reason in message.refused.reason


def test_a_worker_cannot_start_afresh_in_a_started_job() -> None:
    tracker = started()
    tracker.leave("h1", 0.0)
    (_, message), *others = tracker.register("h1", 1.0)
    assert kinds(others) == [("h2", "lost"), ("ps", "lost")]
    assert "a worker cannot join it again" in message.refused.reason


def test_a_lost_worker_that_returns_stays_lost() -> None:
    """A controller that hung has seen all streams end: what ran on must not show as finished."""
    tracker = started()
    for host in ("h1", "h2", "ps"):
        lose(tracker, host)
    assert tracker.released
    for host in ("h1", "h2"):
        ((_, message),) = tracker.register(host, 1.0, pb.RUNNING, 266)
        assert message.refused.reason == f"host {host} has failed in job 1: its connection ended"
    assert not tracker.underway
    assert set(tracker.failures()) == {"h1", "h2"}


def test_a_worker_that_has_failed_stays_failed_when_its_report_comes_again() -> None:
    """Its job is over for all of them: without the failure it would count as finished."""
    tracker = Tracker(*star(1))
    failed = say(failed=pb.Failed(reason="OverflowError: a sum overflows"))
    tracker.register("h1", 0.0, pb.FAILED)
    tracker.receive("h1", failed, 0.0)
    tracker.leave("h1", 0.1)
    assert tracker.released
    again = tracker.register("h1", 0.2, pb.FAILED)
    assert kinds(again) == [("h1", "refused")]
    assert again[0][1].refused.reason == (
        "host h1 has failed in job 1: OverflowError: a sum overflows"
    )
    assert tracker.failures()["h1"] == "OverflowError: a sum overflows"


def test_an_agent_that_returns_in_time_has_lost_nothing() -> None:
    """The end of a stream says nothing of the process: the controller, or the network, was away."""
    tracker = started()
    for host in tracker.agents:
        tracker.leave(host, 12.0)
    assert tracker.check(14.9) == []
    for host in tracker.agents:
        assert kinds(tracker.register(host, 14.9, pb.RUNNING, 266)) == [(host, "welcome")]
    assert tracker.check(20.0) == []
    assert tracker.underway
    tracker.leave("h2", 20.0)
    assert tracker.check(22.9) == []
    assert kinds(tracker.check(23.0)) == [("h1", "lost"), ("ps", "lost")]
    assert tracker.check(27.0) == []


def test_the_controllers_own_absence_is_no_silence_of_others() -> None:
    tracker = started(Tracker(*star(3)))
    tracker.leave("h2", 1.0)
    tracker.was_away(100.0, 101.0)
    tracker.leave("h1", 101.0)
    assert tracker.check(106.9) == []
    assert kinds(tracker.register("h1", 106.9, pb.RUNNING)) == [("h1", "welcome")]
    assert kinds(tracker.check(107.0)) == [("h1", "lost"), ("h3", "lost"), ("ps", "lost")]
    assert tracker.check(129.0) == []
    tracker.check(131.1)
    assert set(tracker.failures()) == {"h2", "h3", "ps"}


def test_a_failure_names_those_that_have_gone_before_it() -> None:
    """A peer notices the end of a process earlier than the controller takes it for granted."""
    tracker = started(Tracker(*star(3)))
    tracker.leave("h1", 1.0)
    tracker.receive("h2", say(failed=pb.Failed(reason="rank 0 closed its connection")), 1.0)
    assert tracker.failures() == {
        "h1": "its connection ended",
        "h2": "rank 0 closed its connection",
    }
    tracker.leave("h3", 1.0)
    assert tracker.failures()["h3"] == "its connection ended"


def test_an_agent_that_is_away_does_not_start() -> None:
    tracker = Tracker(*star(2))
    for host in tracker.agents:
        tracker.register(host, 0.0)
    tracker.receive("h1", READY, 0.0)
    tracker.leave("h1", 0.0)
    tracker.receive("h2", READY, 0.0)
    assert tracker.receive("ps", READY, 0.0) == []
    assert not tracker.started
    out = tracker.register("h1", 1.0, pb.READY)
    assert [host for host, kind in kinds(out) if kind == "start"] == ["h1", "h2", "ps"]


def test_a_session_may_replace_its_stream_and_no_other() -> None:
    """An agent gives its stream up before the controller sees the end of it."""
    tracker = Tracker(*star(1))
    assert kinds(tracker.register("h1", 0.0, instance="a")) == [("h1", "welcome")]
    for other in ("b", ""):
        assert kinds(tracker.register("h1", 1.0, instance=other)) == [("h1", "refused")]
    assert kinds(tracker.register("h1", 1.0, instance="a")) == [("h1", "welcome")]
    tracker.register("ps", 1.0)
    assert kinds(tracker.register("ps", 1.0)) == [("ps", "refused")]


@pytest.mark.parametrize("order", [("h1", "h2"), ("h2", "h1")])
@pytest.mark.parametrize("state", [pb.EXPECTED, pb.PREPARING])
def test_a_worker_that_restarts_with_the_controller_fails_its_job(
    order: tuple[str, str], state: pb.AgentState
) -> None:
    """h1 restarts, h2 runs; the controller's journal does not say that the job had started."""
    tracker = Tracker(*star())
    tracker.register("ps", 0.0, pb.READY)
    out = []
    for host in order:
        out += tracker.register(host, 0.0, pb.RUNNING if host == "h2" else state)
    assert ("h2", "lost") in kinds(out)
    assert tracker.failures()["h1"].startswith("it lost its part in the job: it restarted, or")
    assert tracker.agents["h1"].state == pb.FAILED


def test_a_restarted_controller_takes_agents_back_where_they_were() -> None:
    tracker = Tracker(*star())
    tracker.register("h1", 0.0, pb.RUNNING, 7)
    tracker.register("ps", 0.0, pb.RUNNING)
    assert tracker.underway
    assert tracker.agents["h1"].round == 7
    assert kinds(tracker.register("h2", 0.0, pb.FINISHED)) == [("h2", "welcome")]
    assert tracker.receive("h2", FINISHED, 0.0) == []
    out = tracker.receive("h1", FINISHED, 0.0)
    assert ("ps", "all_done") in kinds(out)


def test_agents_that_missed_the_start_are_started_by_the_next_controller() -> None:
    """The one before recorded that the job had started, and failed before all of them knew."""
    tracker = Tracker(*star())
    tracker.started = True
    assert kinds(tracker.register("h1", 0.0, pb.READY)) == [("h1", "welcome"), ("h1", "start")]
    tracker.register("h2", 0.0, pb.RUNNING)
    assert tracker.underway


def test_the_next_controller_hears_why_an_agent_failed() -> None:
    tracker = Tracker(*star())
    tracker.started = True
    assert kinds(tracker.register("h1", 0.0, pb.FAILED)) == [("h1", "welcome")]
    tracker.receive("h1", say(failed=pb.Failed(reason="its disk is full")), 0.0)
    assert tracker.failures() == {"h1": "its disk is full"}


def test_agents_that_return_after_the_release_are_released() -> None:
    tracker = Tracker(*star(1))
    tracker.register("h1", 0.0, pb.RUNNING)
    tracker.receive("h1", FINISHED, 0.0)
    assert kinds(tracker.register("ps", 0.0, pb.RUNNING)) == [("ps", "welcome"), ("ps", "all_done")]


def test_a_finished_worker_that_is_a_root_is_lost_until_the_others_have_finished() -> None:
    """Found by the soak (schedule 919207): the others waited for results until their deadline."""
    network = load_network("star:2")
    plan = plan_job(network, PlanRequest(1, 1, ("h1", "h2"), ("h1",)))
    for last in (False, True):
        tracker = Tracker(network, plan)
        for worker in plan.workers:
            tracker.register(worker, 0.0)
        for worker in plan.workers:
            tracker.receive(worker, READY, 0.0)
        tracker.receive("h1", FINISHED, 1.0)
        if last:
            tracker.receive("h2", FINISHED, 1.0)
        tracker.receive("h2", say(heartbeat=pb.Heartbeat()), 25.0)
        assert kinds(tracker.check(40.0)) == ([] if last else [("h2", "lost")])
        tracker.agents["h1"].state = pb.FINISHED
        tracker.receive("h2", say(heartbeat=pb.Heartbeat()), 40.0)
        tracker.leave("h1", 40.0)
        assert kinds(tracker.check(43.0)) == ([] if last else [("h2", "lost")])
        assert tracker.failures() == ({} if last else {"h1": "its connection ended"})


def test_workers_that_all_restart_before_the_start_start_together() -> None:
    """Found by the soak (schedule 913518): the job had finished then, and nobody had a sum."""
    tracker = Tracker(*star(1))
    tracker.register("h1", 0.0)
    tracker.receive("h1", READY, 0.0)
    tracker.leave("h1", 0.0)
    assert not tracker.released
    assert kinds(tracker.register("h1", 0.0)) == [("h1", "welcome")]
    assert not tracker.started
    tracker.register("ps", 0.0)
    tracker.receive("ps", READY, 0.0)
    assert kinds(tracker.receive("h1", READY, 0.0)) == [("h1", "start"), ("ps", "start")]


def test_a_server_without_sums_needs_a_new_epoch_under_the_next_controller_too() -> None:
    tracker = Tracker(*star(1))
    tracker.started = True
    assert tracker.needs_new_epoch("ps", pb.EXPECTED)
    assert tracker.needs_new_epoch("ps", pb.PREPARING)
    assert not tracker.needs_new_epoch("ps", pb.READY)
    assert not tracker.needs_new_epoch("ps", pb.RUNNING)
    tracker.started = False
    assert not tracker.needs_new_epoch("ps", pb.EXPECTED)


def test_a_server_that_replaces_another_needs_no_epoch_but_its_plans() -> None:
    network, request = star_request(3)
    request = replace(request, workers=("h1", "h2"))
    tracker = started(Tracker(network, plan_job(network, request)))
    tracker.leave("ps", 0.0)
    tracker.adopt(plan_job(network, replace(request, epoch=2, servers=("h3",))))
    assert not tracker.needs_new_epoch("h3", pb.EXPECTED)
    tracker.register("h3", 2.0)
    tracker.leave("h3", 0.0)
    assert tracker.needs_new_epoch("h3", pb.EXPECTED)


def test_a_restarted_server_needs_a_new_epoch() -> None:
    tracker = started()
    assert not tracker.needs_new_epoch("ps", pb.EXPECTED)
    tracker.leave("ps", 0.0)
    assert tracker.needs_new_epoch("ps", pb.EXPECTED)
    assert not tracker.needs_new_epoch("h1", pb.EXPECTED)
    network, request = star_request()
    plan = plan_job(network, replace(request, epoch=2))
    assert kinds(tracker.adopt(plan)) == [("h1", "plan"), ("h2", "plan")]
    ((_, message),) = tracker.register("ps", 2.0)
    assert message.welcome.plan.epoch == 2
    assert kinds(tracker.receive("ps", READY, 2.0)) == [("ps", "start")]
    assert tracker.underway


def test_a_server_that_is_a_relay_cannot_come_back() -> None:
    """Its sums of trees could come again in a new epoch; those over TCP are lost."""
    network, plan = star()
    part = HostPart(Fraction(1, 2), root="ps", parents={"h1": "ps", "h2": "ps"})
    tracker = started(Tracker(network, replace(plan, host_parts=(part,))))
    tracker.leave("ps", 0.0)
    assert not tracker.needs_new_epoch("ps", pb.EXPECTED)
    (_, message), *others = tracker.register("ps", 1.0)
    assert "a relay cannot join it again" in message.refused.reason
    assert kinds(others) == [("h1", "lost"), ("h2", "lost")]


def test_a_server_that_moved_is_expected_on_its_new_host() -> None:
    network = load_network("star:2", servers=2)
    request = PlanRequest(1, 1, ("h1", "h2"), ("ps1",))
    tracker = Tracker(network, plan_job(network, request))
    tracker.adopt(plan_job(network, replace(request, epoch=2, servers=("ps2",))))
    assert set(tracker.agents) == {"h1", "h2", "ps2"}


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(["h1", "h2", "h3", "ps"]), st.integers(0, 5))))
def test_news_is_sent_once_and_the_dead_delay_no_one(steps: list[tuple[str, int]]) -> None:
    tracker = Tracker(*star(3))
    heard: dict[tuple[str, str | None], int] = {}

    def note(messages: Outgoing) -> None:
        for host, kind in kinds(messages):
            heard[host, kind] = heard.get((host, kind), 0) + 1

    for host, what in steps:
        connected = tracker.agents[host].connected
        if what == 0 and not connected and tracker.agents[host].state == pb.EXPECTED:
            note(tracker.register(host, 0.0))
        elif what == 1 and connected:
            note(tracker.receive(host, READY, 0.0))
        elif what == 2 and connected and tracker.agents[host].state == pb.RUNNING:
            note(tracker.receive(host, FINISHED, 0.0))
        elif what == 3 and connected:
            note(lose(tracker, host))
    assert all(count == 1 for (_, kind), count in heard.items() if kind in ("start", "all_done"))
    if any(kind == "start" for _, kind in heard):
        assert tracker.started
    workers = [tracker.agents[host] for host in ("h1", "h2", "h3")]
    assert tracker.released == (tracker.started and all(worker.over for worker in workers))


def test_a_job_is_over_when_the_last_report_is_in_and_not_before() -> None:
    """After a restart of the controller agents say where they were, and then their last word."""
    network, request = star_request(2)
    tracker = Tracker(network, plan_job(network, request))
    tracker.register("ps", 0.0, pb.RUNNING)
    for worker in ("h1", "h2"):
        tracker.register(worker, 0.0, pb.FINISHED)
    assert not tracker.released
    for worker in ("h1", "h2"):
        tracker.receive(worker, pb.AgentMessage(finished=pb.Finished()), 0.0)
    assert tracker.released
    assert tracker.reports() == {"h1": pb.Report(), "h2": pb.Report()}
