from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.plan import PlanError
from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.planning.bounds.bidirected_cut import bidirected_cut
from hopsum.planning.bounds.cut_proof import CutCertificate, CutDirections, CutWeights
from hopsum.planning.bounds.minimum_cut import Cut, FlowNetwork
from hopsum.planning.bounds.relay import relay_bound
from hopsum.planning.bounds.steiner_cut import steiner_cut
from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.forest import Certificate
from hopsum.planning.model.graph import PlanningGraph, planning_graph
from hopsum.planning.model.linear_program import LinearProgram, Solution, SolverError, Status
from tests.support.search import examples


def graph_of(
    edges: Iterable[tuple[str, str, Fraction | int]],
    workers: Iterable[str],
    plain: Iterable[str] = (),
) -> PlanningGraph:
    """Nodes in the order of the edges; all but the plain ones combine."""
    nodes: dict[str, None] = {}
    capacity: dict[tuple[str, str], Fraction] = {}
    for u, v, c in edges:
        nodes |= {u: None, v: None}
        order = list(nodes)
        key = (u, v) if order.index(u) < order.index(v) else (v, u)
        capacity[key] = capacity.get(key, Fraction(0)) + c
    latency = dict.fromkeys(capacity, 0.0)
    combines = frozenset(nodes) - frozenset(plain)
    return PlanningGraph("test", tuple(nodes), capacity, latency, frozenset(workers), combines)


def named(spec: str, *, plain: bool = False, uplink: float | None = None) -> PlanningGraph:
    """A network by name, with unit links; the host `ps` is no worker, if there is one."""
    options = TopologyOptions(
        link_rate=1.0, uplink_rate=uplink, servers=0, plain=("all",) if plain else ()
    )
    return planning_graph(make_topology(spec, options))


def combination(middle: int, each: int) -> PlanningGraph:
    """A root, `middle` nodes under it, and a terminal under every `each` of these."""
    edges: list[tuple[str, str, int]] = [("r", f"m{i}", 1) for i in range(middle)]
    chosen = list(combinations(range(middle), each))
    edges += [(f"m{i}", f"t{t}", 1) for t, under in enumerate(chosen) for i in under]
    return graph_of(edges, [f"t{t}" for t in range(len(chosen))])


def check_proof(graph: PlanningGraph, proof: Certificate, plain_may_copy: bool = False) -> None:
    """Everything the argument of `cut_proof` needs of the weights, and that they add up."""
    assert isinstance(proof, CutCertificate)
    weights = proof.weights
    assert proof.parts == weights.parts
    assert all(weight > 0 for weight in weights.weights)
    assert all(graph.workers & frozenset(part) for part in weights.parts)
    assert not weights.potentials.keys() & (graph.combines | frozenset(weights.roots))
    if plain_may_copy:
        assert weights.ways is CutDirections.UP or not weights.potentials
    z = dict(zip(map(frozenset, weights.parts), weights.weights, strict=True))
    into_roots = [sum((w for u, w in z.items() if v in u), Fraction(0)) for v in weights.roots]
    forced = sum(z.values(), Fraction(0)) - max(into_roots)
    offered = Fraction(0)
    p = weights.potentials
    for (u, v), capacity in graph.capacity.items():
        lengths = [
            max(
                Fraction(0),
                sum((w for inside, w in z.items() if b in inside and a not in inside), Fraction(0))
                + p.get(a, Fraction(0))
                - p.get(b, Fraction(0)),
            )
            for a, b in ((u, v), (v, u))
        ]
        offered += capacity * (sum(lengths) if weights.ways is CutDirections.UP else max(lengths))
    assert proof.bound * forced == offered


def least_cut(graph: PlanningGraph, root: str | None) -> Fraction:
    """By trying all sets of nodes."""
    joined = graph.workers | ({root} if root else frozenset())
    least = None
    for size in range(1, len(graph.nodes)):
        for inside in map(frozenset, combinations(graph.nodes, size)):
            if joined & inside and joined - inside:
                value = sum(
                    (c for (u, v), c in graph.capacity.items() if (u in inside) != (v in inside)),
                    Fraction(0),
                )
                least = value if least is None else min(least, value)
    assert least is not None
    return least


