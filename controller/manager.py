"""The job manager: plans jobs, puts their rules on the switches, and hands plans to the agents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
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
from controller.tracker import Tracker

Install = Callable[[Mapping[str, SwitchRules]], Awaitable[None]]
"""Brings the switches to these rules, and returns when they hold them (`Driver.apply`)."""


@dataclass
class _Job:
    request: PlanRequest
    planner: str
    plan: JobPlan


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

    def working(self) -> Network:
        """The network without what failed."""
        return self.network.without(self._failed_nodes, self._failed_links)

    async def submit(
        self,
        request: PlanRequest,
        task: str = "{}",
        planner: str = "multi-hop",
        on: Network | None = None,
    ) -> JobPlan:
        """Plan a job, install its rules, and expect its agents. Raises PlanError, DriverError.

        `on`: the working network as the planner is to see it, with what is free of its links.
        """
        async with self._changing:
            return await self._submit(request, task, planner, on)

    async def _submit(
        self, request: PlanRequest, task: str, planner: str, on: Network | None
    ) -> JobPlan:
        if request.job in self._jobs:
            raise PlanError(f"job {request.job} is there already")
        plan = make_plan(on or self.working(), request, self._allocator, planner)
        check_plans(self.working(), [*self.plans(), plan])
        with ExitStack() as undo:
            undo.callback(self._forget, request.job)
            self._jobs[request.job] = _Job(request, planner, plan)
            self.service.add(Tracker(self.network, plan, task))
            await self.refresh()
            undo.pop_all()
        return plan

    async def replan(
        self, job: int, servers: tuple[str, ...] | None = None, on: Network | None = None
    ) -> JobPlan:
        """Give a job its next epoch: new rules first, then the new plan to its agents.

        `on` as for `submit`.
        """
        async with self._changing:
            return await self._replan(job, servers, on)

    def candidate(self, job: int, on: Network) -> JobPlan:
        """The plan that `replan` would make; nothing changes."""
        entry = self._job(job)
        return make_plan(on, self._next_request(entry), self._allocator.copy(), entry.planner)

    def _next_request(self, entry: _Job, servers: tuple[str, ...] | None = None) -> PlanRequest:
        return replace(
            entry.request,
            epoch=entry.plan.epoch + 1,
            servers=entry.request.servers if servers is None else servers,
            shares=tuple(tree.share for tree in entry.plan.trees),
        )

    async def _replan(
        self, job: int, servers: tuple[str, ...] | None = None, on: Network | None = None
    ) -> JobPlan:
        entry = self._job(job)
        request = self._next_request(entry, servers)
        plan = make_plan(on or self.working(), request, self._allocator, entry.planner)
        others = [other for other in self.plans() if other.job != job]
        check_plans(self.working(), [*others, plan])
        entry.request, entry.plan = request, plan
        await self.refresh()
        self._allocator.release_epochs(job, before=plan.epoch)
        self.service.adopt(plan)
        return plan

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
