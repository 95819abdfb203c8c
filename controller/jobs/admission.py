"""Admission: jobs get rules and slots as soon as there is room for them, and give them back.

Jobs that find no room are queued; they are tried again whenever one ends.
"""

from __future__ import annotations

import logging
from functools import partial

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.controller.dataplane.driver import DriverError
from hopsum.controller.jobs.engine_state import EngineState
from hopsum.controller.jobs.epochs import Epochs
from hopsum.controller.jobs.hosts import Hosts
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.plan_costs import free_network
from hopsum.controller.jobs.procedures import AbandonedError, Compute, Procedure
from hopsum.controller.jobs.stall_diagnosis import Progress
from hopsum.network.model import Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.registry import plan_job

LOGGER = logging.getLogger("hopsum.engine")


class Admission:
    """The queue of jobs."""

    def __init__(self, state: EngineState, epochs: Epochs, hosts: Hosts) -> None:
        self._state = state
        self._epochs = epochs
        self._hosts = hosts

    def start(self, job: Job) -> Procedure[None]:
        """Start a queued job if there is room for it now; otherwise note what it waits for.

        Raises DriverError, TimeoutError where switches do not take its rules: it has failed then.
        """
        # One that was given up while the queue tried another is no longer in the table.
        if job.state is JobState.QUEUED and self._state.jobs.get(job.number) is job:
            self._state.jobs.move(job, JobState.INSTALLING)
            yield from self._install(job)

    def _install(self, job: Job) -> Procedure[None]:
        state = self._state
        # Agents that attach while its rules are being installed need its level.
        state.priorities.add(job.number, state.now, job.request.workers)
        levels = None if job.spec.immediate else state.priorities.levels
        try:
            yield from self._epochs.admit(
                job, self._measured, levels, partial(self._check_user, job.spec)
            )
        except Exception as error:
            state.priorities.remove(job.number)
            if job.state is JobState.DRAINING:
                state.jobs.drained(job)
            elif isinstance(error, PlanError):
                state.jobs.move(job, JobState.QUEUED, str(error))
            else:
                name = "" if isinstance(error, AbandonedError) else f"{type(error).__name__}: "
                state.jobs.move(job, JobState.FAILED, f"{name}{error}")
            if not isinstance(error, PlanError):
                # Others may have waited for what it held meanwhile.
                self.try_queued()
                raise
            return
        if job.state is JobState.DRAINING:
            # Cancelled while the switches took its rules.
            state.procedures.start(self.clear(job))
            return
        state.jobs.move(job, JobState.WAITING)
        active = state.plans.active[job.number]
        self._hosts.summon(active)
        active.progress = Progress(state.now, job.round)

    def _check_user(self, spec: JobSpec, plan: JobPlan) -> None:
        """Raise PlanError for a plan beyond its owner's quota of slots."""
        if not spec.limited:
            return
        network, plans = self._state.network, self._state.plans
        others = {job.number for job in self._state.jobs if job.spec.owner == spec.owner}
        # It would wait for the end of the job that combines its vectors, which waits for its own.
        others.discard(spec.task.vectors)
        held = {
            name: sum(slots for job, slots in plans.slots_held(name).items() if job in others)
            for name in network.switches
        }
        self._state.settings.sharing.check_user(network, spec.owner, plan, held)

    def _measured(self, network: Network) -> Network:
        """Return a network with the free bandwidth of its links, where plans heed that."""
        if not self._state.settings.replanning.live:
            return network
        return free_network(network, self._state.nodes.state.shares(self._state.now))

    def keep_queued(self, job: Job) -> Procedure[None]:
        """Record a job that has to wait. Raises PlanError if it could not even run alone."""
        network = self._state.network
        if not job.spec.among_hosts:
            alone, planner = Allocator(network), job.spec.planner
            yield Compute(partial(plan_job, network, job.request, alone, planner))
        if job.state is JobState.QUEUED:
            self._state.jobs.keep(job)

    def try_queued(self) -> None:
        """Start queued jobs that fit now, in a procedure of its own."""
        self._state.procedures.start(self.start_queued())

    def start_queued(self) -> Procedure[None]:
        """Start queued jobs that fit now, the oldest first; a smaller job may overtake a larger
        one."""
        for job in self._state.jobs.queued():
            try:
                yield from self.start(job)
            except (DriverError, TimeoutError) as error:
                LOGGER.warning("job %d: %s", job.number, error)

    def clear(self, job: Job) -> Procedure[None]:
        """Remove the rules and slots of a job that has ended, and start queued jobs that fit."""
        yield from self._epochs.remove(job.number)
        # Not earlier: jobs with slots need a level.
        self._state.priorities.remove(job.number)
        self._state.jobs.drained(job)
        yield from self.start_queued()