@st.composite
def small_networks(draw: st.DrawFn) -> PlanningGraph:
    """Connected; some nodes work, some of the others combine."""
    count = draw(st.integers(3, 6))
    names = [f"n{i}" for i in range(count)]
    capacity = st.integers(1, 6)
    edges = [
        (names[draw(st.integers(0, i - 1))], names[i], draw(capacity)) for i in range(1, count)
    ]
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names), capacity)
    edges += [(u, v, c) for u, v, c in draw(st.lists(pairs, max_size=8)) if u != v]
    workers = draw(st.sets(st.sampled_from(names), min_size=2))
    plain = draw(st.sets(st.sampled_from(names))) - workers
    return graph_of(edges, workers, plain)


@pytest.mark.slow
@settings(max_examples=examples(33, of=100))
@given(small_networks(), st.booleans())
def test_no_cut_is_narrower(graph: PlanningGraph, rooted: bool) -> None:
    root = graph.nodes[-1] if rooted and graph.workers != {graph.nodes[-1]} else None
    proof = steiner_cut(graph, root)
    assert proof.bound == least_cut(graph, root)
    inside = frozenset(proof.parts[0])
    assert sorted(proof.parts[0] + proof.parts[1]) == sorted(graph.nodes)
    assert proof.bound == sum(
        c for (u, v), c in graph.capacity.items() if (u in inside) != (v in inside)
    )
    assert root not in inside


@pytest.mark.parametrize(("middle", "each", "cut"), [(3, 2, 2), (4, 2, 2), (4, 3, 3), (5, 3, 3)])
def test_combination_networks(middle: int, each: int, cut: int) -> None:
    """Trees reach only 9/5, 16/9 and 8/3 in the first three: neither cut sees it."""
    graph = combination(middle, each)
    assert steiner_cut(graph, "r").bound == cut
    proof = bidirected_cut(graph, "r")
    assert proof.bound == cut
    check_proof(graph, proof)


def test_nested_cuts_have_no_arc_in_common() -> None:
    """A path whose links carry 5, 2, 4, 3, 9: below 5, first the 2 and then the 3 and the 4."""
    network = FlowNetwork(6)
    for node, capacity in enumerate((5, 2, 4, 3, 9)):
        network.add(node, node + 1, capacity)
    cuts = [(cut.value, sorted(cut.near)) for cut in network.nested_cuts({0}, 5, 5)]
    assert cuts == [(2, [2, 3, 4, 5]), (3, [4, 5]), (4, [3, 4, 5])]
    assert network.minimum_cut({0}, 5, 5).value == 2
    assert network.minimum_cut({0}, 5, 2) == Cut(2, frozenset(), frozenset())


def test_an_unknown_root_is_named() -> None:
    with pytest.raises(PlanError, match=r"root 'ps'.*no such node"):
        steiner_cut(named("star:3"), "ps")
    with pytest.raises(PlanError, match=r"root 'ps'.*no such node"):
        bidirected_cut(named("star:3"), "ps")


def test_one_worker_has_no_cut() -> None:
    graph = graph_of([("a", "b", 1)], ["a"])
    with pytest.raises(PlanError, match="a has no other node to sum with"):
        steiner_cut(graph)
    assert steiner_cut(graph, "b").bound == 1


def compact_optimum(graph: PlanningGraph, root: str | None, plain: frozenset[str]) -> Fraction:
    """The same program with a flow of X to each worker in place of the cuts."""
    roots = [root] if root else [name for name in graph.nodes if name in graph.combines]
    program = LinearProgram(maximise=True)
    rate = program.add_variable(1.0)
    arcs = [arc for u, v in graph.capacity for arc in ((u, v), (v, u))]
    y = {arc: program.add_variable() for arc in arcs}
    x = {name: program.add_variable() for name in roots}
    program.add_constraint(dict.fromkeys(x.values(), 1.0) | {rate: -1.0}, lower=0.0, upper=0.0)
    for (u, v), capacity in graph.capacity.items():
        program.add_constraint({y[u, v]: 1.0, y[v, u]: 1.0}, upper=float(capacity))
    for node in plain - {root}:
        terms = {y[arc]: 1.0 if arc[1] == node else -1.0 for arc in arcs if node in arc}
        program.add_constraint(terms, lower=0.0, upper=0.0)
    for worker in graph.workers - {root}:
        flow = {arc: program.add_variable() for arc in arcs}
        start = {name: program.add_variable() for name in roots}
        for arc in arcs:
            program.add_constraint({flow[arc]: 1.0, y[arc]: -1.0}, upper=0.0)
        for name in roots:
            program.add_constraint({start[name]: 1.0, x[name]: -1.0}, upper=0.0)
        for node in graph.nodes:
            terms = {flow[arc]: 1.0 if arc[1] == node else -1.0 for arc in arcs if node in arc}
            terms |= {start[node]: 1.0} if node in start else {}
            terms |= {rate: -1.0} if node == worker else {}
            program.add_constraint(terms, lower=0.0, upper=0.0)
    solution = program.solve()
    assert solution.status is Status.OPTIMAL
    return Fraction(solution.objective).limit_denominator(10**4)


