"""After any faults in a cluster, every sum is exact and every slot is free again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from fractions import Fraction
from pathlib import Path

import grpc
import pytest

from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.sharing import SharingPolicy
from hopsum.network.model import Network
from hopsum.simulation.cluster import VirtualCluster
from hopsum.simulation.faults import Faults, Outage, outage_targets
from hopsum.simulation.wire import WireOptions
from tests.support.search import examples
from tests.support.virtual_cluster import all_free, exact, network_of, run, submit


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


SEEDS = examples(3, of=24)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_sums_are_exact_and_slots_are_freed_under_any_faults(tmp_path: Path, seed: int) -> None:
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
                await submit(cluster, name, ",".join(chosen), rounds=rng.randint(3, 40))
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
