"""Calls with a target: over trees rooted at the ranks' hosts, and where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hopsum.collectives.plan import JobPlan, TreePlan
from hopsum.host_agent.node.calls import COPY, SUM_FLOAT, CallSpec
from hopsum.host_agent.node.guesses import SURE
from hopsum.host_agent.node.rank_values import MOST
from hopsum.host_agent.node.roots import Roots, roots_of
from hopsum.host_agent.process_calls import ALL, PARTS, ROOT
from hopsum.host_agent.segment import CallOptions
from hopsum.protocol.wire import ROOT_REDUCTIONS, Reduction
from tests.support.process_job import EXPECTED, Job

PLACEMENTS = {
    "one a host": ["h1", "h2", "h3", "h4"],
    "two a host": ["h1", "h1", "h2", "h2"],
    "one and three": ["h1", "h2", "h2", "h2"],
    "in turns": ["h1", "h2", "h1", "h2"],
}
TARGETS = [ALL, PARTS, *(ROOT + rank for rank in range(4))]


def plan_of(workers: Sequence[str], servers: Sequence[str], **options: Any) -> JobPlan:
    """A plan with trees of which nothing but the servers is known."""
    trees = [TreePlan(n, server, {}, {}, (), (), ()) for n, server in enumerate(servers)]
    return JobPlan(1, 1, tuple(workers), tuple(trees), 256, 64, **options)


def roots(ranks: Sequence[str], sets: int = 2, **options: Any) -> Roots:
    """The roots of a plan with some trees for each host."""
    hosts = [*dict.fromkeys(ranks)]
    found = roots_of(plan_of(hosts, sets * hosts, **options), ranks)
    assert found is not None
    return found


def summed(job: Job, rows: Any, target: int, reduction: str = "sum") -> list[int]:
    """Let each rank sum its row; return the ranks' calls."""
    processes = zip(job.processes, rows, strict=True)
    calls = [process.sum(row, reduction, target) for process, row in processes]
    job.run()
    return calls


