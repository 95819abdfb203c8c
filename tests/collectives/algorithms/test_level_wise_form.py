"""Which form of level-wise all-reduce is chosen."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.collectives.algorithms.level_wise import Siblings, ranks_as_leaves
from hopsum.collectives.algorithms.level_wise_form import (
    FormOptions,
    Shape,
    choose_form,
    flattened,
    form_for,
    most_peers,
    uneven_levels,
)
from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.algorithms.target_parts import Rates, equal_parts, link_loads, time_of
from hopsum.collectives.link_volumes import link_volumes
from hopsum.collectives.schedule import Schedule, ScheduleError
from hopsum.collectives.schedule_checker import check_schedule
from hopsum.collectives.task_messages import form_from, form_message
from hopsum.collectives.tree import Tree
from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.network.paths import PlainRoutes
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.timing.estimate import estimate
from hopsum.timing.work import Background, ScheduleWork

FIGURE_2 = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "b3": "b"}
Row = tuple[int, int, int, int]
LARGE = 10_000_000


def racks(sizes: list[int]) -> tuple[Tree, list[str]]:
    parents = {f"s{i}": "root" for i in range(len(sizes))}
    hosts = [(f"h{i}.{j}", f"s{i}") for i, size in enumerate(sizes) for j in range(size)]
    return Tree("root", parents | dict(hosts)), [host for host, _ in hosts]


def rated(tree: Tree, uplinks: list[int], hosts: int) -> Rates:
    return {
        node: Fraction(uplinks[int(node[1:])] if above == "root" else hosts)
        for node, above in tree.parents.items()
    }


def test_large_tensors_on_alike_links_go_by_rings_of_equal_parts() -> None:
    tree, ranks = racks([4] * 4)
    for uplink, pieces in ((4, 8), (1, 32)):
        # Many pieces only where the upper level is the slowest.
        hosts = 2 * uplink if pieces == 32 else 1
        rates = rated(tree, [uplink] * 4, 4 * hosts if pieces == 32 else hosts)
        form = choose_form(tree, rates, ranks, LARGE)
        assert (form.tree, form.siblings, form.pieces) == (tree, Siblings.RING, pieces)
        assert form.parts == equal_parts(tree)


def test_short_messages_do_not_go_round_a_ring() -> None:
    tree, ranks = racks([4] * 4)
    rates = rated(tree, [32_000_000] * 4, 32_000_000)
    # A rank's part of 16 ranks is 1000 elements, 1 ms on its link.
    for delay, siblings in ((2e-3, Siblings.HIERARCHICAL), (0.5e-3, Siblings.RING)):
        assert choose_form(tree, rates, ranks, 16_000, delay).siblings is siblings
    # But no rank keeps connections to hundreds of others.
    wide, many = racks([1] * 100)
    alike = rated(wide, [1] * 100, 1)
    assert choose_form(wide, alike, many, 10, delay=1e9).siblings is Siblings.RING


def test_delay_is_there_and_back_through_the_tree() -> None:
    # 1 Gbit/s; 8 ranks; 2 links up, 2 down, of 1 ms: 4 ms or 125,000 elements.
    network = load_network("leaf-spine:4x2x1", link_rate=1e9, latency=1e-3)
    ranks = list(network.hosts)[:8]
    assert form_for(network, ranks, 8 * 124_000).siblings is Siblings.HIERARCHICAL
    assert form_for(network, ranks, 8 * 126_000).siblings is Siblings.RING


def test_a_slow_rack_keeps_less() -> None:
    tree, ranks = racks([4, 4, 4, 4])
    rates = rated(tree, [1, 4, 4, 4], 8)
    form = choose_form(tree, rates, ranks, LARGE)
    assert form.siblings is Siblings.HIERARCHICAL
    assert form.parts["s0"] == 0
    loads = link_loads(tree, form.parts)
    assert time_of(loads, rates) == 1 < time_of(link_loads(tree, equal_parts(tree)), rates)


def test_two_branches_are_a_ring_for_any_parts() -> None:
    flat, ranks = racks([4, 2, 4, 2])
    pods = {"s0": "a", "s1": "a", "s2": "b", "s3": "b", "a": "root", "b": "root"}
    tree = Tree("root", {**flat.parents, **pods})
    rates = {node: Fraction(1 if node in "ab" else 4) for node in tree.parents}
    form = choose_form(tree, rates, ranks, LARGE)
    assert form.siblings is Siblings.RING
    assert (form.parts["s0"], form.parts["s1"]) == (Fraction(2, 3), Fraction(1, 3))


def test_where_no_level_binds_there_is_one() -> None:
    tree, ranks = racks([8, 4, 2, 1])
    form = choose_form(tree, rated(tree, [1] * 4, 1), ranks, LARGE)
    assert form.tree == Tree("root", dict.fromkeys(ranks, "root"))
    assert (form.siblings, form.pieces) == (Siblings.RING, 4)
    assert choose_form(tree, rated(tree, [1] * 4, 2), ranks, LARGE).tree == tree


@pytest.mark.slow
@pytest.mark.parametrize("shape", [Shape.FLAT, Shape.LEVELS])
def test_a_rank_that_is_late_holds_the_others_up_no_more_than_in_a_ring(shape: Shape) -> None:
    """Other traffic to one rank takes its link at first; seven hosts, six of them ranks."""
    network, elements = load_network("star:7", link_rate=25e6), 500_000
    hosts = list(network.hosts)
    ranks = hosts[:6]
    form = form_for(network, ranks, elements, FormOptions(shape))

    def seconds(schedule: Schedule) -> float:
        work = ScheduleWork([replace(schedule, names=tuple(ranks))])
        other = Background(hosts[6], ranks[2], size=330_000)
        return estimate(network, work, background=[other]).seconds

    level_wise = seconds(form.all_reduce(ranks, elements))
    assert level_wise < 1.01 * seconds(ring_all_reduce(6, elements))


def turns_of(schedule: Schedule) -> tuple[list[set[Row]], list[set[Row]]]:
    """The (child, sibling, start, stop) of every turn: of the first half, and of the second."""
    turns: dict[tuple[int, int], set[Row]] = {}
    for t in schedule.transfers():
        ends = (t.source, t.target) if t.combine else (t.target, t.source)
        turns.setdefault(t.turn, set()).add((*ends, t.start, t.stop))
    halves: tuple[list[set[Row]], list[set[Row]]] = ([], [])
    for (step, _), rows in turns.items():
        halves[not schedule.steps[step].combine].append(rows)
    return halves


def test_a_flat_ring_is_in_the_order_of_the_tree_and_gathers_in_the_reverse_order() -> None:
    tree = Tree("r", {"a": "r", "b": "r", "c": "a", "d": "b", "e": "a", "f": "a"})
    ranks = ["f", "d", "e", "c"]
    form = choose_form(tree, dict.fromkeys(tree.parents, Fraction(1)), ranks, LARGE)
    assert form.flat
    schedule = form.all_reduce(ranks, LARGE)
    check_schedule(schedule)
    assert schedule.algorithm == "level-wise"
    ways = {(ranks[t.source], ranks[t.target]) for t in schedule.transfers() if t.combine}
    assert ways == {("c", "e"), ("e", "f"), ("f", "d"), ("d", "c")}
    scatter, gather = turns_of(schedule)
    assert len(scatter) == len(gather) == 3 * form.pieces
    for first in range(0, len(scatter), 3):
        assert gather[first : first + 3] == scatter[first : first + 3][::-1]


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(0, 1000),
    st.sampled_from(Shape),
    st.sampled_from([None, *Siblings]),
    st.booleans(),
)
def test_forms_asked_for_are_proved_and_reversed(
    sizes: list[int], elements: int, shape: Shape, siblings: Siblings | None, inner: bool
) -> None:
    tree, ranks = racks(sizes)
    if inner:
        ranks += ["root", "s0"]
        tree = ranks_as_leaves(tree, ranks)
    rates = dict.fromkeys(tree.parents, Fraction(1))
    form = choose_form(tree, rates, ranks, elements, options=FormOptions(shape, siblings))
    if shape is Shape.LEVELS:
        assert not form.flat
        assert form.tree == tree
    if shape is Shape.FLAT:
        assert form.flat
        assert max(form.tree.depths.values()) == 1
    if siblings is not None:
        assert form.siblings is siblings
    schedule = form.all_reduce(ranks, elements)
    check_schedule(schedule)
    if form.pieces == 1:
        scatter, gather = turns_of(schedule)
        assert len(scatter) == len(gather)
        # Steps of one height do not wait for each other, so their order may differ.
        assert set.union(set(), *scatter) == set.union(set(), *gather)


def test_the_form_is_described() -> None:
    tree, ranks = racks([2, 3])
    rates = rated(tree, [1, 1], 1)
    # The document's own example, 2 and 3 leaves: uplinks do not bind.
    said = choose_form(tree, rates, ranks, LARGE).describe()
    assert said.startswith("flat (no link between levels binds; --level-wise-form levels")
    levels = choose_form(tree, rates, ranks, LARGE, options=FormOptions(Shape.LEVELS))
    assert levels.describe().startswith("2 levels: siblings exchange around a ring, equal target")
    wide, many = racks([4, 2, 1])
    slow = rated(wide, [2, 1, 1], 4)
    rings = choose_form(wide, slow, many, LARGE, options=FormOptions(Shape.LEVELS, Siblings.RING))
    assert rings.parts == equal_parts(wide)
    free = choose_form(wide, slow, many, LARGE)
    assert free.describe().startswith("2 levels: siblings exchange hierarchically, unequal target")
    flat = choose_form(
        tree, rates, ranks, LARGE, options=FormOptions(Shape.FLAT, Siblings.HIERARCHICAL)
    )
    assert flat.describe().startswith("flat: all ranks, in the order of the tree, exchange hier")
    star = Tree("s", dict.fromkeys("abc", "s"))
    alike = dict.fromkeys("abc", Fraction(1))
    assert choose_form(star, alike, list("abc"), LARGE).describe().startswith("1 level: ")


def figure_2(rate: float = 1e9) -> Network:
    """[003, figure 2][003]: a root, two parents that are processors too, and 2 and 3 children."""
    builder = NetworkBuilder("figure 2")
    for host in ("root", "a", "b", *FIGURE_2):
        builder.add_host(host)
    for child, above in {"a": "root", "b": "root", **FIGURE_2}.items():
        builder.link(child, above, rate)
    return builder.build()


@pytest.mark.parametrize("siblings", Siblings)
def test_inner_nodes_may_be_processors(siblings: Siblings) -> None:
    network = figure_2()
    ranks = ["a1", "root", "a", "b3", "b", "a2", "b1", "b2"]
    options = FormOptions(Shape.LEVELS, siblings)
    form = form_for(network, ranks, 720 * 3, options)
    below = form.tree.children
    assert form.tree.root == "branch of root"
    assert set(below["branch of root"]) == {"root", "branch of a", "branch of b"}
    assert set(below["branch of b"]) == {"b", "b1", "b2", "b3"}
    schedule = replace(form, pieces=1, parts=equal_parts(form.tree)).all_reduce(ranks, 720)
    check_schedule(schedule)
    links = link_volumes(schedule, PlainRoutes(network).path)
    # Every link carries, each way, what the branch below it does not own, twice.
    shares = {"a": 3, "b": 3, "a1": 9, "a2": 9, "b1": 12, "b2": 12, "b3": 12}
    for child, above in {"a": "root", "b": "root", **FIGURE_2}.items():
        expected = 2 * (720 - 720 // shares[child])
        assert links[child, above] == links[above, child] == expected
    # Without the inner ones as ranks they only forward.
    some = form_for(network, sorted(FIGURE_2), 720, options)
    assert "branch of a" not in some.tree.nodes
    check_schedule(some.all_reduce(sorted(FIGURE_2), 720))


@pytest.mark.parametrize("spec", ["torus:3x3", "complete:4", "hypercube:3"])
@pytest.mark.parametrize("shape", Shape)
def test_hosts_that_forward_are_ranks(spec: str, shape: Shape) -> None:
    network = load_network(spec, link_rate=1e9)
    for count in (1, 2, len(network.hosts)):
        ranks = list(network.hosts)[:count]
        form = form_for(network, ranks, 5000, FormOptions(shape))
        check_schedule(form.all_reduce(ranks, 5000))


def test_options_cross_as_a_message() -> None:
    for options in (FormOptions(), FormOptions(Shape.FLAT, Siblings.HIERARCHICAL)):
        assert form_from(form_message(options)) == options
    assert form_from(pb.LevelWise()) == FormOptions()


@pytest.mark.parametrize("field", ["form", "siblings"])
@pytest.mark.parametrize("number", [-1, 9, 2**31 - 1])
def test_invalid_options_are_refused(field: str, number: int) -> None:
    # Enumerations of protobuf take any number.
    message = pb.LevelWise(**{field: number})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"{field} {number}: expected one of [A-Z]*, [A-Z]*"):
        form_from(message)


def test_the_one_level_is_in_the_order_of_the_tree() -> None:
    tree = Tree("r", {"a": "r", "b": "r", "c": "a", "d": "b", "e": "a", "f": "r"})
    assert list(flattened(tree, ["f", "d", "e", "c"]).parents) == ["c", "e", "d", "f"]


def test_peers_and_uneven_levels() -> None:
    tree, _ = racks([8, 4, 2, 1])
    assert most_peers(tree) == 7 + 3
    assert uneven_levels(tree) == 1
    assert uneven_levels(racks([3, 3])[0]) == 0


@pytest.mark.slow
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 10**6), st.data())
def test_all_forms_are_proved(sizes: list[int], elements: int, data: st.DataObject) -> None:
    tree, ranks = racks(sizes)
    uplinks = [data.draw(st.integers(1, 8)) for _ in sizes]
    form = choose_form(tree, rated(tree, uplinks, data.draw(st.integers(1, 4))), ranks, elements)
    check_schedule(form.all_reduce(ranks, elements))


def test_rates_are_those_of_the_network() -> None:
    network = load_network("leaf-spine:4x2x1", link_rate=8e9, uplink_rate=1e9)
    form = form_for(network, list(network.hosts)[:8], LARGE)
    assert form.tree.heights[form.tree.root] == 2
    check_schedule(form.all_reduce(list(network.hosts)[:8], 1000))


def test_invalid_arguments_are_refused() -> None:
    network = load_network("star:3")
    with pytest.raises(ScheduleError, match=r"level-wise: -1 elements: expected 0 or more"):
        form_for(network, list(network.hosts), -1)
    with pytest.raises(ScheduleError, match=r"level-wise: 0 ranks: expected at least one"):
        form_for(network, [], 1)
    with pytest.raises(ScheduleError, match=r"there are no hosts nobody"):
        form_for(network, ["nobody"], 1)
