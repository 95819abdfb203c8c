"""Jobs whose workers are their servers, on a whole cluster in virtual time, as parts of it fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hopsum.cli.job_commands import make_submission
from hopsum.collectives.choices import Collective, Coordination, DataType
from hopsum.simulation.cluster import VirtualCluster
from tests.support.virtual_cluster import (
    all_free,
    attached,
    details,
    exact,
    run,
    running,
    spines,
    state,
)


async def submit_rooted(
    cluster: VirtualCluster,
    name: str,
    workers: str = "h1,h2,h3",
    collective: Collective = Collective.ALL_REDUCE,
    rounds: int = 60,
) -> None:
    await cluster.until(lambda: attached(cluster), "the agents")
    submission = make_submission(
        name, workers, "0", collective=collective, rounds=rounds, elements=600
    )
    submission.window = 16
    await cluster.people.Submit(submission)


@pytest.mark.slow
@pytest.mark.parametrize("collective", list(Collective))
def test_every_collective_goes_on_around_a_switch_that_dies(
    tmp_path: Path, collective: Collective
) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit_rooted(cluster, "a", "h1,h3,h4", collective)
        await running(cluster, "a")
        spine = min(spines(cluster, "a"))
        cluster.switches[spine].crash()
        await cluster.until(lambda: spines(cluster, "a") == {"s1", "s2"} - {spine}, "failover")
        cluster.switches[spine].start()
        job = await exact(cluster, "a")
        assert job.epoch >= 2
        assert list(job.servers) == list(job.workers) == ["h1", "h3", "h4"]
        await all_free(cluster)

    run(tmp_path, "leaf-spine:2x2x2", test)


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_job_though_it_is_a_server_too(tmp_path: Path) -> None:
    """No other host can serve in its place: its part of the sums is missing."""

    async def test(cluster: VirtualCluster) -> None:
        await submit_rooted(cluster, "a")
        await running(cluster, "a")
        died = cluster.queue.now
        cluster.crash_host("h2")
        await cluster.until(lambda: state(cluster, "a") == "failed", "the end", 10.0)
        assert cluster.queue.now - died < 5.0
        assert "h2" in (await details(cluster, "a")).reason
        await all_free(cluster)

    run(tmp_path, "star:4", test)


@pytest.mark.slow
def test_a_rooted_job_outlives_its_controller(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit_rooted(cluster, "a", collective=Collective.ALL_GATHER)
        await running(cluster, "a", 2)
        await cluster.crash_controller()
        await asyncio.sleep(2.0)
        cluster.start_controller()
        job = await exact(cluster, "a")
        assert job.epoch == 1

    run(tmp_path, "star:4", test)


@pytest.mark.slow
@pytest.mark.usefixtures("short_epochs")
def test_a_worker_serves_where_no_host_is_idle(tmp_path: Path) -> None:
    """Of all kinds of jobs, whose vectors too are combined on a tree with its root at a worker."""

    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        plain = make_submission("plain", "h1,h2,h3,h4", rounds=40, elements=600)
        checked = make_submission("checked", "h1,h2,h3,h4", rounds=40, elements=600)
        checked.integrity = True
        ordered = make_submission(
            "ordered", "h1,h2,h3,h4", kind="digits", rounds=1, dtype=DataType.FLOAT32,
            coordinate=True,
        )  # fmt: skip
        ordered.coordination = Coordination.SWITCHES
        for each in (plain, checked, ordered):
            await cluster.people.Submit(each)
        assert (await details(cluster, "plain")).servers == ["ps"]
        for name in ("checked", "ordered", "ordered.vectors"):
            [server] = (await details(cluster, name)).servers
            assert server in checked.workers, name
        for each in (plain, checked, ordered):
            await exact(cluster, each.name)
        await all_free(cluster)

    run(tmp_path, "star:4", test)


@pytest.mark.slow
def test_a_job_whose_server_is_one_worker_goes_on_around_a_switch_that_dies(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        submission = make_submission("a", "h1,h3,h4", "h3", rounds=60, elements=600)
        await cluster.people.Submit(submission)
        await running(cluster, "a")
        [spine] = spines(cluster, "a")
        cluster.switches[spine].crash()
        await cluster.until(lambda: spines(cluster, "a") == {"s1", "s2"} - {spine}, "failover")
        job = await exact(cluster, "a")
        assert (job.epoch, list(job.servers)) == (2, ["h3"])

    run(tmp_path, "leaf-spine:2x2x2", test)
