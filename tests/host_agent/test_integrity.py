"""Check lanes: what fits, what does not, and what worker and server do about it."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.collectives.plan import JobPlan, PlanError, Results
from hopsum.host_agent.codec import Frames, exponents_of, flags_of, fragments_of
from hopsum.host_agent.failure import JobFailed
from hopsum.host_agent.integrity import KEY_BYTES, Integrity, P
from hopsum.host_agent.server import Server
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network
from hopsum.protocol.wire import CHECK_LANES, Flag, Reduction
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
from tests.support.search import examples

KEY = bytes(range(KEY_BYTES))
VALUES = LANES - CHECK_LANES
INT32 = st.integers(-(2**31), 2**31 - 1)
WIRE = np.array([0, 63, 64, 2**32 - 1])
NOT_LAST = np.zeros(4, np.uint8)


def sums(workers: int, values: NDArray[np.int64], needed: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The sums of values (workers, fragments, VALUES) in switches, with check lanes."""
    total = np.zeros((values.shape[1], LANES), dtype=np.int32)
    for worker in range(workers):
        lanes = np.zeros_like(total)
        lanes[:, :VALUES] = values[worker]
        Integrity(KEY, 0, workers, LANES).protect(lanes, WIRE, worker, needed[worker])
        total += lanes
    return total


