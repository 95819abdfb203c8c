"""The job engine: events of a cluster in, commands out ([002][]).

It admits jobs, plans them, follows their agents, plans around failures and ends jobs. A job's
failure ends that job only. Without input, output or a clock: `cluster` drives it for gRPC and
P4Runtime, tests and searches drive it by events. Only the journal is written directly, since what
cannot be recorded must not be done.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from hopsum.controller.dataplane.rules import Loss
from hopsum.controller.jobs import events
from hopsum.controller.jobs.admission import Admission
from hopsum.controller.jobs.agent_streams import AgentStreams
from hopsum.controller.jobs.engine_state import EngineState
from hopsum.controller.jobs.epochs import Epochs
from hopsum.controller.jobs.failover import Failover
from hopsum.controller.jobs.hosts import Hosts
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.procedures import Install, Procedure
from hopsum.controller.jobs.reoptimization import Reoptimization
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.controller.jobs.stall_diagnosis import why_stalled
from hopsum.controller.jobs.submission import Submission
from hopsum.controller.jobs.submitters import Submitters
from hopsum.controller.jobs.supervisor import Supervisor
from hopsum.controller.jobs.termination import Termination
from hopsum.controller.jobs.tracker import Tracker
from hopsum.controller.telemetry.diagnosis import cut_off, outage
from hopsum.controller.telemetry.health import Element
from hopsum.network.model import Network
from hopsum.protocol.errors import OperationError

LOGGER = logging.getLogger("hopsum.engine")

CHECK_SECONDS = 1.0
"""Time between checks of agents that may have timed out."""
AWAY_SECONDS = 1.0
"""Seconds by which a check is late before this process counts as having been stopped."""
CANCEL_SECONDS = 2.0
"""Timeout of a cancellation for removing a job's rules; switches that hang lose them later."""
LEAST_WAIT = 0.01
"""Least time between two deadlines, in seconds."""


class UnknownJobError(OperationError):
    """No job of that number is active."""


