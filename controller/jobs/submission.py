"""How jobs come: submitted by people, or left in the journal by an earlier controller."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hopsum.collectives.plan import PlanError
from hopsum.collectives.workload import VECTORS
from hopsum.controller.jobs.admission import Admission
from hopsum.controller.jobs.engine_state import EngineState
from hopsum.controller.jobs.epochs import Epochs
from hopsum.controller.jobs.hosts import Hosts
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
from hopsum.controller.jobs.journal import UnrecordedError
from hopsum.controller.jobs.plan_store import next_request
from hopsum.controller.jobs.procedures import Compute, Procedure
from hopsum.controller.jobs.stall_diagnosis import Progress
from hopsum.controller.jobs.task_check import check_workload, workload_of
from hopsum.controller.jobs.termination import Termination
from hopsum.network.model import NetworkError
from hopsum.planning.model.placement import Placement


class Submission:
    """Accepts jobs."""

    def __init__(
        self,
        state: EngineState,
        epochs: Epochs,
        hosts: Hosts,
        admission: Admission,
        termination: Termination,
    ) -> None:
        self._state = state
        self._epochs = epochs
        self._hosts = hosts
        self._admission = admission
        self._termination = termination

    def submit(self, spec: JobSpec) -> Procedure[Job]:
        """Submit a job: it runs as soon as its agents attend, or is queued behind others.

        Raises JobError, NetworkError, PlanError for a job that can never run here, or not now if it
        is immediate, UnrecordedError for one that cannot be recorded, and DriverError, TimeoutError
        if switches do not take its rules; nothing is left of it then.
        """
        state, network = self._state, self._state.network
        state.jobs.check(spec)
        spec = resolve(spec, network)
        placed = place_spec(network, spec, self._hosts.in_reach(), state.jobs.loads())
        workload = workload_of(spec)
        if workload is not None:
            check_workload(spec.name, workload, placed.workers, state.nodes)
        # It may take seconds, in which others are served.
        key, limit = state.new_key(), state.settings.attend_limit
        spec = yield Compute(partial(complete_task, spec, network, placed.workers, key, limit))
        vectors = vectors_spec(spec, placed)
        if vectors is None:
            return (yield from self._admit(spec, placed))
        state.jobs.check_owned(spec, vectors.name)
        # Before the job that needs it: of one level, its frames go first.
        companion = yield from self.submit(vectors)
        try:
            return (yield from self._admit(with_vectors(spec, companion.number), placed))
        except Exception:
            why = "the job that needs it could not be submitted"
            state.procedures.start(self._termination.cancel(companion, why))
            raise

    def _admit(self, spec: JobSpec, placed: Placement) -> Procedure[Job]:
        state = self._state
        # Another job may have taken its name meanwhile, or the last place of its owner.
        state.jobs.check(spec)
        number = state.jobs.next_number()
        free = state.plans.free_slots()
        request = make_request(spec, number, placed, state.network, state.settings, free)
        job = Job(number, spec, request, state.date())
        # Known from here on, so that no other gets its name while switches take its rules.
        state.jobs.add(job)
        try:
            yield from self._admission.start(job)
            if job.state is JobState.QUEUED:
                if spec.immediate:
                    raise JobError(f"job {spec.name} cannot start now: {job.reason}")
                yield from self._admission.keep_queued(job)
        except Exception as error:
            # The queue may have tried it again meanwhile: then it stays known, as failed.
            if job.state is JobState.QUEUED:
                state.jobs.drop(job)
            elif job.outcome is None and not job.state.over:
                self._termination.end(job, JobState.FAILED, str(error))
            raise
        return job

    def restore(self) -> Procedure[None]:
        """Install the rules of the jobs that an earlier controller has left.

        Running jobs continue as their agents return; queued ones are tried again.
        Raises DriverError, TimeoutError where switches do not take rules, and UnrecordedError where
        an epoch cannot be recorded: another attempt, by another controller, may recover the job.
        """
        jobs = self._state.jobs
        for job in jobs:
            if job.active:
                try:
                    self._readopt(job)
                except (PlanError, NetworkError) as error:
                    if isinstance(error.__cause__, UnrecordedError):
                        raise error.__cause__ from None
                    jobs.resume(job)
                    reason = f"it cannot be recovered after a restart of the controller: {error}"
                    jobs.move(job, JobState.FAILED, reason)
            elif job.state is JobState.INSTALLING and job.spec.immediate:
                jobs.move(job, JobState.FAILED, "the controller restarted before it began")
            elif job.state is JobState.INSTALLING:
                # Switches, and agents, may have heard of the epoch that it was being started in.
                jobs.move(job, JobState.QUEUED)
                if job.plan is not None:
                    job.request = next_request(job.request, job.plan)
            elif job.state is JobState.DRAINING:
                jobs.drained(job)
        yield from self._epochs.refresh()
        self._end_unneeded()
        yield from self._admission.start_queued()

    def _end_unneeded(self) -> None:
        """End jobs of bit vectors that no job needs: nobody else would.

        An earlier controller may have died before it recorded the training of one, or when only
        the training had failed. Those of a finished training end by their agents.
        """
        jobs = self._state.jobs
        ends_well = (None, JobState.FINISHED)
        needed = {job.spec.task.vectors for job in jobs if job.outcome in ends_well}
        why = "the controller restarted, and no job needs its vectors"
        for job in [*jobs]:
            combines = job.spec.task.workload.kind == VECTORS
            if combines and job.outcome is None and job.number not in needed:
                self._termination.end(job, JobState.CANCELLED, why)

    def _readopt(self, job: Job) -> None:
        """Resume a started job, and expect its agents where they were."""
        state, settings = self._state, self._state.settings
        if job.request.lanes != settings.lanes:
            raise PlanError(
                f"it has {job.request.lanes} lanes a packet, and the switches {settings.lanes}"
            )
        job.request = replace(job.request, max_hops=settings.max_hops)
        self._epochs.readopt(job)
        state.jobs.resume(job)
        active = state.plans.active[job.number]
        # A worker that restarts now would be at another round than the others.
        active.tracker.started = job.state is JobState.RUNNING
        active.restored, active.all_back = True, False
        active.progress = Progress(state.now, job.round)
        state.priorities.add(job.number, state.now, job.request.workers)
