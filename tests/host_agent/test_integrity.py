"""Jobs with check lanes: what worker and server do about lanes that were altered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.collectives.plan import JobPlan, PlanError, Results
from hopsum.host_agent.codec import Frames
from hopsum.host_agent.failure import JobFailed
from hopsum.host_agent.plan_checks import KEY_BYTES
from hopsum.host_agent.server import Server
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network
from hopsum.protocol.wire import CHECK_LANES, Flag, Reduction
from tests.oracles.reference_check_lanes import ReferenceCheckLanes
from tests.support.columns import exponents_of, flags_of, fragments_of
from tests.support.protocol_world import (
    LANES,
    SERVER,
    World,
    contribution,
    make_tree,
    result,
    seen,
    star_plan,
    tree_plan,
)

KEY = bytes(range(KEY_BYTES))
VALUES = LANES - CHECK_LANES


def chain(**changes: object) -> tuple[JobPlan, Network]:
    """Three workers at two switches that sum, one above the other."""
    access = {"w0": "s0", "w1": "s0", "w2": "s1", SERVER: "s1"}
    return tree_plan(access, {"s0": "s1"}, ("s0", "s1"), integrity=True, **changes)  # type: ignore[arg-type]


def world(plan: JobPlan, network: Network, tensors: list[NDArray[np.generic]]) -> World:
    options = WorkerOptions(deadline=20.0, max_timeout=0.2)
    workers = [Worker(plan, i, network, options, KEY) for i in range(len(plan.workers))]
    for worker, tensor in zip(workers, tensors, strict=True):
        worker.submit(tensor, 0.0)
    return World(network, plan, workers, key=KEY)


def int_tensors(plan: JobPlan, elements: int = 500) -> list[NDArray[np.generic]]:
    rng = np.random.default_rng(7)
    return [rng.integers(-(2**28), 2**28, elements).astype(np.int32) for _ in plan.workers]


def all_exact(made: World, tensors: list[NDArray[np.generic]]) -> bool:
    exact = np.sum(tensors, axis=0)
    return all(np.array_equal(worker.result(0), exact) for worker in made.workers)  # type: ignore[arg-type]


def change_lane(frames: Frames, lane: int = -5) -> None:
    frames[:, 4 * lane] ^= 0x40


def server_of(made: World) -> Server:
    return made.servers[SERVER][0]


@pytest.mark.parametrize("results", list(Results))
@pytest.mark.parametrize(
    "link", ["w0 s0", "s0 s1", f"s1 {SERVER}", f"{SERVER} s1", "s1 s0", "s0 w1"]
)
def test_sums_are_exact_if_any_link_alters_lanes(link: str, results: Results) -> None:
    plan, network = chain(results=results)
    tensors = int_tensors(plan)
    made = world(plan, network, tensors)
    passed = 0

    def alter(node: str, peer: str, frames: Frames) -> bool:
        nonlocal passed
        if f"{node} {peer}" == link:
            passed += 1
            if passed % 4 == 0:
                change_lane(frames)
        return True

    made.filter = alter
    made.run()
    assert all_exact(made, tensors)
    counted = server_of(made).statistics.corrupt + sum(w.statistics.corrupt for w in made.workers)
    assert counted > 0


@pytest.mark.parametrize("singles", [False, True])
def test_a_switch_that_always_gives_wrong_sums_is_gone_around(singles: bool) -> None:
    """Workers' repetitions alone would get the sum that its memory holds again and again."""
    plan, network = chain(singles=singles)
    tensors = int_tensors(plan)
    made = world(plan, network, tensors)

    def alter(node: str, peer: str, frames: Frames) -> bool:
        if (node, peer) == ("s0", "s1") and not flags_of(frames)[0] & Flag.BYPASS:
            change_lane(frames)
        return True

    made.filter = alter
    made.run()
    assert all_exact(made, tensors)
    assert made.now < 2.0
    if not singles:
        assert sum(worker.statistics.asked for worker in made.workers) > 0