@pytest.mark.slow
@settings(max_examples=examples(20, of=60))
@given(small_networks())
def test_any_worker_proves_for_all_roots(graph: PlanningGraph) -> None:
    """The proof has one root, whether or not another was asked for."""
    everyone = replace(graph, combines=frozenset(graph.nodes))
    free = bidirected_cut(everyone)
    for worker in everyone.workers:
        assert bidirected_cut(everyone, worker).bound == free.bound


@pytest.mark.slow
@settings(max_examples=examples(20, of=60))
@given(small_networks())
def test_relay_bound_is_the_optimum_of_flows(graph: PlanningGraph) -> None:
    proof = relay_bound(graph)
    if graph.every_node_works:
        assert proof == strength(graph)
        return
    assert proof.bound == compact_optimum(graph, None, frozenset(graph.nodes) - graph.combines)
    check_proof(graph, proof)


@pytest.mark.parametrize("seed", range(8))
def test_larger_networks_take_many_cuts(seed: int) -> None:
    rng = random.Random(seed)
    regular = nx.random_regular_graph(4, 16, seed=seed)
    edges = [(f"n{u}", f"n{v}", rng.randint(1, 9)) for u, v in sorted(map(sorted, regular.edges))]
    workers = [f"n{i}" for i in range(6)]
    plain = [f"n{i}" for i in range(6, 16)]
    graph = graph_of(edges, workers, plain)
    assert relay_bound(graph).bound == compact_optimum(graph, None, frozenset(plain))
    graph = graph_of(edges, workers)
    assert bidirected_cut(graph).bound == compact_optimum(graph, None, frozenset())
    assert bidirected_cut(graph, "n9").bound == compact_optimum(graph, "n9", frozenset())


@pytest.mark.slow
@settings(max_examples=examples(20, of=60))
@given(small_networks(), st.booleans())
def test_bidirected_cut_is_the_optimum_of_flows(graph: PlanningGraph, rooted: bool) -> None:
    root = min(graph.workers, key=graph.index.__getitem__) if rooted else None
    everyone = replace(graph, combines=frozenset(graph.nodes))
    free = bidirected_cut(everyone, root)
    assert free.bound == compact_optimum(everyone, root, frozenset())
    assert free.bound <= steiner_cut(graph, root).bound
    proof = bidirected_cut(graph, root)
    assert proof.bound <= free.bound
    if not graph.every_node_works:
        check_proof(everyone, free)
        check_proof(graph, proof, plain_may_copy=True)


def test_weights_add_up_by_hand() -> None:
    """Two workers on a switch: into each, once; wherever the root is, one of the two starts there.

    a-s may carry 2 and s-b 3: every all-reduce puts 1 on a-s and s-b together.
    """
    graph = graph_of([("a", "s", 2), ("s", "b", 3)], ["a", "b"])
    one = Fraction(1)
    weights = CutWeights((("a",), ("b",)), (one, one), {}, ("a", "s", "b"))
    assert weights.lengths(graph) == {("a", "s"): 0, ("s", "a"): 1, ("s", "b"): 1, ("b", "s"): 0}
    assert weights.least == 1
    assert weights.rate(graph) == 5
    assert weights.total(graph) == 1
    assert weights.hottest(graph) == Fraction(1, 2)
    up = replace(weights, potentials={"s": Fraction(-1, 2)}, ways=CutDirections.UP)
    half = Fraction(1, 2)
    assert up.lengths(graph) == dict.fromkeys(up.lengths(graph), half)
    assert up.rate(graph) == 5
    assert up.total(graph) == 2
    assert up.hottest(graph) == Fraction(1, 2)


