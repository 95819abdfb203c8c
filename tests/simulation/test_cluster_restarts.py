"""Controllers, servers and workers that end and start again, and partitions, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopsum.controller.api.serving import serve_cluster
from hopsum.controller.dataplane.driver import Driver
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.journal import JournalError
from hopsum.controller.jobs.replanning import ReplanningPolicy
from hopsum.protocol.liveness import LAST_PAUSE
from hopsum.simulation.cluster import VirtualCluster
from hopsum.simulation.rpc import Exchange
from tests.support.virtual_cluster import (
    all_free,
    attached,
    details,
    exact,
    progress,
    run,
    running,
    spines,
    state,
    submit,
)


@pytest.mark.slow
def test_jobs_go_on_over_a_crash_of_the_controller(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3", rounds=75)
        await running(cluster, "a", 2)
        await cluster.crash_controller()
        await asyncio.sleep(3.0)
        cluster.start_controller()
        await cluster.until(lambda: state(cluster, "a") == "running", "the job's recovery")
        job = await exact(cluster, "a")
        assert job.epoch == 1

    run(tmp_path, "star:4", test)


@pytest.mark.slow
@pytest.mark.long
def test_jobs_go_on_though_the_controller_is_away_for_minutes(tmp_path: Path) -> None:
    """They sum without it, and then wait for it; their agents have no reason to give up."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3", rounds=75)
        await running(cluster, "a", 2)
        await cluster.crash_controller()
        await asyncio.sleep(600.0)
        cluster.start_controller()
        job = await exact(cluster, "a")
        assert job.epoch == 1

    run(tmp_path, "star:4", test)


@pytest.mark.slow
def test_agents_find_a_controller_again_without_asking_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        tried: list[str] = []
        connect = Exchange.connect

        def count(self: Exchange, client: str, *arguments: Any) -> Any:
            tried.append(client)
            return connect(self, client, *arguments)

        monkeypatch.setattr(Exchange, "connect", count)
        await cluster.crash_controller()
        await asyncio.sleep(600.0)
        for host in cluster.network.hosts:
            assert 100 < tried.count(host) < 250
        cluster.start_controller()
        await cluster.until(lambda: attached(cluster), "their return", LAST_PAUSE + 0.5)

    run(tmp_path, "star:3", test)


@pytest.mark.slow
def test_agents_have_time_to_come_back_after_a_controller_that_starts_slowly(
    tmp_path: Path,
) -> None:
    """A switch hangs, and is only planned around after longer than agents are waited for."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2", "h3", rounds=200)
        await running(cluster, "a", 2)
        spare = next(iter({"s1", "s2"} - spines(cluster, "a")))
        cluster.switches[spare].hang()
        await cluster.crash_controller()
        cluster.start_controller()
        job = await exact(cluster, "a")
        assert job.epoch == 1

    run(tmp_path, "leaf-spine:2x2x2", test, policies={"grace": 5.0})


@pytest.mark.slow
def test_agents_leave_a_job_that_the_controller_has_forgotten(tmp_path: Path) -> None:
    """Without its journal: however late they come back, they are free for other jobs."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "old", "h1,h2,h3", rounds=75)
        await running(cluster, "old", 2)
        await cluster.crash_controller()
        journal = cluster.options.settings.journal
        assert isinstance(journal, Path)
        cluster.disk.remove(journal)
        await asyncio.sleep(60.0)
        cluster.start_controller()
        await cluster.until(lambda: attached(cluster), "the agents")
        members = [host.agent.agent.members for host in cluster.hosts.values()]
        await cluster.until(lambda: not any(members), "the end of their parts in it")

    run(tmp_path, "star:4", test)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [10, 30])
def test_job_numbers_that_come_again_meet_nothing_of_the_jobs_before(
    tmp_path: Path, rounds: int
) -> None:
    """A controller that has lost its journal counts from 1 again.

    Switches hold results of the earlier job 1, and fragments newer than the first ones: unless they
    are emptied, they answer with wrong sums.
    """
    took: dict[str, float] = {}

    async def timed(cluster: VirtualCluster, name: str, seed: int) -> int:
        began = cluster.queue.now
        number = (await submit(cluster, name, "h1,h2,h3", rounds=rounds, seed=seed)).job
        await exact(cluster, name)
        took[name] = cluster.queue.now - began
        return number

    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        old = await timed(cluster, "old", 1)
        await cluster.crash_controller()
        journal = cluster.options.settings.journal
        assert isinstance(journal, Path)
        cluster.disk.remove(journal)
        cluster.start_controller()
        await cluster.until(lambda: attached(cluster), "the agents")
        assert await timed(cluster, "new", 2) == old

    run(tmp_path, "star:4", test)
    assert took["new"] < 1.5 * took["old"]


