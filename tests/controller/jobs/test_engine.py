"""The job engine under random events, with rules and computations that end in any order.

After every event no two trees share slots, and agents get no epoch that is not recorded.
When all work has succeeded and everything is reachable again, every request has its answer, jobs
that are over hold nothing, and switches have the rules of the others only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.controller.dataplane.driver import DriverError
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.jobs import events
from hopsum.controller.jobs import job as job_module
from hopsum.controller.jobs.engine import JobEngine
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import NEXT, JobState
from hopsum.controller.jobs.journal import Record, UnrecordedError
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.network.loaders import load_network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import HopsumError
from tests.support.search import examples

T = TypeVar("T")
Choose = Callable[[Sequence[Any]], Any]
NETWORK = load_network("leaf-spine:2x2x2", slots=256)
STEPS = 60
DATE = 1_800_000_000.0
EXPECTED = (HopsumError, TimeoutError)
"""Errors that may answer a request."""
EDGES = {(before, after) for before, following in NEXT.items() for after in following}


class Memory:
    """A journal in memory that may refuse records."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.full = False
        self.lines = 0

    @property
    def name(self) -> str:
        return "memory"

    def owned(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self) -> list[Record]:
        return [*self.records]

    def append(self, record: Record) -> None:
        if self.full:
            raise UnrecordedError("no space")
        self.records.append(record)

    def rewrite(self, records: Iterable[Record]) -> None:
        self.records = [*records]


