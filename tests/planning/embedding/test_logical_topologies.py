from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.collectives.algorithms.host_part import host_part_all_reduce
from hopsum.collectives.link_volumes import link_volumes
from hopsum.collectives.plan import PlanError
from hopsum.collectives.schedule_checker import check_schedule
from hopsum.network.model import Network
from hopsum.network.paths import PlainRoutes
from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.planning.embedding.capacities import Capacities
from hopsum.planning.embedding.elastic_tree import cheapest_tree, rotated_trees
from hopsum.planning.embedding.embedding_plan import Part
from hopsum.planning.embedding.logical_topologies import (
    LogicalTopology,
    Paths,
    aggregation_tree,
    in_network_tree,
    parameter_server,
    physical_order,
    ring,
)
from hopsum.planning.embedding.plan_builder import host_part
from hopsum.planning.embedding.regions import Region, find_regions
from hopsum.planning.embedding.switch_trees import SwitchTrees
from hopsum.planning.model.demand import JobDemand, all_resources
from tests.support.search import examples

NETWORKS = {
    spec: make_topology(spec, TopologyOptions(link_rate=1.0))
    for spec in ("leaf-spine:3x3x2", "fat-tree:4", "line:3x2", "torus:3x3")
}


def racks(leaves: int, hosts: int, uplink: float) -> Network:
    """Racks under one spine; hosts have links of 1 bit/s."""
    return make_topology(f"leaf-spine:{leaves}x{hosts}x1", TopologyOptions(1.0, uplink))


def workers_of(network: Network) -> tuple[str, ...]:
    return tuple(host for host in network.hosts if host != "ps")


def regions_of(network: Network, workers: tuple[str, ...], auxiliary: tuple[str, ...]) -> Region:
    return find_regions(all_resources(network), Paths(network), workers, auxiliary)


def seconds(network: Network, parts: list[tuple[LogicalTopology, Fraction]]) -> Fraction:
    """Of the busiest link for one byte, in eighths: units of data over bandwidth."""
    demand = JobDemand(1, workers_of(network), (1,))
    times = Capacities(all_resources(network)).exact_times([(demand, t, w) for t, w in parts])
    return max(times) / 8


SHAPES = [(2, 2, "0.5"), (3, 4, "1"), (4, 4, "2"), (4, 2, "3"), (1, 4, "1")]


@pytest.mark.parametrize(("leaves", "hosts", "uplink"), SHAPES)
def test_closed_forms_on_racks(leaves: int, hosts: int, uplink: str) -> None:
    network = racks(leaves, hosts, float(uplink))
    workers, paths = workers_of(network), Paths(network)
    narrow, count = Fraction(uplink), leaves * hosts
    one = Fraction(1)

    server = parameter_server(paths, workers, workers[0])
    outside = count - hosts
    assert seconds(network, [(server, one)]) == max(Fraction(count - 1), outside / narrow)

    around = ring(paths, physical_order(network, workers))
    each = Fraction(2 * (count - 1), count)
    wide = min(one, narrow) if leaves > 1 else one
    assert seconds(network, [(around, one)]) == each / wide

    whole = regions_of(network, workers, ())
    trees = [aggregation_tree(paths, root, parents) for root, parents in rotated_trees(whole)]
    if not whole.parts:
        assert narrow >= hosts or leaves == 1
        return
    single = max(Fraction(hosts - 1 + leaves - 1), (leaves - 1) / narrow)
    assert seconds(network, [(trees[0], one)]) == single
    rotated = max(each, Fraction(2 * (leaves - 1), leaves) / narrow)
    assert seconds(network, [(tree, Fraction(1, count)) for tree in trees]) == rotated


def test_a_ring_in_another_order_crosses_the_spine_more_often() -> None:
    network = racks(2, 4, 1.0)
    workers = workers_of(network)
    apart = tuple(host for pair in zip(workers[:4], workers[4:], strict=True) for host in pair)
    assert physical_order(network, apart) == workers
    good = ring(Paths(network), physical_order(network, apart))
    bad = ring(Paths(network), apart)
    assert seconds(network, [(bad, Fraction(1))]) == 4 * seconds(network, [(good, Fraction(1))])


def test_workers_that_are_cut_off_have_no_order() -> None:
    network = make_topology("line:2x1", TopologyOptions(link_rate=1.0)).without(nodes=["s1"])
    with pytest.raises(PlanError, match="ranks h1 are not connected"):
        physical_order(network, ("h1",))


def test_the_ring_of_a_torus_is_physical() -> None:
    network = make_topology("torus:3x4", TopologyOptions(link_rate=1.0))
    order = physical_order(network, tuple(network.hosts))
    assert set(ring(Paths(network), order).traffic) == set(
        zip(order, (*order[1:], order[0]), strict=True)
    )


def test_regions_are_there_only_under_oversubscription() -> None:
    for uplink, expected in ((1.9, 2), (2.0, 0)):
        network = racks(2, 2, uplink)
        whole = regions_of(network, workers_of(network), ())
        assert len(whole.parts) == expected
    network = racks(3, 2, 0.5)
    # A single worker in a rack has no other node to sum with.
    whole = regions_of(network, ("h1", "h2", "h3"), ("h4", "ps"))
    assert [part.workers for part in whole.parts] == [("h1", "h2")]
    assert whole.parts[0].hosts == ("h1", "h2", "ps")
    assert whole.workers == ("h3",)


def test_regions_nest_in_a_fat_tree() -> None:
    network = make_topology("fat-tree:4", TopologyOptions(2.0, 1.0))
    whole = regions_of(network, tuple(network.hosts), ())
    assert [len(list(pod.all_workers())) for pod in whole.parts] == [4, 4, 4, 4]
    assert [[len(edge.workers) for edge in pod.parts] for pod in whole.parts] == [[2, 2]] * 4
    assert not whole.workers
    roots = [root for root, _ in rotated_trees(whole)]
    assert sorted(roots) == sorted(network.hosts)


