from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.collectives.plan import PlanError
from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.planning.bounds.pipelining import PipelinedTree, least_seconds
from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.graph import planning_graph

positive = st.fractions(min_value=Fraction(1, 50), max_value=50, max_denominator=50)
pipelines = st.builds(PipelinedTree, st.integers(1, 9), positive, positive, positive)


def simulated(tree: PipelinedTree, chunks: int) -> Fraction:
    """Chunk after chunk over 2h hops, each hop busy with one chunk at a time, latency included."""
    step = tree.hop + tree.size / (chunks * tree.rate)
    free = [Fraction(0)] * (2 * tree.height)
    at = Fraction(0)
    for _ in range(chunks):
        at = Fraction(0)
        for hop, busy in enumerate(free):
            at = free[hop] = max(at, busy) + step
    return at


@pytest.mark.slow
@given(pipelines, st.integers(1, 12))
def test_the_time_is_that_of_chunk_after_chunk(tree: PipelinedTree, chunks: int) -> None:
    assert tree.seconds(chunks) == simulated(tree, chunks)


@pytest.mark.slow
@given(pipelines)
def test_no_other_number_of_chunks_is_faster(tree: PipelinedTree) -> None:
    best = tree.best_chunks(40)
    assert tree.seconds(best) == min(tree.seconds(chunks) for chunks in range(1, 41))


@pytest.mark.slow
@given(pipelines)
def test_the_formula_is_below_whole_chunks(tree: PipelinedTree) -> None:
    """t - (2h - 1) a - M / r is at least 2 sqrt((2h - 1) a M / r), compared in squares."""
    start = (2 * tree.height - 1) * tree.hop
    rest = tree.seconds(tree.best_chunks(10**6)) - start - tree.size / tree.rate
    assert rest**2 >= 4 * start * tree.size / tree.rate


def test_the_formula_is_reached_where_chunks_are_whole() -> None:
    """h = 2, a = 1, M = 48, r = 1: 12 chunks, and t* = 3 + 48 + 2 * 12."""
    tree = PipelinedTree(2, Fraction(1), Fraction(48), Fraction(1))
    assert tree.best_chunks(10**6) == 12
    assert tree.seconds(12) == 3 + 48 + 24


def test_without_latency_the_smallest_chunks_are_best() -> None:
    tree = PipelinedTree(3, Fraction(0), Fraction(10), Fraction(2))
    assert tree.best_chunks(1000) == 1000
    assert tree.seconds(1000) == 5 + Fraction(5 * 5, 1000)


@pytest.mark.parametrize(
    ("fields", "message"),
    [((0, 1, 1, 1), "height 0"), ((1, 1, 1, 0), "rate 0"), ((1, -1, 1, 1), "latency -1")],
)
def test_invalid_trees_are_refused(fields: tuple[int, int, int, int], message: str) -> None:
    height, *rest = fields
    with pytest.raises(PlanError, match=message):
        PipelinedTree(height, *map(Fraction, rest))


def test_no_chunks_are_refused() -> None:
    with pytest.raises(PlanError, match="0 chunks"):
        PipelinedTree(1, Fraction(1), Fraction(1), Fraction(1)).seconds(0)


def test_the_floor_is_latency_or_bandwidth() -> None:
    graph = planning_graph(make_topology("torus:1x8", TopologyOptions(link_rate=7.0, latency=0.25)))
    rate = strength(graph).bound
    assert rate == 8
    assert least_seconds(graph, Fraction(4), rate) == 1
    assert least_seconds(graph, Fraction(80), rate) == 10
    with pytest.raises(PlanError, match="expected above 0"):
        least_seconds(graph, Fraction(1), Fraction(0))
