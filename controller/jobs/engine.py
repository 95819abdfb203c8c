"""The job engine: events of a cluster in, commands out ([002][]).

It admits jobs, plans them, follows their agents, plans around failures and ends jobs. A job's
failure ends that job only. Without input, output or a clock: `cluster` drives it for gRPC and
P4Runtime, tests and searches drive it by events. Only the journal is written directly, since what
cannot be recorded must not be done.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.controller.dataplane.driver import DriverError
from hopsum.controller.dataplane.rules import Loss
from hopsum.controller.jobs import events
from hopsum.controller.jobs.active_job import ActiveJob
from hopsum.controller.jobs.epochs import Epochs
from hopsum.controller.jobs.failover import Failover
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_request import (
    complete_task,
    make_request,
    place_spec,
    resolve,
    vectors_spec,
    with_vectors,
)
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import JobError, JobState
from hopsum.controller.jobs.job_table import JobTable
from hopsum.controller.jobs.plan_costs import free_network
from hopsum.controller.jobs.plan_store import Change, PlanStore, next_request
from hopsum.controller.jobs.priorities import FeedbackQueue, JobLevel, suitable_policy
from hopsum.controller.jobs.procedures import (
    Compute,
    Install,
    Procedure,
    Procedures,
    RequestAbandoned,
)
from hopsum.controller.jobs.reoptimization import Reoptimization
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.controller.jobs.stall_diagnosis import Progress, why_stalled
from hopsum.controller.jobs.task_check import check_workload, workload_of
from hopsum.controller.jobs.tracker import Outgoing, Tracker
from hopsum.controller.telemetry.diagnosis import cut_off, outage
from hopsum.controller.telemetry.health import Element
from hopsum.controller.telemetry.nodes import REPORT_SECONDS, Nodes
from hopsum.controller.telemetry.state import StateError
from hopsum.network.model import Network, NetworkError, shorten
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.placement import Placement
from hopsum.planning.registry import plan_job
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import OperationError

LOGGER = logging.getLogger("hopsum.engine")

MOST_FEATURES = 4096
"""Jobs in one report of a host."""
CHECK_SECONDS = 1.0
"""Time between checks of agents that may have timed out."""
AWAY_SECONDS = 1.0
"""Seconds by which a check is late before this process counts as having been stopped."""
CANCEL_SECONDS = 2.0
"""Timeout of a cancellation for removing a job's rules; switches that hang lose them later."""
REASON_SECONDS = 0.2
"""Time after a failure in which the job's other agents may report what they know of it."""
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
        self.network = network
        self.settings = settings or ClusterSettings()
        self.now = now
        self.date = date
        self.nodes = Nodes(network, now=now)
        self.jobs = JobTable(self.settings.journal, date, new_key)
        self.priorities = FeedbackQueue(self.settings.priorities or suitable_policy(network))
        self.plans = PlanStore(network, losses)
        self.procedures = Procedures()
        self.epochs = Epochs(
            self.plans,
            self.jobs,
            self.procedures,
            self._tell,
            self.describe,
            lambda active: self._summon(active.job),
            self._forget,
        )
        self.reoptimization = Reoptimization(
            self.plans,
            self.epochs,
            self.procedures,
            self.nodes.state,
            self.settings.replanning,
        )
        self._new_key = new_key
        self._commands: list[events.Command] = []
        self._requests: dict[int, int] = {}
        """Procedures by the requests that they answer."""
        self._interruptible: set[int] = set()
        """Requests whose procedures end when nobody waits for the answer."""
        self._streams: dict[tuple[int, str], int] = {}
        """The current stream of each agent, by job and host."""
        self._agents: dict[int, tuple[int, str]] = {}
        """Job and host of each stream."""
        self._joining: set[int] = set()
        """Streams whose agents wait for a new epoch."""
        self.failover = Failover(
            self.plans,
            self.epochs,
            self.reoptimization,
            self.procedures,
            self.nodes,
            lambda: self.now,
            # Queued jobs may have waited for what is back.
            lambda: self.procedures.start(self._start_queued()),
            # Where plans follow the state of links, jobs return by their next look.
            returns=not self.settings.replanning.live,
        )
        self._open_since = math.inf
        """Time from which agents could attend jobs."""
        self.next_check = now + CHECK_SECONDS
        """Time of the next check for agents that timed out and records that are pending."""
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_numbers = count()

    # -- events

    @property
    def deadline(self) -> float:
        """Time of the next event `TimePassed`, if no other comes first."""
        times = [self.next_check, self.failover.deadline]
        if self._timers:
            times.append(self._timers[0][0])
        return max(self.now + LEAST_WAIT, min(times))

    def handle(self, event: events.Event, now: float) -> list[events.Command]:
        """Process an event at a time; return the commands to carry out, in order.

        Raises StateError, PriorityError for a host's report that cannot be true.
        """
        self.now = now
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
            case events.HostReported():
                return
            case events.AgentSaid(stream):
                reviewed = [self.plans.active.get(self._agents.get(stream, (0, ""))[0])]
            case _:
                self.failover.review()
                reviewed = [*self.plans.active.values()]
        for active in reviewed:
            if active is not None:
                self._review(active)

    def perform(self, request: int, steps: Procedure[Any], now: float) -> list[events.Command]:
        """Start a procedure as an answer to a request; return commands as `handle` does."""
        self.now = now
        self._interruptible.add(request)
        self._answer(request, steps)
        self.procedures.run()
        return self._take_commands()

    def _dispatch(self, event: events.Event) -> None:
        match event:
            case events.Submitted(request, spec):
                self._interruptible.add(request)
                self._answer(request, self._submit(spec))
            case events.Cancelled(request, number, reason):
                self._answer(request, self._cancel(self.jobs.find(number), reason))
                self._at(self.now + CANCEL_SECONDS, partial(self._finish_request, request))
            case events.Restored(request):
                self._answer(request, self._restore())
            case events.Abandoned(request):
                self._abandon(request)
            case events.Opened():
                self._open_since = self.now
            case events.AgentJoined():
                self._join(event)
            case events.AgentSaid(stream, message):
                self._receive(stream, message)
            case events.AgentLeft(stream):
                self._leave(stream)
            case events.HostAttached(host):
                self._invite(host)
            case events.HostDetached():
                self.failover.update_links()
            case events.HostReported(host, report):
                self._take_report(host, report)
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
            self._commands.append(events.Answer(request, value, error))

    def _abandon(self, request: int) -> None:
        """Interrupt a submission; what else was requested is done without an answer."""
        if request in self._interruptible:
            self.procedures.interrupt(self._requests[request])
        else:
            self._requests.pop(request, None)

    def _take_commands(self) -> list[events.Command]:
        for work in self.procedures.abandoned:
            self._commands.append(events.AbandonWork(work))
        for work, wait in self.procedures.requested:
            if isinstance(wait, Install):
                self._commands.append(events.InstallRules(work, wait.rules))
            else:
                self._commands.append(events.RunComputation(work, wait.function))
        self.procedures.abandoned.clear()
        self.procedures.requested.clear()
        commands, self._commands = self._commands, []
        return commands

    def _at(self, moment: float, action: Callable[[], None]) -> None:
        heappush(self._timers, (moment, next(self._timer_numbers), action))

    def _pass_time(self) -> None:
        if self.now >= self.next_check:
            self._check()
        while self._timers and self._timers[0][0] <= self.now:
            heappop(self._timers)[2]()

    def _check(self) -> None:
        """Detect agents and hosts that timed out, and catch up with the journal."""
        now = self.now
        away = now - self.next_check
        self.next_check = now + CHECK_SECONDS
        if away > AWAY_SECONDS:
            LOGGER.warning("this controller was stopped for %.1f s", away)
            self.nodes.was_away(away, now)
        for number, active in [*self.plans.active.items()]:
            if away > AWAY_SECONDS:
                active.tracker.was_away(away, now)
            self._tell(active, active.tracker.check(now))
            if self.plans.waits(number):
                self._tell(active, active.tracker.waiting())
        if self.jobs.catch_up():
            self.procedures.start(self._start_queued())
        for host in self.nodes.silent(now):
            LOGGER.warning("[%s] timed out", host)
            self._commands.append(events.EndHost(host))

    # -- submission

    def _submit(self, spec: JobSpec) -> Procedure[Job]:
        """Submit a job: it runs as soon as its agents attend, or is queued behind others.

        Raises JobError, NetworkError, PlanError for a job that can never run here, or not now if it
        is immediate, Unrecorded for one that cannot be recorded, and DriverError, TimeoutError if
        switches do not take its rules; nothing is left of it then.
        """
        self.jobs.check(spec)
        spec = resolve(spec, self.network)
        placed = place_spec(self.network, spec, self.in_reach(), self.jobs.loads())
        workload = workload_of(spec)
        if workload is not None:
            check_workload(spec.name, workload, placed.workers, self.nodes)
        # It may take seconds, in which others are served.
        key, limit = self._new_key(), self.settings.attend_limit
        spec = yield Compute(partial(complete_task, spec, self.network, placed.workers, key, limit))
        vectors = vectors_spec(spec, placed)
        if vectors is None:
            return (yield from self._admit(spec, placed))
        # Before the job that needs it: of one level, its frames go first.
        companion = yield from self._submit(vectors)
        try:
            return (yield from self._admit(with_vectors(spec, companion.number), placed))
        except Exception:
            why = "the job that needs it could not be submitted"
            self.procedures.start(self._cancel(companion, why))
            raise

    def _admit(self, spec: JobSpec, placed: Placement) -> Procedure[Job]:
        # Another job may have taken its name meanwhile.
        self.jobs.check(spec)
        number = self.jobs.next_number()
        free = self.plans.free_slots()
        request = make_request(spec, number, placed, self.network, self.settings, free)
        job = Job(number, spec, request, self.date())
        # Known from here on, so that no other gets its name while switches take its rules.
        self.jobs.add(job)
        try:
            yield from self._try(job)
            if job.state is JobState.QUEUED:
                if spec.immediate:
                    raise JobError(f"job {spec.name} cannot start now: {job.reason}")
                yield from self._keep_queued(job)
        except Exception as error:
            # The queue may have tried it again meanwhile: then it stays known, as failed.
            if job.state is JobState.QUEUED:
                self.jobs.drop(job)
            elif job.outcome is None and not job.state.over:
                self._end(job, JobState.FAILED, str(error))
            raise
        return job

    def _keep_queued(self, job: Job) -> Procedure[None]:
        """Record a job that has to wait. Raises PlanError if it could not even run alone."""
        if not job.spec.among_hosts:
            alone, planner = Allocator(self.network), job.spec.planner
            yield Compute(partial(plan_job, self.network, job.request, alone, planner))
        if job.state is JobState.QUEUED:
            self.jobs.keep(job)

    def _try(self, job: Job) -> Procedure[None]:
        """Start a queued job if there is room for it now; otherwise record what it waits for.

        Raises DriverError, TimeoutError where switches do not take its rules: it has failed then.
        """
        if job.state is JobState.QUEUED:
            self.jobs.move(job, JobState.INSTALLING)
            yield from self._install(job)

    def _install(self, job: Job) -> Procedure[None]:
        # Agents that attach while its rules are being installed need its level.
        self.priorities.add(job.number, self.now, job.request.workers)
        levels = None if job.spec.immediate else self.priorities.levels
        try:
            yield from self.epochs.admit(
                job, self._measured, levels, partial(self._check_user, job.spec)
            )
        except Exception as error:
            self.priorities.remove(job.number)
            if job.state is JobState.DRAINING:
                self.jobs.drained(job)
            elif isinstance(error, PlanError):
                self.jobs.move(job, JobState.QUEUED, str(error))
            else:
                name = "" if isinstance(error, RequestAbandoned) else f"{type(error).__name__}: "
                self.jobs.move(job, JobState.FAILED, f"{name}{error}")
            if not isinstance(error, PlanError):
                # Others may have waited for what it held meanwhile.
                self.procedures.start(self._start_queued())
                raise
            return
        if job.state is JobState.DRAINING:
            # Cancelled while the switches took its rules.
            self.procedures.start(self._clear(job))
            return
        self.jobs.move(job, JobState.WAITING)
        self._summon(job)
        self.plans.active[job.number].progress = Progress(self.now, job.round)

    def _check_user(self, spec: JobSpec, plan: JobPlan) -> None:
        """Raise PlanError for a plan beyond its owner's quota of slots."""
        if not spec.limited:
            return
        others = {job.number for job in self.jobs if job.spec.owner == spec.owner}
        held = {
            name: sum(slots for job, slots in self.plans.slots_held(name).items() if job in others)
            for name in self.network.switches
        }
        self.settings.sharing.check_user(self.network, spec.owner, plan, held)

    def _measured(self, network: Network) -> Network:
        """Return a network with the free bandwidth of its links, where plans heed that."""
        if not self.settings.replanning.live:
            return network
        return free_network(network, self.nodes.state.shares(self.now))

    def _start_queued(self) -> Procedure[None]:
        """Start queued jobs that fit now, the oldest first; a smaller job may overtake a larger
        one."""
        for job in self.jobs.queued():
            try:
                yield from self._try(job)
            except (DriverError, TimeoutError) as error:
                LOGGER.warning("job %d: %s", job.number, error)

    def _restore(self) -> Procedure[None]:
        """Install the rules of the jobs that an earlier controller has left.

        Running jobs continue as their agents return; queued ones are tried again.
        Raises DriverError, TimeoutError where switches do not take rules.
        """
        for job in self.jobs:
            if job.active:
                try:
                    self._readopt(job)
                except (PlanError, NetworkError) as error:
                    reason = f"it cannot be recovered after a restart of the controller: {error}"
                    self.jobs.move(job, JobState.FAILED, reason)
            elif job.state is JobState.INSTALLING and job.spec.immediate:
                self.jobs.move(job, JobState.FAILED, "the controller restarted before it began")
            elif job.state is JobState.INSTALLING:
                # Switches, and agents, may have heard of the epoch that it was being started in.
                self.jobs.move(job, JobState.QUEUED)
                if job.plan is not None:
                    job.request = next_request(job.request, job.plan)
            elif job.state is JobState.DRAINING:
                self.jobs.drained(job)
        yield from self.epochs.refresh()
        yield from self._start_queued()

    def _readopt(self, job: Job) -> None:
        """Resume a started job, and expect its agents where they were."""
        if job.request.lanes != self.settings.lanes:
            raise PlanError(
                f"it has {job.request.lanes} lanes a packet, and the switches {self.settings.lanes}"
            )
        job.request = replace(job.request, max_hops=self.settings.max_hops)
        self.epochs.readopt(job)
        self.jobs.resume(job)
        active = self.plans.active[job.number]
        # A worker that restarts now would be at another round than the others.
        active.tracker.started = job.state is JobState.RUNNING
        active.restored, active.all_back = True, False
        active.progress = Progress(self.now, job.round)
        self.priorities.add(job.number, self.now, job.request.workers)

    # -- the end of a job

    def _cancel(self, job: Job, reason: str) -> Procedure[None]:
        """Cancel an active job; a finished one stays as it ended.

        Its agents are notified at once; unreachable switches lose its rules when they are back.
        """
        if job.outcome is None and self._dismiss(job, JobState.CANCELLED, reason):
            yield from self._clear(job)

    def _end(self, job: Job, outcome: JobState, reason: str = "") -> None:
        """Release a job's agents, rules and slots, then start queued jobs that fit."""
        if self._dismiss(job, outcome, reason):
            self.procedures.start(self._clear(job))

    def _dismiss(self, job: Job, outcome: JobState, reason: str) -> bool:
        """Finish a job, release its agents; return whether its rules must be removed (`_clear`)."""
        active = self.plans.active.get(job.number)
        if active is not None:
            active.progress, active.ending = None, True
        installed = job.active or job.outcome is not None
        if job.state is JobState.QUEUED:
            self.jobs.move(job, outcome, reason)
        elif job.outcome is None:
            self._drain(job, outcome, reason)
        LOGGER.info("job %d (%s): %s %s", job.number, job.spec.name, outcome, reason)
        if outcome is not JobState.FINISHED:
            self._cancel_vectors(job)
            command = pb.NodeCommand(leave=pb.LeaveJob(job=job.number, reason=reason))
            for host in job.hosts if installed else ():
                self._commands.append(events.SendToHost(host, command))
        return installed

    def _drain(self, job: Job, outcome: JobState, reason: str = "") -> None:
        """Record how a job has ended, and its agents' reports."""
        if job.active:
            job.reports = self.tracker(job.number).reports()
        self.jobs.move(job, JobState.DRAINING, reason, outcome)

    def _cancel_vectors(self, job: Job) -> None:
        """Finish the companion job that combines a job's bit vectors when that job finishes."""
        companion = self.jobs.get(job.spec.task.vectors)
        if companion is not None:
            self.procedures.start(self._cancel(companion, f"job {job.spec.name} has ended"))

    def _clear(self, job: Job) -> Procedure[None]:
        """Remove the rules and slots of a finished job, and start queued jobs that fit."""
        yield from self._release(job)
        yield from self._start_queued()

    def _release(self, job: Job) -> Procedure[None]:
        """Release a job's rules, slots and agents' streams."""
        try:
            yield from self.epochs.remove(job.number)
        except (DriverError, TimeoutError) as error:
            # Its remaining rules are removed at the next reconciliation of the switch.
            LOGGER.warning("job %d: %s", job.number, error)
        # Not earlier: jobs with slots need a level.
        self.priorities.remove(job.number)
        self.jobs.drained(job)

    def _forget(self, active: ActiveJob) -> None:
        """End the streams of a removed job."""
        number = active.job.number
        for key in [key for key in self._streams if key[0] == number]:
            self._commands.append(events.EndStream(self._streams.pop(key)))

    # -- hosts

    def in_reach(self) -> tuple[str, ...]:
        """Return the hosts that have an agent and can reach most others, in the network's order."""
        apart = cut_off(self.plans.working(), self.network.hosts)
        return tuple(host for host in self.nodes.attached if host not in apart)

    def _invite(self, host: str) -> None:
        """Let a host whose agent has attached attend the jobs that it is missing from."""
        for job in self.jobs:
            if host in self._missing(job):
                self._attend(host, job)

    def _summon(self, job: Job) -> None:
        for host in self._missing(job):
            self._attend(host, job)

    def _missing(self, job: Job) -> list[str]:
        """Return the hosts whose agents a job lacks."""
        if not job.active:
            return []
        agents = self.tracker(job.number).agents
        return [agent.host for agent in agents.values() if not agent.connected]

    def _attend(self, host: str, job: Job) -> None:
        command = pb.NodeCommand(attend=pb.AttendJob(job=job.number))
        self._commands.append(events.SendToHost(host, command))
        level = self.priorities.job_level(job.number)
        if level is not None:
            self._assign_level(host, job, level)

    def _assign_level(self, host: str, job: Job, level: JobLevel) -> None:
        """Assign a job's frames at a host to the send queues of a level; 0 is served first.

        Workers know when their first iterations are over, before the controller does.
        """
        priority = pb.Priority(job=job.number, level=level.now)
        if host in job.request.workers:
            early = self.priorities.policy.early_iterations * job.iteration_tensors
            priority = pb.Priority(job=job.number, level=level.later, early_tensors=early)
        self._commands.append(events.SendToHost(host, pb.NodeCommand(priority=priority)))

    def _take_report(self, host: str, report: pb.NodeReport) -> None:
        """Process a host's report on its links and jobs; jobs change their level with their
        progress.

        Raises StateError, PriorityError for a report that cannot be true.
        """
        if len(report.jobs) > MOST_FEATURES:
            raise StateError(
                f"{host} reports on {len(report.jobs)} jobs; expected at most {MOST_FEATURES}"
            )
        before = _carriers(self.nodes.node(host).report)
        self.nodes.take(host, report, self.now)
        if before != _carriers(report):
            self.failover.update_links()
            self.failover.review()
        levels = self.priorities.levels()
        for features in report.jobs:
            # A job that has just ended is still reported on.
            if features.job not in levels:
                continue
            job = self.jobs.find(features.job)
            if host not in job.hosts:
                # It has no part in the job, or no longer, and no say in its priority.
                continue
            if host in job.request.workers:
                iteration = features.round // job.iteration_tensors
                self.priorities.report(features.job, host, iteration, features.sent_bytes, self.now)
            else:
                self.priorities.sent_only(features.job, host, features.sent_bytes, self.now)
            job.take_features(host, features)
        for number, level in self.priorities.update(self.now).items():
            job = self.jobs.find(number)
            for receiver in job.hosts:
                self._assign_level(receiver, job, level)

    # -- agents in jobs

    def tracker(self, number: int) -> Tracker:
        """Return the tracker of an active job's agents. Raises UnknownJobError."""
        if number not in self.plans.active:
            known = shorten(map(str, self.plans.active)) or "none"
            raise UnknownJobError(f"there is no job {number}; jobs: {known}")
        return self.plans.active[number].tracker

    def _join(self, event: events.AgentJoined) -> None:
        active = self.plans.active.get(event.job)
        if active is not None and active.tracker.needs_new_epoch(event.host, event.state):
            self._joining.add(event.stream)
            self.procedures.start(self._join_anew(event))
        else:
            self._register(event)

    def _join_anew(self, event: events.AgentJoined) -> Procedure[None]:
        """Register a server that has lost its sums, in a new epoch."""
        why = f"another agent serves on {event.host}"
        try:
            yield from self.epochs.change(event.job, Change(why))
        except (DriverError, PlanError, TimeoutError) as error:
            # It tries again.
            if event.stream in self._joining:
                self._commands.append(events.PostponeAgent(event.stream, str(error)))
        else:
            if event.stream in self._joining:
                self._register(event)
        finally:
            self._joining.discard(event.stream)

    def _register(self, event: events.AgentJoined) -> None:
        active = self.plans.active.get(event.job)
        if active is None:
            self._commands.append(events.RejectAgent(event.stream, self._ended(event.job)))
            return
        messages = active.tracker.register(
            event.host, self.now, event.state, event.round, event.instance
        )
        if messages[0][1].HasField("refused"):
            self._commands.append(events.RejectAgent(event.stream, messages[0][1]))
            self._tell(active, messages[1:])
            return
        key = event.job, event.host
        replaced = self._streams.get(key)
        if replaced is not None:
            self._commands.append(events.EndStream(replaced))
        self._streams[key] = event.stream
        self._agents[event.stream] = key
        self._tell(active, messages)

    def _ended(self, number: int) -> pb.ControllerMessage:
        """Return how a job ended, for an agent that was away then."""
        job = self.jobs.get(number)
        if job is None or job.outcome is None:
            known = shorten(map(str, self.plans.active)) or "none"
            return _refused(f"there is no job {number}; jobs: {known}")
        if job.outcome is JobState.FINISHED:
            return pb.ControllerMessage(all_done=pb.AllDone())
        verb = "was" if job.outcome is JobState.CANCELLED else "has"
        return _refused(f"job {job.spec.name} {verb} {job.outcome}: {job.reason}")

    def _receive(self, stream: int, message: pb.AgentMessage) -> None:
        number, host = self._agents.get(stream, (0, ""))
        active = self.plans.active.get(number)
        if active is not None:
            self._tell(active, active.tracker.receive(host, message, self.now))

    def _leave(self, stream: int) -> None:
        self._joining.discard(stream)
        key = self._agents.pop(stream, None)
        if key is None or self._streams.get(key) != stream:
            # A later stream has replaced it.
            return
        del self._streams[key]
        active = self.plans.active[key[0]]
        self._tell(active, active.tracker.gone(key[1], self.now))

    def _tell(self, active: ActiveJob, messages: Outgoing) -> None:
        """Send messages to a job's agents; what they say is recorded before they know."""
        self._record(active)
        for host, message in messages:
            stream = self._streams.get((active.job.number, host))
            if stream is not None:
                self._commands.append(events.SendToAgent(stream, message))

    def _record(self, active: ActiveJob) -> None:
        """Record that a job has started, or is done."""
        job, tracker = active.job, active.tracker
        if not job.active:
            return
        if tracker.started and not job.started:
            self.jobs.start(job)
        if tracker.released and not tracker.failures():
            self._note_progress(active)
            self._drain(job, JobState.FINISHED)

    def _note_progress(self, active: ActiveJob) -> None:
        job, tracker = active.job, active.tracker
        rounds = [tracker.agents[worker].round for worker in tracker.plan.workers]
        job.round = max(job.round, min(rounds))
        if active.progress is not None:
            active.progress.note(job.round, self.now)

    # -- the life of a job

    def _review(self, active: ActiveJob) -> None:
        """Follow a job: end it, replace its servers, or reconsider its plan.

        A server that is lost may come back for a while; then another host takes its place.
        """
        job, tracker = active.job, active.tracker
        if active.ending or active.progress is None:
            return
        if job.outcome is JobState.FINISHED:
            self._end(job, JobState.FINISHED)
            return
        if not job.active:
            return
        self._note_progress(active)
        lost, fatal = self._failures(active)
        if not lost and not fatal:
            active.lost_since = None
        elif active.lost_since is None:
            active.lost_since = self.now
            self._at(self.now + self.settings.grace, lambda: None)
        if fatal:
            if active.failed_since is None:
                active.failed_since = self.now
                self._at(self.now + REASON_SECONDS, lambda: None)
            if self.now >= active.failed_since + REASON_SECONDS or tracker.over:
                self._end(job, JobState.FAILED, _in_short(fatal))
        elif tracker.released:
            self._end(job, JobState.FINISHED)
        elif active.busy:
            return
        elif active.lost_since is not None and self._waited(active.lost_since):
            active.lost_since = None
            self._decide(active, self._serve_elsewhere(active, lost))
        elif self.settings.replanning.live and tracker.state == "running":
            self._reconsider(active)

    def _waited(self, since: float) -> bool:
        """Whether agents have had the time that they are given to come back."""
        return self.now >= since + self.settings.grace

    def _failures(self, active: ActiveJob) -> tuple[dict[str, str], dict[str, str]]:
        """Return the lost servers of a job that others may replace, and what ends it, by host."""
        job, tracker = active.job, active.tracker
        serving = tracker.plan.servers
        failures = {
            host: why
            for host, why in tracker.failures().items()
            if tracker.agents[host].role != "server" or host in serving
        }
        absent = self._missing(job)
        active.all_back = active.all_back or not absent
        # The journal may lack that it had started; then the first agent that is back says so.
        if tracker.started and not active.all_back and self._waited(self._open_since):
            failures = dict.fromkeys(absent, "not attached since the restart") | failures
        fatal = {
            host: why
            for host, why in failures.items()
            if tracker.agents[host].role != "server"
            or host not in serving
            or tracker.agents[host].state == pb.FAILED
        }
        return {host: why for host, why in failures.items() if host not in fatal}, fatal

    def _decide(self, active: ActiveJob, steps: Procedure[None]) -> None:
        """Start a procedure that decides on a job's next plan; one at a time."""
        active.busy = True

        def done(value: Any, error: Exception | None) -> None:
            active.busy = False
            if isinstance(error, DriverError | PlanError | TimeoutError):
                # It continues under its current plan, as far as that is installed.
                LOGGER.warning("job %d keeps its plan: %s", active.job.number, error)
            elif error is not None:
                LOGGER.error("job %d: its plan", active.job.number, exc_info=error)

        self.procedures.start(steps, done)

    def _serve_elsewhere(self, active: ActiveJob, lost: Mapping[str, str]) -> Procedure[None]:
        """Replace lost servers by other hosts; the job fails where that is impossible."""
        job, loads = active.job, self.jobs.loads()
        free = sorted(
            (host for host in self.in_reach() if host not in job.hosts),
            key=lambda host: loads.get(host, 0),
        )
        others = dict(zip(lost, free, strict=False))
        if len(others) < len(lost):
            reasons = {h: f"{why}, and no other host can serve" for h, why in lost.items()}
            self._end(job, JobState.FAILED, _in_short(reasons))
            return
        serving = dict.fromkeys((*job.request.servers, *active.plan.servers))
        servers = tuple(others.get(host, host) for host in serving)
        why = ", ".join(f"{other} serves in place of {host}" for host, other in others.items())
        try:
            yield from self.epochs.change(job.number, Change(why, servers))
        except (DriverError, PlanError, TimeoutError) as error:
            if job.outcome is None:
                reasons = {host: f"{why}; {error}" for host, why in lost.items()}
                self._end(job, JobState.FAILED, _in_short(reasons))
            return
        LOGGER.warning("job %d: %s", job.number, why)

    def _reconsider(self, active: ActiveJob) -> None:
        """Check every second whether a job's plan still suits the network's state.

        Occasionally hold a boundary until it is known whether other weights pay off.
        """
        plan, job, tracker = active.plan, active.job, active.tracker
        if not plan.trees and not plan.period:
            return
        if active.replanner is None:
            self.reoptimization.replanner(active, self.now)
        elif self.now - active.replanner.measured >= REPORT_SECONDS:
            self._decide(active, self._look(active))
        elif plan.period:
            boundary = tracker.open_boundary
            # A job older than this controller may have an answer to its next boundary.
            decided = not active.restored or tracker.decided
            if not tracker.deliberate:
                tracker.deliberate = decided and active.replanner.recut_due(self.now)
            elif boundary is not None:
                self._decide(active, self._recut(active, job.elements, boundary))

    def _look(self, active: ActiveJob) -> Procedure[None]:
        job = active.job
        cause = yield from self.reoptimization.look(
            active, job.round, job.elements, job.sent_bytes, self.now
        )
        if cause is not None:
            LOGGER.info("job %d: a new epoch after a %s", job.number, cause)

    def _recut(self, active: ActiveJob, elements: int, boundary: int) -> Procedure[None]:
        try:
            yield from self.reoptimization.recut(active, elements, self.now)
        except (DriverError, PlanError, TimeoutError) as error:
            LOGGER.warning("job %d: %s", active.job.number, error)
        active.tracker.deliberate = False
        if active.job.active:
            self._tell(active, active.tracker.decide(boundary, active.plan))

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

    # -- switches and links

    def describe(self, elements: Iterable[Element]) -> str:
        """Return for how long each of these switches and links has been unreachable."""
        return outage(self.failover.health, elements, self.now)


def _refused(reason: str) -> pb.ControllerMessage:
    return pb.ControllerMessage(refused=pb.Refused(reason=reason))


def _carriers(report: pb.NodeReport | None) -> list[tuple[str, bool]]:
    """Return the interfaces that a host has reported, and whether they lack a carrier."""
    interfaces = () if report is None else report.interfaces
    return [(interface.peer, interface.no_carrier) for interface in interfaces]


def _in_short(failures: Mapping[str, str]) -> str:
    """Return hosts with the reasons for their failures, each reason once."""
    hosts: dict[str, list[str]] = {}
    for host, why in failures.items():
        hosts.setdefault(why, []).append(host)
    return "; ".join(f"{shorten(names)}: {why}" for why, names in hosts.items())