def drawn(seed: int, workers: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Values whose sums do not wrap, and who needs the exponents: somebody does."""
    rng = np.random.default_rng(seed)
    most = (2**31 - 1) // workers
    values = rng.integers(-most, most + 1, (workers, len(WIRE), VALUES))
    needed = rng.integers(0, 2, (workers, len(WIRE))).astype(bool)
    needed[rng.integers(workers)] = True
    return values, needed


def test_p_is_a_prime_between_what_a_lane_changes_by_and_what_limbs_hold() -> None:
    assert 2**33 < P < 2**45
    assert all(pow(base, P - 1, P) == 1 for base in (2, 3, 5, 7, 11))
    assert all(P % divisor for divisor in range(3, 5_931_642, 2))


@settings(max_examples=examples(10, of=300), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 8, 300]))
def test_sums_fit_and_open_as_what_they_are_sealed_as(seed: int, workers: int) -> None:
    check = Integrity(KEY, 0, workers, LANES)
    total = sums(workers, *drawn(seed, workers))
    assert (total[:, VALUES:] >= 0).all()
    assert check.fits(total, WIRE)[0].all()
    codes = np.array([0, 1, 128, 255], np.uint8)
    check.seal(total, WIRE, codes, check.fits(total, WIRE)[1])
    genuine, useless = check.opened(total, WIRE, codes)
    assert genuine.all()
    assert not useless.any()
    assert not check.fits(total, WIRE)[0].any()


@settings(max_examples=examples(30, of=2000), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, LANES - 1), st.integers(0, 31), st.integers(0, 3))
def test_a_bit_that_flips_is_found(seed: int, lane: int, bit: int, row: int) -> None:
    check = Integrity(KEY, 0, 3, LANES)
    total = sums(3, *drawn(seed, 3))
    others = np.arange(4) != row
    flip = np.uint32(1 << bit)

    def flipped(lanes: NDArray[np.int32]) -> NDArray[np.int32]:
        changed = lanes.copy()
        changed.view(np.uint32)[row, lane] ^= flip
        return changed

    assert (check.fits(flipped(total), WIRE)[0] == others).all()
    check.seal(total, WIRE, NOT_LAST, check.fits(total, WIRE)[1])
    assert (check.opened(flipped(total), WIRE, NOT_LAST)[0] == others).all()


@pytest.mark.parametrize("change", [P, 2**32 - 2 * P % 2**32, 1 << 15, 1, 2**31])
def test_lanes_that_are_changed_together_are_found(change: int) -> None:
    """Nothing public (P, the limbs' weights) makes changes cancel."""
    check = Integrity(KEY, 0, 3, LANES)
    total = sums(3, *drawn(1, 3))
    for lane, other in [(0, 1), (0, VALUES), (3, VALUES + 1), (VALUES, VALUES + 1)]:
        changed = total.copy()
        changed.view(np.uint32)[:, lane] += np.uint32(change % 2**32)
        changed.view(np.uint32)[:, other] -= np.uint32(change % 2**32)
        assert not check.fits(changed, WIRE)[0].any()


def test_a_sum_that_wrapped_around_does_not_fit() -> None:
    values = np.zeros((2, 4, VALUES), dtype=np.int64)
    values[:, 2, 5] = 2**31 - 1
    total = sums(2, values, np.ones((2, 4), dtype=bool))
    check = Integrity(KEY, 0, 2, LANES)
    assert check.fits(total, WIRE)[0].tolist() == [True, True, False, True]
    check.seal_overflow(total, WIRE, NOT_LAST)
    assert not check.opened(total, WIRE, NOT_LAST)[0].any()
    assert check.opened(total, WIRE, NOT_LAST, overflow=True)[0].all()


def test_a_result_is_of_its_fragment_tree_job_and_exponent_alone() -> None:
    check = Integrity(KEY, 0, 3, LANES)
    total = sums(3, *drawn(2, 3))
    codes = np.array([0, 1, 128, 255], np.uint8)
    check.seal(total, WIRE, codes, check.fits(total, WIRE)[1])
    assert not check.opened(total, WIRE[::-1].copy(), codes)[0].any()
    assert not check.opened(total, WIRE, codes ^ np.uint8(1))[0].any()
    for other in (Integrity(KEY, 1, 3, LANES), Integrity(KEY[::-1], 0, 3, LANES)):
        assert not other.opened(total, WIRE, codes)[0].any()


def test_unneeded_exponents_are_recognized() -> None:
    values, needed = drawn(3, 3)
    needed[:, 1] = False
    total = sums(3, values, needed)
    check = Integrity(KEY, 0, 3, LANES)
    assert check.fits(total, WIRE)[0].all()
    check.seal(total, WIRE, NOT_LAST, check.fits(total, WIRE)[1])
    genuine, useless = check.opened(total, WIRE, NOT_LAST)
    assert genuine.all()
    assert useless.tolist() == [False, True, False, False]


def test_single_contributions_and_questions_show_whose_they_are() -> None:
    check = Integrity(KEY, 0, 3, LANES)
    lanes = np.zeros((4, LANES), dtype=np.int32)
    check.protect(lanes, WIRE, 1, np.array([True, False, True, False]))
    assert check.fits_single(lanes, WIRE, 1).all()
    assert not check.fits_single(lanes, WIRE, 0).any()
    assert not check.fits(lanes, WIRE)[0].any()
    question = np.ones((1, LANES), dtype=np.int32)
    check.question(63, question)
    assert check.asked(question, np.array([63])).all()
    assert not check.asked(question, np.array([64])).any()
    assert not check.opened(question, np.array([63]), NOT_LAST[:1])[0].any()


def test_pads_hide_what_the_lanes_would_tell_of_the_key() -> None:
    """A total's check number is not a known function of its values: else r follows from many."""
    lanes = np.zeros((4, LANES), dtype=np.int32)
    for workers in (1, 2):
        total = np.zeros_like(lanes)
        for worker in range(workers):
            one = lanes.copy()
            Integrity(KEY, 0, workers, LANES).protect(one, WIRE, worker, np.zeros(4, dtype=bool))
            total += one
        assert len({tuple(row) for row in total[:, VALUES:].tolist()}) == 4


def test_a_worker_that_has_another_number_now_protects_again() -> None:
    before, after = Integrity(KEY, 0, 3, LANES), Integrity(KEY, 0, 2, LANES)
    values, needed = drawn(4, 3)
    total = np.zeros((4, LANES), dtype=np.int32)
    for was, worker in ((0, 0), (2, 1)):
        lanes = np.zeros_like(total)
        lanes[:, :VALUES] = values[was]
        before.protect(lanes, WIRE, was, needed[was] | True)
        after.protect_again(lanes, WIRE, worker, before, was)
        total += lanes
    assert after.fits(total, WIRE)[0].all()


# -- worker and server


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
    check = Integrity(KEY, 0, 3, LANES)
    lanes = np.zeros((1, LANES), dtype=np.int32)
    check.question(0, lanes)
    server = Server(plan, 0, network, KEY)
    forged = result(plan, network, 0, 3, flags=int(Flag.BYPASS))
    worker.receive(forged, 0.001)
    assert not worker.take_output()
    asked = result(plan, network, 0, lanes[0].tolist(), flags=int(Flag.BYPASS))
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


def test_the_numbers_are_those_of_the_protocol_page() -> None:
    """docs/protocol.md, Check lanes, in plain integers."""

    def secret(name: str, number: int) -> int:
        drawn = hashlib.shake_128(KEY + name.encode()).digest(8 * (number + 1))
        return int.from_bytes(drawn[-8:], "little") % P

    values = np.arange(-14, 15).astype(np.int32)
    for wire in (0, 200):
        lanes = np.zeros((1, LANES), dtype=np.int32)
        lanes[0, :VALUES] = values
        Integrity(KEY, 5, 3, LANES).protect(lanes, np.array([wire]), 1, np.array([True]))
        z, *coefficients = (secret("coefficients 5 0 0", n) for n in (0, *range(3, LANES)))
        number = sum(r * int(x) for r, x in zip(coefficients, values, strict=True)) + z
        number += secret(f"of 3 5 1 {wire // 64}", wire % 64)
        number -= secret(f"of 3 5 2 {wire // 64}", wire % 64)
        limbs = lanes[0, VALUES:].tolist()
        assert limbs == [number % P >> 15 * limb & 0x7FFF for limb in range(CHECK_LANES)]
