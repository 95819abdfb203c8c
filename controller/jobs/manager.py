"""The job manager: plans jobs, installs their rules, and sends plans to agents.

Switches and links that are unreachable (`mark_failed`) are planned around; a job that cannot do
without one keeps its plan and waits for it, while all others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.collectives.plan_checker import check_plans, check_together
from hopsum.controller import clock
from hopsum.controller.dataplane.driver import DriverError
from hopsum.controller.dataplane.rules import Loss, SwitchRules, rules_for
from hopsum.controller.jobs.agents import AgentRegistry
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.job_table import JobTable
from hopsum.controller.jobs.sharing import Settlement, bypassing, settle
from hopsum.controller.jobs.tracker import Tracker
from hopsum.controller.telemetry.diagnosis import (
    cut_off,
    element_name,
    listed,
    outage,
    used_elements,
)
from hopsum.controller.telemetry.event_log import EventKind
from hopsum.controller.telemetry.health import Element, Health, link_element
from hopsum.network.model import Network, NetworkError, shorten
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import make_plan
from hopsum.protocol.wire import next_epoch

LOGGER = logging.getLogger("hopsum.manager")

Levels = Callable[[], Mapping[int, int]]
"""The level of every job by number, 0 is served first."""
Install = Callable[[Mapping[str, SwitchRules]], Awaitable[None]]
"""Installs these rules, and returns when all switches have them (`Driver.apply`)."""


@dataclass(frozen=True, slots=True)
class _Next:
    """A job's next plan, and the reason for it.

    `bypassed`: the switches whose slots it has given up.
    """

    request: PlanRequest
    plan: JobPlan
    bypassed: frozenset[str]
    cause: tuple[EventKind, str] = (EventKind.PLANNED, "")


def next_request(request: PlanRequest, before: JobPlan) -> PlanRequest:
    """Return the request for a job's next epoch, with everything that is fixed for its life."""
    return replace(
        request,
        epoch=next_epoch(before.epoch),
        shares=tuple(tree.share for tree in before.trees),
        before=before,
    )