def expect(job: Job, calls: Sequence[int], target: int, total: Any) -> None:
    """Check that each rank has what it wants of a total."""
    wanted = CallSpec(SUM_FLOAT, len(total), target)
    for rank, (process, call) in enumerate(zip(job.processes, calls, strict=True)):
        assert process.ended[call] == "done"
        start, stop = wanted.share(rank, len(job.processes))
        np.testing.assert_allclose(
            process.tensors[call][start:stop], total[start:stop], rtol=1e-5, atol=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize("sets", [0, 1, 2])
@pytest.mark.parametrize("ranks", PLACEMENTS.values(), ids=list(PLACEMENTS))
def test_each_rank_gets_what_a_call_is_for(ranks: list[str], sets: int) -> None:
    """Small and long tensors, also when they are guessed, or sure."""
    generator = np.random.default_rng(1)
    job = Job(4, ranks=ranks, sets=sets)
    for turn in range(SURE + 3):
        for elements in (4, 3000, 20_000 if turn < 3 else 4000):
            for target in TARGETS:
                floats = generator.normal(size=(4, elements)).astype(np.float32)
                expect(job, summed(job, floats, target), target, floats.sum(0))
                if target == ALL:
                    continue
                words = generator.integers(-MOST, MOST, (4, elements)).astype(np.int32)
                processes = zip(job.processes, words, strict=True)
                calls = [process.copy(row, target) for process, row in processes]
                job.run()
                copied = words[0] * 0
                for rank in range(4):
                    start, stop = CallSpec(COPY, elements, target).share(rank, 4)
                    copied[start:stop] = words[rank][start:stop]
                for process, call in zip(job.processes, calls, strict=True):
                    np.testing.assert_array_equal(process.tensors[call], copied)
    assert {"guess", "sure", "values", "pack"} <= job.kinds
    split = bool(sets) and ranks != PLACEMENTS["in turns"]
    assert (Reduction.BROADCAST in job.reductions) == split
    assert (Reduction.REDUCE_SUM in job.reductions) == split
    assert (Reduction.XOR in job.reductions) == (not split)


@pytest.mark.parametrize("ranks", PLACEMENTS.values(), ids=list(PLACEMENTS))
def test_every_reduction_goes_to_the_roots(ranks: list[str]) -> None:
    generator = np.random.default_rng(1)
    job = Job(4, ranks=ranks, sets=1)
    for reduction, combine in EXPECTED.items():
        for target in TARGETS:
            rows = generator.integers(-MOST, MOST, (4, 4000)).astype(np.int32)
            calls = summed(job, rows, target, reduction)
            expect(job, calls, target, combine.reduce(rows))
            if reduction in ("max", "min"):
                floats = generator.normal(size=(4, 4000)).astype(np.float32)
                calls = summed(job, floats, target, reduction)
                expect(job, calls, target, combine.reduce(floats))
    if ranks != PLACEMENTS["in turns"]:
        assert set(ROOT_REDUCTIONS) - {Reduction.REDUCE_SUM} <= job.reductions


@pytest.mark.parametrize("sets", [0, 1, 2])
@pytest.mark.parametrize("target", TARGETS[1:])
def test_an_overflow_at_one_rank_is_reported_to_all(target: int, sets: int) -> None:
    job = Job(4, sets=sets)
    for process in job.processes:
        values = np.zeros(4000, np.int32)
        values[3001] = 1 << 30
        process.sum(values, target=target)
        values[3001] = 1 << 28
        process.sum(values, target=target)
    job.run()
    for process in job.processes:
        assert process.ended[0].startswith("element 3001: the sum is 4294967296, beyond int32")
    expect(job, [1] * 4, target, 4 * values)


def test_ranks_that_differ_in_targets_are_named() -> None:
    job = Job(3, sets=1)
    for rank, process in enumerate(job.processes):
        process.sum(np.ones(6, np.float32), target=ROOT + 2 if rank == 1 else PARTS)
        process.copy(np.ones(6, np.int32), PARTS if rank == 1 else ROOT + 1)
        process.sum(np.array([1, np.nan if rank == 1 else 1, 1], np.float32), target=ROOT)
        process.sum(np.ones(6, np.float32), target=ALL if rank == 1 else ROOT + 1)
        process.copy(np.ones(0, np.int32), PARTS)
    job.run()
    for process in job.processes:
        assert process.ended[0].endswith(
            "most call: sum of float32, 6 elements, to each rank a part; "
            "1: sum of float32, 6 elements, to rank 2"
        )
        assert process.ended[1].endswith(
            "most call: broadcast from rank 1, 6 words; 1: all-gather, 6 words"
        )
        assert process.ended[2].endswith("1: element 1 is nan")
        assert process.ended[3].endswith("1: sum of float32, 6 elements")
        assert process.ended[4] == "done"


def test_calls_do_not_wait_for_each_others_values() -> None:
    """As FSDP gathers the next layer's parameters while the last one's gradients are reduced."""
    job = Job(2, sets=2)
    held = job.hold({"values", "pack"})
    for process in job.processes:
        process.sum(np.ones(20_000, np.float32), target=PARTS)
    job.run()
    for process in job.processes:
        process.copy(np.ones(20_000, np.int32), PARTS)
    job.run()
    reductions = [each.options.reduction for each in held()]
    assert reductions == [Reduction.REDUCE_SUM, Reduction.BROADCAST]
    assert not job.processes[0].ended


def test_what_is_copied_has_trees_of_its_own() -> None:
    ranks = PLACEMENTS["one a host"]
    gather, scatter = CallSpec(COPY, 4096, PARTS), CallSpec(SUM_FLOAT, 4096, PARTS)
    parts = ((0, 1024), (1024, 2048), (2048, 3072), (3072, 4096))
    none = ((0, 0),) * 4
    one, two = (roots(ranks, sets) for sets in (1, 2))
    assert one.options(gather, 4096) == CallOptions(Reduction.BROADCAST, ranges=parts)
    assert one.options(scatter, 4096) == CallOptions(Reduction.REDUCE_SUM, ranges=parts)
    assert two.options(gather, 4096) == CallOptions(Reduction.BROADCAST, ranges=(*none, *parts))
    assert two.options(scatter, 4096) == CallOptions(Reduction.REDUCE_SUM, ranges=(*parts, *none))
    assert two.for_all(None, 256) == CallOptions(ranges=[*[(0, 0)] * 7, (0, 256)])
    assert one.for_all(None, 256) == two.for_all(None, 257) == CallOptions()
    from_third = CallSpec(COPY, 9, ROOT + 2)
    assert two.options(from_third, 9).ranges == (*none, (0, 0), (0, 0), (0, 9), (0, 0))


def test_a_hosts_ranks_share_a_tree() -> None:
    """The plan's workers may be in another order than the ranks."""
    ranks = ["h3", "h3", "h1", "h2"]
    found = roots_of(plan_of(["h1", "h2", "h3"], ["h1", "h2", "h3"]), ranks)
    assert found is not None
    options = found.options(CallSpec(COPY, 400, PARTS), 400)
    assert options.ranges == ((200, 300), (300, 400), (0, 200))
    assert found.options(CallSpec(COPY, 400, ROOT + 1), 400).ranges == ((0, 0), (0, 0), (0, 400))


@pytest.mark.parametrize(
    ("ranks", "elements", "target", "split"),
    [
        (4, 1024, PARTS, True),
        (4, 256, PARTS, False),  # four frames to the roots, one for all
        (4, 600, PARTS, True),  # as many as up and down, but for those without lanes
        (4, 400, PARTS, False),
        (2, 2, PARTS, False),
        (2, 300, PARTS, True),
        (4, 4, ROOT + 3, True),
        (4, 4000, ALL, False),
    ],
)
def test_sums_go_to_the_roots_where_that_takes_fewer_bytes(
    ranks: int, elements: int, target: int, split: bool
) -> None:
    found = roots([f"h{rank}" for rank in range(ranks)])
    assert found.splits(CallSpec(SUM_FLOAT, elements, target)) == split


def test_plans_without_roots_at_their_ranks() -> None:
    hosts = ["h1", "h2"]
    assert roots_of(plan_of(hosts, hosts), hosts) is not None
    assert roots_of(plan_of(hosts, ["h3"]), hosts) is None
    assert roots_of(plan_of(hosts, hosts, integrity=True), hosts) is None
    assert roots_of(plan_of(hosts, hosts), ["h1", "h2", "h1"]) is None