@pytest.mark.parametrize("workers", [2, 5, 16])
def test_relays_on_one_switch(workers: int) -> None:
    """The closed form of a star: each of n workers sends and gets 2 (n - 1) / n of the data."""
    proof = relay_bound(named(f"star:{workers}", plain=True))
    assert proof.bound == Fraction(workers, 2 * (workers - 1))


@pytest.mark.parametrize(
    ("spec", "uplink", "expected"),
    [
        ("leaf-spine:4x4", None, Fraction(16, 30)),
        ("leaf-spine:4x4", 0.0625, Fraction(4 * 1, 4 * 6)),
        ("leaf-spine:2x8x1", 0.25, Fraction(2, 8)),
        ("fat-tree:4", None, Fraction(16, 30)),
        ("dragonfly:2", None, Fraction(72, 142)),
    ],
)
def test_relays_in_racks(spec: str, uplink: float | None, expected: Fraction) -> None:
    """The lesser of n/2(n-1) of the hosts' links and k/2(k-1) of the uplinks of k racks."""
    graph = named(spec, plain=True, uplink=uplink)
    proof = relay_bound(graph)
    assert proof.bound == expected
    check_proof(graph, proof)


def test_switches_that_sum_double_the_rate() -> None:
    graph = named("fat-tree:4")
    assert bidirected_cut(graph).bound == 1
    assert relay_bound(named("fat-tree:4", plain=True)).bound == Fraction(8, 15)


def test_plain_switches_send_every_flow_up_and_may_copy_results() -> None:
    """One server behind a plain switch: n flows up its link, one copied result down."""
    edges = [(f"h{i}", "s", 1) for i in range(4)] + [("ps", "s", 2)]
    workers = [f"h{i}" for i in range(4)]
    graph = graph_of(edges, workers, plain=["s", "ps"])
    assert steiner_cut(graph, "ps").bound == 1
    proof = bidirected_cut(graph, "ps")
    assert proof.bound == 1
    check_proof(graph, proof, plain_may_copy=True)


def test_a_helper_at_the_switch_counts() -> None:
    """A host that lends itself sums what the plain switch cannot."""
    edges = [(f"h{i}", "s", 1) for i in range(4)] + [("helper", "s", 8)]
    workers = [f"h{i}" for i in range(4)]
    assert relay_bound(graph_of(edges, workers, plain=["s"])).bound == 1
    assert relay_bound(graph_of(edges, workers, plain=["s", "helper"])).bound == Fraction(2, 3)


def test_where_every_node_works_all_are_the_strength() -> None:
    graph = named("torus:4x4")
    assert relay_bound(graph) == bidirected_cut(graph, "h3") == strength(graph)


def test_a_search_cut_short_still_proves() -> None:
    graph = named("dragonfly:2", uplink=0.1)
    proof = bidirected_cut(graph, time_limit=0.0)
    check_proof(graph, proof)
    assert proof.bound >= bidirected_cut(graph).bound == Fraction(9, 35)


def test_a_solver_that_gives_up_leaves_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    solve, solved = LinearProgram.solve, []

    def once(program: LinearProgram) -> Solution:
        solved.append(program)
        if len(solved) > 1:
            raise SolverError("HiGHS ended with Unknown")
        return solve(program)

    graph = named("dragonfly:2", uplink=0.1)
    best = bidirected_cut(graph).bound
    monkeypatch.setattr(LinearProgram, "solve", once)
    proof = bidirected_cut(graph)
    check_proof(graph, proof)
    assert len(solved) > 1
    assert proof.bound >= best


def test_a_network_in_pieces_carries_nothing() -> None:
    graph = graph_of([("a", "s", 1), ("b", "t", 1)], ["a", "b"], ["s"])
    for proof in (relay_bound(graph), bidirected_cut(graph), bidirected_cut(graph, "a")):
        assert proof.bound == 0
        check_proof(graph, proof, plain_may_copy=True)


def test_the_text_names_a_rack() -> None:
    """The data of h1's rack are anywhere else only by the links into the other."""
    proof = relay_bound(named("leaf-spine:2x2x1", plain=True, uplink=0.25))
    assert [set(part) - {"s1"} for part in proof.parts] == [{"h3", "h4", "l2"}]
    assert proof.text.startswith("one set of nodes that the data must enter, {h3, h4, l2")
    assert proof.text.endswith(
        "a unit of the data puts 1 on the links around them, whose capacity is 1/4: at most 1/4"
    )