class Manager:
    """The jobs that have rules on a network. Failed elements are planned around (`fail`).

    Changes are serialized. `table` keeps the jobs. `health`: reachability of switches and links,
    maintained by `failover`.
    """

    def __init__(
        self,
        network: Network,
        install: Install,
        losses: Iterable[Loss] = (),
    ) -> None:
        self.network = network
        self.agents = AgentRegistry(self.waits)
        self.health = Health()
        self.table = JobTable()
        self.recovered: Callable[[], None] = lambda: None
        """Called when switches or links are back: jobs that waited for them may be planned."""
        self.reoptimizing = asyncio.Lock()
        """Lock of the job that is being reoptimized."""
        self._install = install
        self._allocator = Allocator(network)
        self._jobs: dict[int, Job] = {}
        """Jobs whose rules the switches should have."""
        self._losses = tuple(losses)
        self._failed: frozenset[Element] = frozenset()
        self._waiting: list[asyncio.Timeout] = []
        """Installations in progress; they restart when a switch fails (`mark_failed`)."""
        self._changing = asyncio.Lock()

    def plan_of(self, job: int) -> JobPlan:
        """Return the current plan of a job; PlanError if there is none."""
        return _plan(self._job(job))

    def plans(self) -> list[JobPlan]:
        """Return the current plan of every job that sums in switches or on a server."""
        return [_plan(job) for job in self._jobs.values() if not job.spec.among_hosts]

    def slots_held(self, switch: str) -> dict[int, int]:
        """Return the number of slots of a switch that each job holds."""
        held: dict[int, int] = {}
        for (job, _), slots in self.slot_ranges(switch).items():
            held[job] = held.get(job, 0) + len(slots)
        return held

    def free_slots(self) -> float:
        """Return the fewest slots that a summing switch has left; inf: there is no such switch."""
        return min(
            (
                switch.slots - sum(self.slots_held(name).values())
                for name, switch in self.network.switches.items()
                if switch.aggregates
            ),
            default=inf,
        )

    def slot_ranges(self, switch: str) -> dict[tuple[int, int], range]:
        """Return the slots of a switch that each tree of each job holds, by (job, tree)."""
        return {
            owner: range(first, first + size)
            for owner, (first, size) in self._allocator.in_use(switch).items()
        }

    def bypassed(self, job: int) -> frozenset[str]:
        """Return the switches where a job was preempted (`sharing`)."""
        return self._job(job).bypassed

    def regained(self, job: int) -> frozenset[str]:
        """Return those of them that have slots for all its trees again."""
        entry = self._job(job)
        plan = _plan(entry)
        window, trees = plan.window, len(plan.trees)
        return frozenset(
            switch
            for switch in entry.bypassed
            if self._allocator.room(switch, job, window) >= trees
        )

    @property
    def failed(self) -> frozenset[Element]:
        """The failed switches and links."""
        return self._failed

    def working(self) -> Network:
        """Return the network without failed elements."""
        return _without(self.network, self._failed)

    def working_with(self, elements: Collection[Element]) -> Network:
        """Return the working network if these had not failed."""
        return _without(self.network, self._failed.difference(elements))

    def lost_to(self, job: int) -> frozenset[Element]:
        """Return the failed switches and links that the plan of a job still uses."""
        return used_elements(self.plan_of(job)) & self._failed

    def awaited(self) -> frozenset[Element]:
        """Return the failed switches and links that no plan is known to avoid."""
        return frozenset().union(*map(self.lost_to, self._jobs if self._failed else ()))

    def waits(self, job: int) -> bool:
        """Whether a job waits for a failed switch or link, in its plan or between its hosts."""
        if job not in self._jobs or not self._failed:
            return False
        return bool(self.lost_to(job) or cut_off(self.working(), self._jobs[job].hosts))

    def why_waiting(self, job: int) -> str:
        """Return the failed switch or link that a job waits for, and for how long; empty: none."""
        return self.describe(self.lost_to(job)) if job in self._jobs else ""

    def describe(self, elements: Iterable[Element]) -> str:
        """Return for how long each of these switches and links has been unreachable."""
        return outage(self.health, elements, clock.now())

    def check_reach(self, hosts: Iterable[str]) -> None:
        """Raise PlanError if there is currently no path between some of these hosts."""
        apart = cut_off(self.working(), hosts)
        if apart and not cut_off(self.network, hosts):
            raise PlanError(f"{', '.join(apart)} cut off: {self.describe(self._failed)}")

    async def submit(
        self,
        job: Job,
        measured: Callable[[Network], Network] = lambda network: network,
        levels: Levels | None = None,
        check: Callable[[JobPlan], None] = lambda plan: None,
    ) -> JobPlan:
        """Plan a job, install its rules, and expect its agents. Raises PlanError, DriverError.

        `measured`: gives the working network free bandwidth on its links. `levels`: the
        priorities of this and all other jobs; jobs of a lower one are preempted where this one
        needs their slots, and continue in a new epoch. Without it no job is preempted. `check`:
        raises PlanError for a plan that is not to be installed.
        """
        if job.spec.among_hosts:
            self.check_reach(job.request.workers)
            plan = _roster(job.request)
            self._take_in(job, _Next(job.request, plan, frozenset()))
            return plan
        async with self._changing:
            # What works now: changes that this one has waited for may have brought elements back.
            return await self._submit(job, measured(self.working()), levels, check)

    async def _submit(
        self,
        job: Job,
        view: Network,
        levels: Levels | None,
        check: Callable[[JobPlan], None],
    ) -> JobPlan:
        request = job.request
        if job.number in self._jobs:
            raise PlanError(f"job {job.number} exists already")
        self.check_reach((*request.workers, *request.servers))
        known = dict.fromkeys([*self._jobs, job.number], 0) if levels is None else levels()
        settled = await asyncio.to_thread(
            settle, view, request, self._allocator, known, job.spec.planner, self._next_plan
        )
        self._check([*settled.preempted.values(), settled.plan])
        check(settled.plan)
        await self._preempt(settled)
        self._take_in(job, _Next(request, settled.plan, frozenset()))
        with ExitStack() as undo:
            undo.callback(self._forget, job)
            await self.refresh()
            undo.pop_all()
        return settled.plan

    def _take_in(self, job: Job, first: _Next) -> Tracker:
        self.table.adopt(job, first.request, first.plan, first.bypassed, self._failed, first.cause)
        return self._expect(job)

    def _expect(self, job: Job) -> Tracker:
        """Reserve the resources of a job's plan, and expect its agents."""
        plan = _plan(job)
        self._allocator.take(plan)
        self._jobs[job.number] = job
        tracker = Tracker(self.network, plan, job.spec.task)
        self.agents.add(tracker)
        return tracker

    def readopt(self, job: Job) -> Tracker:
        """Add a job of an earlier controller; `refresh` installs its rules.

        It goes on in its epoch if its plan holds as it is, else in the next one; where slots that
        it had are taken by others now it gives them up. A job that has not started according to
        the journal may have ended since then, unrecorded: new agents would repeat the sequence
        numbers of its epoch, so it starts in the next one. Raises PlanError.
        """
        plan = _plan(job)
        if job.spec.among_hosts:
            return self._take_in(job, _Next(job.request, plan, frozenset()))
        if job.state is not JobState.WAITING and self._holds(job):
            return self._expect(job)
        request = next_request(job.request, plan)
        first = self._plan_on(job, request, job.bypassed, self.working())
        self._check([first.plan])
        cause = (EventKind.REPLAN, "the controller was restarted")
        return self._take_in(job, replace(first, cause=cause))

    def _holds(self, job: Job) -> bool:
        """Whether a job's plan is still valid: it fits the network, and avoids no element."""
        plan = _plan(job)
        deepest = max((len(stack) for tree in plan.trees for stack in tree.up), default=0)
        if job.avoided or deepest > job.request.max_hops:
            return False
        try:
            check_plans(self.network, [plan])
            self._check([plan])
        except PlanError as error:
            LOGGER.warning("job %d needs another plan: %s", job.number, error)
            return False
        return True

    def _check(self, newer: Iterable[JobPlan]) -> None:
        """Check next plans together with those of all other jobs; PlanError lists every fault.

        `make_plan` has checked each by itself.
        """
        newer = list(newer)
        jobs = {plan.job for plan in newer}
        check_together(self.network, [*(p for p in self.plans() if p.job not in jobs), *newer])

    def _plan_on(
        self, job: Job, request: PlanRequest, bypassed: frozenset[str], network: Network
    ) -> _Next:
        """Plan a started job; it does without slots where there are none.

        Changes nothing. Raises PlanError.
        """
        trial = self._allocator.copy()
        try:
            plan = make_plan(bypassing(network, bypassed), request, trial, job.spec.planner)
        except PlanError as error:
            trees = len(request.shares or request.servers)
            bypassed |= {
                name
                for name, switch in network.switches.items()
                if switch.aggregates and trial.room(name, request.job, request.window) < trees
            }
            try:
                plan = make_plan(bypassing(network, bypassed), request, trial, job.spec.planner)
            except PlanError:
                raise error from None
        return _Next(request, plan, bypassed)

    def _next_plan(self, job: int, given_up: frozenset[str], allocator: Allocator) -> JobPlan:
        """Return the plan of a job's next epoch, with fewer aggregating switches."""
        entry = self._job(job)
        network = bypassing(self.working(), entry.bypassed | given_up)
        return make_plan(network, self._next_request(entry), allocator, entry.spec.planner)

    async def _preempt(self, settled: Settlement) -> None:
        """Preempt jobs at switches: their slots are free once their rules are removed.

        Raises PlanError if one keeps its plan; those before it have left.
        """
        left: list[Job] = []
        try:
            for job, plan in settled.preempted.items():
                left.append(self._leave_switches(settled, job, plan))
        finally:
            if left:
                await self._switch_over(left)

    def _leave_switches(self, settled: Settlement, job: int, plan: JobPlan) -> Job:
        entry, given_up = self._job(job), settled.given_up[job]
        cause = f"it was preempted at {', '.join(sorted(given_up))} by job {settled.plan.job}"
        newer = _Next(
            self._next_request(entry),
            plan,
            entry.bypassed | given_up,
            (EventKind.PREEMPTED, cause),
        )
        self._take_over(entry, newer)
        LOGGER.info(
            "job %d is preempted at %s by job %d",
            job,
            ", ".join(sorted(given_up)),
            settled.plan.job,
        )
        return entry

    async def replan(
        self,
        job: int,
        servers: tuple[str, ...] | None = None,
        on: Network | None = None,
        regain: Collection[str] = (),
        *,
        recut: bool = False,
        why: str = "",
    ) -> JobPlan:
        """Start a job's next epoch: install new rules, then send the plan to its agents.

        `on`: the working network, with free bandwidth on its links. `regain`: switches where it was
        preempted and may aggregate again.
        `recut`: with other weights (planner embedding), which partition tensors from a boundary on;
        it needs `on`. `why`: for people.
        """
        async with self._changing:
            newer = self._next_of(job, servers, on, regain, recut)
            return await self._adopt(self._job(job), replace(newer, cause=(EventKind.REPLAN, why)))

    def candidate(
        self, job: int, on: Network, regain: Collection[str] = (), *, recut: bool = False
    ) -> JobPlan:
        """Return the plan that `replan` would make, without side effects."""
        entry = self._job(job)
        left = entry.bypassed.difference(regain)
        return self._plan_on_free(entry, self._next_request(entry), on, left, recut)

    def _plan_on_free(
        self, job: Job, request: PlanRequest, on: Network, left: Collection[str], recut: bool
    ) -> JobPlan:
        """Return a plan on the free resources of network `on` that does not aggregate at switches
        `left`."""
        requested = replace(request, recut=recut)
        return make_plan(bypassing(on, left), requested, self._allocator.copy(), job.spec.planner)

    def _next_request(self, entry: Job, servers: tuple[str, ...] | None = None) -> PlanRequest:
        request = next_request(entry.request, _plan(entry))
        return request if servers is None else replace(request, servers=servers)

    def _next_of(
        self,
        job: int,
        servers: tuple[str, ...] | None,
        on: Network | None,
        regain: Collection[str],
        recut: bool,
    ) -> _Next:
        """Plan a job's next epoch for `replan`, without side effects."""
        entry = self._job(job)
        request = self._next_request(entry, servers)
        left = entry.bypassed.difference(regain)
        if on is None:
            return self._plan_around_failures(entry, request, left)
        # It is optional: a job keeps its plan if there is none on the free resources.
        on = _without(on, self._failed)
        return _Next(request, self._plan_on_free(entry, request, on, left, recut), left)

    async def _adopt(self, entry: Job, newer: _Next) -> JobPlan:
        """Continue a job under its next plan."""
        self._check([newer.plan])
        self._take_over(entry, newer)
        await self._switch_over([entry])
        return newer.plan

    def _plan_around_failures(
        self, entry: Job, request: PlanRequest, left: frozenset[str]
    ) -> _Next:
        """Plan a job's next epoch without failed elements, or with those it waits for.

        Changes nothing. Raises PlanError.
        """
        try:
            return self._plan_on(entry, request, left, self.working())
        except PlanError:
            waits_for = used_elements(_plan(entry)) & self._failed
            if not waits_for:
                raise
            network = _without(self.network, self._failed - waits_for)
            return self._plan_on(entry, request, left, network)

    def _take_over(self, entry: Job, newer: _Next) -> None:
        """Make a job's next plan its current one; it still holds resources of the previous one."""
        self.table.adopt(
            entry, newer.request, newer.plan, newer.bypassed, self._failed, newer.cause
        )
        if entry.active:
            self.table.move(entry, JobState.CHANGING)
        self._allocator.take(newer.plan)

    async def _switch_over(self, jobs: Iterable[Job]) -> None:
        """Install next plans at the switches, then send them to the agents.

        Where a switch does not take them the agents get them all the same, as the others have them;
        what the jobs held before is kept from others then, as that switch may still go by it.
        """
        try:
            await self.refresh()
        except BaseException:
            for job in jobs:
                self._go_on(job)
            raise
        for job in jobs:
            plan = _plan(job)
            self._allocator.release_epochs(plan.job, before=plan.epoch)
            self._allocator.release_unused(plan)
            self._go_on(job)

    def _go_on(self, job: Job) -> None:
        """Send a job's plan to its agents."""
        self.table.resume(job)
        self.agents.adopt(_plan(job))

    async def remove(self, job: int) -> None:
        """Remove a job with its rules, slots and groups."""
        if self._job(job).spec.among_hosts:
            self._forget(self._job(job))
            return
        async with self._changing:
            self._forget(self._job(job))
            await self.refresh()

    def _forget(self, job: Job) -> None:
        del self._jobs[job.number]
        self._allocator.release(job.number)
        self.agents.remove(job.number)

    def mark_failed(self, elements: Iterable[Element]) -> None:
        """Mark switches and links as failed; changes in progress no longer wait for them.

        The jobs that use them keep their plans until `fail`.
        """
        newly = frozenset(elements) - self._failed
        self._failed |= newly
        if newly:
            self.table.events.add(EventKind.OUTAGE, f"{_names(newly)} unreachable")
        for waiting in self._waiting if newly else ():
            if not waiting.expired():
                waiting.reschedule(-inf)

    async def fail(
        self, nodes: Iterable[str] = (), links: Iterable[tuple[str, str]] = ()
    ) -> list[JobPlan]:
        """Plan around failed switches and links: the jobs that use them get a new epoch.

        Gives the new plans. A job that cannot do without them keeps its plan, and waits
        (`lost_to`). Raises DriverError or TimeoutError if reachable switches do not
        take the rules, but only after all jobs have been planned.
        """
        self.mark_failed([*nodes, *(link_element(*link) for link in links)])
        async with self._changing:
            plans = []
            errors: list[Exception] = []
            for job in [job for job in self._jobs if self.lost_to(job)]:
                entry = self._job(job)
                request = self._next_request(entry)
                cause = (EventKind.FAILOVER, f"around {_names(self.lost_to(job))}")
                try:
                    newer = self._plan_on(entry, request, entry.bypassed, self.working())
                    newer = replace(newer, cause=cause)
                except (PlanError, NetworkError) as error:
                    LOGGER.warning("job %d: no plan avoids the failure: %s", job, error)
                    continue
                try:
                    plans.append(await self._adopt(entry, newer))
                except (DriverError, PlanError, TimeoutError) as error:
                    errors.append(error)
            if errors:
                raise errors[0]
            if not plans:
                await self.refresh()
            return plans

    async def recover(self, elements: Iterable[Element]) -> list[int]:
        """Use recovered switches and links again; return the jobs that avoided them.

        Raises DriverError, TimeoutError, and counts them as failed still, if switches do not take
        the rules.
        """
        async with self._changing:
            back = self._failed.intersection(elements)
            waited = [job for job in self._jobs if self.waits(job)]
            self._failed -= back
            try:
                await self.refresh()
            except BaseException:
                self._failed |= back
                raise
            for job in waited:
                # Jobs among hosts may have been removed meanwhile.
                if job in self._jobs and not self.waits(job):
                    self.agents.resume(job)
        if back:
            self.table.events.add(EventKind.RECOVERY, f"{_names(back)} back in use")
        self.recovered()
        return [job for job, entry in self._jobs.items() if entry.avoided & back]

    def avoided(self, job: int) -> bool:
        """Return whether an element is back that was unreachable when the job was planned."""
        return bool(self._job(job).avoided - self._failed)

    def keep_plan(self, job: int) -> None:
        """Keep the plan of a job although the elements it avoided are back."""
        self._job(job).avoided &= self._failed

    async def refresh(self) -> None:
        """Install the rules of all jobs at the reachable switches.

        One that fails meanwhile is not waited for any longer.
        """
        while True:
            working = self.working()
            losses = [loss for loss in self._losses if _linked(working, loss.u, loss.v)]
            rules = rules_for(working, self.plans(), losses)
            waiting = asyncio.timeout(None)
            try:
                async with waiting:
                    self._waiting.append(waiting)
                    try:
                        await self._install(rules)
                    finally:
                        self._waiting.remove(waiting)
                return
            except TimeoutError:
                if not waiting.expired():
                    raise

    def _job(self, job: int) -> Job:
        if job not in self._jobs:
            known = shorten(map(str, self._jobs)) or "none"
            raise PlanError(f"there is no job {job}; jobs: {known}")
        return self._jobs[job]


def _roster(request: PlanRequest) -> JobPlan:
    """Return the plan of a job whose workers sum among themselves: only a roster."""
    return JobPlan(request.job, request.epoch, request.workers, (), request.lanes, request.window)


def _plan(job: Job) -> JobPlan:
    """Return the plan of a job that must have one."""
    assert job.plan is not None
    return job.plan


def _without(network: Network, elements: Collection[Element]) -> Network:
    return network.without(
        [element for element in elements if isinstance(element, str)],
        [element for element in elements if not isinstance(element, str)],
    )


def _names(elements: Iterable[Element]) -> str:
    return listed(sorted(map(element_name, elements)))


def _linked(network: Network, u: str, v: str) -> bool:
    return any({link.a, link.b} == {u, v} for link in network.links)
