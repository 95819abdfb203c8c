"""Random faults, reboots and re-plans: every worker ends with the exact sum."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectives.network import Network
from collectives.plan import JobPlan, Results, TreePlan, tensor_ranges
from host_agent.numbers import switch_error_bound
from host_agent.stream import WorkerOptions
from host_agent.worker import Worker
from protocol.wire import Reduction
from tests.unit.protocol_world import (
    LANES,
    SERVER,
    SPARE,
    Faults,
    World,
    make_network,
    make_tree,
)

SWITCHES = ("s0", "s1", "s2", "s3")
OPTIONS = WorkerOptions(
    initial_timeout=0.02,
    min_timeout=0.005,
    max_timeout=0.3,
    bypass_after=4,
    deadline=1e6,
)


@st.composite
def routes(draw: st.DrawFn, root: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """A tree over the switches rooted at `root`, up to three levels, and who sums."""
    parents: dict[str, str] = {}
    levels = {root: 1}
    for name in SWITCHES:
        if name != root:
            parent = draw(st.sampled_from(sorted(n for n in levels if levels[n] < 3)))
            parents[name] = parent
            levels[name] = levels[parent] + 1
    return parents, tuple(name for name in SWITCHES if draw(st.booleans()))


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Network, list[JobPlan], int]:
    """A network and the plans of one to three epochs of a job; the last number is the seed."""
    count = draw(st.integers(1, 4))
    access = {f"w{i}": draw(st.sampled_from(SWITCHES)) for i in range(count)}
    access[SERVER] = access[SPARE] = draw(st.sampled_from(SWITCHES))
    network = make_network(access, SWITCHES)
    workers = tuple(f"w{i}" for i in range(count))
    window = draw(st.sampled_from([1, 2, 4]))
    trees = draw(st.integers(1, 2))
    reduction = draw(st.sampled_from(list(Reduction)))
    plans = []
    server = SERVER
    for epoch in range(1, draw(st.integers(1, 3)) + 1):
        if epoch > 1 and draw(st.booleans()):
            server = SPARE
        made: list[TreePlan] = []
        for tree in range(trees):
            parents, sums = draw(routes(access[server]))
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
        results = draw(st.sampled_from(list(Results)))
        plans.append(JobPlan(1, epoch, workers, tuple(made), LANES, window, results, reduction))
    return network, plans, draw(st.integers(0, 1 << 30))


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    job=jobs(),
    faults=st.builds(
        Faults,
        loss=st.sampled_from([0.0, 0.02, 0.1]),
        duplication=st.sampled_from([0.0, 0.1]),
        spread=st.sampled_from([0.0, 0.002, 0.02]),
    ),
    reboots=st.lists(st.tuples(st.floats(0.0, 0.2), st.sampled_from(SWITCHES)), max_size=3),
    re_plans=st.lists(st.tuples(st.floats(0.001, 0.15), st.booleans()), min_size=2, max_size=2),
    lengths=st.lists(
        st.sampled_from([0, 1, LANES - 1, LANES, LANES + 1, 5 * LANES, 300]), min_size=1, max_size=4
    ),
    first=st.sampled_from([0, (1 << 31) - 4, (1 << 32) - 8]),
)
def test_every_worker_ends_with_the_exact_sum(
    job: tuple[Network, list[JobPlan], int],
    faults: Faults,
    reboots: list[tuple[float, str]],
    re_plans: list[tuple[float, bool]],
    lengths: list[int],
    first: int,
) -> None:
    network, plans, seed = job
    plan = plans[0]
    options = replace(OPTIONS, first_fragment=first)
    workers = [Worker(plan, w, network, options) for w in range(len(plan.workers))]
    world = World(network, plan, workers, seed, faults)
    for time, switch in reboots:
        world.at(time, partial(world.reboot, switch))
    time = 0.0
    for newer, (pause, restarted) in zip(plans[1:], re_plans, strict=False):
        time += pause
        world.at(time, partial(world.adopt, newer, new_server=restarted))
    generator = np.random.default_rng(seed)
    inputs = []
    calls = []
    for worker in workers:
        tensors = [
            generator.integers(-(1 << 28), 1 << 28, length).astype(np.int32) for length in lengths
        ]
        inputs.append(tensors)
        calls.append([worker.submit(tensor, 0.0) for tensor in tensors])
    world.run()
    combine = np.bitwise_and if plan.reduction is Reduction.AND else np.add
    for number in range(len(lengths)):
        expected = combine.reduce([tensors[number] for tensors in inputs])
        for worker, numbers in zip(workers, calls, strict=True):
            total = worker.result(numbers[number])
            assert total is not None
            np.testing.assert_array_equal(total, expected)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    job=jobs(),
    loss=st.sampled_from([0.0, 0.05]),
    length=st.sampled_from([1, LANES + 1, 10 * LANES]),
    scale=st.sampled_from([1e-40, 1e-3, 1.0, 1e25]),
)
def test_float_sums_agree_to_the_bit_and_keep_their_bound(
    job: tuple[Network, list[JobPlan], int], loss: float, length: int, scale: float
) -> None:
    network, plans, seed = job
    plans = [replace(plan, reduction=Reduction.SUM) for plan in plans]
    plan = plans[0]
    workers = [Worker(plan, w, network, OPTIONS) for w in range(len(plan.workers))]
    world = World(network, plan, workers, seed, Faults(loss=loss))
    for number, newer in enumerate(plans[1:]):
        world.at(0.004 * (number + 1), partial(world.adopt, newer))
    generator = np.random.default_rng(seed)
    shape = generator.standard_normal((len(workers), length)) * np.exp(
        generator.normal(0, 5, (len(workers), length))
    )
    tensors = list((shape * scale).astype(np.float32))
    calls = [w.submit(tensor, 0.0) for w, tensor in zip(workers, tensors, strict=True)]
    world.run()
    sums = [w.result(call) for w, call in zip(workers, calls, strict=True)]
    exact = np.array(tensors, dtype=np.float64).sum(axis=0)
    bound = switch_error_bound(tensors, exact, LANES, plan.window, tensor_ranges(plan, length))
    for total in sums:
        assert total is not None
        np.testing.assert_array_equal(total, sums[0])
        assert (np.abs(total.astype(np.float64) - exact) <= bound).all()
