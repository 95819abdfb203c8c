"""Levels of jobs in Mininet: they reach the queues of links, for frames and for TCP alike."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from hopsum.cli.job_commands import make_submission
from hopsum.collectives.choices import Engine
from hopsum.controller.api.client import ControllerClient
from hopsum.controller.api.records import job_dict
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.priorities import ONE_LEVEL, PriorityPolicy
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.experiment.cluster import with_running_cluster
from hopsum.experiment.pipelines import pipeline_for
from hopsum.experiment.session import RunningCluster
from hopsum.mininet_topos.emulation import Emulation
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.protocol.tos import LEVELS

pytestmark = pytest.mark.network

ROUNDS, ELEMENTS = 5, 50_000
FRAMES = ROUNDS * ELEMENTS * 4 // 1500
"""At least, of a job towards one of its workers."""
EARLY = PriorityPolicy(early_iterations=ROUNDS)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Network:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return load_network("star:4", link_rate="50Mbit")


def packets(interface: str) -> dict[int, int]:
    """Packets that each level's queue of an interface has sent."""
    shown = subprocess.run(
        ["tc", "-s", "class", "show", "dev", interface], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"class htb 1:(1\d) .*\n Sent \d+ bytes (\d+) pkt", shown)
    return {int(number, 16) - 0x10: int(count) for number, count in found}


async def run_job(cluster: Cluster, address: str, name: str, algorithm: str) -> None:
    queries = ControllerClient(address)
    while set(cluster.nodes.attached) != set(cluster.network.hosts):
        await asyncio.sleep(0.05)
    submission = make_submission(
        name, "h1,h2", "h3", elements=ELEMENTS, rounds=ROUNDS, algorithm=algorithm
    )
    await asyncio.to_thread(queries.submit, submission)
    while not JobState((info := await asyncio.to_thread(queries.job, name)).state).over:
        await asyncio.sleep(0.05)
    job = job_dict(info)
    assert (job["state"], job["wrong"]) == ("finished", 0), job
    assert job["checked"] == 2 * ELEMENTS * ROUNDS


def sent(before: Mapping[int, int], after: Mapping[int, int]) -> set[int]:
    """The levels in whose queues a job's packets were."""
    return {level for level in after if after[level] - before[level] > FRAMES // 2}


def test_levels_are_those_of_queues(network: Network, tmp_path: Path) -> None:
    found: dict[str, set[int]] = {}
    with Emulation(network, log_folder=tmp_path) as emulation:
        for policy, jobs in (
            (EARLY, {"first-frames": "in-network", "first-tcp": "ring"}),
            (ONE_LEVEL, {"only-frames": "in-network", "only-tcp": "ring"}),
        ):

            async def work(running: RunningCluster, jobs: Mapping[str, str] = jobs) -> None:
                for name, algorithm in jobs.items():
                    before = packets("s1-eth1")
                    await run_job(running.cluster, running.address, name, algorithm)
                    found[name] = sent(before, packets("s1-eth1"))

            settings = ClusterSettings(priorities=policy, journal=tmp_path / "jobs")
            pipeline = pipeline_for(network, Engine.EMBEDDED, settings)
            asyncio.run(
                with_running_cluster(emulation, pipeline, settings, lambda line: None, work)
            )
        assert packets("s1-eth1").keys() == set(range(LEVELS))
    assert found == {
        "first-frames": {0},
        "first-tcp": {0},
        "only-frames": {7},
        "only-tcp": {7},
    }
