"""Random faults, reboots and re-plans: every worker ends with the exact sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hopsum.collectives.plan import JobPlan, Results, tensor_ranges
from hopsum.host_agent.elements import element_of
from hopsum.host_agent.numbers import as_float32
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.host_agent.workload import SwitchBounds
from hopsum.network.model import Network
from hopsum.protocol.wire import LANE_REDUCTIONS, Reduction, Width
from tests.host_agent.test_numbers import FLOATS, LARGEST_OF, rounded
from tests.support.protocol_world import (
    LANES,
    SERVER,
    SPARE,
    Faults,
    World,
    make_network,
    make_tree,
)
from tests.support.search import examples

SWITCHES = ("s0", "s1", "s2", "s3")
SEEDS = st.integers(0, 1 << 32)


@dataclass
class Job:
    """A network and the plans of a job's epochs."""

    network: Network
    plans: list[JobPlan]


def random_tree(random: Random, root: str) -> tuple[dict[str, str], list[str]]:
    """A tree over the switches rooted at `root`, up to three levels, and who sums."""
    parents: dict[str, str] = {}
    levels = {root: 1}
    for name in random.sample(SWITCHES, len(SWITCHES)):
        if name != root:
            parents[name] = random.choice([n for n in levels if levels[n] < 3])
            levels[name] = levels[parents[name]] + 1
    return parents, [name for name in SWITCHES if random.random() < 0.8]


COMBINED_BY = {
    Reduction.SUM: np.add,
    Reduction.AND: np.bitwise_and,
    Reduction.MAX: np.maximum,
    Reduction.XOR: np.bitwise_xor,
}


def random_job(random: Random, reduction: Reduction = Reduction.SUM) -> Job:
    """One to four workers, one or two trees, one to three epochs, each with trees of its own."""
    count = random.choice([1, 2, 3, 3, 4])
    access = {f"w{i}": random.choice(SWITCHES) for i in range(count)}
    access[SERVER] = access[SPARE] = random.choice(SWITCHES)
    network = make_network(access, SWITCHES)
    workers = tuple(f"w{i}" for i in range(count))
    window = random.choice([1, 2, 4])
    trees = random.choice([1, 1, 2])
    plans = []
    server = SERVER
    for epoch in range(1, random.choice([1, 2, 3, 3]) + 1):
        if epoch > 1 and random.random() < 0.4:
            server = SPARE
        made = []
        for tree in range(trees):
            parents, sums = random_tree(random, access[server])
            made.append(
                make_tree(
                    network,
                    workers,
                    parents,
                    sums,
                    tree=tree,
                    server=server,
                    window=window,
                    share=1 / trees,
                    singles=not sums,
                )
            )
        results = random.choice(list(Results))
        plans.append(JobPlan(1, epoch, workers, tuple(made), LANES, window, results, reduction))
    return Job(network, plans)


def random_world(random: Random, job: Job) -> World:
    """The job's world with lossy links, reboots and re-plans while it runs."""
    options = WorkerOptions(
        initial_timeout=0.02,
        min_timeout=0.005,
        max_timeout=0.1,
        bypass_after=random.choice([1, 2, 4]),
        deadline=1e6,
        first_fragment=random.choice([0, (1 << 31) - 8, (1 << 32) - 5]),
    )
    plan = job.plans[0]
    workers = [Worker(plan, w, job.network, options) for w in range(len(plan.workers))]
    faults = Faults(
        loss=random.choice([0.0, 0.02, 0.1, 0.2]),
        duplication=random.choice([0.0, 0.1]),
        spread=random.choice([0.0, 0.002, 0.02, 0.05]),
    )
    world = World(job.network, plan, workers, random.getrandbits(32), faults)
    for _ in range(random.choice([0, 0, 2, 8])):
        world.at(random.uniform(0.0, 0.5), partial(world.reboot, random.choice(SWITCHES)))
    time = 0.0
    for newer in job.plans[1:]:
        time += random.uniform(0.001, 0.2)
        change = partial(
            world.adopt,
            newer,
            new_server=random.random() < 0.4,
            spread=random.choice([0.001, 0.02, 0.1]),
        )
        world.at(time, change)
    return world


@pytest.mark.slow
@settings(max_examples=examples(8, of=150), derandomize=True)
@given(SEEDS)
def test_every_worker_ends_with_the_exact_sum(seed: int) -> None:
    random = Random(seed)
    job = random_job(random, random.choice([Reduction.SUM, Reduction.SUM, Reduction.AND]))
    world = random_world(random, job)
    generator = np.random.default_rng(seed)
    lengths = random.choices([0, 1, LANES - 1, LANES, LANES + 1, 5 * LANES, 20 * LANES], k=3)
    # Each call has a reduction of its own, or its job's, and a type.
    reductions = random.choices([None, *LANE_REDUCTIONS], k=3)
    limits = {np.dtype(np.int32): 1 << 28, np.dtype(np.int16): 1 << 12, np.dtype(np.int8): 1 << 7}
    kinds = random.choices([*limits], [2, 1, 1], k=3)
    inputs = []
    calls = []
    for worker in world.workers:
        tensors = [
            generator.integers(-limits[kind], limits[kind], length).astype(kind)
            for length, kind in zip(lengths, kinds, strict=True)
        ]
        inputs.append(tensors)
        calls.append(
            [
                worker.submit(tensor, 0.0, reduction=reduction)
                for tensor, reduction in zip(tensors, reductions, strict=True)
            ]
        )
    world.run()
    for number, reduction in enumerate(reductions):
        combine = COMBINED_BY[job.plans[0].reduction if reduction is None else reduction]
        expected = combine.reduce([tensors[number] for tensors in inputs], dtype=kinds[number])
        for worker, numbers in zip(world.workers, calls, strict=True):
            total = worker.result(numbers[number])
            assert total is not None
            np.testing.assert_array_equal(total, expected)


