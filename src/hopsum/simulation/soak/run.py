"""Runs one fault schedule in virtual time and checks the invariants."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import grpc

from hopsum.controller.dataplane.driver import State
from hopsum.controller.dataplane.pipeline import Pipeline
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.priorities import ONE_LEVEL
from hopsum.controller.jobs.replanning import ReplanningPolicy
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.controller.jobs.sharing import SharingPolicy
from hopsum.host_agent.io.tcp_collective import PROGRESS_SECONDS
from hopsum.host_agent.node.timing import suitable_options
from hopsum.planning.model.stack_depth import stack_depth
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.liveness import OUTAGE_SECONDS
from hopsum.simulation.cluster import ClusterOptions, VirtualCluster
from hopsum.simulation.events import EventQueue, SimulationError
from hopsum.simulation.faults import Outage, OutageKind
from hopsum.simulation.loop import collect_earlier_runs, run_virtual
from hopsum.simulation.soak.attacks import Attacker
from hopsum.simulation.soak.injection import Injection
from hopsum.simulation.soak.inputs import network_of, submission_of, workload_of
from hopsum.simulation.soak.ledger import Ledger
from hopsum.simulation.soak.oracles import (
    Oracle,
    Violation,
    flood_seconds,
    journal_differs,
    leaks,
    longest_silence,
    overlapping_slots,
    predictable,
    unpredicted_bytes,
)
from hopsum.simulation.soak.processes import Ranks
from hopsum.simulation.soak.schedule import (
    Attack,
    ClockDrift,
    ClockJump,
    DiskFault,
    FaultSchedule,
    JobEntry,
    Noise,
)
from hopsum.simulation.wire import WireOptions
from p4switch.targets.v1model.engine import Engine

UP_SECONDS = 60.0
"""Seconds for a cluster to come up before faults begin. Times of a schedule count from then."""
RETRY_SECONDS = 1.0
"""Seconds after which users retry what failed with one of `RETRY_CODES`."""
RETRY_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)
"""There is no controller, or switches have not taken a job's rules."""
LOOK_SECONDS = 0.25
"""Seconds between checks of the invariants that must hold all the time."""
END_SECONDS = 300.0
"""Seconds after the last fault for jobs to end."""
ATTEND_SECONDS = 60.0
"""Seconds from a job's start within which its ranks must attend: outages are shorter."""
REPAIR_SECONDS = 2.0
"""Seconds from an outage's end until its switches forward again, and messages may get lost."""
SETTLE_SECONDS = 40.0
"""Seconds after the last job's end for switches, agents and journal to return to their initial
state."""
MOST_EVENTS = 20_000_000
"""Maximum events of a run; one that exceeds it is a failure."""
JOURNAL = Path("jobs")


@dataclass(frozen=True, slots=True)
class DataPlane:
    """The data plane of a run.

    `pipeline`: compiled for given lanes, slots and stack entries; `load`: makes an engine from a
    device configuration.
    """

    pipeline: Callable[[int, int, int], Pipeline]
    load: Callable[[bytes], Engine]


@dataclass(slots=True)
class SoakResult:
    """Result of a schedule. `digest`: of its whole history. `jobs`: outcome and reason by name.

    `calls`: of processes, by how they ended; some of them flows have taken.
    """

    schedule: FaultSchedule
    violations: tuple[Violation, ...]
    digest: str
    jobs: dict[str, tuple[str, str]]
    injected: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    events: int = 0

    @property
    def failed(self) -> bool:
        """Return whether any invariant is violated."""
        return bool(self.violations)


class _BoundedQueue(EventQueue):
    """An event queue with a limited number of events."""

    def run(self, most: int = MOST_EVENTS, limit: float = math.inf) -> bool:
        if self.processed >= MOST_EVENTS:
            raise SimulationError(f"not over after {MOST_EVENTS} events, at {self.now:.3f} s")
        return super().run(min(most, MOST_EVENTS), limit)


