"""A cluster of many jobs: submission, placement and outcome ([002][]).

It plans and installs through the manager, sends hosts' agents the jobs to attend, and watches
the jobs' trackers. A job's failure ends that job only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.controller import clock
from hopsum.controller.background import log_defect
from hopsum.controller.dataplane.driver import DriverError
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
from hopsum.controller.jobs.manager import Manager, next_request
from hopsum.controller.jobs.priorities import FeedbackQueue, JobLevel, suitable_policy
from hopsum.controller.jobs.reoptimizer import Reoptimizer, free_network
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.controller.jobs.stall_diagnosis import Progress, why_stalled
from hopsum.controller.jobs.task_check import check_workload, workload_of
from hopsum.controller.jobs.tracker import Tracker
from hopsum.controller.telemetry.diagnosis import cut_off
from hopsum.controller.telemetry.nodes import REPORT_SECONDS, Nodes
from hopsum.controller.telemetry.state import StateError
from hopsum.network.model import Network, NetworkError, shorten
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.placement import Placement
from hopsum.planning.registry import make_plan
from hopsum.protocol import hopsum_pb2 as pb

LOGGER = logging.getLogger("hopsum.cluster")

MOST_FEATURES = 4096
"""Jobs in one report of a host."""
WATCH_SECONDS = 0.2
CANCEL_SECONDS = 2.0
"""Timeout of `cancel` for removing a job's rules; switches that hang lose them later."""

Send = Callable[[str, pb.NodeCommand], None]
"""Sends a command to a host's agent process, if there is one."""


