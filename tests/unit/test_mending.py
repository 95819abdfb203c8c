"""Jobs go on without switches that stay away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import pytest

from collectives.plan import JobPlan, PlanError
from controller.driver import State
from controller.loaders import load_network
from controller.manager import Manager
from controller.mending import AwayList, mend
from controller.placement import place
from controller.planners.request import PlanRequest
from controller.rules import SwitchRules
from tests.machine import PATIENCE as WAIT

READY, CONNECTING = State.READY, State.CONNECTING


def test_only_switches_away_without_a_break_count() -> None:
    away = AwayList(patience=2.0)
    assert away.update({"a": CONNECTING, "b": READY}, 0.0) == set()
    assert away.update({"a": CONNECTING, "b": CONNECTING}, 1.5) == set()
    assert away.update({"a": CONNECTING, "b": CONNECTING}, 2.0) == {"a"}
    assert away.update({"a": State.PUSHING, "b": CONNECTING}, 3.0) == set()
    assert away.update({"a": CONNECTING, "b": CONNECTING}, 4.0) == {"b"}


@dataclass
class World:
    """A manager over switches that a test takes away; rules arrive only where a switch answers."""

    topology: str
    installed: list[Mapping[str, SwitchRules]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.network = load_network(self.topology)
        self._states = dict.fromkeys(self.network.switches, READY)
        self._news = asyncio.Event()
        self.manager = Manager(self.network, self._install)

    def states(self) -> Mapping[str, State]:
        return self._states

    def kill(self, *names: str) -> None:
        self._states |= dict.fromkeys(names, CONNECTING)

    async def _install(self, rules: Mapping[str, SwitchRules]) -> None:
        await asyncio.sleep(0)
        while any(self._states[name] is not READY for name in rules):
            await asyncio.sleep(0)
        self.installed.append(rules)

    async def submit(self) -> JobPlan:
        placement = place(self.network)
        return await self.manager.submit(PlanRequest(1, 1, placement.workers, placement.servers))

    async def epoch(self, number: int) -> JobPlan:
        """The plan that the agents have once they have this epoch."""
        service = self.manager.service
        async with asyncio.timeout(WAIT):
            await service.wait(1, lambda tracker: tracker.plan.epoch >= number)
        return service.tracker(1).plan


def run(
    monkeypatch: pytest.MonkeyPatch, topology: str, test: Callable[[World], Awaitable[None]]
) -> None:
    monkeypatch.setattr("controller.mending.WATCH_SECONDS", 0.0)

    async def main() -> None:
        world = World(topology)
        task = asyncio.create_task(mend(world.manager, world, patience=0.0))
        try:
            await test(world)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def spines(plan: JobPlan) -> set[str]:
    return {name for tree in plan.trees for name in tree.parts if name.startswith("s")}


def test_a_job_goes_on_without_its_spine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        (spine,) = spines(await world.submit())
        world.kill(spine)
        plan = await world.epoch(2)
        assert spines(plan) == {"s1", "s2"} - {spine}
        assert spine not in world.installed[-1]

    run(monkeypatch, "leaf-spine:2x2x2", test)


def test_a_switch_lost_while_another_is_planned_around(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        (first,) = spines(await world.submit())
        others = {"s1", "s2", "s3"} - {first}
        world.kill(first)
        # Its plan is being installed, at the next spine, when that one is lost as well.
        async with asyncio.timeout(WAIT):
            while world.manager.plans()[0].epoch == 1:
                await asyncio.sleep(0)
        assert len(world.installed) == 1
        (second,) = spines(world.manager.plans()[0])
        world.kill(second)
        plan = await world.epoch(2)
        assert spines(plan) == others - {second}

    run(monkeypatch, "leaf-spine:2x2x3", test)


def test_a_job_waits_for_a_switch_it_cannot_do_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        plan = await world.submit()
        world.kill("l1")
        async with asyncio.timeout(WAIT):
            while "no answer from l1, and no way around" not in caplog.text:
                await asyncio.sleep(0)
        assert world.manager.plans() == [plan]
        assert "l1" in world.manager.working().switches

    run(monkeypatch, "leaf-spine:2x2x2", test)


def test_a_failure_without_a_way_around_is_taken_back() -> None:
    async def main() -> None:
        world = World("leaf-spine:2x2x2")
        await world.submit()
        with pytest.raises(PlanError):
            await world.manager.fail(["l1"])
        assert set(world.manager.working().switches) == {"l1", "l2", "s1", "s2"}

    asyncio.run(main())