def test_forged_results_are_ignored() -> None:
    """A switch that forges results, with any lanes, flags and exponent, stops no worker."""
    plan, network = chain()
    tensors = int_tensors(plan)
    made = world(plan, network, tensors)
    rng = np.random.default_rng(3)

    def forge(node: str, peer: str, frames: Frames) -> bool:
        if (node, peer) == ("s0", "w0") and rng.random() < 0.7:
            frames[:, -4 * LANES :] = rng.integers(0, 256, 4 * LANES)
            flags_of(frames)[...] |= np.uint8(
                rng.choice([0, Flag.OVERFLOW, Flag.BYPASS, Flag.STALE])
            )
        return True

    made.filter = forge
    made.run()
    assert all_exact(made, tensors)
    assert made.workers[0].statistics.corrupt > 0
    assert made.workers[1].statistics.corrupt == 0


def test_without_integrity_the_same_makes_a_wrong_sum() -> None:
    """The frames that these tests alter would be accepted unaltered."""
    plan, network = chain()
    plan = replace(plan, integrity=False)
    tensors = int_tensors(plan)
    made = world(plan, network, tensors)

    def alter(node: str, peer: str, frames: Frames) -> bool:
        if (node, peer) == ("s0", "s1"):
            change_lane(frames)
        return True

    made.filter = alter
    made.run()
    assert not all_exact(made, tensors)


def test_forged_totals_are_refused_and_results_handed_over_are_taken() -> None:
    plan, network = star_plan(3, integrity=True)
    server = Server(plan, 0, network, KEY)
    forged = contribution(plan, network, 0, 0, 7, weight=3, flags=int(Flag.BYPASS))
    server.receive(forged, 0.0)
    assert not server.take_output()
    assert (server.statistics.refused, server.statistics.corrupt) == (1, 1)

    tensors = int_tensors(plan)
    made = world(plan, network, tensors)
    made.at(0.0045, lambda: made.adopt(replace(plan, epoch=2), new_server=True))
    made.run()
    assert all_exact(made, tensors)
    assert server_of(made).statistics.handed_over > 0
    assert server_of(made).statistics.corrupt == 0


def test_sums_that_wrap_end_the_job_and_a_flag_alone_does_not() -> None:
    plan, network = chain()
    tensors = int_tensors(plan)
    made = world(plan, network, tensors)

    def flag(node: str, peer: str, frames: Frames) -> bool:
        if fragments_of(frames)[0] % 3 == 0:
            flags_of(frames)[...] |= np.uint8(Flag.OVERFLOW)
        return True

    made.filter = flag
    made.run()
    assert all_exact(made, tensors)

    full = [np.full(100, 2**31 - 1, dtype=np.int32) for _ in plan.workers]
    made = world(plan, network, list(full))
    with pytest.raises(JobFailed, match="wrapped around"):
        made.run()


@pytest.mark.parametrize("raised", [False, True])
def test_an_exponent_that_is_altered_on_the_way_up_ends_the_job(raised: bool) -> None:
    """It would cost precision, or clip values, without any lane being wrong."""
    plan, network = chain()
    rng = np.random.default_rng(5)
    tensors = [rng.normal(size=2000).astype(np.float32) for _ in plan.workers]
    made = world(plan, network, list(tensors))

    def alter(node: str, peer: str, frames: Frames) -> bool:
        if (node, peer) == ("s1", SERVER) and fragments_of(frames)[0] == 9:
            exponents_of(frames)[...] += np.uint8(20 if raised else 236)
        return True

    made.run_for(0.0)
    made.filter = alter
    with pytest.raises(JobFailed, match="exponent was altered"):
        made.run()


def test_float32_sums_are_those_without_integrity() -> None:
    rng = np.random.default_rng(6)
    tensors = [(rng.normal(size=2000) * 10.0 ** rng.integers(-20, 20, 2000)).astype(np.float32)]
    tensors = [tensors[0] * np.float32(factor) for factor in (1, -3, 0.5)]
    exact = np.sum(np.array(tensors, dtype=np.float64), axis=0)
    made = world(*chain(), list(tensors))
    made.run()
    for worker in made.workers:
        found = worker.result(0)
        assert found is not None
        scale = np.abs(exact).max()
        assert np.abs(found - exact).max() <= 2.0**-24 * scale * 4