class _Defects(logging.Handler):
    """Collects log records with an exception, which are unexpected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self.found.append(f"{record.getMessage()}: {type(error).__name__}: {error}")


def run_schedule(schedule: FaultSchedule, data_plane: DataPlane) -> SoakResult:
    """Run a schedule to the end of its jobs and faults, and check the invariants.

    Raises InputError for an invalid schedule, such as one with an unknown node.
    """
    collect_earlier_runs()
    return _Run(schedule, data_plane).result()


class _Run:
    def __init__(self, schedule: FaultSchedule, data_plane: DataPlane) -> None:
        self.schedule = schedule
        self.network = network_of(schedule.network)
        self.ledger = Ledger()
        self.violations: dict[Violation, None] = {}
        self.outcomes: dict[str, tuple[str, str]] = {}
        self._hosts: dict[int, Collection[str]] = {}
        attacked = any(isinstance(fault, Attack) for fault in schedule.faults)
        self.attacker = Attacker(self._hosts.get)
        slots = max((s.slots for s in self.network.switches.values()), default=1)
        hops = stack_depth(self.network, schedule.lanes)
        settings = ClusterSettings(
            lanes=schedule.lanes,
            max_hops=hops,
            sharing=SharingPolicy(Fraction(str(schedule.quota))),
            priorities=None if schedule.levels else ONE_LEVEL,
            replanning=ReplanningPolicy(every=schedule.every),
            attend_limit=ATTEND_SECONDS,
            journal=JOURNAL,
        )
        options = ClusterOptions(
            data_plane.pipeline(schedule.lanes, 1 << (slots - 1).bit_length(), hops),
            data_plane.load,
            settings,
            seed=schedule.seed,
            wires=WireOptions(loss=schedule.wire_loss),
            fair=schedule.fair,
            observers=(self.attacker,) if attacked else (),
        )
        self.queue = _BoundedQueue()
        self.cluster = VirtualCluster(self.network, options, self.queue)
        self.attacker.world = self.cluster.world
        self.cluster.common.work = self.ledger.work
        self.ranks = Ranks(self.cluster, schedule.jobs)
        self.injection = Injection(self.cluster, self.attacker)
        self._people: Any = self.cluster.people
        self._began = 0.0

    def result(self) -> SoakResult:
        defects = _Defects()
        logging.getLogger().addHandler(defects)
        try:
            run_virtual(self._run(), self.queue)
        except SimulationError as error:
            self._violate(Oracle.DEFECT, str(error))
        finally:
            logging.getLogger().removeHandler(defects)
            self.ranks.close()
        for found in defects.found:
            self._violate(Oracle.DEFECT, found)
        for wrong in (*self.ledger.wrong(), *self.ranks.wrong()):
            self._violate(Oracle.SUMS, wrong)
        return SoakResult(
            self.schedule,
            tuple(self.violations),
            self._digest(),
            self.outcomes,
            self.injection.injected,
            self.ranks.calls(),
            self.queue.now,
            self.queue.processed,
        )

    def _violate(self, oracle: Oracle, text: str) -> None:
        self.violations[Violation(oracle, text)] = None

    def _digest(self) -> str:
        history = hashlib.sha256("\n".join(self.cluster.trace).encode())
        for file, content in sorted(self.cluster.disk.content().items()):
            history.update(bytes(file) + content)
        for (job, number), given in sorted(self.ledger.sums.items()):
            history.update(f"{job} {number}".encode())
            for each in given:
                history.update(each.result.tobytes())
        for content in self.ranks.content():
            history.update(content)
        return history.hexdigest()[:16]

    # -- the course of a run

    async def _run(self) -> None:
        async with self.cluster:
            await self.cluster.until(self._up, "agents and switches", UP_SECONDS)
            self._began = self.queue.now
            for fault in self.schedule.faults:
                self.injection.plan(fault, self._began)
            owners = [asyncio.create_task(self._own(job)) for job in self.schedule.jobs]
            try:
                await self._watch(owners)
            finally:
                for owner in owners:
                    owner.cancel()
                await asyncio.gather(*owners, return_exceptions=True)
        self.injection.count_frames()

    def _up(self) -> bool:
        controller, driver = self.cluster.controller, self.cluster.driver
        return (
            controller is not None
            and driver is not None
            and len(controller.nodes.attached) == len(self.network.hosts)
            and all(state is State.READY for state in driver.states().values())
        )

    async def _own(self, job: JobEntry) -> None:
        """Submit a job and cancel it at its time; retry while there is no controller."""
        await self._ask(job.start, lambda: self._submit(job))
        if job.cancel:
            query = pb.JobQuery(name=job.name)
            await self._ask(job.cancel, lambda: self._cancel(query))

    async def _ask(self, time: float, what: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(self._began + time - self.queue.now)
        while True:
            try:
                await what()
                return
            except grpc.aio.AioRpcError as error:
                if error.code() not in RETRY_CODES:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _submit(self, job: JobEntry) -> None:
        try:
            await self._people.Submit(submission_of(job))
        except grpc.aio.AioRpcError as error:
            if error.code() in RETRY_CODES:
                raise
            self.outcomes[job.name] = ("refused", f"{error.code().name}: {error.details()}")

    async def _cancel(self, query: pb.JobQuery) -> None:
        try:
            await self._people.Cancel(query)
        except grpc.aio.AioRpcError as error:
            # A job that was refused.
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise

    async def _watch(self, owners: list[asyncio.Task[None]]) -> None:
        """Check permanent invariants until the run is over, then those of the final state."""
        begun = [
            each.start if isinstance(each, (Noise, JobEntry, ClockJump, ClockDrift)) else each.stop
            for each in (*self.schedule.faults, *self.schedule.jobs)
        ]
        last = self._began + max(begun, default=0.0)
        ends = [getattr(fault, "stop", 0.0) for fault in self.schedule.faults]
        limit = self._began + max([last - self._began, *ends]) + END_SECONDS
        over_since = math.inf
        left: list[Violation] = []
        cluster = self.cluster
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now, controller = self.queue.now, cluster.controller
            if controller is not None:
                self._look(controller)
                over = (
                    now > last
                    and all(owner.done() for owner in owners)
                    and all(job.state.over for job in controller.jobs)
                )
                over_since = min(over_since, now) if over else math.inf
                if over:
                    texts = [*leaks(cluster, controller), *self.ranks.leaks()]
                    left = [Violation(Oracle.LEAK, text) for text in texts]
                    if not left:
                        differences = journal_differs(cluster, controller)
                        left = [Violation(Oracle.JOURNAL, text) for text in differences]
                    if not left:
                        break
            if now - over_since > SETTLE_SECONDS:
                self.violations |= dict.fromkeys(left)
                break
            if now > limit + self._longest_timeouts(controller):
                self._still_going(controller)
                return
        assert controller is not None
        self._check_outcome(controller)

    def _longest_timeouts(self, controller: Cluster | None) -> float:
        """Return the seconds of two longest timeouts: minutes, where a window takes that long.

        What links cannot repair is sent again only then, the second time past the switches.
        """
        if controller is None:
            return 0.0
        plans = [job.plan for job in controller.jobs if job.plan is not None]
        options = (suitable_options(self.network, plan, slack=0.0) for plan in plans)
        return 2 * max((each.max_timeout for each in options), default=0.0)

    def _look(self, controller: Cluster) -> None:
        for job in controller.jobs:
            self._hosts[job.number] = () if job.state.over else job.hosts
        refused = {name for name, (outcome, _) in self.outcomes.items() if outcome == "refused"}
        self.ranks.attend(controller, refused)
        for text in overlapping_slots(controller, [*self.network.switches]):
            self._violate(Oracle.LEAK, text)

    def _still_going(self, controller: Cluster | None) -> None:
        if controller is None:
            self._violate(Oracle.END, "there is no controller")
            return
        for job in controller.jobs:
            if not job.state.over:
                why = controller.engine.why_waiting(job)
                self._violate(
                    Oracle.END,
                    f"{job.spec.name} is {job.state} in epoch {job.epoch}, tensor {job.round}, "
                    f"{END_SECONDS:g} s after the last fault: {why or 'it gives no reason'}",
                )

    def _check_outcome(self, controller: Cluster) -> None:
        entries = {entry.name: entry for entry in self.schedule.jobs}
        for job in controller.jobs:
            entry = entries.get(job.spec.name)
            self.outcomes[job.spec.name] = (str(job.state), job.reason)
            if entry is None:
                continue
            if job.state is not JobState.FINISHED and not job.reason:
                self._violate(Oracle.REASON, f"{entry.name} {job.state} without a reason")
            overflowed = entry.overflows and "overflow" in job.reason
            if job.state is JobState.FAILED and not overflowed and not self._excused(job):
                self._violate(Oracle.REASON, f"{entry.name} failed: {job.reason}")
            if job.state is JobState.FINISHED:
                self._check_finished(job, entry)
        for name, (outcome, reason) in self.outcomes.items():
            if outcome == "refused" and not _is_input(reason) and not self._unreachable():
                self._violate(Oracle.REASON, f"{name} was refused: {reason}")
        self._compare_bytes([*controller.jobs], entries)

    def _check_finished(self, job: Job, entry: JobEntry) -> None:
        if entry.all_ranks:
            for text in self.ranks.incomplete(job):
                self._violate(Oracle.SUMS, text)
        if entry.kind != "random" or entry.coordinate:
            return
        if entry.overflows:
            self._violate(Oracle.SUMS, f"{entry.name} finished, and a sum of it overflows")
        for number in range(entry.rounds):
            given = {each.worker for each in self.ledger.sums.get((job.number, number), [])}
            missing = set(range(len(entry.workers))) - given
            if missing:
                self._violate(
                    Oracle.SUMS,
                    f"job {job.number} finished, and workers {sorted(missing)} have no sum of "
                    f"tensor {number}",
                )

    def _unreachable(self) -> bool:
        """Return whether users may at times have been unable to reach a working controller."""
        return any(isinstance(fault, (Outage, DiskFault)) for fault in self.schedule.faults)

    def _excused(self, job: Job) -> bool:
        """Return whether the schedule may end a job.

        A rank has died; or an agent's state is lost for good; or frames of a part over TCP are
        lost, whose timeout doubles with each loss in a row until nothing moves for
        PROGRESS_SECONDS; outages that follow each other lengthen it, a clock that runs fast, and
        forged frames that fill a slow link.
        """
        if self.ranks.died(job):
            return True
        over_tcp = job.spec.among_hosts or (job.plan is not None and bool(job.plan.host_parts))
        faults = self.schedule.faults
        pace = max([1.0, *(fault.pace for fault in faults if isinstance(fault, ClockDrift))])
        silence = pace * longest_silence(
            (fault.start, fault.stop + REPAIR_SECONDS)
            for fault in faults
            if isinstance(fault, Outage)
        )
        rates = [channel.rate for channel in self.cluster.world.channels.values() if channel.rate]
        attacks = [fault for fault in faults if isinstance(fault, Attack)]
        silence += pace * flood_seconds(attacks, min(rates, default=math.inf))
        loses = any(isinstance(fault, Noise) and fault.loss for fault in faults)
        if over_tcp and (loses or silence > PROGRESS_SECONDS):
            return True
        away = {OutageKind.CONTROLLER_HANGS, OutageKind.PARTED, OutageKind.MANAGEMENT_CUT}
        apart = sum(
            fault.stop - fault.start
            for fault in faults
            if isinstance(fault, Outage) and fault.trouble in away
        )
        return apart > OUTAGE_SECONDS or any(
            isinstance(fault, DiskFault)
            or (isinstance(fault, Outage) and fault.trouble is OutageKind.AGENT_DOWN)
            for fault in faults
        )

    def _compare_bytes(self, jobs: list[Job], entries: dict[str, JobEntry]) -> None:
        undisturbed = not any(
            isinstance(fault, (Outage, Attack)) for fault in self.schedule.faults
        ) and not any(
            channel.lost or channel.delayed or channel.duplicated or channel.queue_drops
            for channel in self.cluster.world.channels.values()
        )
        # A worker retransmits fragments that are only late: behind other jobs' windows, or because
        # another worker started much later, because messages to it were lost.
        unequal = len(jobs) > 1 or self.schedule.wire_loss > 0
        late = unequal and any(job.retransmissions for job in jobs)
        known = not late and all(predictable(job) and job.spec.name in entries for job in jobs)
        if undisturbed and known and not any(isinstance(f, Noise) for f in self.schedule.faults):
            work = [(job, workload_of(entries[job.spec.name])) for job in jobs]
            for text in unpredicted_bytes(self.cluster, work):
                self._violate(Oracle.BYTES, text)


def _is_input(reason: str) -> bool:
    return reason.startswith(("INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND", "ALREADY"))
