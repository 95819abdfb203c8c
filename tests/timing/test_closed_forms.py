"""Bytes of every algorithm on every fabric: closed forms against what is counted link by link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.algorithms.catalogue import MULTI_TREE, SCHEDULES, make_schedule
from hopsum.collectives.algorithms.rooted import network_tree
from hopsum.collectives.algorithms.trees import SharedTree, server_all_reduce
from hopsum.collectives.choices import Collective
from hopsum.collectives.link_volumes import link_volumes
from hopsum.collectives.operation import fragments_of
from hopsum.collectives.plan import DataType
from hopsum.collectives.schedule import Schedule
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.network.paths import PlainRoutes
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.wire import frame_bytes
from hopsum.timing.estimate import estimate
from hopsum.timing.work import PlanWork
from tests.oracles import closed_forms
from tests.oracles.closed_forms import Fabric, Load, fat_tree, leaf_spine, star
from tests.support.search import examples

Form = Callable[[Fabric, int], Load]
ODD = [0, 1, 2, 7, 97, 240, 1009]
"""Elements: few of these divide by anything."""
FABRICS = [
    *((f"star:{n}", star(n)) for n in (1, 2, 3, 4, 5, 6, 7, 8, 13, 16)),
    *(
        (f"leaf-spine:{leaves}x{hosts}x{spines}", leaf_spine(leaves, hosts))
        for leaves, hosts, spines in [
            (2, 1, 1), (2, 2, 1), (2, 4, 2), (3, 2, 2), (3, 3, 1), (4, 1, 2), (4, 4, 4), (4, 8, 3),
            (5, 3, 2), (8, 2, 1), (8, 4, 2),
        ]
    ),
    *((f"fat-tree:{k}", fat_tree(k)) for k in (2, 4, 6)),
]  # fmt: skip
POWERS = [
    (spec, fabric)
    for spec, fabric in FABRICS
    if spec.startswith("star") or not any(group & (group - 1) for group in fabric.groups)
]


def ranked(spec: str, fabric: Fabric, *, one_way_up: bool = False) -> tuple[Network, list[str]]:
    """A network, every host but an extra server a rank; with one switch above another if wanted."""
    network = load_network(spec)
    ranks = list(network.hosts)[: fabric.ranks]
    if one_way_up:
        k = 2 * fabric.groups[0]
        kept = {"c1", *(f"a{pod * k // 2 + 1}" for pod in range(k))}
        if spec.startswith("leaf-spine"):
            kept = {"s1", *(name for name in network.switches if name[0] == "l")}
        if not spec.startswith("star"):
            above = [s for s in network.switches if s not in kept and s[0] != "e"]
            network = network.without(nodes=above)
    return network, ranks


def counted(network: Network, schedule: Schedule) -> Load:
    volumes = link_volumes(schedule, PlainRoutes(network).path)
    return Load(sum(volumes.values()), max(volumes.values(), default=0))


def made(algorithm: str, network: Network, ranks: Sequence[str], elements: int) -> Load:
    return counted(network, make_schedule(algorithm, network, ranks, elements))


@pytest.mark.parametrize(("spec", "fabric"), FABRICS)
@pytest.mark.parametrize("one_way_up", [False, True])
def test_ring(spec: str, fabric: Fabric, one_way_up: bool) -> None:
    network, ranks = ranked(spec, fabric, one_way_up=one_way_up)
    for elements in ODD:
        found = made("ring", network, ranks, elements)
        assert found == closed_forms.ring(fabric, elements), elements


@pytest.mark.parametrize(("spec", "fabric"), POWERS)
@pytest.mark.parametrize("one_way_up", [False, True])
def test_halving_doubling(spec: str, fabric: Fabric, one_way_up: bool) -> None:
    network, ranks = ranked(spec, fabric, one_way_up=one_way_up)
    for elements in ODD:
        found = made("halving-doubling", network, ranks, elements)
        expected = closed_forms.halving_doubling(fabric, elements)
        assert found.total == expected.total, elements
        if elements >= fabric.ranks:
            assert found.hottest == expected.hottest, elements


@pytest.mark.parametrize(("spec", "fabric"), FABRICS)
def test_server(spec: str, fabric: Fabric) -> None:
    among = spec.startswith("fat-tree")
    network = load_network(spec)
    placement = place(network, fabric.ranks - among)
    if not placement.workers:
        return
    for elements in ODD:
        schedule = server_all_reduce(placement.workers, elements, placement.servers)
        expected = closed_forms.server(fabric, elements, among=among)
        assert counted(network, schedule) == expected, elements


@pytest.mark.parametrize(
    ("algorithm", "form", "spec", "fabric"),
    [("tree", closed_forms.tree, *each) for each in FABRICS]
    + [("double-tree", closed_forms.double_tree, *each) for each in POWERS],
)
def test_trees_of_ranks(algorithm: str, form: Form, spec: str, fabric: Fabric) -> None:
    for one_way_up in (True, False):
        network, ranks = ranked(spec, fabric, one_way_up=one_way_up)
        for elements in ODD:
            found = made(algorithm, network, ranks, elements)
            expected = form(fabric, elements)
            assert found.total == expected.total, elements
            assert found.hottest <= expected.hottest
            assert found.hottest == expected.hottest or not one_way_up


@pytest.mark.parametrize(("spec", "fabric"), FABRICS)
def test_multi_tree(spec: str, fabric: Fabric) -> None:
    """A tree from every switch of the top level, with shares that differ."""
    network, ranks = ranked(spec, fabric)
    if len(ranks) < 2:
        return
    top = "c" if spec.startswith("fat-tree") else "s"
    roots = [name for name in network.switches if name.startswith(top)]
    trees = [
        SharedTree(network_tree(network, ranks, root), number)  # type: ignore[arg-type]
        for number, root in enumerate(roots, 1)
    ]
    for elements in ODD:
        schedule = make_schedule(MULTI_TREE, network, ranks, elements, trees)
        assert counted(network, schedule) == closed_forms.multi_tree(fabric, elements), elements


@pytest.mark.parametrize(("spec", "fabric"), FABRICS)
@pytest.mark.parametrize("one_way_up", [False, True])
def test_level_wise(spec: str, fabric: Fabric, one_way_up: bool) -> None:
    network, ranks = ranked(spec, fabric, one_way_up=one_way_up)
    for elements in [*ODD, 12 * len(ranks), 4096 * len(ranks) ** 2]:
        found = made("level-wise", network, ranks, elements)
        expected = closed_forms.level_wise(fabric, elements)
        assert found.total == expected.total, elements
        if elements % len(ranks) == 0:
            assert found.hottest == expected.hottest, elements
        else:
            children = [above // below for below, above in pairwise([1, *fabric.groups])]
            rounding = sum(2 * count + 4 for count in children)
            assert abs(found.hottest - expected.hottest) <= rounding


@pytest.mark.parametrize(("spec", "fabric"), FABRICS)
@pytest.mark.parametrize("data_type", DataType)
def test_in_network(spec: str, fabric: Fabric, data_type: DataType) -> None:
    among = spec.startswith("fat-tree")
    network = load_network(spec)
    placement = place(network, fabric.ranks - among)
    plan = plan_job(network, PlanRequest(1, 1, placement.workers, placement.servers))
    for elements in ODD:
        prediction = estimate(network, PlanWork(plan, [(elements, data_type)]))
        found = Load(prediction.total_bytes, max(prediction.links.values(), default=0))
        [(prologues, data)] = fragments_of(plan, Collective.ALL_REDUCE, elements, data_type)

        def load(fragments: int, lanes: int) -> Load:
            return closed_forms.in_network(
                fabric, fragments, lambda hops: frame_bytes(lanes, hops), among=among
            )

        parts = zip(load(data, plan.lanes), load(prologues, 0), strict=True)
        assert found == Load(*map(sum, parts)), elements


@pytest.mark.slow
@given(st.integers(1, 24), st.integers(0, 500))
@settings(max_examples=examples(20, of=60))
def test_any_star(n: int, elements: int) -> None:
    network, ranks = ranked(f"star:{n}", star(n))
    for algorithm in SCHEDULES:
        form = getattr(closed_forms, algorithm.replace("-", "_"))
        expected = form(star(n), elements)
        found = made(algorithm, network, ranks, elements)
        assert found.total == expected.total, algorithm
        if algorithm != "level-wise" or elements % n == 0:
            assert found.hottest == expected.hottest, algorithm


def test_every_algorithm_has_its_form() -> None:
    for algorithm in (*SCHEDULES, MULTI_TREE, "server", "in-network"):
        assert callable(getattr(closed_forms, algorithm.replace("-", "_")))


def test_cases_without_a_closed_form_are_refused() -> None:
    for form in (closed_forms.halving_doubling, closed_forms.double_tree):
        with pytest.raises(ValueError, match=r"groups of 3, 12 ranks: 3 is no power of two; count"):
            form(leaf_spine(4, 3), 10)
