"""Jobs that are handed in while others end: each is started once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from controller.dataplane.rules import SwitchRules
from controller.jobs.cluster import Cluster
from controller.jobs.job_queue import JobSpec, JobState
from controller.jobs.manager import Manager
from network.loaders import load_network


class Switches:
    """Switches that take their time: `go` lets them."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()

    async def install(self, rules: Mapping[str, SwitchRules]) -> None:
        await self.go.wait()


async def steps(count: int = 50) -> None:
    """Let everybody else go on."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_job_being_started_is_not_started_again_when_another_ends() -> None:
    async def main() -> None:
        switches = Switches()
        cluster = Cluster(Manager(load_network("star:6"), switches.install))
        ending = await cluster.submit(JobSpec("ending", ("h1", "h2"), ("h3",)))
        switches.go.clear()
        cancelling = asyncio.create_task(cluster.cancel(ending))
        await steps()
        starting = asyncio.create_task(cluster.submit(JobSpec("starting", ("h4", "h5"), ("h6",))))
        await steps()
        switches.go.set()
        job = await starting
        await cancelling
        await steps()
        assert (job.state, job.reason) == (JobState.WAITING, "")
        assert job.number in cluster.priorities.levels()
        await cluster.close()

    asyncio.run(main())


def test_a_queued_job_is_started_once_when_two_end_together() -> None:
    async def main() -> None:
        switches = Switches()
        cluster = Cluster(Manager(load_network("star:6"), switches.install))
        window = cluster.network.switches["s1"].slots // 2
        first, second = [
            await cluster.submit(JobSpec(name, ("h1", "h2"), ("h3",), window=window))
            for name in ("first", "second")
        ]
        queued = await cluster.submit(JobSpec("queued", ("h4", "h5"), ("h6",), window=window))
        assert queued.state is JobState.QUEUED
        await asyncio.gather(cluster.cancel(first), cluster.cancel(second))
        await steps()
        assert (queued.state, queued.reason) == (JobState.WAITING, "")
        await cluster.close()

    asyncio.run(main())
