"""Epochs of jobs: rules for a job's first plan and for every later one, then the agents' plans.

Changes of rules are serialized. Each is recorded before switches and agents hear of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.controller.dataplane.driver import DriverError
from hopsum.controller.jobs.active_job import ActiveJob
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.job_table import JobTable
from hopsum.controller.jobs.plan_store import Change, NextPlan, PlanStore, roster
from hopsum.controller.jobs.procedures import (
    Compute,
    Install,
    Lock,
    Procedure,
    Procedures,
    SupersededError,
)
from hopsum.controller.jobs.sharing import Settlement
from hopsum.controller.jobs.tracker import Outgoing, Tracker
from hopsum.controller.telemetry.diagnosis import cut_off, element_name, listed
from hopsum.controller.telemetry.event_log import EventKind
from hopsum.controller.telemetry.health import Element
from hopsum.network.model import Network, NetworkError

LOGGER = logging.getLogger("hopsum.epochs")

Levels = Callable[[], Mapping[int, int]]
"""The level of every job by number, 0 is served first."""


class Epochs:
    """Changes of the plans in a store. `tell` sends a job's messages to its agents.

    `describe` says for how long switches and links have been unreachable. `adopted` is called when
    a job's agents have been sent a new plan, `forgotten` when a job is removed.
    """

    def __init__(
        self,
        plans: PlanStore,
        table: JobTable,
        procedures: Procedures,
        tell: Callable[[ActiveJob, Outgoing], None],
        describe: Callable[[Iterable[Element]], str],
        adopted: Callable[[ActiveJob], None],
        forgotten: Callable[[ActiveJob], None],
    ) -> None:
        self._plans = plans
        self._table = table
        self._procedures = procedures
        self._tell = tell
        self._describe = describe
        self._adopted = adopted
        self._forgotten = forgotten
        self._changing = Lock()

    # -- a job's first epoch, and its end

    def admit(
        self,
        job: Job,
        measured: Callable[[Network], Network] = lambda network: network,
        levels: Levels | None = None,
        check: Callable[[JobPlan], None] = lambda plan: None,
    ) -> Procedure[JobPlan]:
        """Plan a job, install its rules, and expect its agents. Raises PlanError, DriverError.

        `measured`: gives the working network free bandwidth on its links. `levels`: the
        priorities of this and all other jobs; jobs of a lower one are preempted where this one
        needs their slots, and continue in a new epoch. Without it no job is preempted. `check`:
        raises PlanError for a plan that is not to be installed.
        """
        if job.spec.among_hosts:
            self._check_reach(job.request.workers)
            plan = roster(job.request)
            self._take_in(job, NextPlan(job.request, plan, frozenset()))
            return plan
        steps = self._admit(job, measured, levels, check)
        return (yield from self._procedures.locked(self._changing, steps))

    def _admit(
        self,
        job: Job,
        measured: Callable[[Network], Network],
        levels: Levels | None,
        check: Callable[[JobPlan], None],
    ) -> Procedure[JobPlan]:
        request, plans = job.request, self._plans
        if job.number in plans.active:
            raise PlanError(f"job {job.number} exists already")
        # What works now: changes that this one has waited for may have brought elements back.
        view = measured(plans.working())
        self._check_reach((*request.workers, *request.servers))
        known = dict.fromkeys([*plans.active, job.number], 0) if levels is None else levels()
        settled: Settlement = yield Compute(lambda: plans.settle(view, job, known))
        plans.check([*settled.preempted.values(), settled.plan])
        check(settled.plan)
        yield from self._preempt(settled)
        self._take_in(job, NextPlan(request, settled.plan, frozenset()))
        try:
            yield from self.refresh()
        except Exception:
            self._forget(job.number)
            # Switches may have some of its rules. Whoever waits for the job need not wait for this.
            steps = self._procedures.locked(self._changing, self._withdraw(job.number))
            self._procedures.start(steps)
            raise
        return settled.plan

    def _withdraw(self, number: int) -> Procedure[None]:
        """Remove the rules of a job that has been forgotten."""
        try:
            yield from self.refresh()
        except (DriverError, TimeoutError) as error:
            # Its remaining rules are removed at the next reconciliation of the switch.
            LOGGER.warning("job %d: %s", number, error)

    def _check_reach(self, hosts: Iterable[str]) -> None:
        """Raise PlanError if there is currently no path between some of these hosts."""
        apart = cut_off(self._plans.working(), hosts)
        if apart and not cut_off(self._plans.network, hosts):
            why = self._describe(self._plans.failed)
            raise PlanError(f"{', '.join(apart)} cut off: {why}")

    def _take_in(self, job: Job, first: NextPlan) -> None:
        failed = self._plans.failed
        self._table.adopt(job, first.request, first.plan, first.bypassed, failed, first.cause)
        self._expect(job)

    def _expect(self, job: Job) -> None:
        """Reserve the resources of a job's plan, and expect its agents."""
        assert job.plan is not None
        self._plans.take(job.plan)
        tracker = Tracker(self._plans.network, job.plan, job.spec.task)
        self._plans.active[job.number] = ActiveJob(job, tracker)

    def readopt(self, job: Job) -> None:
        """Add a job of an earlier controller; `refresh` installs its rules. Raises PlanError.

        It goes on in its epoch if its plan holds as it is, else in the next one.
        """
        if job.spec.among_hosts:
            assert job.plan is not None
            self._take_in(job, NextPlan(job.request, job.plan, frozenset()))
            return
        found = self._plans.restored(job)
        if found is None:
            self._expect(job)
        else:
            self._take_in(job, found)

    def remove(self, number: int) -> Procedure[None]:
        """Remove a job with its rules, slots and groups. Raises PlanError if there is none."""
        if self._plans.job(number).job.spec.among_hosts:
            self._forget(number)
            return
        yield from self._procedures.locked(self._changing, self._remove(number))

    def _remove(self, number: int) -> Procedure[None]:
        self._forget(number)
        yield from self._withdraw(number)

    def _forget(self, number: int) -> None:
        self._forgotten(self._plans.remove(number))

    # -- later epochs

    def change(self, number: int, change: Change) -> Procedure[JobPlan]:
        """Start a job's next epoch: install new rules, then send the plan to its agents.

        Raises PlanError, DriverError, TimeoutError.
        """
        return (yield from self._procedures.locked(self._changing, self._change(number, change)))

    def _change(self, number: int, change: Change) -> Procedure[JobPlan]:
        return (yield from self._adopt(number, self._plans.changed(number, change)))

    def _adopt(self, number: int, newer: NextPlan) -> Procedure[JobPlan]:
        """Continue a job under its next plan."""
        self._plans.check([newer.plan])
        active = self._plans.job(number)
        self._take_over(active, newer)
        yield from self._switch_over([active])
        return newer.plan

    def _preempt(self, settled: Settlement) -> Procedure[None]:
        """Preempt jobs at switches: their slots are free once their rules are removed.

        Raises PlanError if one keeps its plan; those before it have left.
        """
        left: list[ActiveJob] = []
        kept: PlanError | None = None
        for number in settled.preempted:
            active, newer = self._plans.job(number), self._plans.preempted(settled, number)
            try:
                self._take_over(active, newer)
            except PlanError as error:
                kept = error
                break
            left.append(active)
            LOGGER.info("job %d: %s", number, newer.cause[1])
        if left:
            yield from self._switch_over(left)
        if kept is not None:
            raise kept

    def _take_over(self, active: ActiveJob, newer: NextPlan) -> None:
        """Make a job's next plan its current one; it still holds resources of the previous one."""
        failed = self._plans.failed
        self._table.adopt(
            active.job, newer.request, newer.plan, newer.bypassed, failed, newer.cause
        )
        if active.job.active:
            self._table.move(active.job, JobState.CHANGING)
        self._plans.take(newer.plan)

    def _switch_over(self, jobs: Iterable[ActiveJob]) -> Procedure[None]:
        """Install next plans at the switches, then send them to the agents.

        Where a switch does not take them the agents get them all the same, as the others have them;
        what the jobs held before is kept from others then, as that switch may still go by it.
        """
        try:
            yield from self.refresh()
        except Exception:
            for active in jobs:
                self._go_on(active)
            raise
        for active in jobs:
            self._plans.release_before(active.plan)
            self._go_on(active)

    def _go_on(self, active: ActiveJob) -> None:
        """Send a job's plan to its agents."""
        self._table.resume(active.job)
        self._tell(active, active.tracker.adopt(active.plan))
        self._adopted(active)

    def refresh(self) -> Procedure[None]:
        """Install the rules of all jobs at the reachable switches.

        One that fails meanwhile is not waited for any longer. Raises DriverError, TimeoutError.
        """
        while True:
            try:
                yield Install(self._plans.rules())
            except SupersededError:
                continue
            return

    # -- failures

    def mark_failed(self, elements: Iterable[Element]) -> None:
        """Mark switches and links as failed; changes in progress no longer wait for them.

        The jobs that use them keep their plans until `fail`.
        """
        newly = frozenset(elements) - self._plans.failed
        if newly:
            self._plans.failed |= newly
            self._table.events.add(EventKind.OUTAGE, f"{_names(newly)} unreachable")
            self._procedures.supersede()

    def fail(self) -> Procedure[list[JobPlan]]:
        """Plan around failed switches and links: the jobs that use them get a new epoch.

        Returns the new plans. A job that cannot do without them keeps its plan, and waits
        (`PlanStore.lost_to`). Raises DriverError or TimeoutError if reachable switches do not
        take the rules, but only after all jobs have been planned.
        """
        return (yield from self._procedures.locked(self._changing, self._fail()))

    def _fail(self) -> Procedure[list[JobPlan]]:
        newer: list[JobPlan] = []
        errors: list[Exception] = []
        for number in [job for job in self._plans.active if self._plans.lost_to(job)]:
            if number not in self._plans.active:
                # A job among hosts was removed meanwhile.
                continue
            cause = (EventKind.FAILOVER, f"around {_names(self._plans.lost_to(number))}")
            try:
                found = self._plans.around_failures(number)
            except (PlanError, NetworkError) as error:
                LOGGER.warning("job %d: no plan avoids the failure: %s", number, error)
                continue
            try:
                newer.append((yield from self._adopt(number, replace(found, cause=cause))))
            except (DriverError, PlanError, TimeoutError) as error:
                errors.append(error)
        if errors:
            raise errors[0]
        if not newer:
            yield from self.refresh()
        return newer

    def recover(self, elements: Iterable[Element]) -> Procedure[list[int]]:
        """Use recovered switches and links again; return the jobs that avoided them.

        Raises DriverError, TimeoutError, and counts them as failed still, if switches do not take
        the rules.
        """
        return (yield from self._procedures.locked(self._changing, self._recover(elements)))

    def _recover(self, elements: Iterable[Element]) -> Procedure[list[int]]:
        plans = self._plans
        back = plans.failed.intersection(elements)
        waited = [number for number in plans.active if plans.waits(number)]
        plans.failed -= back
        try:
            yield from self.refresh()
        except Exception:
            plans.failed |= back
            raise
        for number in waited:
            # Jobs among hosts may have been removed meanwhile.
            active = plans.active.get(number)
            if active is not None and not plans.waits(number):
                self._tell(active, active.tracker.waiting(over=True))
        if back:
            self._table.events.add(EventKind.RECOVERY, f"{_names(back)} back in use")
        return [number for number, each in plans.active.items() if each.job.avoided & back]


def _names(elements: Iterable[Element]) -> str:
    return listed(sorted(map(element_name, elements)))
