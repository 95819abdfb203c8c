"""A cluster in virtual time, with its controller, its switches and its agents as they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hopsum.cli.job_commands import make_submission
from hopsum.collectives.choices import Engine as EngineName
from hopsum.controller.api.records import job_dict
from hopsum.controller.dataplane.pipeline import Pipeline
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.experiment.pipelines import compile_pipeline
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.simulation.cluster import ClusterOptions, VirtualCluster
from hopsum.simulation.events import EventQueue
from hopsum.simulation.loop import run_virtual
from p4switch.device.loading import Loader, default_executor
from p4switch.targets.v1model.engine import Engine, EngineOptions

LANES = 32
SLOTS = 1024
LINK_RATE = 2.5e5
"""Slow links, so that a job of few packets takes seconds."""

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
    return load_network(name, link_rate=LINK_RATE, latency=1e-4, slots=slots)


def run(
    folder: Path,
    network: str | Network,
    test: Test,
    slots: int = SLOTS,
    policies: Mapping[str, Any] | None = None,
    **options: Any,
) -> VirtualCluster:
    queue = EventQueue()
    if isinstance(network, str):
        network = network_of(network, slots)
    settings = ClusterSettings(lanes=LANES, journal=folder / "jobs", **(policies or {}))
    chosen = ClusterOptions(pipeline(slots), load, settings, **options)
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
    elements: int = 256,
    window: int = 16,
    seed: int = 1,
    **choices: Any,
) -> pb.JobInfo:
    await cluster.until(lambda: attached(cluster), "the agents")
    choices["window"] = window
    submission = make_submission(name, workers, server, rounds=rounds, elements=elements, seed=seed)
    for choice, value in choices.items():
        setattr(submission, choice, value)
    return await cluster.people.Submit(submission)


async def details(cluster: VirtualCluster, name: str) -> pb.JobInfo:
    return await cluster.people.JobDetails(pb.JobQuery(name=name))


def state(cluster: VirtualCluster, name: str) -> str:
    return cluster.controller.jobs.find(name=name).state if cluster.controller else ""


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


async def running(cluster: VirtualCluster, name: str, round_: int = 1) -> None:
    """Wait until every worker of a job has summed some tensors."""
    await cluster.until(lambda: progress(cluster, name) >= round_, f"round {round_} of {name}")


def progress(cluster: VirtualCluster, name: str) -> int:
    return cluster.controller.jobs.find(name=name).round if cluster.controller else 0


def spines(cluster: VirtualCluster, name: str) -> set[str]:
    """The spine switches that a job's plan uses."""
    assert cluster.controller is not None
    plan = cluster.controller.plans.plan_of(cluster.controller.jobs.find(name=name).number)
    return {node for tree in plan.trees for node in tree.parts if node.startswith("s")}


async def all_free(cluster: VirtualCluster) -> None:
    """Wait until only jobs that are not over hold slots and rules; switches may be on their way."""

    def free() -> bool:
        assert cluster.controller is not None
        plans, jobs = cluster.controller.plans, cluster.controller.jobs
        going = {job.number for job in jobs if not job.state.over}
        held = {job for switch in cluster.network.switches for job in plans.slots_held(switch)}
        return (held | {plan.job for plan in plans.plans()}) <= going

    await cluster.until(free, "the slots of jobs that are over", 30.0)
