"""The job manager: plans jobs, puts their rules on the switches, and hands plans to the agents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from collectives.network import Network
from collectives.plan import JobPlan, PlanError
from collectives.plan_checker import check_plans
from controller.allocation import Allocator
from controller.planners import make_plan
from controller.planners.request import PlanRequest
from controller.rules import Loss, SwitchRules, rules_for
from controller.service import ControllerService, SwitchReader
from controller.sharing import Settlement, bypassing, settle
from controller.tracker import Tracker
from protocol.wire import next_epoch

LOGGER = logging.getLogger("hopsum.manager")

Levels = Callable[[], Mapping[int, int]]
"""The priority of every job by number, 0 first."""
Planned = Callable[[PlanRequest, JobPlan, frozenset[str]], None]
"""Is told of a job's next plan, and the switches it bypasses, before anything follows from it.

It may raise PlanError: then nothing does.
"""
Install = Callable[[Mapping[str, SwitchRules]], Awaitable[None]]
"""Brings the switches to these rules, and returns when they hold them (`Driver.apply`)."""


@dataclass
class _Job:
    """`bypassed`: the switches whose slots it has given up to others."""

    request: PlanRequest
    planner: str
    plan: JobPlan
    bypassed: frozenset[str] = frozenset()


def next_request(request: PlanRequest, before: JobPlan) -> PlanRequest:
    """What is asked for a job's next epoch; what is fixed for its life is as it was."""
    return replace(
        request,
        epoch=next_epoch(before.epoch),
        shares=tuple(tree.share for tree in before.trees),
        before=before,
    )