def test_hosts_that_forward_have_no_regions() -> None:
    network = NETWORKS["torus:3x3"]
    assert not regions_of(network, tuple(network.hosts), ()).parts


def all_trees(region: Region, aggregator: str) -> list[dict[str, str]]:
    """Every elastic tree under an aggregator of a region."""
    ways: list[list[dict[str, str]]] = [
        [{worker: aggregator} if worker != aggregator else {}] for worker in region.workers
    ]
    for part in region.parts:
        if aggregator in part.hosts:
            ways.append(all_trees(part, aggregator))
        else:
            ways.append(
                [
                    {**below, chosen: aggregator}
                    for chosen in part.hosts
                    for below in all_trees(part, chosen)
                ]
            )
    return [{k: v for one in choice for k, v in one.items()} for choice in product(*ways)]


RACK = Region(("w1", "w2"), ("w1", "w2", "a0"), ())
POD = Region(("w3",), ("w1", "w2", "w3", "a0"), (RACK,))
OTHER = Region(("w4", "w5"), ("w4", "w5", "a1"), ())
REGION = Region(("w0",), ("w0", "w1", "w2", "w3", "w4", "w5", "a0", "a1"), (POD, OTHER))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=examples(20, of=60))
def test_the_cheapest_elastic_tree_is_the_cheapest_of_all(seed: int) -> None:
    hosts = REGION.hosts
    distance = np.random.default_rng(seed).integers(1, 50, (len(hosts), len(hosts))).astype(float)
    distance = distance + distance.T
    np.fill_diagonal(distance, 0.0)
    number = {name: i for i, name in enumerate(hosts)}

    def total(parents: dict[str, str]) -> float:
        return sum(distance[number[c], number[p]] for c, p in parents.items())

    cost, (root, parents) = cheapest_tree(REGION, distance)
    assert cost == total(parents) and root not in parents
    assert cost == min(total(tree) for host in hosts for tree in all_trees(REGION, host))


@pytest.mark.slow
@given(st.sampled_from(sorted(NETWORKS)), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(13, of=40))
def test_traffic_is_what_the_schedule_sends(spec: str, seed: int) -> None:
    network = NETWORKS[spec]
    random = np.random.default_rng(seed)
    hosts = [str(host) for host in random.permutation(list(network.hosts))]
    count = int(random.integers(1, len(hosts)))
    workers, others = tuple(hosts[:count]), tuple(hosts[count:])
    paths = Paths(network)
    whole = regions_of(network, workers, others)
    root, parents = list(rotated_trees(whole))[int(random.integers(count))]
    elements = 4 * count
    for topology in (
        ring(paths, physical_order(network, workers)),
        parameter_server(paths, workers, hosts[-1]),
        aggregation_tree(paths, root, parents),
    ):
        part = host_part(Part(topology, Fraction(1)))
        schedule = host_part_all_reduce(part, workers, elements)
        check_schedule(schedule)
        expected = {link: units * elements for link, units in topology.traffic.items()}
        assert link_volumes(schedule, PlainRoutes(network).path) == expected
        for host in network.hosts:
            sent = sum(load for (u, _), load in topology.traffic.items() if u == host)
            assert topology.sent(host) == sent


def test_trees_of_switches_meet_at_every_spine() -> None:
    network = make_topology("leaf-spine:3x2x3", TopologyOptions(link_rate=1.0))
    workers = workers_of(network)
    trees = SwitchTrees(network, workers, ("ps",))
    prices = dict.fromkeys(network.directed_links(), 1.0)
    found = sorted(trees.under(prices))
    # One link each way for every host, and for every leaf one to the spine.
    assert [round(price) for price, _, _ in found] == [2 * (6 + 1 + 3)] * 3
    for _, server, links in found:
        parents = trees.parents(server, links)
        tree = in_network_tree(network, workers, server, parents, lambda _: True)
        assert tree is not None
        assert set(tree.traffic.values()) == {Fraction(1)}
        assert len(tree.traffic) == 20
    spines = {next(p for p in trees.parents(*tree[1:]).values() if p[0] == "s") for tree in found}
    assert spines == {"s1", "s2", "s3"}


def test_a_tree_ends_where_its_paths_meet() -> None:
    network = make_topology("line:3x2", TopologyOptions(link_rate=1.0))
    trees = SwitchTrees(network, ("h1", "h2", "h3"), ("ps",))
    prices = dict.fromkeys(network.directed_links(), 1.0)
    # Whichever switch is the centre, s3 serves no worker.
    assert [links for _, _, links in trees.under(prices)] == [frozenset({("s1", "s2")})]
    without = {link: price for link, price in prices.items() if link != ("s2", "s1")}
    assert not list(trees.under(without))


def test_flows_that_no_switch_sums_add_up() -> None:
    network = make_topology("line:2x3", TopologyOptions(link_rate=1.0))
    parents = {**dict.fromkeys(("h1", "h2", "h3"), "s1"), "s1": "ps"}
    parents |= {**dict.fromkeys(("h4", "h5", "h6"), "s2"), "s2": "s1"}
    tree = in_network_tree(network, workers_of(network), "ps", parents, lambda name: name == "s1")
    assert tree is not None and tree.slots_at == {"s1"}
    assert tree.traffic["s2", "s1"] == 3 and tree.traffic["s1", "s2"] == 1
    assert tree.traffic["s1", "ps"] == 1
    assert tree.aggregators == ("s1", "ps")
