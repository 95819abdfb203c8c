"""The controller as it is, its switches and its agents, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import pytest

from cli.experiment.description import Engine as EngineName
from cli.experiment.pipelines import compile_pipeline
from cli.job_commands import job_dict, make_submission
from controller.dataplane.pipeline import Pipeline
from controller.jobs.job_state import JobState
from controller.jobs.priorities import ONE_LEVEL
from controller.jobs.replanning import ReplanningPolicy
from controller.jobs.settings import ClusterSettings
from controller.jobs.sharing import SharingPolicy
from controller.telemetry.health import DampingPolicy
from network.loaders import load_network
from network.model import Network
from p4switch.device.loading import Loader, default_executor
from p4switch.targets.v1model.engine import Engine, EngineOptions
from protocol import hopsum_pb2 as pb
from simulation.cluster import ClusterOptions, VirtualCluster
from simulation.events import EventQueue
from simulation.faults import Faults, Outage, outage_targets
from simulation.loop import run_virtual
from simulation.wire import WireOptions

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
    return load_network(name, link_rate=1e6, latency=1e-4, slots=slots)


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
    **choices: Any,
) -> pb.JobInfo:
    await cluster.until(lambda: attached(cluster), "the agents")
    choices["window"] = window
    submission = make_submission(name, workers, server, rounds=rounds, elements=elements)
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


@pytest.mark.slow
def test_a_job_is_summed_exactly(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3")
        await exact(cluster, "a")

    cluster = run(tmp_path, "star:4", test)
    assert "Write" in "\n".join(cluster.trace)


async def running(cluster: VirtualCluster, name: str, round_: int = 1) -> None:
    """Wait until every worker of a job has summed some tensors."""
    await cluster.until(lambda: progress(cluster, name) >= round_, f"round {round_} of {name}")


def progress(cluster: VirtualCluster, name: str) -> int:
    return cluster.controller.jobs.find(name=name).round if cluster.controller else 0


def spines(cluster: VirtualCluster, name: str) -> set[str]:
    """The spine switches that a job's plan uses."""
    assert cluster.controller is not None
    plan = cluster.controller.manager.plan_of(cluster.controller.jobs.find(name=name).number)
    return {node for tree in plan.trees for node in tree.parts if node.startswith("s")}


@pytest.mark.slow
def test_one_seed_is_one_history(tmp_path: Path) -> None:
    """Byte for byte: every message, rule and frame count, with faults, and in another process."""

    def history(seed: int, folder: str) -> bytes:
        (tmp_path / folder).mkdir()
        return eventful(tmp_path / folder, seed)

    first, again, other = history(1, "a"), history(1, "b"), history(2, "c")
    assert first == again
    assert first != other
    script = (
        "import sys; from pathlib import Path;"
        "from tests.simulation.test_cluster_in_virtual_time import eventful;"
        "sys.stdout.buffer.write(eventful(Path(sys.argv[1]), 1))"
    )
    (tmp_path / "d").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "d")],
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": "."},
    )
    assert done.stdout == first


