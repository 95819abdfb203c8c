"""The state of a cluster as a message."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Mapping
from typing import Any

import pytest

from hopsum.controller import clock
from hopsum.controller.api.cluster_state import (
    MOST_ENDED,
    cluster_state,
    missing_children,
    recent_jobs,
)
from hopsum.controller.dataplane.driver import DriverError, State, SwitchTarget
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.dataplane.slots import SlotState
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.engine import UnknownJobError
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import JobState
from hopsum.protocol.outcomes import Outcome
from tests.support.cluster_world import local


class _Mute:
    """A switch that is ready, and whose counters cannot be read."""

    def targets(self) -> Mapping[str, SwitchTarget]:
        return {"s1": SwitchTarget("s1", "127.0.0.1:1", 1)}

    def states(self) -> Mapping[str, State]:
        return {"s1": State.READY}

    async def outcomes(self, name: str) -> Mapping[Outcome, int]:
        raise DriverError(name, "busy")

    async def inspect(self, name: str, slot: int) -> SlotState:
        raise AssertionError


def test_a_switch_whose_counters_cannot_be_read_is_not_down() -> None:
    async def install(rules: Mapping[str, SwitchRules]) -> None:
        pass

    async def main() -> None:
        cluster = Cluster(local("star:4"), install)
        [status] = (await cluster_state(cluster, _Mute())).switches
        assert (status.state, status.counters_error) == ("ready", "switch s1: busy")
        assert not status.outcomes
        assert not (status.HasField("packets") or status.HasField("sums"))
        await cluster.close()

    asyncio.run(main())


class _Counting(_Mute):
    """One that can be read; s2 is planned around."""

    def targets(self) -> Mapping[str, SwitchTarget]:
        return {name: SwitchTarget(name, "127.0.0.1:1", 1) for name in ("s1", "s2", "l1")}

    def states(self) -> Mapping[str, State]:
        return {"s1": State.READY, "s2": State.READY, "l1": State.CONNECTING}

    async def outcomes(self, name: str) -> Mapping[Outcome, int]:
        counts = dict.fromkeys(Outcome, 0)
        return counts | {
            Outcome.AGGREGATED: 10, Outcome.COMPLETED: 4, Outcome.RE_EMITTED: 1, Outcome.PLAIN: 100,
            Outcome.OVERFLOW: 2, Outcome.TAKEN_OVER: 2, Outcome.CONGESTED: 2, Outcome.INSPECTED: 2,
        }  # fmt: skip


def test_totals() -> None:
    async def install(rules: Mapping[str, SwitchRules]) -> None:
        pass

    async def main() -> None:
        network = local("leaf-spine:2x2")
        cluster = Cluster(network, install)
        await cluster.submit(JobSpec("a", ("h1", "h2", "h3"), ("ps",), window=64))
        await cluster.submit(JobSpec("b", ("h1", "h2", "h3"), ("ps",), window=32))
        await cluster.cancel(cluster.jobs.find(2, "b"))
        now = clock.now()
        for seconds, reachable in ((-60.0, True), (-50.0, False), (-1.0, False)):
            cluster.health.update({"s2": reachable}, now + seconds)
        cluster.nodes.attach("h1", 0.0)
        state = await cluster_state(cluster, _Counting())
        assert [(status.packets, status.sums) for status in state.switches] == [
            (115, 5), (115, 5), (0, 0),
        ]  # fmt: skip
        assert [job.over for job in state.jobs] == [False, True]
        assert (state.active_jobs, state.usable_switches, state.attached_agents) == (1, 1, 1)
        assert {use.switch: use.taken for use in state.slots}["l1"] == 64
        await cluster.close()

    asyncio.run(main())


def test_a_state_has_all_active_jobs_and_the_last_finished_ones() -> None:
    jobs: list[Any] = [
        types.SimpleNamespace(number=n, state=JobState.RUNNING if n < 3 else JobState.FINISHED)
        for n in range(1, MOST_ENDED + 20)
    ]
    found = [job.number for job in recent_jobs(jobs)]
    assert found == [1, 2, *range(20, MOST_ENDED + 20)]


def test_jobs_without_slots_have_no_missing_children() -> None:
    async def install(rules: Mapping[str, SwitchRules]) -> None:
        pass

    async def main() -> None:
        cluster = Cluster(local("star:4"), install)
        await cluster.submit(JobSpec("a", ("h1", "h2"), ("ps",)))
        await cluster.cancel(cluster.jobs.find(1))
        with pytest.raises(UnknownJobError, match="job a is cancelled: it has no slots"):
            await missing_children(cluster, _Mute(), 1)
        with pytest.raises(UnknownJobError, match="there is no job 2"):
            await missing_children(cluster, _Mute(), 2)
        await cluster.close()

    asyncio.run(main())
