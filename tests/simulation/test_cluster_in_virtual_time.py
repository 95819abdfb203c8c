"""The controller as it is, its switches and its agents, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

from cli.experiment.description import Engine as EngineName
from cli.experiment.pipelines import compile_pipeline
from cli.job_commands import job_dict, make_submission
from controller.dataplane.pipeline import Pipeline
from controller.jobs.job_queue import JobState
from network.loaders import load_network
from network.model import Network
from p4switch.control.loading import Loader, default_executor
from p4switch.v1model.engine import Engine, EngineOptions
from protocol import hopsum_pb2 as pb
from simulation.cluster import ClusterOptions, VirtualCluster
from simulation.events import EventQueue
from simulation.loop import run_virtual
from tests.simulation.scripted_host import ScriptedHost

LANES = 32
SLOTS = 1024

Test = Callable[[VirtualCluster], Awaitable[None]]


@cache
def pipeline(slots: int = SLOTS) -> Pipeline:
    return compile_pipeline(EngineName.EMBEDDED, LANES, slots)


@cache
def loader() -> Loader:
    return Loader(default_executor()[0], EngineOptions(cpu_port=510, queue_depth=1 << 16))


def load(config: bytes) -> Engine:
    return loader()(config)


def network_of(name: str, slots: int = SLOTS) -> Network:
    return load_network(name, link_rate=1e8, latency=1e-5, slots=slots)


def run(
    folder: Path, network: str | Network, test: Test, slots: int = SLOTS, **options: Any
) -> VirtualCluster:
    queue = EventQueue()
    if isinstance(network, str):
        network = network_of(network, slots)
    chosen = ClusterOptions(pipeline(slots), load, ScriptedHost, folder / "jobs", **options)
    cluster = VirtualCluster(network, chosen, queue)

    async def main() -> None:
        async with cluster:
            await test(cluster)

    run_virtual(main(), queue)
    return cluster


def attached(cluster: VirtualCluster) -> bool:
    controller = cluster.controller
    return controller is not None and len(controller.nodes.attached) == len(cluster.network.hosts)


async def submit(
    cluster: VirtualCluster,
    name: str,
    workers: str,
    server: str = "ps",
    *,
    rounds: int = 4,
    elements: int = 4096,
    **choices: Any,
) -> pb.JobInfo:
    await cluster.until(lambda: attached(cluster), "the agents")
    submission = make_submission(name, workers, server, rounds=rounds, elements=elements)
    for choice, value in choices.items():
        setattr(submission, choice, value)
    return await cluster.people.Submit(submission)


async def details(cluster: VirtualCluster, name: str) -> pb.JobInfo:
    return await cluster.people.JobDetails(pb.JobQuery(name=name))


def state(cluster: VirtualCluster, name: str) -> str:
    return cluster.controller.book.find(name=name).state if cluster.controller else ""


async def exact(cluster: VirtualCluster, name: str, within: float = 600.0) -> pb.JobInfo:
    """Wait for a job's end, which must be a good one."""
    await cluster.until(
        lambda: state(cluster, name) in ("finished", "failed", "cancelled"), name, within
    )
    job = await details(cluster, name)
    assert job.state == JobState.FINISHED, job.reason
    assert len(job.reports) == len(job.workers)
    verdict = job_dict(job)
    assert verdict["checked"] > 0
    assert verdict["wrong"] == 0
    return job


def test_a_job_is_summed_exactly(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3")
        await exact(cluster, "a")

    cluster = run(tmp_path, "star:4", test)
    assert "Write" in "\n".join(cluster.trace)