@pytest.mark.slow
def test_jobs_go_on_over_a_restart_of_the_controller(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3", rounds=75)
        await running(cluster, "a", 2)
        await cluster.stop_controller()
        cluster.start_controller()
        job = await exact(cluster, "a")
        assert job.epoch == 1

    run(tmp_path, "star:4", test)


@pytest.mark.slow
def test_why_a_worker_failed_is_known_though_no_controller_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next controller takes the job for one that goes on, and assigns it to the host again."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2", rounds=500)
        await running(cluster, "a")
        await cluster.crash_controller()
        (member,) = cluster.hosts["h1"].agent.agent.members.values()
        monkeypatch.setattr(member, "advance", advance_without_memory)
        await asyncio.sleep(10.0)  # It stops trying to report it.
        assert not cluster.hosts["h1"].agent.agent.members
        cluster.start_controller()
        await cluster.until(lambda: state(cluster, "a") == "failed", "the job's end")
        assert "h1: MemoryError: no room for a tensor" in (await details(cluster, "a")).reason
        await all_free(cluster)

    run(tmp_path, "star:3", test)


def advance_without_memory(now: float) -> None:
    raise MemoryError("no room for a tensor")


@pytest.mark.slow
def test_a_server_that_restarts_while_no_controller_is_there_costs_an_epoch(tmp_path: Path) -> None:
    """It has no sums, and its failure went unnoticed; only its registration shows it."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2", rounds=75)
        await running(cluster, "a")
        await cluster.crash_controller()
        cluster.crash_host("ps")
        await asyncio.sleep(2.0)
        cluster.start_host("ps")
        await asyncio.sleep(2.0)
        cluster.start_controller()
        job = await exact(cluster, "a")
        assert job.epoch == 2

    run(tmp_path, "star:3", test)


@pytest.mark.slow
def test_a_server_that_restarts_costs_an_epoch(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2", rounds=75)
        await running(cluster, "a")
        cluster.crash_host("ps")
        await asyncio.sleep(2.0)
        cluster.start_host("ps")
        job = await exact(cluster, "a")
        assert job.epoch == 2

    run(tmp_path, "star:3", test)


@pytest.mark.slow
def test_a_server_that_another_host_replaces_costs_an_epoch(tmp_path: Path) -> None:
    """The plan that names the new server is its own: it starts empty under it, without another."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2", rounds=75)
        await running(cluster, "a")
        cluster.crash_host("ps")
        await cluster.until(lambda: serving(cluster) == ("h3",), "another server")
        job = await exact(cluster, "a")
        assert job.epoch == 2

    def serving(cluster: VirtualCluster) -> tuple[str, ...]:
        assert cluster.controller is not None
        return cluster.controller.plans.plan_of(1).servers

    run(tmp_path, "star:3", test, policies={"grace": 2.0})


@pytest.mark.slow
def test_a_partition_from_the_controller_is_survived(tmp_path: Path) -> None:
    """Agents and switches continue; no failure is reported, so none is planned around."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3", rounds=75)
        await running(cluster, "a", 2)
        for name in ("h1", "h2", "s1"):
            cluster.wire(name).part()
        at = progress(cluster, "a")
        await asyncio.sleep(4.0)
        assert progress(cluster, "a") <= at + 1
        for name in ("h1", "h2", "s1"):
            cluster.wire(name).join()
        job = await exact(cluster, "a")
        assert job.epoch == 1

    run(tmp_path, "star:4", test)


@pytest.mark.slow
def test_a_worker_that_dies_ends_its_job_alone(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2", rounds=3000)
        await submit(cluster, "b", "h3,h4", rounds=25)
        await running(cluster, "a")
        cluster.crash_host("h1")
        await cluster.until(lambda: state(cluster, "a") == JobState.FAILED, "the end of a")
        assert "h1: its connection ended" in (await details(cluster, "a")).reason
        await exact(cluster, "b")
        await all_free(cluster)
        cluster.start_host("h1")
        await submit(cluster, "c", "h1,h2")
        await exact(cluster, "c")

    run(tmp_path, "star:5", test)


@pytest.mark.slow
def test_boundaries_of_an_embedding_are_decided_by_the_controller(tmp_path: Path) -> None:
    """All agents ask before each, wait there, and cut alike; over a crash of the controller too."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h3", planner="embedding", rounds=60)
        await running(cluster, "a", 15)
        assert cluster.controller is not None
        tracker = cluster.controller.engine.tracker(1)
        assert tracker.plan.period == 6
        assert tracker.decided
        await cluster.crash_controller()
        await asyncio.sleep(2.0)
        cluster.start_controller()
        await exact(cluster, "a")

    run(
        tmp_path,
        "leaf-spine:2x2x2",
        test,
        policies={"replanning": ReplanningPolicy(every=6, pause=0.5)},
    )


@pytest.mark.slow
def test_a_second_controller_leaves_journal_and_jobs_to_the_first(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3", rounds=75)
        await running(cluster, "a", 2)
        before = cluster.journal().read()
        driver = Driver([], cluster.options.pipeline)
        settings = replace(cluster.options.settings, journal=cluster.journal())
        with pytest.raises(JournalError, match="another controller uses this journal"):
            async with serve_cluster(cluster.network, driver, cluster.listen, settings):
                pass
        assert cluster.journal().read() == before
        await submit(cluster, "b", "h1,h2", rounds=2)
        await exact(cluster, "b")
        # One that is killed owns nothing: the next one starts at once.
        await cluster.crash_controller()
        cluster.start_controller()
        assert (await exact(cluster, "a")).epoch == 1

    run(tmp_path, "star:4", test)