def test_a_new_epoch_with_fewer_workers_goes_on() -> None:
    plan, network = star_plan(3, integrity=True)
    tensors = int_tensors(plan)
    options = WorkerOptions(deadline=20.0, max_timeout=0.2)
    workers = [Worker(plan, i, network, options, KEY) for i in range(2)]
    for worker, tensor in zip(workers, tensors, strict=False):
        worker.submit(tensor, 0.0)
    made = World(network, plan, workers, key=KEY)
    made.run_for(0.01)
    tree = make_tree(network, ("w0", "w1"), {}, (), window=8)
    made.adopt(replace(plan, epoch=2, workers=("w0", "w1"), trees=(tree,)))
    made.run()
    assert all_exact(made, tensors[:2])


def test_a_plan_with_integrity_needs_a_key() -> None:
    plan, network = star_plan(2, integrity=True)
    with pytest.raises(PlanError, match="no key"):
        Worker(plan, 0, network)
    with pytest.raises(PlanError, match="no key"):
        Server(plan, 0, network)


def test_a_question_is_answered_by_the_fragment_alone_and_a_forged_one_is_not() -> None:
    plan, network = chain()
    worker = Worker(plan, 0, network, None, KEY)
    worker.submit(np.arange(100, dtype=np.int32), 0.0)
    [sent] = worker.take_output()
    lanes = ReferenceCheckLanes(3, KEY, 0, LANES).question(0)
    server = Server(plan, 0, network, KEY)
    forged = result(plan, network, 0, 3, flags=int(Flag.BYPASS))
    worker.receive(forged, 0.001)
    assert not worker.take_output()
    asked = result(plan, network, 0, [*lanes], flags=int(Flag.BYPASS))
    worker.receive(asked, 0.001)
    [alone] = seen(worker.take_output())
    assert (alone.fragment, alone.flags) == (0, Flag.BYPASS)
    assert alone.lanes == seen([sent])[0].lanes
    assert server.statistics.asked == 0


def in_doubt(fragment: int) -> tuple[Server, JobPlan, Network]:
    """A server that has found the sum of a fragment to be wrong, and has asked for singles."""
    plan, network = star_plan(2, integrity=True)
    server = Server(plan, 0, network, KEY)
    for worker in range(2):
        server.receive(contribution(plan, network, worker, fragment, 7), 0.0)
    assert (server.statistics.corrupt, server.statistics.asked) == (1, 2)
    server.take_output()
    return server, plan, network


@pytest.mark.parametrize("late", ["older", "of another reduction"])
def test_what_is_not_of_the_fragment_in_doubt_asks_for_nothing(late: str) -> None:
    server, plan, network = in_doubt(8)
    other = {"reduction": Reduction.MAX} if late != "older" else {}
    fragment = 0 if late == "older" else 8
    server.receive(contribution(plan, network, 0, fragment, 7, **other), 0.0)
    assert not server.take_output()
    assert server.statistics.older + server.statistics.refused == 1
    server.receive(contribution(plan, network, 0, 8, 7), 0.0)
    assert server.take_output(), "one of the fragment does"


def test_a_total_handed_over_leaves_a_newer_fragment_in_doubt() -> None:
    window = star_plan(2)[0].window
    server, plan, network = in_doubt(window)
    checks = ReferenceCheckLanes(2, KEY, 0, LANES)
    sealed = checks.sealed([0] * VALUES, 0, 0, needed=False, over=False)
    handed_over = contribution(
        plan, network, 0, 0, [*sealed], weight=2, flags=int(Flag.BYPASS), exponent=0
    )
    server.receive(handed_over, 0.0)
    assert server.statistics.handed_over == 1
    server.take_output()
    server.receive(contribution(plan, network, 0, window, 7), 0.0)
    assert server.statistics.asked == 4
    assert server.take_output(), "workers are asked again for the fragment in doubt"
