"""The bandwidth a cluster plans jobs with: the residual one of the links, or all of it."""

from __future__ import annotations

import asyncio
import time

import pytest

from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.replanning import ReplanningPolicy
from hopsum.controller.jobs.settings import ClusterSettings
from tests.controller.jobs.test_reoptimization import install, load, spines

pytestmark = pytest.mark.usefixtures("time_to_plan")

JOB = JobSpec("a", ("h1", "h3"), ("ps",))


async def spine_of(cluster: Cluster) -> str:
    """The spine that a job between both leaves gets now."""
    job = await cluster.submit(JOB)
    [tree] = cluster.plans.plan_of(job.number).trees
    await cluster.cancel(job)
    [spine] = {"s1", "s2"} & set(tree.parents)
    return spine


@pytest.mark.parametrize("live", [True, False])
def test_a_busy_spine_is_avoided_where_plans_are_live(live: bool) -> None:
    async def main() -> None:
        cluster = Cluster(
            spines(), install, ClusterSettings(replanning=ReplanningPolicy(live=live))
        )
        idle = await spine_of(cluster)
        load(cluster.nodes.state, idle, 0.95, time.monotonic())
        assert (await spine_of(cluster) == idle) is not live
        await cluster.close()

    asyncio.run(main())