class Cluster:
    """The jobs and hosts of a manager's network. Made, and used, in an event loop.

    `date`: the wall clock, seconds since 1970, for the journal and for lists of jobs.
    `new_key`: 32 random bytes.
    """

    def __init__(
        self,
        manager: Manager,
        settings: ClusterSettings | None = None,
        date: Callable[[], float] = time.time,
        new_key: Callable[[], bytes] = secrets.token_bytes,
    ) -> None:
        settings = settings or ClusterSettings()
        self.manager = manager
        self.settings = settings
        self.nodes = Nodes(manager.network, now=clock.now())
        self.jobs = manager.table = JobTable(settings.journal, date, new_key)
        self.priorities = FeedbackQueue(settings.priorities or suitable_policy(manager.network))
        self.send: Send = lambda host, command: None
        self.date = date
        self._new_key = new_key
        self._watching: dict[int, asyncio.Task[object]] = {}
        self._progress: dict[int, Progress] = {}
        self._open_since = math.inf
        """Time from which agents could attend jobs."""
        self._background: set[asyncio.Task[object]] = set()
        """Background tasks."""
        manager.recovered = self._recovered
        manager.agents.heard = self._heard

    @property
    def network(self) -> Network:
        """The network."""
        return self.manager.network

    # -- requests of people

    async def submit(self, spec: JobSpec) -> Job:
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
        # Planning may take seconds, in which others are served.
        spec = await asyncio.to_thread(
            complete_task,
            spec,
            self.network,
            placed.workers,
            self._new_key(),
            self.settings.attend_limit,
        )
        vectors = vectors_spec(spec, placed)
        if vectors is None:
            return await self._submit(spec, placed)
        # Before the job that needs it: of one level, its frames go first.
        companion = await self.submit(vectors)
        try:
            return await self._submit(with_vectors(spec, companion.number), placed)
        except BaseException:
            self._start_in_background(
                self.cancel(companion, "the job that needs it could not be submitted"),
                "cancel vectors",
            )
            raise

    async def _submit(self, spec: JobSpec, placed: Placement) -> Job:
        # Another job may have taken its name meanwhile.
        self.jobs.check(spec)
        number = self.jobs.next_number()
        free = self.manager.free_slots()
        request = make_request(spec, number, placed, self.network, self.settings, free)
        job = Job(number, spec, request, self.date())
        # Known from here on, so that no other gets its name while switches take its rules.
        self.jobs.add(job)
        try:
            await self._try(job)
            if job.state is JobState.QUEUED:
                if spec.immediate:
                    raise JobError(f"job {spec.name} cannot start now: {job.reason}")
                await self._keep_queued(job)
        except BaseException as error:
            # The queue may have tried it again meanwhile: then it stays known, as failed.
            if job.state is JobState.QUEUED:
                self.jobs.drop(job)
            elif job.outcome is None and not job.state.over:
                reason = str(error) or "its submission was interrupted"
                if self._dismiss(job, JobState.FAILED, reason):
                    self._start_in_background(self._clear(job), f"clear job {number}")
            raise
        return job

    async def _keep_queued(self, job: Job) -> None:
        """Record a job that has to wait. Raises PlanError if it could not even run alone."""
        await asyncio.to_thread(self._check_possible, job)
        if job.state is JobState.QUEUED:
            self.jobs.keep(job)

    def _check_possible(self, job: Job) -> None:
        """Raise PlanError for a queued job that could not even run alone."""
        if not job.spec.among_hosts:
            make_plan(self.network, job.request, Allocator(self.network), job.spec.planner)

    async def _try(self, job: Job) -> None:
        """Start a queued job if there is room for it now; otherwise record what it waits for.

        Raises DriverError, TimeoutError where switches do not take its rules: it has failed then.
        """
        if job.state is JobState.QUEUED:
            self.jobs.move(job, JobState.INSTALLING)
            await self._install(job)

    async def _install(self, job: Job) -> None:
        # Agents that attach while its rules are being installed need its level.
        self.priorities.add(job.number, clock.now(), job.request.workers)
        try:
            await self._plan(job)
        except BaseException as error:
            self.priorities.remove(job.number)
            if job.state is JobState.DRAINING:
                self.jobs.drained(job)
            elif isinstance(error, PlanError):
                self.jobs.move(job, JobState.QUEUED, str(error))
            else:
                self.jobs.move(job, JobState.FAILED, f"{type(error).__name__}: {error}")
            if not isinstance(error, PlanError):
                raise
            return
        if job.state is JobState.DRAINING:
            # Cancelled while the switches took its rules.
            await self._release(job)
            return
        self.jobs.move(job, JobState.WAITING)
        self._summon(job)
        self._begin_watch(job)

    def _begin_watch(self, job: Job, *, restored: bool = False) -> None:
        self._progress[job.number] = Progress(clock.now(), job.round)
        assert job.plan is not None
        self._watching[job.number] = self._start_in_background(
            self._watch(job, job.plan.epoch, restored), f"watch job {job.number}"
        )

    async def _plan(self, job: Job) -> None:
        """Plan a job on free resources, and install its rules.

        Jobs of a lower priority give up slots that it needs (`sharing`), unless it is immediate.
        Raises PlanError while others hold what it cannot do without, DriverError, TimeoutError.
        """
        levels = None if job.spec.immediate else self.priorities.levels
        await self.manager.submit(job, self._measured, levels, partial(self._check_user, job.spec))

    def _check_user(self, spec: JobSpec, plan: JobPlan) -> None:
        """Raise PlanError for a plan beyond its owner's quota of slots."""
        if not spec.limited:
            return
        others = {job.number for job in self.jobs if job.spec.owner == spec.owner}
        held = {
            name: sum(
                slots for job, slots in self.manager.slots_held(name).items() if job in others
            )
            for name in self.network.switches
        }
        self.settings.sharing.check_user(self.network, spec.owner, plan, held)

    def _measured(self, network: Network) -> Network:
        """Return a network with the free bandwidth of its links, where plans heed that."""
        if not self.settings.replanning.live:
            return network
        return free_network(network, self.nodes.state.shares(clock.now()))

    async def restore(self) -> None:
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
        await self.manager.refresh()
        await self._start_queued()

    def _readopt(self, job: Job) -> None:
        """Resume a started job, and expect its agents where they were."""
        if job.request.lanes != self.settings.lanes:
            raise PlanError(
                f"it has {job.request.lanes} lanes a packet, and the switches {self.settings.lanes}"
            )
        assert job.plan is not None
        job.request = replace(job.request, max_hops=self.settings.max_hops)
        tracker = self.manager.readopt(job)
        self.jobs.resume(job)
        # A worker that restarts now would be at another round than the others.
        tracker.started = job.state is JobState.RUNNING
        self.priorities.add(job.number, clock.now(), job.request.workers)
        self._begin_watch(job, restored=True)

    def opened(self) -> None:
        """Note that agents can attend jobs from now on."""
        self._open_since = clock.now()

    async def cancel(self, job: Job, reason: str = "cancelled by its owner") -> Job:
        """Cancel an active job; a finished one stays as it ended.

        Its agents are notified at once; unreachable switches lose its rules when they are back.
        """
        if job.outcome is None and self._dismiss(job, JobState.CANCELLED, reason):
            clearing = self._start_in_background(self._clear(job), f"clear job {job.number}")
            await asyncio.wait([clearing], timeout=CANCEL_SECONDS)
        return job

    # -- hosts

    def in_reach(self) -> tuple[str, ...]:
        """Return the hosts that have an agent and can reach most others, in the network's order."""
        apart = cut_off(self.manager.working(), self.network.hosts)
        return tuple(host for host in self.nodes.attached if host not in apart)

    def attached(self, host: str) -> None:
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
        agents = self.manager.agents.tracker(job.number).agents
        return [agent.host for agent in agents.values() if not agent.connected]

    def _attend(self, host: str, job: Job) -> None:
        self.send(host, pb.NodeCommand(attend=pb.AttendJob(job=job.number)))
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
        self.send(host, pb.NodeCommand(priority=priority))

    def take_report(self, host: str, report: pb.NodeReport, now: float) -> None:
        """Process a host's report on its links and jobs; jobs change their level with their
        progress.

        Raises StateError, PriorityError for a report that cannot be true.
        """
        if len(report.jobs) > MOST_FEATURES:
            raise StateError(
                f"{host} reports on {len(report.jobs)} jobs; expected at most {MOST_FEATURES}"
            )
        self.nodes.take(host, report, now)
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
                self.priorities.report(features.job, host, iteration, features.sent_bytes, now)
            else:
                self.priorities.sent_only(features.job, host, features.sent_bytes, now)
            job.take_features(host, features)
        for number, level in self.priorities.update(now).items():
            job = self.jobs.find(number)
            for receiver in job.hosts:
                self._assign_level(receiver, job, level)

    # -- the life of a job

    async def _watch(self, job: Job, summoned: int, restored: bool) -> None:
        """Follow a job to its end.

        A server that is lost may come back for a while; then another host takes its place.
        `summoned`: the epoch whose hosts have been summoned. `restored`: an earlier controller has
        installed the job.
        """
        tracker = self.manager.agents.tracker(job.number)
        lost_since: float | None = None
        all_back = not restored
        reoptimizer: Reoptimizer | None = None
        while job.outcome is None:
            self._note(job, tracker)
            plan = tracker.plan
            live = self.settings.replanning.live and tracker.state == "running"
            if live and (plan.trees or plan.period):
                reoptimizer = await self._reoptimize(job, reoptimizer)
            if reoptimizer is not None and plan.period:
                # A job older than this controller may have an answer to its next boundary.
                await self._decide(job, tracker, reoptimizer, restored and not tracker.decided)
            now = clock.now()
            failures = {
                host: why
                for host, why in tracker.failures().items()
                if tracker.agents[host].role != "server" or host in tracker.plan.servers
            }
            absent = self._missing(job)
            all_back = all_back or not absent
            # The journal may lack that it had started; then the first agent that is back says so.
            if tracker.started and not all_back and now > self._open_since + self.settings.grace:
                failures = dict.fromkeys(absent, "not attached since the restart") | failures
            fatal = {
                host: why
                for host, why in failures.items()
                if tracker.agents[host].role != "server"
                or host not in tracker.plan.servers
                or tracker.agents[host].state == pb.FAILED
            }
            lost_since = (lost_since or now) if failures else None
            if not fatal and lost_since is not None and now - lost_since > self.settings.grace:
                fatal = await self._serve_elsewhere(job, failures)
                lost_since = None
            if fatal:
                self._end_soon(job, JobState.FAILED, _in_short(fatal))
                return
            if tracker.released:
                break
            if tracker.plan.epoch != summoned:
                # Whoever replanned it, and though a switch may not have taken the new rules yet.
                summoned = tracker.plan.epoch
                self._summon(job)
            await asyncio.sleep(WATCH_SECONDS)
        self._end_soon(job, JobState.FINISHED)

    async def _serve_elsewhere(self, job: Job, lost: Mapping[str, str]) -> dict[str, str]:
        """Replace lost servers by other hosts; return the reasons for failure by host."""
        loads = self.jobs.loads()
        free = sorted(
            (host for host in self.in_reach() if host not in job.hosts),
            key=lambda host: loads.get(host, 0),
        )
        others = dict(zip(lost, free, strict=False))
        if len(others) < len(lost):
            return {h: f"{why}, and no other host can serve" for h, why in lost.items()}
        assert job.plan is not None
        serving = dict.fromkeys((*job.request.servers, *job.plan.servers))
        servers = tuple(others.get(host, host) for host in serving)
        try:
            why = ", ".join(f"{other} serves in place of {host}" for host, other in others.items())
            await self.manager.replan(job.number, servers, why=why)
        except (DriverError, PlanError, TimeoutError) as error:
            return {host: f"{why}; {error}" for host, why in lost.items()}
        for host, other in others.items():
            LOGGER.warning("job %d: %s serves in place of %s", job.number, other, host)
        return {}

    async def _reoptimize(self, job: Job, last: Reoptimizer | None) -> Reoptimizer:
        """Check every second whether the job's plan still suits the network's state."""
        now = clock.now()
        if last is None:
            return Reoptimizer.begin(
                self.manager, self.nodes.state, job.number, self.settings.replanning, now
            )
        if now - last.at >= REPORT_SECONDS:
            try:
                cause = await last.look(job.round, job.elements, job.sent_bytes, now)
            except (DriverError, PlanError, TimeoutError) as error:
                # It continues under its current plan, as far as that is installed.
                LOGGER.warning("job %d keeps its plan: %s", job.number, error)
                return last
            if cause is not None:
                LOGGER.info("job %d: a new epoch after a %s", job.number, cause)
        return last

    async def _decide(self, job: Job, tracker: Tracker, state: Reoptimizer, restored: bool) -> None:
        """Occasionally hold a boundary until it is known whether other weights pay off."""
        boundary = tracker.open_boundary
        if not tracker.deliberate:
            tracker.deliberate = not restored and state.recut_due(clock.now())
        elif boundary is not None:
            try:
                await state.recut(job.elements, clock.now())
            except (DriverError, TimeoutError) as error:
                LOGGER.warning("job %d: %s", job.number, error)
            tracker.deliberate = False
            self.manager.agents.decide(boundary, self.manager.plan_of(job.number))

    def why_waiting(self, job: Job) -> str:
        """Return what an active job waits for, and for how long; empty if it makes progress."""
        if job.state is JobState.QUEUED:
            return self._cut_off(job) or job.reason
        if job.state.over or job.number not in self._progress:
            return job.reason
        return why_stalled(
            self.manager.agents.tracker(job.number),
            {node.host: node for node in self.nodes},
            self._progress[job.number],
            self.manager.why_waiting(job.number) or self._cut_off(job),
            clock.now(),
            job.tensors,
        )

    def _cut_off(self, job: Job) -> str:
        """Return the hosts of a job that the others cannot reach, with reasons."""
        apart = cut_off(self.manager.working(), job.hosts)
        why = self.manager.describe(self.manager.failed)
        return f"{', '.join(apart)} cut off: {why}" if apart and why else ""

    def _recovered(self) -> None:
        """Try the queued jobs again: they may have waited for an element that is back."""
        self._start_in_background(self._start_queued(), "start queued jobs")

    def _note(self, job: Job, tracker: Tracker) -> None:
        rounds = [tracker.agents[worker].round for worker in tracker.plan.workers]
        job.round = max(job.round, min(rounds))
        if job.number in self._progress:
            self._progress[job.number].note(job.round, clock.now())

    def _heard(self, tracker: Tracker) -> None:
        """Record that a job has started, or is done, before its agents know."""
        job = self.jobs.get(tracker.plan.job)
        if job is None or not job.active:
            return
        if tracker.started and not job.started:
            self.jobs.start(job)
        if tracker.released and not tracker.failures():
            self._note(job, tracker)
            self._drain(job, JobState.FINISHED)

    def _drain(self, job: Job, outcome: JobState, reason: str = "") -> None:
        """Record how a job has ended, and its agents' reports."""
        if job.active:
            job.reports = self.manager.agents.tracker(job.number).reports()
        self.jobs.move(job, JobState.DRAINING, reason, outcome)

    def _end_soon(self, job: Job, state: JobState, reason: str = "") -> None:
        """Finish a job from its own watch task."""
        self._watching[job.number] = self._start_in_background(
            self._end(job, state, reason), f"end job {job.number}"
        )

    def _start_in_background(
        self, work: Coroutine[Any, Any, object], name: str
    ) -> asyncio.Task[object]:
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(log_defect)
        return task

    async def _end(self, job: Job, state: JobState, reason: str = "") -> None:
        """Release a job's agents, rules and slots, then start queued jobs that fit."""
        if self._dismiss(job, state, reason):
            await self._clear(job)

    def _dismiss(self, job: Job, outcome: JobState, reason: str) -> bool:
        """Finish a job, release its agents; return whether its rules must be removed (`_clear`)."""
        self._progress.pop(job.number, None)
        watch = self._watching.pop(job.number, None)
        if watch is not None and watch is not asyncio.current_task():
            watch.cancel()
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
                self.send(host, command)
        return installed

    def _cancel_vectors(self, job: Job) -> None:
        """Finish the companion job that combines a job's bit vectors when that job finishes."""
        number = job.spec.task.vectors
        companion = self.jobs.get(number)
        if companion is not None:
            reason = f"job {job.spec.name} has ended"
            self._start_in_background(self.cancel(companion, reason), f"cancel job {number}")

    async def _clear(self, job: Job) -> None:
        """Remove the rules and slots of a finished job, and start queued jobs that fit."""
        await self._release(job)
        await self._start_queued()

    async def _release(self, job: Job) -> None:
        """Release a job's rules, slots and agents' streams."""
        try:
            await self.manager.remove(job.number)
        except (DriverError, TimeoutError) as error:
            # Its remaining rules are removed at the next reconciliation of the switch.
            LOGGER.warning("job %d: %s", job.number, error)
        # Not earlier: jobs with slots need a level.
        self.priorities.remove(job.number)
        self.jobs.drained(job)

    async def catch_up(self) -> None:
        """Write pending records, and start the jobs that wait for them."""
        if self.jobs.catch_up():
            await self._start_queued()

    async def _start_queued(self) -> None:
        """Start queued jobs that fit now, the oldest first; a smaller job may overtake a larger
        one."""
        for job in self.jobs.queued():
            try:
                await self._try(job)
            except (DriverError, TimeoutError) as error:
                LOGGER.warning("job %d: %s", job.number, error)

    async def close(self) -> None:
        """Stop watching; the jobs are left as they are."""
        tasks = [*self._background]
        self._watching.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _in_short(failures: Mapping[str, str]) -> str:
    """Return hosts with the reasons for their failures, each reason once."""
    hosts: dict[str, list[str]] = {}
    for host, why in failures.items():
        hosts.setdefault(why, []).append(host)
    return "; ".join(f"{shorten(names)}: {why}" for why, names in hosts.items())
