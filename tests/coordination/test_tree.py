from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.coordination.failure import TreeError
from hopsum.coordination.physical import distances_between, plan_coordination, virtual_ring
from hopsum.coordination.tree import (
    CoordinationTree,
    TreeLimits,
    balanced_tree,
    capacity,
    least_height,
)
from hopsum.network.loaders import load_network
from hopsum.network.model import Network


def names(count: int) -> list[str]:
    return [f"w{rank}" for rank in range(count)]


def workers(network: Network) -> list[str]:
    return [host for host in network.hosts if not host.startswith("ps")]


def check_is_tree(tree: CoordinationTree) -> None:
    assert sum(parent < 0 for parent in tree.parents) == 1
    seen = [tree.root]
    for rank in seen:
        seen.extend(tree.children[rank])
    assert sorted(seen) == list(range(len(tree.names)))


@pytest.mark.slow
@given(st.integers(1, 60), st.integers(2, 6), st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_height_and_fan_out_are_bounded(count: int, fan_out: int, more: int, seed: int) -> None:
    points = np.random.default_rng(seed).integers(0, 9, (count, 2))
    distances = np.abs(points[:, None] - points[None]).sum(axis=2)
    height = least_height(count, fan_out) + more
    tree = balanced_tree(names(count), distances, fan_out=fan_out, height=height)
    check_is_tree(tree)
    assert tree.height <= height
    assert tree.fan_out <= fan_out
    assert balanced_tree(names(count), fan_out=fan_out).height == least_height(count, fan_out)


def test_heights() -> None:
    assert [capacity(4, height) for height in range(4)] == [1, 5, 21, 85]
    assert [least_height(n, 4) for n in (1, 2, 5, 6, 21, 22, 64, 1024, 27_600)] == [
        *(0, 1, 1, 2, 2, 3, 3, 5, 8)
    ]


@pytest.mark.parametrize(
    ("topology", "crossings"),
    # Fewer than racks - 1 edges cannot join the racks.
    [("leaf-spine:4x4", 3), ("leaf-spine:2x8", 2), ("leaf-spine:4x5", 3)],
)
def test_racks_become_subtrees(topology: str, crossings: int) -> None:
    network = load_network(topology)
    hosts = workers(network)
    distances = distances_between(network, hosts)
    tree = balanced_tree(hosts, distances)
    crossing = [rank for rank, p in enumerate(tree.parents) if p >= 0 and distances[rank, p] > 2]
    assert len(crossing) <= crossings


def test_neighbours_in_a_torus_are_less_than_the_distance_apart() -> None:
    network = load_network("torus:8x8")
    hosts = list(network.hosts)
    distances = distances_between(network, hosts)
    tree = balanced_tree(hosts, distances, distance=3, height=4)
    assert tree.reach(distances) < 3
    assert tree.height <= 4
    assert tree.fan_out <= 4


def test_a_ring_of_hosts_needs_height_for_a_small_distance() -> None:
    network = load_network("torus:12x1")
    hosts = list(network.hosts)
    distances = distances_between(network, hosts)
    tree = balanced_tree(hosts, distances, fan_out=2, distance=2, height=6)
    assert tree.reach(distances) == 1
    assert tree.height == 6
    with pytest.raises(TreeError, match=r"less than 2 links apart; a distance of \d works"):
        balanced_tree(hosts, distances, fan_out=2, distance=2, height=5)


def test_impossible_limits_are_refused() -> None:
    with pytest.raises(
        TreeError, match="fan-out 4 and height 2 holds only 21; allow a height of 3"
    ):
        balanced_tree(names(22), height=2)
    with pytest.raises(TreeError, match="expected 2 or more"):
        balanced_tree(names(3), fan_out=1)
    with pytest.raises(TreeError, match="several processes are called w1; expected one name each"):
        balanced_tree(["w0", "w1", "w1"])
    with pytest.raises(TreeError, match="expected at least one"):
        balanced_tree([])


@pytest.mark.slow
@given(st.integers(1, 14), st.integers(2, 5), st.integers(0, 6), st.integers(0, 8))
def test_the_limits_are_kept_or_refused(count: int, fan_out: int, more: int, distance: int) -> None:
    network = load_network("line:7x2")
    processes = [(host, host) for host in workers(network)[:count]]
    height = least_height(count, fan_out) + more
    limits = TreeLimits(fan_out, height, distance or None)
    try:
        tree = plan_coordination(network, processes, limits)
    except TreeError as error:
        # Some tree is there for every height without a limit of the distance.
        assert limits.distance is not None
        assert f"less than {distance} links apart; a distance of" in str(error)
        return
    check_is_tree(tree)
    assert tree.fan_out <= fan_out
    assert tree.height <= height
    apart = tree.reach(distances_between(network, [host for host, _ in processes]))
    assert limits.distance is None or apart < limits.distance


def test_a_smaller_distance_takes_more_height() -> None:
    """Hosts of a line of switches: two switches are as far apart as they are in it."""
    network = load_network("line:8x1")
    processes = [(host, host) for host in workers(network)]
    near, any_ = (
        plan_coordination(network, processes, TreeLimits(2, 7, distance)) for distance in (4, None)
    )
    assert (near.height, any_.height) == (4, 3)
    for tallest in (4, 7, 65535):
        assert plan_coordination(network, processes, TreeLimits(2, tallest, 4)).height <= tallest
    with pytest.raises(TreeError, match="height 3 and neighbours less than 4 links apart"):
        plan_coordination(network, processes, TreeLimits(2, 3, 4))


def test_limits_beyond_all_processes_cost_nothing() -> None:
    """Whoever may submit a job chooses them."""
    network = load_network("star:64")
    processes = [(host, host) for host in workers(network)]
    most = 2**32 - 1
    assert plan_coordination(network, processes, TreeLimits(most, most)).height == 1
    assert plan_coordination(network, processes, TreeLimits(most, most, most)).height == 1
    with pytest.raises(TreeError, match="a distance of 3 works"):
        plan_coordination(network, processes, TreeLimits(most, most, 1))
    with pytest.raises(TreeError, match="distance 0: expected 1 link or more"):
        plan_coordination(network, processes, TreeLimits(distance=0))


def test_processes_of_one_host_are_together() -> None:
    network = load_network("leaf-spine:2x2")
    hosts = ["h1", "h3", "h1", "h3", "h1", "h3", "h1", "h3"]
    tree = plan_coordination(network, list(zip(names(8), hosts, strict=True)))
    apart = [rank for rank, p in enumerate(tree.parents) if p >= 0 and hosts[rank] != hosts[p]]
    assert len(apart) == 1
    with pytest.raises(TreeError, match="there is no host h9 in leaf-spine"):
        plan_coordination(network, [("a", "h9")])


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["torus:4x4", "torus:3x5", "torus:16x16", "torus:2x3x4"])
def test_a_physical_ring_becomes_the_virtual_ring(topology: str) -> None:
    network = load_network(topology)
    hosts = list(network.hosts)
    ring = virtual_ring(network, hosts)
    assert sorted(ring) == list(range(len(hosts)))
    for one, other in pairwise([*ring, ring[0]]):
        network.link(hosts[one], hosts[other])


@pytest.mark.parametrize("topology", ["star:8", "leaf-spine:4x4", "fat-tree:4", "line:4x2"])
def test_no_ring_where_hosts_are_in_a_hierarchy(topology: str) -> None:
    network = load_network(topology)
    assert virtual_ring(network, workers(network)) == ()


def test_the_digest_tells_trees_apart() -> None:
    tree = balanced_tree(names(6))
    assert tree.digest == balanced_tree(names(6)).digest
    assert tree.digest != balanced_tree(names(6), fan_out=2).digest
