"""`hopsum plan`, a run and a job on an idle cluster have the same window."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.controller.api.submission import submission_of
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job_spec import spec_from
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.experiment.description import Experiment
from hopsum.experiment.prepare import prepare
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.stack_depth import stack_depth

CASES = [
    ("star:4", 4, 1, "multi-hop", "100M"),
    ("star:4", 4, 1, "multi-hop", "25Mbit"),
    ("star:4", 3, 0, "multi-hop", "25Mbit"),
    ("star:20", 20, 0, "multi-hop", "1G"),
    ("leaf-spine:2x2", 4, 2, "multi-hop", "10M"),
    ("leaf-spine:2x2", 3, 1, "multi-tree", "100M"),
    ("leaf-spine:2x2", 3, 1, "embedding", "100M"),
    ("fat-tree:4", 8, 1, "multi-hop", "none"),
    ("fat-tree:4", 8, 2, "multi-tree", "25Mbit"),
]


async def install(rules: object) -> None:
    """Take all rules."""


def submitted(network: Network, workers: int, servers: int, planner: str) -> int:
    """The window of a job on a cluster that has nothing else to do."""

    async def main() -> int:
        settings = ClusterSettings(max_hops=stack_depth(network, 256, None))
        cluster = Cluster(network, install, settings)
        message = submission_of("a", workers, servers)
        message.planner = planner
        job = await cluster.submit(spec_from(message))
        window = cluster.plans.plan_of(job.number).window
        await cluster.close()
        return window

    return asyncio.run(main())


@pytest.mark.parametrize(("topology", "workers", "servers", "planner", "rate"), CASES)
def test_plans_runs_and_jobs_have_the_same_window(
    topology: str, workers: int, servers: int, planner: str, rate: str
) -> None:
    shared = ["--topology", topology, "--workers", str(workers), "--servers", str(servers)]
    options = [*shared, "--planner", planner, "--link-rate", rate, "--elements", "1000", "--json"]
    planned = CliRunner().invoke(app, ["plan", *options], catch_exceptions=False)
    window = json.loads(planned.stdout)["window"]
    link_rate = None if rate == "none" else rate
    network = load_network(topology, link_rate=link_rate, servers=servers or 1)
    assert submitted(network, workers, servers, planner) == window
    experiment = Experiment(
        topology, workers=workers, servers=servers, planner=planner, elements=1000
    )
    assert prepare(experiment, network).experiment.window == window
