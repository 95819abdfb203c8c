"""Jobs are withdrawn from the queue when those who submitted them are gone."""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction

import pytest

from hopsum.collectives.plan import PlanError
from hopsum.controller.jobs import events
from hopsum.controller.jobs.engine import JobEngine
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.controller.jobs.sharing import SharingPolicy
from hopsum.controller.telemetry.event_log import EventKind
from hopsum.network.loaders import load_network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.liveness import SILENCE_SECONDS

FIRST, SECOND = 1, 2


class Queue:
    """An engine whose second job waits for the first one's slots."""

    def __init__(self, *, awaited: bool = True) -> None:
        self.now = 0.0
        self.sent: list[tuple[str, pb.NodeCommand]] = []
        settings = ClusterSettings(sharing=SharingPolicy(Fraction(1)))
        self.engine = JobEngine(load_network("star:4", slots=64), settings)
        for host in self.engine.network.hosts:
            self.engine.nodes.attach(host, self.now)
        for number, name in enumerate(("first", "second"), 1):
            spec = JobSpec(name, ("h1", "h2"), ("h3",), window=64, awaited=awaited)
            self.handle(events.JobSubmitted(number, spec))
        assert self.job(FIRST).state is JobState.WAITING
        assert self.job(SECOND).state is JobState.QUEUED

    def handle(self, event: events.Event) -> None:
        following = [event]
        while following:
            for command in self.engine.handle(following.pop(), self.now):
                match command:
                    case events.InstallRules(work):
                        following.append(events.WorkDone(work))
                    case events.RunComputation(work, function):
                        try:
                            following.append(events.WorkDone(work, function()))
                        except PlanError as error:
                            following.append(events.WorkFailed(work, error))
                    case events.SendToHost(host, order):
                        self.sent.append((host, order))

    def job(self, number: int) -> Job:
        return self.engine.jobs.find(number)

    def report(self, host: str, *awaited: int) -> None:
        self.handle(events.HostReported(host, pb.NodeReport(awaited=awaited)))

    def last(self, seconds: float, hosts: Collection[str] = ()) -> None:
        """Let time pass, in which these hosts say that they wait for the second job."""
        for _ in range(round(seconds)):
            self.now += 1.0
            for host in self.engine.network.hosts:
                self.report(host, *([SECOND] if host in hosts else []))
            self.handle(events.TimePassed())


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_a_job_whose_submitter_is_silent_is_withdrawn(queue: Queue) -> None:
    queue.last(SILENCE_SECONDS)
    assert queue.job(SECOND).state is JobState.QUEUED
    queue.last(2)
    job = queue.job(SECOND)
    assert job.state is JobState.CANCELLED
    assert job.reason == "withdrawn: its submitter has not been heard of for 31 s"
    last = [*queue.engine.jobs.events][-1]
    assert (last.kind, last.job) == (EventKind.CANCELLED, SECOND)
    assert last.text == f"job second cancelled: {job.reason}"
    # The other one has started: its agents say how it goes.
    assert queue.job(FIRST).state is JobState.WAITING


def test_a_job_stays_while_somebody_waits(queue: Queue) -> None:
    for _ in range(4):
        queue.last(0.8 * SILENCE_SECONDS)
        queue.handle(events.JobAwaited(SECOND))
    assert queue.job(SECOND).state is JobState.QUEUED
    queue.last(2 * SILENCE_SECONDS, ["h1"])
    assert queue.job(SECOND).state is JobState.QUEUED
    queue.handle(events.CancelRequested(3, FIRST, "for the second"))
    assert queue.job(SECOND).state is JobState.WAITING
    queue.last(2 * SILENCE_SECONDS)
    assert queue.job(SECOND).state is JobState.WAITING


def test_a_job_is_withdrawn_as_soon_as_its_process_is_gone(queue: Queue) -> None:
    queue.last(2, ["h1"])
    queue.sent.clear()
    queue.last(1)
    job = queue.job(SECOND)
    assert job.state is JobState.CANCELLED
    assert job.reason == "withdrawn: the process on h1 that submitted it is gone"
    told = {host for host, order in queue.sent if order.leave.job == SECOND}
    assert told >= {"h1", "h2"}, "ranks there may wait for it"


def test_a_host_has_no_say_in_jobs_of_others(queue: Queue) -> None:
    """A host without a part in the job names it, and then no longer."""
    queue.last(2, ["h4"])
    queue.last(2)
    assert queue.job(SECOND).state is JobState.QUEUED


def test_a_job_for_which_nobody_has_to_wait_stays() -> None:
    queue = Queue(awaited=False)
    queue.last(3 * SILENCE_SECONDS)
    assert queue.job(SECOND).state is JobState.QUEUED


def test_time_in_which_the_controller_was_stopped_does_not_count(queue: Queue) -> None:
    queue.last(0.8 * SILENCE_SECONDS)
    queue.now += SILENCE_SECONDS
    queue.last(0.8 * SILENCE_SECONDS)
    assert queue.job(SECOND).state is JobState.QUEUED


def test_processes_that_wait_for_a_job_that_is_over_are_told(queue: Queue) -> None:
    """Their host was cut off when it ended."""
    queue.last(SILENCE_SECONDS + 2)
    queue.sent.clear()
    queue.report("h1", SECOND, 77)
    said = {order.leave.job: order.leave.reason for host, order in queue.sent if host == "h1"}
    assert said[SECOND].startswith("withdrawn: its submitter")
    assert said[77] == "the controller does not know it"
