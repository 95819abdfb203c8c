"""Positions of processes in the physical network: distances, and a ring if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import networkx as nx
import numpy as np

from hopsum.coordination.failure import TreeError
from hopsum.coordination.tree import (
    DEFAULT_LIMITS,
    CoordinationTree,
    Distances,
    TreeLimits,
    balanced_tree,
)
from hopsum.network.model import Network, shorten
from hopsum.network.ring import virtual_ring


def distances_between(network: Network, hosts: Sequence[str]) -> Distances:
    """Return the links on the shortest path between the hosts of processes; 0 on one host.

    Raises TreeError for a host that is not there or cannot be reached.
    """
    missing = [host for host in hosts if host not in network.hosts]
    if missing:
        raise TreeError(
            f"there is no host {shorten(dict.fromkeys(missing))} in {network.name}; hosts: "
            f"{shorten(network.hosts)}"
        )
    different = list(dict.fromkeys(hosts))
    numbers = {host: number for number, host in enumerate(different)}
    between = np.zeros((len(different), len(different)), dtype=np.int64)
    for host, number in numbers.items():
        lengths = nx.single_source_shortest_path_length(network.graph, host)
        for other, column in numbers.items():
            if other not in lengths:
                raise TreeError(f"no path from {host} to {other} in {network.name}")
            between[number, column] = lengths[other]
    rows = [numbers[host] for host in hosts]
    return between[np.ix_(rows, rows)]


def plan_coordination(
    network: Network,
    processes: Sequence[tuple[str, str]],
    limits: TreeLimits = DEFAULT_LIMITS,
) -> CoordinationTree:
    """Build the tree, and the virtual ring if there is one, of processes (name, host), by rank.

    Raises TreeError as `balanced_tree` and `distances_between` do.
    """
    names = [name for name, _ in processes]
    hosts = [host for _, host in processes]
    distances = distances_between(network, hosts)
    tree = balanced_tree(
        names,
        distances,
        fan_out=limits.fan_out,
        height=limits.height,
        distance=limits.distance,
    )
    return replace(tree, ring=virtual_ring(network, hosts))