class Manager:
    """All jobs on a network. Switches or links that failed are planned around (`fail`).

    Changes are made one after the other, whoever asks for them.
    """

    def __init__(
        self,
        network: Network,
        install: Install,
        switches: SwitchReader | None = None,
        losses: Iterable[Loss] = (),
    ) -> None:
        self.network = network
        self.service = ControllerService(self._server_restarted, switches=switches)
        self.planned: Planned = lambda request, plan, bypassed: None
        self._install = install
        self._allocator = Allocator(network)
        self._jobs: dict[int, _Job] = {}
        self._losses = tuple(losses)
        self._failed_nodes: set[str] = set()
        self._failed_links: set[tuple[str, str]] = set()
        self._changing = asyncio.Lock()

    def plan_of(self, job: int) -> JobPlan:
        """The current plan of a job; PlanError if there is none."""
        return self._job(job).plan

    def plans(self) -> list[JobPlan]:
        """The current plan of every job."""
        return [job.plan for job in self._jobs.values()]

    def slots_held(self, switch: str) -> dict[int, int]:
        """How many slots of a switch each job holds."""
        held: dict[int, int] = {}
        for (job, _), (_, size) in self._allocator.in_use(switch).items():
            held[job] = held.get(job, 0) + size
        return held

    def bypassed(self, job: int) -> frozenset[str]:
        """The switches where a job has given up its slots to others (`sharing`)."""
        return self._job(job).bypassed

    def regained(self, job: int) -> frozenset[str]:
        """Those of them where all its trees would find slots again."""
        entry = self._job(job)
        window, trees = entry.plan.window, len(entry.plan.trees)
        return frozenset(
            switch
            for switch in entry.bypassed
            if self._allocator.room(switch, job, window) >= trees
        )

    def working(self) -> Network:
        """The network without what failed."""
        return self.network.without(self._failed_nodes, self._failed_links)

    async def submit(
        self,
        request: PlanRequest,
        task: str = "{}",
        planner: str = "multi-hop",
        on: Network | None = None,
        levels: Levels | None = None,
    ) -> JobPlan:
        """Plan a job, install its rules, and expect its agents. Raises PlanError, DriverError.

        `on`: the working network as the planner is to see it, with what is free of its links.
        `levels`: the priorities of this and all other jobs; those of a lower one give up slots that
        this one needs, and go on in a new epoch. Without it nobody gives way.
        """
        async with self._changing:
            return await self._submit(request, task, planner, on, levels)

    async def _submit(
        self,
        request: PlanRequest,
        task: str,
        planner: str,
        on: Network | None,
        levels: Levels | None,
    ) -> JobPlan:
        if request.job in self._jobs:
            raise PlanError(f"job {request.job} is there already")
        known = dict.fromkeys([*self._jobs, request.job], 0) if levels is None else levels()
        settled = settle(
            on or self.working(), request, self._allocator, known, planner, self._next_plan
        )
        others = [plan for plan in self.plans() if plan.job not in settled.giving_way]
        check_plans(self.working(), [*others, *settled.giving_way.values(), settled.plan])
        await self._give_way(settled)
        plan = settled.plan
        self._take_in(_Job(request, planner, plan), task)
        with ExitStack() as undo:
            undo.callback(self._forget, request.job)
            await self.refresh()
            undo.pop_all()
        return plan

    def _take_in(self, entry: _Job, task: str) -> Tracker:
        check_plans(self.working(), [*self.plans(), entry.plan])
        self.planned(entry.request, entry.plan, entry.bypassed)
        self._allocator.take(entry.plan)
        self._jobs[entry.plan.job] = entry
        tracker = Tracker(self.network, entry.plan, task)
        self.service.add(tracker)
        return tracker

    def readopt(
        self, request: PlanRequest, task: str, planner: str, bypassed: Collection[str] = ()
    ) -> Tracker:
        """Take in a job that an earlier controller has left; its rules wait for `refresh`.

        `request`: for its next epoch (`next_request`). Where slots that it had are taken by
        others now it gives them up. Raises PlanError.
        """
        return self._take_in(self._plan_on(request, planner, frozenset(bypassed)), task)

    def _plan_on(self, request: PlanRequest, planner: str, bypassed: frozenset[str]) -> _Job:
        """Plan a job that has begun; where there are no slots for it, it gives these up.

        Changes nothing. Raises PlanError.
        """
        network = self.working()
        trial = self._allocator.copy()
        try:
            plan = make_plan(bypassing(network, bypassed), request, trial, planner)
        except PlanError as error:
            trees = len(request.shares or request.servers)
            bypassed |= {
                name
                for name, switch in network.switches.items()
                if switch.aggregates and trial.room(name, request.job, request.window) < trees
            }
            try:
                plan = make_plan(bypassing(network, bypassed), request, trial, planner)
            except PlanError:
                raise error from None
        return _Job(request, planner, plan, bypassed)

    def _next_plan(self, job: int, given_up: frozenset[str], allocator: Allocator) -> JobPlan:
        """The plan of a job's next epoch, with a few switches less to sum at."""
        entry = self._job(job)
        network = bypassing(self.working(), entry.bypassed | given_up)
        return make_plan(network, self._next_request(entry), allocator, entry.planner)

    async def _give_way(self, settled: Settlement) -> None:
        """Let jobs leave switches: their slots are free when their rules are gone from there.

        Raises PlanError if one keeps its plan; those before it have left.
        """
        left: list[JobPlan] = []
        try:
            for job, plan in settled.giving_way.items():
                self._leave_switches(settled, job, plan)
                left.append(plan)
        finally:
            if left:
                await self._switch_over(left)

    def _leave_switches(self, settled: Settlement, job: int, plan: JobPlan) -> None:
        entry, given_up = self._job(job), settled.given_up[job]
        self._take_over(entry, self._next_request(entry), plan, entry.bypassed | given_up)
        LOGGER.info(
            "job %d gives up its slots at %s to job %d",
            job,
            ", ".join(sorted(given_up)),
            settled.plan.job,
        )

    async def replan(
        self,
        job: int,
        servers: tuple[str, ...] | None = None,
        on: Network | None = None,
        regain: Collection[str] = (),
        *,
        recut: bool = False,
    ) -> JobPlan:
        """Give a job its next epoch: new rules first, then the new plan to its agents.

        `on` as for `submit`. `regain`: switches it had given up, where it may sum again. `recut`:
        with other weights (planner embedding), by which tensors are cut when a border says so; it
        needs `on`.
        """
        async with self._changing:
            return await self._replan(job, servers, on, regain, recut)

    def candidate(
        self, job: int, on: Network, regain: Collection[str] = (), *, recut: bool = False
    ) -> JobPlan:
        """The plan that `replan` would make; nothing changes."""
        entry = self._job(job)
        left = entry.bypassed.difference(regain)
        return self._plan_on_free(self._next_request(entry), entry.planner, on, left, recut)

    def _plan_on_free(
        self, request: PlanRequest, planner: str, on: Network, left: Collection[str], recut: bool
    ) -> JobPlan:
        """A plan on what is free of the network, `on`, that passes switches `left` by."""
        asked = replace(request, recut=recut)
        return make_plan(bypassing(on, left), asked, self._allocator.copy(), planner)

    def _next_request(self, entry: _Job, servers: tuple[str, ...] | None = None) -> PlanRequest:
        request = next_request(entry.request, entry.plan)
        return request if servers is None else replace(request, servers=servers)

    async def _replan(
        self,
        job: int,
        servers: tuple[str, ...] | None = None,
        on: Network | None = None,
        regain: Collection[str] = (),
        recut: bool = False,
    ) -> JobPlan:
        entry = self._job(job)
        request = self._next_request(entry, servers)
        if on is None:
            newer = self._plan_on(request, entry.planner, entry.bypassed.difference(regain))
        else:
            # It need not be: a job keeps its plan if there is none on what is free.
            left = entry.bypassed.difference(regain)
            plan = self._plan_on_free(request, entry.planner, on, left, recut)
            newer = _Job(request, entry.planner, plan, left)
        others = [other for other in self.plans() if other.job != job]
        check_plans(self.working(), [*others, newer.plan])
        self._take_over(entry, request, newer.plan, newer.bypassed)
        await self._switch_over([newer.plan])
        return newer.plan

    def _take_over(
        self, entry: _Job, request: PlanRequest, plan: JobPlan, bypassed: frozenset[str]
    ) -> None:
        """Make a job's next plan its present one; it still holds what the one before did."""
        self.planned(request, plan, bypassed)
        entry.request, entry.plan, entry.bypassed = request, plan, bypassed
        self._allocator.take(plan)

    async def _switch_over(self, plans: Iterable[JobPlan]) -> None:
        """Bring next plans to the switches, and then to the agents.

        Where a switch does not take them the agents get them all the same, as the others have them;
        what the jobs held before is kept from others then, as that switch may still go by it.
        """
        try:
            await self.refresh()
        except Exception:
            for plan in plans:
                self.service.adopt(plan)
            raise
        for plan in plans:
            self._allocator.release_epochs(plan.job, before=plan.epoch)
            self._allocator.release_unused(plan)
            self.service.adopt(plan)

    async def remove(self, job: int) -> None:
        """End a job: its rules, slots and groups go."""
        async with self._changing:
            self._job(job)
            self._forget(job)
            await self.refresh()

    def _forget(self, job: int) -> None:
        del self._jobs[job]
        self._allocator.release(job)
        self.service.remove(job)

    async def fail(
        self, nodes: Iterable[str] = (), links: Iterable[tuple[str, str]] = ()
    ) -> list[JobPlan]:
        """Plan around switches and links that are gone: the jobs that used them get a new epoch.

        Raises PlanError, and counts them as working again, if a job cannot do without them.
        """
        async with self._changing:
            before = self._failed_nodes, self._failed_links
            self._failed_nodes = self._failed_nodes | set(nodes)
            self._failed_links = self._failed_links | set(links)
            try:
                return await self._plan_around()
            except PlanError:
                self._failed_nodes, self._failed_links = before
                raise

    async def _plan_around(self) -> list[JobPlan]:
        cut = {frozenset(link) for link in self._failed_links}
        hit = []
        for job, entry in self._jobs.items():
            used = [pair for tree in entry.plan.trees for pair in tree.parents.items()]
            if any(set(pair) & self._failed_nodes or frozenset(pair) in cut for pair in used):
                hit.append(job)
        if not hit:
            await self.refresh()
        return [await self._replan(job) for job in hit]

    async def set_losses(self, losses: Iterable[Loss]) -> None:
        """Make links lose packets at random, from now on."""
        self._losses = tuple(losses)
        await self.refresh()

    async def refresh(self) -> None:
        """Bring the switches to what all jobs need."""
        await self._install(rules_for(self.working(), self.plans(), self._losses))

    def _job(self, job: int) -> _Job:
        if job not in self._jobs:
            known = ", ".join(map(str, self._jobs)) or "none"
            raise PlanError(f"there is no job {job}; jobs: {known}")
        return self._jobs[job]

    async def _server_restarted(self, job: int, host: str) -> JobPlan:
        return await self.replan(job)
