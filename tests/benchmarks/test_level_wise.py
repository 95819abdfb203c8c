"""The table of level-wise all-reduce, and its bound."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.level_wise import (
    HOST_RATE,
    SMALL_SIZES,
    SMALL_TREES,
    TREES,
    Behind,
    SwitchTree,
    bound,
    row,
    worst_cut,
)
from hopsum.collectives.algorithms.rooted import network_tree
from hopsum.collectives.tree import Tree
from hopsum.timing.routes import TCP

ON_WIRE = TCP.packet / TCP.payload + TCP.answer


def by_trying_all(
    tree: Tree, capacities: dict[str, Fraction | None], ranks: frozenset[str]
) -> Fraction:
    """The worst cut by its definition, over all sets of edges."""
    best = Fraction(0)
    edges = [node for node, capacity in capacities.items() if capacity is not None]
    for count in range(1, len(edges) + 1):
        for cut in combinations(edges, count):
            part = {tree.root: tree.root}
            for node in tree.upwards[::-1]:
                if node != tree.root:
                    part[node] = node if node in cut else part[tree.parents[node]]
            ranked = {part[rank] for rank in ranks}
            sending = Fraction(0)
            for node in cut:
                capacity = capacities[node] or Fraction(0)
                for end in (node, tree.parents[node]):
                    sending += capacity * (part[end] in ranked)
            if len(ranked) > 1:
                best = max(best, (len(ranked) - 1) / sending)
    return best


@st.composite
def cases(
    draw: st.DrawFn,
) -> tuple[Tree, dict[str, Fraction | None], frozenset[str]]:
    count = draw(st.integers(2, 8))
    parents = {str(i): str(draw(st.integers(0, i - 1))) for i in range(1, count)}
    rates = st.one_of(st.none(), st.fractions(Fraction(1, 4), 10, max_denominator=4))
    ranks = draw(st.sets(st.sampled_from(["0", *parents]), min_size=1))
    return Tree("0", parents), {node: draw(rates) for node in parents}, frozenset(ranks)


@pytest.mark.slow
@given(cases())
def test_the_worst_cut_is_the_worst_of_all(
    case: tuple[Tree, dict[str, Fraction | None], frozenset[str]],
) -> None:
    assert worst_cut(*case) == by_trying_all(*case)


@pytest.mark.parametrize("uplink", [2.5e9, 10e9, 80e9])
def test_the_bound_of_equal_racks_is_in_closed_form(uplink: float) -> None:
    tree = SwitchTree("", ((8,),) * 4, (uplink,))
    network = tree.network()
    ranks = list(network.hosts)
    bits = 2 * 8_000_000 * ON_WIRE
    expected = max(bits * 31 / 32 / HOST_RATE, bits * 3 / 4 / uplink)
    found = bound(network_tree(network, ranks), network, ranks, 1_000_000)
    assert found == pytest.approx(expected)


@pytest.mark.slow
def test_equal_trees_reach_the_bound_and_slow_uplinks_beat_the_ring() -> None:
    equal, slow, uneven = (
        row(SwitchTree("", shape, (rate,)), 20_000_000)
        for shape, rate in (
            (((4,),) * 4, 40e9),
            (((4,),) * 4, 5e9),
            (((4,), (2,), (1,)), 2.5e9),
        )
    )
    assert equal["of_bound"] > 0.98
    assert equal["both_at_bound"] and not slow["both_at_bound"]
    assert slow["of_bound"] > 0.95
    assert slow["times_ring"] > 1.15
    assert uneven["times_ring"] > 1.15
    for found in (equal, slow, uneven):
        assert found["level_wise_ms"] >= found["bound_ms"]
        assert found["shuffled_ring_ms"] >= found["ring_ms"] >= found["bound_ms"]


@pytest.mark.parametrize("size", SMALL_SIZES)
def test_small_tensors_are_faster_than_round_a_ring(size: int) -> None:
    found = row(next(tree for tree in TREES if tree.name == "4 racks of 2, 4:1"), size)
    assert found["form"] == "hierarchical, equal, 1 piece"
    assert found["times_ring"] > 1.3


@pytest.mark.slow
def test_never_slower_than_the_ring_in_order() -> None:
    # Rates by which levels do not pay, and rates by which they do; slow racks, and skewed ones.
    for shape in (
        ((4,), (2,), (1,)),
        (Behind(20e9, (4,)), Behind(10e9, (2,)), Behind(5e9, (1,))),
        (Behind(1e9, (2,)), Behind(40e9, (4,)), 2),
        (Behind(20e9, ((2,), (1,))), Behind(10e9, (2,))),
        (1, Behind(10e9, (1, Behind(10e9, (1, Behind(10e9, (2,))))))),
    ):
        assert row(SwitchTree("", shape, (10e9,)), 20_000_000)["times_ring"] > 0.99, shape


def test_the_trees_are_those_asked_for() -> None:
    assert len(TREES) >= 10
    for degree in ("1:1", "2:1", "4:1"):
        assert any(tree.name.endswith(f" {degree}") for tree in TREES)
    racks = next(tree for tree in TREES if tree.name == "4 racks of 8, 4:1")
    assert 8 * HOST_RATE / racks.rates[0] == 4
    skew = next(tree for tree in TREES if tree.name == "racks of 8, 4, 2 and 1, 2:1")
    assert [link.bandwidth for link in skew.network().links if link.a == "s1"] == [
        40e9, 20e9, 10e9, 5e9,
    ]  # fmt: skip
    assert set(SMALL_TREES) <= {tree.name for tree in TREES}