def eventful(folder: Path, seed: int) -> bytes:
    """The history of a cluster in which much goes wrong, and of its journal."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h3", rounds=50)
        await submit(cluster, "b", "h2,h4", rounds=20)
        await running(cluster, "a")
        (spine,) = spines(cluster, "a")
        cluster.switches[spine].crash()
        await asyncio.sleep(5.0)
        cluster.switches[spine].start()
        await exact(cluster, "a")
        await exact(cluster, "b")

    cluster = run(
        folder,
        "leaf-spine:2x2x2",
        test,
        seed=seed,
        faults=Faults(loss=0.01, duplicate=0.01, reorder=0.02),
        wires=WireOptions(loss=0.02),
    )
    return "\n".join([*cluster.trace, cluster.disk.read(folder / "jobs").decode()]).encode()


@pytest.mark.slow
def test_a_job_goes_on_around_a_switch_that_dies_and_uses_it_again(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h3", rounds=200)
        await running(cluster, "a")
        (spine,) = spines(cluster, "a")
        cluster.switches[spine].crash()
        died = cluster.queue.now
        await cluster.until(lambda: spines(cluster, "a") == {"s1", "s2"} - {spine}, "failover")
        # It is planned around when it has been away for so long, and not before.
        assert DampingPolicy().away <= cluster.queue.now - died < DampingPolicy().away + 1.5
        assert cluster.controller is not None
        manager = cluster.controller.manager
        assert manager.failed == {spine}
        cluster.switches[spine].start()
        await cluster.until(lambda: not manager.failed, "its return")
        job = await exact(cluster, "a")
        assert job.epoch >= 2

    run(tmp_path, "leaf-spine:2x2x2", test)


@pytest.mark.slow
def test_a_switch_that_flaps_is_held_down(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        assert cluster.controller is not None
        manager = cluster.controller.manager
        unreachable = manager.health.unreachable
        for _ in range(4):
            cluster.switches["s1"].crash()
            await cluster.until(lambda: "s1" in unreachable() & manager.failed, "its loss")
            cluster.switches["s1"].start()
            await cluster.until(lambda: "s1" not in unreachable(), "its return")
        back = cluster.queue.now
        assert manager.health.held() == {"s1"}
        await cluster.until(lambda: "s1" not in manager.failed, "the end of the hold-down")
        assert cluster.queue.now - back > 10 * DampingPolicy().stable

    run(tmp_path, "leaf-spine:2x2x2", test)


@pytest.mark.slow
def test_a_reboot_costs_rules_and_registers_which_come_back(tmp_path: Path) -> None:
    """The job goes on in its epoch: the switch is back before it would be planned around."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3", rounds=100)
        await running(cluster, "a")
        before = cluster.world.engines["s1"]
        cluster.switches["s1"].crash()
        assert cluster.world.engines["s1"] is None
        await asyncio.sleep(1.0)
        cluster.switches["s1"].start()
        assert cluster.world.engines["s1"] is None
        job = await exact(cluster, "a")
        after = cluster.world.engines["s1"]
        assert after is not None
        assert after is not before
        assert job.epoch == 1

    run(tmp_path, "star:4", test)


@pytest.mark.slow
def test_a_job_of_higher_priority_takes_slots_of_another(tmp_path: Path) -> None:
    """The older one bypasses the switches for a while and sums there again; both are exact."""

    async def test(cluster: VirtualCluster) -> None:
        low = await submit(cluster, "low", "h1,h2", "ps", rounds=500, window=64)
        await running(cluster, "low", 3)
        # The longer a job has run, the lower its level.
        await cluster.until(lambda: level(cluster, low.job) > 0, "a lower level")
        high = await submit(cluster, "high", "h1,h3", "ps", rounds=5, window=64)
        assert high.state != JobState.QUEUED
        old = await details(cluster, "low")
        assert (old.epoch, old.bypassed) == (2, ["l1"])
        await exact(cluster, "high")
        assert (await details(cluster, "low")).state == JobState.RUNNING
        manager = cluster.controller.manager if cluster.controller else None
        assert manager is not None
        await cluster.until(lambda: not manager.bypassed(low.job), "its return to the switches")
        assert (await exact(cluster, "low")).epoch == 3

    run(
        tmp_path,
        "leaf-spine:2x2x1",
        test,
        slots=64,
        policies={"sharing": SharingPolicy(Fraction(1))},
    )


def level(cluster: VirtualCluster, job: int) -> int:
    assert cluster.controller is not None
    return cluster.controller.priorities.levels().get(job, 0)


