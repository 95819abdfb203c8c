"""Jobs whose server is lost: another serves, or the same again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.network.loaders import load_network
from hopsum.protocol import hopsum_pb2 as pb
from tests.support.cluster_world import World, in_network
from tests.support.machine import PATIENCE, until
from tests.support.manager import manage


@pytest.mark.slow
def test_another_host_serves_where_a_server_is_lost_for_good(tmp_path: Path) -> None:
    with contextlib.closing(World(tmp_path, grace=0.5)) as world:
        world.agents("h1", "h2", "h3", "h4")
        in_network(world, "a", "h1,h2", "h3")
        world.stop_agent(2)
        until(lambda: world.queries.job("a").epoch >= 2, "another server")
        assert list(world.queries.job("a").servers) == ["h4"]
        agents = world.queries.status()[0].agents
        until(lambda: all_running(world), f"h4's beginning: {agents}")
        assert world.queries.job("a").epoch == 2
        world.stop_agent(3)
        until(lambda: world.state("a") == "failed", "the end of a")
        assert world.queries.job("a").reason == (
            "h4: its connection ended, and no other host can serve"
        )


def all_running(world: World) -> bool:
    (job,) = world.queries.status()
    states = {agent.host: pb.AgentState.Name(agent.state) for agent in job.agents}
    return states == dict.fromkeys(("h1", "h2", "h4"), "RUNNING")


def test_a_server_that_comes_back_in_time_stays(tmp_path: Path) -> None:
    with contextlib.closing(World(tmp_path)) as world:
        world.agents("h1", "h2", "h3", "h4")
        in_network(world, "a", "h1,h2", "h3")
        world.stop_agent(2)
        until(lambda: "h3" not in world.attached(), "h3's end")
        world.agents("h3")
        until(lambda: world.queries.job("a").epoch == 2, "a new epoch")
        assert list(world.queries.job("a").servers) == ["h3"]


def test_a_new_server_is_summoned_though_a_switch_did_not_take_its_rules() -> None:
    """Agents get the new plan all the same, so the server must be there."""

    async def main() -> None:
        broken = False
        summoned: asyncio.Queue[str] = asyncio.Queue()

        async def install(rules: Mapping[str, SwitchRules]) -> None:
            if broken:
                raise TimeoutError("s1 does not answer")

        def send(host: str, command: pb.NodeCommand) -> None:
            if command.HasField("attend"):
                summoned.put_nowait(host)

        cluster = Cluster(load_network("star:4"), install, ClusterSettings())
        cluster.send = send
        await cluster.submit(JobSpec("a", ("h1", "h2"), ("h3",)))
        async with asyncio.timeout(PATIENCE):
            assert {await summoned.get() for _ in range(3)} == {"h1", "h2", "h3"}
            broken = True
            with pytest.raises(TimeoutError):
                await manage(cluster).replan(1, ("h4",))
            # None of the job's hosts has come, so all are summoned again.
            while await summoned.get() != "h4":
                pass
        await cluster.close()

    asyncio.run(main())