@pytest.mark.slow
@settings(max_examples=examples(4, of=60), derandomize=True)
@given(
    SEEDS,
    st.sampled_from([1e-40, 1e-3, 1.0, 1e25]),
    st.sampled_from(FLOATS),
    st.sampled_from([Width.WIDTH_32, Width.WIDTH_16]),
)
@example(0, 1.0, FLOATS[0], Width.WIDTH_32)
@example(1, 1.0, FLOATS[2], Width.WIDTH_16)
def test_float_sums_agree_to_the_bit_and_keep_their_bound(
    seed: int, scale: float, dtype: np.dtype[Any], width: Width
) -> None:
    random = Random(seed)
    job = random_job(random)
    world = random_world(random, job)
    length = random.choice([1, LANES + 1, 10 * LANES, 99 * LANES])
    generator = np.random.default_rng(seed)
    shape = (len(world.workers), length)
    spread = np.exp(generator.normal(0, 5, shape))
    scale = min(scale, 1.0) if dtype == np.float16 else scale
    tensors = list(rounded(generator.standard_normal(shape) * spread * scale, dtype))
    pairs = zip(world.workers, tensors, strict=True)
    calls = [worker.submit(tensor, 0.0, width=width) for worker, tensor in pairs]
    world.run()
    sums = [w.result(call) for w, call in zip(world.workers, calls, strict=True)]
    exact = np.sum([as_float32(tensor).astype(np.float64) for tensor in tensors], axis=0)
    plan, element = job.plans[0], element_of(dtype)
    assert element is not None
    bounds = SwitchBounds(plan, tensor_ranges(plan, length, width), element, width)
    for tensor in tensors:
        bounds.take(tensor)
    bound = bounds.bounds(exact)
    for total in sums:
        assert total is not None
        np.testing.assert_array_equal(total, sums[0])
        error = np.abs(as_float32(total).astype(np.float64) - exact)
        beyond = np.abs(exact) + bound > LARGEST_OF[dtype.name]
        assert ((error <= bound) | beyond).all()


def growing_job(random: Random) -> Job:
    """Plans of one tree, the second of which has a worker more."""
    job = random_job(random)
    while len(job.plans[0].workers) < 2:
        job = random_job(random)
    plans = []
    first, hosts = job.plans[0], job.plans[0].workers
    for epoch, workers in ((1, hosts[:-1]), (2, hosts)):
        server = random.choice([SERVER, SPARE])
        parents, sums = random_tree(random, job.network.access_switch(server))
        tree = make_tree(
            job.network,
            workers,
            parents,
            sums,
            server=server,
            window=first.window,
            singles=not sums,
        )
        results = random.choice(list(Results))
        plans.append(JobPlan(1, epoch, workers, (tree,), LANES, first.window, results))
    return Job(job.network, plans)


@pytest.mark.slow
@settings(max_examples=examples(8, of=150), derandomize=True)
@given(SEEDS)
def test_a_worker_joins_at_a_boundary_that_all_have_reached(seed: int) -> None:
    """Decision 0035: they learn of the plan at different times, and one that joins of no other."""
    random = Random(seed)
    job = growing_job(random)
    before, after = job.plans
    world = random_world(random, Job(job.network, [before]))
    first = random.choice([0, (1 << 32) - 5])
    options = WorkerOptions(deadline=1e6, scale_workers=len(after.workers), first_fragment=first)
    world.workers = [Worker(before, w, job.network, options) for w in range(len(before.workers))]
    generator = np.random.default_rng(seed)
    length = random.choice([1, LANES, 9 * LANES])
    ints = generator.integers(-(1 << 28), 1 << 28, (2, len(after.workers), length), np.int32)
    floats = generator.standard_normal((len(after.workers), length)).astype(np.float32)

    calls = [w.submit(tensor, 0.0) for w, tensor in zip(world.workers, ints[0], strict=False)]
    world.run()
    for worker, call in zip(world.workers, calls, strict=True):
        np.testing.assert_array_equal(worker.result(call), ints[0][:-1].sum(0, np.int32))

    # All have reached the boundary, whose fragment follows from the calls before it.
    boundary = first + -(-length // LANES)
    later: dict[str, list[int]] = {}

    def go_on(worker: Worker) -> None:
        worker.adopt(after, world.now)
        index = after.workers.index(worker.host)
        tensors = (ints[1][index], floats[index])
        later[worker.host] = [worker.submit(tensor, world.now) for tensor in tensors]

    def join() -> None:
        joining = replace(options, first_fragment=boundary & 0xFFFFFFFF)
        world.workers.append(Worker(after, len(before.workers), job.network, joining))
        go_on(world.workers[-1])

    world.adopt(after, new_server=random.random() < 0.4, spread=0.1)
    for worker in world.workers:
        world.at(world.now + random.uniform(0, 0.1), partial(go_on, worker))
    world.at(world.now + random.uniform(0, 0.1), join)
    world.run_for(0.2)
    world.run()
    assert later.keys() == set(after.workers)

    element = element_of(floats.dtype)
    assert element is not None
    bounds = SwitchBounds(after, tensor_ranges(after, length), element)
    for tensor in floats:
        bounds.take(tensor)
    exact = floats.sum(0, np.float64)
    sums = []
    for worker in world.workers:
        total, rounded_total = [worker.result(call) for call in later[worker.host]]
        np.testing.assert_array_equal(total, ints[1].sum(0, np.int32))
        assert rounded_total is not None
        sums.append(rounded_total)
        np.testing.assert_array_equal(rounded_total, sums[0])
    assert (np.abs(sums[0] - exact) <= bounds.bounds(exact)).all()
