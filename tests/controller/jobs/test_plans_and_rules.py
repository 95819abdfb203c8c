"""Jobs that come, change their plan and go, and the rules that switches get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from hopsum.collectives import plan_checker
from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.controller.dataplane.rules import Loss, SwitchRules, losses_on
from hopsum.controller.jobs.engine import UnknownJobError
from hopsum.host_agent.server import Server
from hopsum.host_agent.worker import Worker
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning import registry
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from tests.support.jobs import job_of, star_request
from tests.support.manager import Manager


def run_manager(
    network: Network,
    test: Callable[[Manager, list[Mapping[str, SwitchRules]]], Any],
    losses: Iterable[Loss] = (),
) -> None:
    installed: list[Mapping[str, SwitchRules]] = []

    async def install(rules: Mapping[str, SwitchRules]) -> None:
        installed.append(rules)

    asyncio.run(test(Manager(network, install, losses), installed))


def admissions(rules: SwitchRules) -> set[int]:
    return {dict(e.match)["job"] for e in rules.entries if e.table == "admission"}  # type: ignore[misc]


def test_jobs_come_and_go() -> None:
    network, request = star_request()

    async def test(manager: Manager, installed: list[Mapping[str, SwitchRules]]) -> None:
        await manager.submit(job_of(request))
        await manager.submit(job_of(replace(request, job=2)))
        assert admissions(installed[-1]["s1"]) == {1, 2}
        with pytest.raises(PlanError, match="job 2 exists already"):
            await manager.submit(job_of(replace(request, job=2)))
        await manager.remove(1)
        assert admissions(installed[-1]["s1"]) == {2}
        with pytest.raises(PlanError, match="there is no job 1; jobs: 2"):
            await manager.replan(1)

    run_manager(network, test)


def test_a_submission_is_planned_once_and_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network, request = star_request()
    planned: list[int] = []
    checked: list[int] = []
    entry, faults = registry.PLANNERS["multi-hop"], plan_checker.plan_faults
    plan_multi_hop = entry.plan
    assert plan_multi_hop is not None

    def counted(
        network: Network, request: PlanRequest, allocator: Allocator
    ) -> registry.PlannerResult:
        planned.append(request.job)
        return plan_multi_hop(network, request, allocator)

    def counted_faults(network: Network, plan: JobPlan) -> list[str]:
        checked.append(plan.job)
        return faults(network, plan)

    monkeypatch.setattr(registry, "PLANNERS", {"multi-hop": replace(entry, plan=counted)})
    monkeypatch.setattr(plan_checker, "plan_faults", counted_faults)

    async def test(manager: Manager, installed: list[Mapping[str, SwitchRules]]) -> None:
        await manager.submit(job_of(request))
        assert (planned, checked) == ([1], [1])
        await manager.submit(job_of(replace(request, job=2)))
        assert (planned, checked) == ([1, 2], [1, 2])

    run_manager(network, test)


def test_a_job_whose_rules_are_refused_leaves_nothing_behind() -> None:
    network, request = star_request()

    async def main() -> None:
        async def install(rules: Mapping[str, SwitchRules]) -> None:
            raise OSError("no")

        manager = Manager(network, install)
        with pytest.raises(OSError, match="no"):
            await manager.submit(job_of(request))
        assert manager.store.plans() == []
        with pytest.raises(UnknownJobError, match="there is no job 1"):
            manager.tracker(1)

    asyncio.run(main())


def test_failures_are_planned_around() -> None:
    network = load_network("leaf-spine:2x2")
    placement = place(network)
    request = PlanRequest(1, 1, placement.workers, placement.servers)

    async def test(manager: Manager, installed: list[Mapping[str, SwitchRules]]) -> None:
        plan = await manager.submit(job_of(request))
        spine = next(name for name in plan.trees[0].parts if name.startswith("s"))
        (again,) = await manager.fail([spine])
        assert again.epoch == 2
        assert spine not in again.trees[0].parts
        assert spine not in installed[-1]
        other = next(name for name in again.trees[0].parts if name.startswith("s"))
        assert await manager.fail(links=[(other, "l2")]) == []
        assert manager.store.lost_to(1) == {("l2", other)}
        assert manager.store.plan_of(1) == again
        assert await manager.recover([("l2", other)]) == []
        assert not manager.store.lost_to(1)
        assert await manager.recover([spine]) == [1]
        assert manager.store.avoided(1)
        manager.store.keep_plan(1)
        assert not manager.store.avoided(1)

    run_manager(network, test)


def test_a_failure_that_affects_no_job_changes_no_plan() -> None:
    network = load_network("leaf-spine:2x2")
    request = PlanRequest(1, 1, ("h1",), ("h2",))

    async def test(manager: Manager, installed: list[Mapping[str, SwitchRules]]) -> None:
        await manager.submit(job_of(request))
        assert await manager.fail(["s1"]) == []
        assert manager.store.plans()[0].epoch == 1

    run_manager(network, test)


def test_epochs_wrap_around_as_serial_numbers() -> None:
    """All that adds or compares epochs wraps from 65535 to 1, a restarted controller too."""
    network, request = star_request()
    request = replace(request, epoch=0xFFFE)

    async def test(manager: Manager, installed: list[Mapping[str, SwitchRules]]) -> None:
        plan = await manager.submit(job_of(request))
        server, worker = Server(plan, 0, network), Worker(plan, 0, network)
        for epoch in (0xFFFF, 1, 2):
            plan = await manager.replan(1)
            assert plan.epoch == epoch
            server.adopt(plan)
            worker.adopt(plan, 0.0)
            assert server.plan.epoch == worker.plan.epoch == epoch
            groups = [number for number in installed[-1]["s1"].groups if number > 1]
            assert len(groups) == 1
        # The groups of all epochs before are free again: the numbers do not climb.
        assert groups[0] <= 4
        again = Manager(network, manager.install)
        kept = job_of(request)
        kept.plan, kept.avoided = replace(plan, epoch=0xFFFF), frozenset({"s1"})
        again.epochs.readopt(kept)
        assert again.store.plan_of(1).epoch == 1

    run_manager(network, test)


@pytest.mark.parametrize("lossy", [False, True])
def test_losses_are_installed(lossy: bool) -> None:
    network, request = star_request()

    async def test(manager: Manager, installed: list[Mapping[str, SwitchRules]]) -> None:
        await manager.submit(job_of(request))
        assert any(e.table == "ingress_loss" for e in installed[-1]["s1"].entries) is lossy

    run_manager(network, test, losses_on(network, 0.1 if lossy else 0.0))
