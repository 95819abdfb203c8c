"""A host's agent as a service."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import pytest

from hopsum.host_agent.interfaces import ONLY_PORT
from hopsum.host_agent.io.process_socket import most_memories_of_user
from hopsum.host_agent.node.bandwidth import BandwidthError
from hopsum.host_agent.node.client import process_job
from hopsum.host_agent.node.serve import counters_of, raise_descriptor_limit
from tests.support.cluster_world import World
from tests.support.jobs import GOING
from tests.support.machine import until
from tests.support.manager import Manager


def test_the_agent_has_descriptors_for_many_processes() -> None:
    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        few = most_memories_of_user()
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert most_memories_of_user() >= few
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_one_of_several_interfaces_may_go() -> None:
    """The host's other links are used then; without any the agent ends."""
    counted = counters_of({1: "lo", 3: "nosuch0"})(2.0)
    assert {port: (each.at, each.carrier) for port, each in counted.items()} == {
        1: (2.0, True), 3: (2.0, False)
    }  # fmt: skip
    with pytest.raises(BandwidthError, match="no interface 'nosuch0'"):
        counters_of({ONLY_PORT: "nosuch0"})(2.0)


@pytest.mark.slow
def test_a_job_that_no_process_attends_gives_its_slots_back(tmp_path: Path) -> None:
    free: list[float] = []

    def look(manager: Manager) -> None:
        free.append(manager.store.free_slots())

    with contextlib.closing(World(tmp_path, attend_limit=1.0)) as world:
        world.agents("h1", "h2", "h3", "h4")
        world.call(look)
        world.queries.submit(process_job("forgotten", ["h1", "h2"]))
        world.call(look)
        until(lambda: world.state("forgotten") not in GOING, "the end of the job")
        assert world.state("forgotten") == "failed"
        reason = world.queries.job("forgotten").reason
        assert "attended the job as rank" in reason
        assert "within 1 s of its start" in reason
        world.call(look)
    assert free[1] < free[0] == free[2]