class Driven:
    """An engine, and all that it asked for and has not got yet."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._journal = Memory()
        self.now = 0.0
        self._number = 0
        self._date = 0.0
        self._start()

    def _start(self, lanes: int = 256) -> None:
        """Start a controller on the journal as it is."""
        self.works: dict[int, events.InstallRules | events.RunComputation] = {}
        self.requests: set[int] = set()
        self.streams: dict[int, tuple[str, int]] = {}
        self.invited: set[tuple[str, int]] = set()
        self.epochs: dict[int, int] = {}
        self.rules: Mapping[str, SwitchRules] = {}
        self.engine = JobEngine(
            NETWORK,
            ClusterSettings(lanes, journal=self._journal, grace=20.0),
            date=lambda: DATE + self.now,
            new_key=lambda: bytes(32),
            now=self.now,
        )
        for host in NETWORK.hosts:
            self.engine.nodes.attach(host, self.now)
        for switch in NETWORK.switches:
            self.handle(events.SwitchChanged(switch, True, {}))
        self.gives_up = False
        self._restoring = self._number + 1
        self.ask(lambda request: events.RestoreRequested(request))
        self.handle(events.ServiceOpened())

    # -- the engine's environment

    def handle(self, event: events.Event) -> None:
        for command in self.engine.handle(event, self.now):
            self._carry_out(command)
        assert self.engine.deadline > self.now
        self._check_slots()

    def _carry_out(self, command: events.Command) -> None:
        match command:
            case events.InstallRules(work, rules):
                self.works[work] = command
                # From here on, even if the engine abandons this, or a switch refuses it at first.
                self.rules = rules
            case events.RunComputation(work):
                self.works[work] = command
            case events.AbandonWork(work):
                del self.works[work]
            case events.SendToAgent(stream, message):
                assert stream in self.streams
                if message.HasField("plan"):
                    self._take_plan(message.plan)
            case events.RejectAgent(stream) | events.PostponeAgent(stream):
                del self.streams[stream]
            case events.EndStream(stream):
                self.streams.pop(stream, None)
            case events.SendToHost(host, order):
                if order.HasField("attend"):
                    self.invited.add((host, order.attend.job))
            case events.EndHost(host):
                # Its process connects again.
                self.engine.nodes.detach(host, self.now)
                self.engine.nodes.attach(host, self.now)
            case events.Answer(request, _, error):
                self.requests.discard(request)
                assert isinstance(error, EXPECTED) or error is None
                # The controller's process ends if it cannot install the rules of its jobs.
                self.gives_up |= error is not None and request == self._restoring

    def _take_plan(self, plan: pb.Plan) -> None:
        """Check that a plan for agents is recorded, and that its epoch is not an earlier one."""
        known = self.epochs.get(plan.job, 0)
        assert plan.epoch >= known
        self.epochs[plan.job] = plan.epoch
        recorded = [r["plan"] for r in self._journal.records if r["number"] == plan.job]
        assert any(record and record["epoch"] == plan.epoch for record in recorded)

    def _check_slots(self) -> None:
        for switch in NETWORK.switches:
            ranges = sorted(
                (slots.start, slots.stop)
                for slots in self.engine.plans.slot_ranges(switch).values()
            )
            assert all(stop <= start for (_, stop), (start, _) in pairwise(ranges))

    def ask(self, event: Callable[[int], events.Event]) -> None:
        self._number += 1
        self.requests.add(self._number)
        self.handle(event(self._number))

    # -- what may happen

    def step(self) -> None:
        """Let something happen."""
        if self.gives_up:
            self.restart()
        happens = [self.pass_time, self.submit, self.cancel, self.change_switch, self.fill_disk]
        happens += 6 * [self.work, self.join, self.say] + 2 * [self.leave] + [self.abandon]
        self._choose([*happens, self.restart])()

    def pass_time(self) -> None:
        self.now += self._choose([0.01, 0.5, 2.0, 10.0, 40.0])
        self.handle(events.TimePassed())
        for host in NETWORK.hosts:
            self.handle(events.HostReported(host, pb.NodeReport()))

    def submit(self) -> None:
        hosts = [*NETWORK.hosts]
        first = self._choose(range(len(hosts) - 2))
        self._number += 1
        spec = JobSpec(
            f"job{self._number}",
            tuple(hosts[first : first + 2]),
            (hosts[first + 2],),
            window=self._choose([32, 128]),
            immediate=self._choose([False, False, True]),
        )
        self.ask(lambda request: events.JobSubmitted(request, spec))

    def cancel(self) -> None:
        if jobs := [*self.engine.jobs]:
            job = self._choose(jobs)
            self.ask(lambda request: events.CancelRequested(request, job.number, "changed my mind"))

    def abandon(self) -> None:
        if requests := sorted(self.requests - {self._restoring}):
            request = self._choose(requests)
            self.handle(events.RequestAbandoned(request))
            self.requests.discard(request)

    def change_switch(self) -> None:
        switch = self._choose([*NETWORK.switches])
        self.handle(events.SwitchChanged(switch, self._choose([True, False]), {}))

    def fill_disk(self) -> None:
        self._journal.full = self._choose([True, False, False])

    def work(self) -> None:
        if self.works:
            self.finish(self._choose(sorted(self.works)), self._choose([True, True, True, False]))

    def finish(self, number: int, succeeds: bool = True) -> None:
        match self.works.pop(number):
            case events.InstallRules() if not succeeds:
                self.handle(events.WorkFailed(number, DriverError("s1", "it will not")))
            case events.InstallRules():
                self.handle(events.WorkDone(number))
            case events.RunComputation(_, function):
                try:
                    value = function()
                except HopsumError as error:
                    self.handle(events.WorkFailed(number, error))
                else:
                    self.handle(events.WorkDone(number, value))

    def join(self) -> None:
        """An agent that is asked to attends; its state may be one of an earlier stream."""
        if not self.invited:
            return
        host, job = self._choose(sorted(self.invited))
        self.invited.discard((host, job))
        self._number += 1
        self.streams[self._number] = host, job
        state = self._choose([pb.EXPECTED, pb.EXPECTED, pb.READY, pb.RUNNING])
        self.handle(events.AgentJoined(self._number, host, job, state))

    def say(self) -> None:
        if not self.streams:
            return
        stream = self._choose(sorted(self.streams))
        message = self._choose(
            [
                *3 * [pb.AgentMessage(ready=pb.Ready())],
                pb.AgentMessage(progress=pb.Progress(round=3)),
                *2 * [pb.AgentMessage(finished=pb.Finished())],
                pb.AgentMessage(failed=pb.Failed(reason="broken")),
            ]
        )
        self.handle(events.AgentSaid(stream, message))

    def leave(self) -> None:
        if self.streams:
            stream = self._choose(sorted(self.streams))
            self.invited.add(self.streams.pop(stream))
            self.handle(events.AgentLeft(stream))

    def restart(self) -> None:
        """Kill the controller, and start another one on its journal."""
        self._journal.full = False
        self._start(self._choose([256, 256, 256, 128]))

    # -- the end

    def settle(self) -> None:
        """Let all that is under way succeed, and everything be reachable."""
        self._journal.full = False
        if self.gives_up:
            self.restart()
        for switch in NETWORK.switches:
            self.handle(events.SwitchChanged(switch, True, {}))
        for _ in range(300):
            while self.works:
                self.finish(min(self.works))
            self.now = max(self.engine.deadline, self.now)
            self.handle(events.TimePassed())

    def check_end(self) -> None:
        """Check that all requests are answered, and that jobs that are over hold nothing."""
        assert not self.requests
        assert not self.engine.plans.failed
        alive = {job.number for job in self.engine.jobs if job.active}
        assert set(self.engine.plans.active) == alive
        for job in self.engine.jobs:
            assert job.state is not JobState.DRAINING
            assert job.state is not JobState.CHANGING
            assert job.state is not JobState.INSTALLING
            if job.state is JobState.QUEUED:
                assert job.reason
        assert self.rules == self.engine.plans.rules()
        held = {job for switch in NETWORK.switches for job in self.engine.plans.slots_held(switch)}
        assert held <= alive


def drive(choose: Choose, steps: int = STEPS) -> Driven:
    driven = Driven(choose)
    for _ in range(steps):
        driven.step()
    driven.settle()
    driven.check_end()
    return driven


@pytest.mark.slow
@settings(max_examples=examples(25, 5000))
@given(st.data())
def test_random_events_leave_nothing_behind(data: st.DataObject) -> None:
    drive(lambda options: data.draw(st.sampled_from(options)))


@pytest.mark.slow
def test_every_edge_of_the_diagram_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of docs/cluster.md, which are `NEXT`; no other is possible (`test_job`)."""
    taken: set[tuple[JobState, JobState]] = set()
    move = job_module.move

    def note(job: Job, to: JobState, *arguments: Any, **options: Any) -> None:
        before = job.state
        move(job, to, *arguments, **options)
        taken.add((before, to))

    monkeypatch.setattr("hopsum.controller.jobs.job_table.move", note)
    # The first has what takes longest to find.
    for seed in (33, *range(examples(400, 4000))):
        # Long ones: an engine takes as long to settle as for these steps.
        drive(random.Random(seed).choice, 250)
        if taken == EDGES:
            break
    assert taken == EDGES


def test_equal_events_give_equal_histories() -> None:
    """Without a clock, threads or randomness of its own an engine is its events."""
    one, other = (drive(random.Random(7).choice) for _ in range(2))
    assert [(job.number, job.state, job.reason, job.ended) for job in one.engine.jobs] == [
        (job.number, job.state, job.reason, job.ended) for job in other.engine.jobs
    ]