class JobEngine:
    """The jobs and hosts of a network. `handle` processes an event; `deadline` is its next one.

    `date`: the wall clock, seconds since 1970, for the journal and for lists of jobs.
    `new_key`: 32 random bytes. `losses`: packets that switches drop, for experiments.
    """

    def __init__(
        self,
        network: Network,
        settings: ClusterSettings | None = None,
        losses: Iterable[Loss] = (),
        date: Callable[[], float] = time.time,
        new_key: Callable[[], bytes] = secrets.token_bytes,
        now: float = 0.0,
    ) -> None:
        state = EngineState(network, settings or ClusterSettings(), losses, date, new_key, now)
        self._state = state
        self.network = network
        self.settings = state.settings
        self.date = date
        self.nodes = state.nodes
        self.jobs = state.jobs
        self.priorities = state.priorities
        self.plans = state.plans
        self.procedures = state.procedures
        self.agents = AgentStreams(state, lambda job, change: self.epochs.change(job, change))
        self.hosts = Hosts(state)
        self.epochs = Epochs(
            self.plans,
            self.jobs,
            self.procedures,
            self.agents.tell,
            self.describe,
            self.hosts.summon,
            self.agents.forget,
        )
        self.reoptimization = Reoptimization(
            self.plans,
            self.epochs,
            self.procedures,
            self.nodes.state,
            self.settings.replanning,
        )
        self.admission = Admission(state, self.epochs, self.hosts)
        self.termination = Termination(state, self.admission)
        self.submission = Submission(
            state, self.epochs, self.hosts, self.admission, self.termination
        )
        self.submitters = Submitters(state, self.termination)
        self.failover = Failover(
            state,
            self.epochs,
            self.reoptimization,
            # Queued jobs may have waited for what is back.
            self.admission.try_queued,
            # Where plans follow the state of links, jobs return by their next look.
            returns=not self.settings.replanning.live,
        )
        self.supervisor = Supervisor(
            state, self.epochs, self.reoptimization, self.agents, self.hosts, self.termination
        )
        self._requests: dict[int, int] = {}
        """Procedures by the requests that they answer."""
        self._interruptible: set[int] = set()
        """Requests whose procedures end when nobody waits for the answer."""
        self.next_check = now + CHECK_SECONDS
        """Time of the next check for agents that timed out and records that are pending."""

    @property
    def now(self) -> float:
        """Time of the latest event, in seconds."""
        return self._state.now

    # -- events

    @property
    def deadline(self) -> float:
        """Time of the next event `TimePassed`, if no other comes first."""
        due = min(self.next_check, self.failover.deadline, self._state.next_timer)
        return max(self.now + LEAST_WAIT, due)

    def handle(self, event: events.Event, now: float) -> list[events.Command]:
        """Process an event at a time; return the commands to carry out, in order.

        Raises ReportError, PriorityError for a host's report that cannot be true.
        """
        self._state.now = now
        try:
            self._dispatch(event)
        finally:
            self.procedures.run()
            self._review_after(event)
            self.procedures.run()
        return self._take_commands()

    def _review_after(self, event: events.Event) -> None:
        """Review what an event may have changed; frequent ones concern a job, or none."""
        match event:
            case events.HostReported() | events.JobAwaited():
                return
            case events.AgentSaid(stream):
                reviewed = [self.agents.job_of(stream)]
            case _:
                self.failover.review()
                reviewed = [*self.plans.active.values()]
        for active in reviewed:
            if active is not None:
                self.supervisor.review(active)

    def _dispatch(self, event: events.Event) -> None:
        match event:
            case events.JobSubmitted(request, spec):
                self._interruptible.add(request)
                self._answer(request, self.submission.submit(spec))
            case events.CancelRequested(request, number, reason):
                self._answer(request, self.termination.cancel(self.jobs.find(number), reason))
                self._state.at(self.now + CANCEL_SECONDS, partial(self._finish_request, request))
            case events.JobAwaited(number):
                self.submitters.waits(number)
            case events.RestoreRequested(request):
                self._answer(request, self.submission.restore())
            case events.RequestAbandoned(request):
                self._abandon(request)
            case events.ServiceOpened():
                self._state.open_since = self.now
            case events.AgentJoined():
                self.agents.join(event)
            case events.AgentSaid(stream, message):
                self.agents.receive(stream, message)
            case events.AgentLeft(stream):
                host = self.agents.leave(stream)
                if host is not None:
                    self.hosts.invite(host)
            case events.HostAttached(host):
                self.hosts.invite(host)
            case events.HostDetached():
                self.failover.update_links()
            case events.HostReported(host, report):
                if self.hosts.take_report(host, report):
                    self.failover.update_links()
                    self.failover.review()
                self.submitters.take_report(host, report)
                self.hosts.take_progress(host, report)
            case events.SwitchChanged(switch, reachable, ports):
                self.failover.switch_changed(switch, reachable, ports)
            case events.LinksChanged(links):
                self.failover.links_changed(links)
            case events.WorkDone(work, value):
                self.procedures.resume(work, value)
            case events.WorkFailed(work, error):
                self.procedures.resume(work, error=error)
            case events.TimePassed():
                self._pass_time()

    def _answer(self, request: int, steps: Procedure[Any]) -> None:
        """Start a procedure that answers a request."""
        self._requests[request] = self.procedures.start(
            steps, partial(self._finish_request, request)
        )

    def _finish_request(
        self, request: int, value: Any = None, error: Exception | None = None
    ) -> None:
        """Answer a request unless it has been answered."""
        self._interruptible.discard(request)
        if self._requests.pop(request, None) is not None:
            self._state.send(events.Answer(request, value, error))

    def _abandon(self, request: int) -> None:
        """Interrupt a submission; what else was requested is done without an answer."""
        if request in self._interruptible:
            self.procedures.interrupt(self._requests[request])
        else:
            self._requests.pop(request, None)

    def _take_commands(self) -> list[events.Command]:
        for work in self.procedures.abandoned:
            self._state.send(events.AbandonWork(work))
        for work, wait in self.procedures.requested:
            if isinstance(wait, Install):
                self._state.send(events.InstallRules(work, wait.rules))
            else:
                self._state.send(events.RunComputation(work, wait.function))
        self.procedures.abandoned.clear()
        self.procedures.requested.clear()
        commands, self._state.commands = self._state.commands, []
        return commands

    def _pass_time(self) -> None:
        if self.now >= self.next_check:
            self._check()
        self._state.run_timers()

    def _check(self) -> None:
        """Detect agents and hosts that timed out, and catch up with the journal."""
        now = self.now
        away = now - self.next_check
        self.next_check = now + CHECK_SECONDS
        if away > AWAY_SECONDS:
            LOGGER.warning("this controller was stopped for %.1f s", away)
            self.nodes.was_away(away, now)
            self.submitters.was_away()
        for number, active in [*self.plans.active.items()]:
            if away > AWAY_SECONDS:
                active.tracker.was_away(away, now)
            self.agents.tell(active, active.tracker.check(now))
            if self.plans.waits(number):
                self.agents.tell(active, active.tracker.waiting())
        self.submitters.check()
        if self.jobs.catch_up():
            self.admission.try_queued()
        for host in self.nodes.silent(now):
            LOGGER.warning("[%s] timed out", host)
            self._state.send(events.EndHost(host))

    # -- what is known of jobs

    def tracker(self, number: int) -> Tracker:
        """Return the tracker of an active job's agents. Raises UnknownJobError."""
        if number not in self.plans.active:
            raise UnknownJobError(self.plans.unknown(number))
        return self.plans.active[number].tracker

    def why_waiting(self, job: Job) -> str:
        """Return what an active job waits for, and for how long; empty if it makes progress."""
        if job.state is JobState.QUEUED:
            return self._cut_off(job) or job.reason
        active = self.plans.active.get(job.number)
        if job.state.over or active is None or active.progress is None:
            return job.reason
        return why_stalled(
            active.tracker,
            {node.host: node for node in self.nodes},
            active.progress,
            self.describe(self.plans.lost_to(job.number)) or self._cut_off(job),
            self.now,
            job.tensors,
        )

    def _cut_off(self, job: Job) -> str:
        """Return the hosts of a job that the others cannot reach, with reasons."""
        apart = cut_off(self.plans.working(), job.hosts)
        why = self.describe(self.plans.failed)
        return f"{', '.join(apart)} cut off: {why}" if apart and why else ""

    def describe(self, elements: Iterable[Element]) -> str:
        """Return for how long each of these switches and links has been unreachable."""
        return outage(self.failover.health, elements, self.now)