@pytest.mark.slow
def test_a_queued_job_starts_when_a_cancelled_one_has_gone(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        first = await submit(cluster, "first", "h1,h2", rounds=3000, window=64)
        await running(cluster, "first")
        second = await submit(cluster, "second", "h1,h2", window=64)
        assert second.state == JobState.QUEUED
        assert "slots" in second.reason
        gone = await cluster.people.Cancel(pb.JobQuery(name="first"))
        assert (gone.state, gone.reason) == (JobState.CANCELLED, "cancelled by its owner")
        await exact(cluster, "second")
        await all_free(cluster)
        assert all(first.job not in host.agent.agent.members for host in cluster.hosts.values())

    run(
        tmp_path,
        "star:4",
        test,
        slots=64,
        policies={"sharing": SharingPolicy(Fraction(1)), "priorities": ONE_LEVEL},
    )


async def all_free(cluster: VirtualCluster) -> None:
    """Wait until only jobs that are not over hold slots and rules; switches may be on their way."""

    def free() -> bool:
        assert cluster.controller is not None
        manager, jobs = cluster.controller.manager, cluster.controller.jobs
        going = {job.number for job in jobs if not job.state.over}
        held = {job for switch in cluster.network.switches for job in manager.slots_held(switch)}
        return (held | {plan.job for plan in manager.plans()}) <= going

    await cluster.until(free, "the slots of jobs that are over", 30.0)


@pytest.mark.slow
def test_jobs_go_on_over_a_crash_of_the_controller(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3", rounds=300)
        await running(cluster, "a", 5)
        await cluster.crash_controller()
        await asyncio.sleep(3.0)
        cluster.start_controller()
        await cluster.until(lambda: state(cluster, "a") == "running", "the job's recovery")
        job = await exact(cluster, "a")
        assert job.epoch == 1

    run(tmp_path, "star:4", test)


@pytest.mark.slow
def test_jobs_go_on_over_a_restart_of_the_controller(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3", rounds=300)
        await running(cluster, "a", 5)
        await cluster.stop_controller()
        cluster.start_controller()
        job = await exact(cluster, "a")
        assert job.epoch == 1

    run(tmp_path, "star:4", test)


@pytest.mark.slow
def test_a_server_that_restarts_while_no_controller_is_there_costs_an_epoch(tmp_path: Path) -> None:
    """It has no sums, and nobody saw it go; only what it says when it comes tells."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2", rounds=300)
        await running(cluster, "a", 3)
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
def test_a_partition_from_the_controller_is_survived(tmp_path: Path) -> None:
    """Agents and switches go on; nobody is told, so nobody is planned around."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3", rounds=300)
        await running(cluster, "a", 5)
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
        await submit(cluster, "b", "h3,h4", rounds=100)
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
def test_a_server_that_restarts_costs_an_epoch(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2", rounds=300)
        await running(cluster, "a", 3)
        cluster.crash_host("ps")
        await asyncio.sleep(2.0)
        cluster.start_host("ps")
        job = await exact(cluster, "a")
        assert job.epoch == 2

    run(tmp_path, "star:3", test)


@pytest.mark.slow
def test_a_job_goes_over_to_a_spine_that_is_back_where_that_is_faster(tmp_path: Path) -> None:
    """Both share the one spine that there is, whose links are slow, until the other is back."""
    network = network_of("leaf-spine:2x2x2")
    slow = [
        replace(link, bandwidth=3e5) if {link.a, link.b} & {"s1", "s2"} else link
        for link in network.links
    ]

    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        cluster.switches["s2"].crash()
        assert cluster.controller is not None
        manager = cluster.controller.manager
        await cluster.until(lambda: "s2" in manager.failed, "its loss")
        for name, server in (("a", "h3"), ("b", "h4")):
            await submit(cluster, name, "h1,h2", server, rounds=3000)
        await running(cluster, "a", 5)
        assert spines(cluster, "a") == spines(cluster, "b") == {"s1"}
        cluster.switches["s2"].start()
        await cluster.until(
            lambda: spines(cluster, "a") | spines(cluster, "b") == {"s1", "s2"}, "a move", 60.0
        )
        epochs = sorted(plan.epoch for plan in manager.plans())
        await asyncio.sleep(10.0)
        assert epochs == sorted(plan.epoch for plan in manager.plans()) == [1, 2]

    policy = ReplanningPolicy(every=0, hold=1.0, pause=2.0)
    run(tmp_path, replace(network, links=tuple(slow)), test, policies={"replanning": policy})


@pytest.mark.slow
def test_boundaries_of_an_embedding_are_decided_by_the_controller(tmp_path: Path) -> None:
    """All agents ask before each, wait there, and cut alike; over a crash of the controller too."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h3", planner="embedding", rounds=60)
        await running(cluster, "a", 15)
        assert cluster.controller is not None
        tracker = cluster.controller.manager.agents.tracker(1)
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
def test_workers_sum_among_themselves(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        submission = make_submission("ring", "h1,h2,h3", "1", elements=256, algorithm="ring")
        await cluster.people.Submit(submission)
        await exact(cluster, "ring")

    run(tmp_path, "star:4", test)


@pytest.mark.slow
def test_a_switch_that_dies_as_it_is_connected_to_is_connected_to_again(tmp_path: Path) -> None:
    """While finsy asks over gNMI for its interfaces, too."""

    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        switch = cluster.switches["s1"]
        switch.crash()
        switch.start()

        def asked() -> bool:
            return "switch s1 /gnmi" in cluster.trace[-1]

        before = len(cluster.trace)
        while not (len(cluster.trace) > before and asked()):
            await asyncio.sleep(0.0001)
        switch.crash()
        await asyncio.sleep(1.0)
        switch.start()
        await submit(cluster, "a", "h1,h2")
        await exact(cluster, "a")

    run(tmp_path, "star:3", test)


# -- Whatever happens


def random_outages(rng: random.Random, network: Network, seconds: float) -> list[Outage]:
    """Some of everything that can go wrong, for times from a moment to much too long."""
    targets = outage_targets(network)
    outages = []
    for _ in range(rng.randint(1, 4)):
        trouble = rng.choice(list(targets))
        start = 1.0 + seconds * rng.random()
        stop = start + rng.choice([0.05, 1.0, 4.0, 12.0])
        outages.append(Outage(trouble, rng.choice(targets[trouble]), start, stop))
    return outages


SEEDS = int(os.environ.get("HOPSUM_SEEDS", "6"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_sums_are_exact_and_slots_come_back(tmp_path: Path, seed: int) -> None:
    """Every job ends, or says what it waits for; those that finish have exact sums."""
    rng = random.Random(seed)
    topology = rng.choice(["star:5", "leaf-spine:2x2x2", "leaf-spine:2x3x1"])
    slots = rng.choice([16, 32, 256])
    network = network_of(topology, slots)
    outages = random_outages(rng, network, 6.0)
    names = [f"job{number}" for number in range(rng.randint(1, 3))]
    workers = [host for host in network.hosts if host != "ps"]

    async def test(cluster: VirtualCluster) -> None:
        for name in names:
            chosen = rng.sample(workers, rng.randint(2, len(workers)))
            with contextlib.suppress(grpc.aio.AioRpcError):
                await submit(cluster, name, ",".join(chosen), rounds=rng.randint(5, 80))
            await asyncio.sleep(rng.random())
        await cluster.until(
            lambda: (
                cluster.controller is not None
                and cluster.queue.now > max(outage.stop for outage in outages)
            ),
            "the end of all outages",
        )
        controller = cluster.controller
        assert controller is not None
        await cluster.until(
            lambda: all(job.state.over for job in controller.jobs), "the jobs' ends", 300.0
        )
        for job in controller.jobs:
            if job.state is JobState.FINISHED:
                await exact(cluster, job.spec.name)
            else:
                assert job.reason
        await all_free(cluster)

    run(
        tmp_path,
        network,
        test,
        slots=slots,
        seed=seed,
        outages=outages,
        faults=Faults(loss=rng.choice([0.0, 0.01]), reorder=rng.choice([0.0, 0.05])),
        wires=WireOptions(loss=rng.choice([0.0, 0.05])),
        policies={"sharing": SharingPolicy(Fraction(1))},
    )
