"""Networks by family, from files and from networkx."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from hopsum.network.loaders import load_network, node_link, save_network
from hopsum.network.model import Network

if TYPE_CHECKING:
    import networkx as nx


class NetworkOptions(TypedDict, total=False):
    """Options of every function that makes a network.

    Rates as numbers in bit/s or as text (`"25Mbit"`), times in seconds or as text (`"5ms"`).
    `link_rate`: of every link, None: unlimited, or as the file has it. `uplink_rate`: of links
    between switches. `latency`: one way, of every link. `servers`: hosts for parameter servers.
    `slots`: register slots of a switch. `plain`: switches that only forward, or `all`.
    """

    link_rate: str | float | None
    uplink_rate: str | float | None
    latency: str | float | None
    servers: int
    workers: int | None
    slots: int
    plain: Iterable[str]


def load(
    source: str | Path | nx.Graph[Any],
    *,
    hosts_per_switch: int = 1,
    largest_piece: bool = False,
    **options: Unpack[NetworkOptions],
) -> Network:
    """Return a network by name (`"fat-tree:4"`), from a file, or from a networkx graph.

    Files: node-link JSON, GraphML, GML, and topologies of the P4 tutorials and p4-utils. A graph
    without `kind` at its nodes is one of switches, as in the Topology Zoo: each gets
    `hosts_per_switch` hosts; with 0 its nodes are hosts that forward. `largest_piece`: of a network
    in several pieces the one with the most nodes. Raises NetworkError.
    """
    return load_network(
        str(source) if isinstance(source, Path) else source,
        hosts_per_switch=hosts_per_switch,
        largest_piece=largest_piece,
        **options,
    )


def save(network: Network, path: str | Path) -> None:
    """Write a network as node-link JSON, which `load` reads back. Raises OutputError."""
    save_network(network, Path(path))


def to_networkx(network: Network) -> nx.Graph[str]:
    """Return a network as a graph, with all that `load` needs to make the same network of it.

    Nodes have `kind`, hosts `ip` and `mac`, switches `aggregates` and `slots`; edges have
    `bandwidth` in bit/s (none: unlimited), `latency` in seconds, and the ports at `source` and
    `target`.
    """
    import networkx as nx

    data = node_link(network)
    graph: nx.Graph[str] = nx.Graph(name=network.name)
    for node in data["nodes"]:
        graph.add_node(node.pop("id"), **node)
    for edge in data["edges"]:
        # Both ends again: an undirected edge may be listed from either.
        graph.add_edge(edge["source"], edge["target"], **edge)
    return graph


def star(hosts: int, **options: Unpack[NetworkOptions]) -> Network:
    """Return one switch with `hosts` hosts, and a server."""
    return load_network(f"star:{hosts}", **options)


def line(switches: int, hosts: int, **options: Unpack[NetworkOptions]) -> Network:
    """Return switches in a row, each with `hosts` hosts."""
    return load_network(f"line:{switches}x{hosts}", **options)


def leaf_spine(
    leaves: int, hosts: int, spines: int | None = None, **options: Unpack[NetworkOptions]
) -> Network:
    """Return leaf switches with `hosts` hosts each, all linked to all spines (None: as many)."""
    return load_network(f"leaf-spine:{leaves}x{hosts}x{spines or leaves}", **options)


def fat_tree(k: int, **options: Unpack[NetworkOptions]) -> Network:
    """Return a fat tree of k-port switches with k^3/4 hosts (Al-Fares et al., SIGCOMM '08)."""
    return load_network(f"fat-tree:{k}", **options)


def torus(*sizes: int, **options: Unpack[NetworkOptions]) -> Network:
    """Return hosts in a torus of 2 to 4 dimensions, which forward for each other."""
    return load_network(f"torus:{'x'.join(map(str, sizes))}", **options)


def complete(hosts: int, **options: Unpack[NetworkOptions]) -> Network:
    """Return hosts that are each linked to all others."""
    return load_network(f"complete:{hosts}", **options)


def hypercube(dimensions: int, **options: Unpack[NetworkOptions]) -> Network:
    """Return 2^dimensions hosts at the corners of a cube."""
    return load_network(f"hypercube:{dimensions}", **options)


def random_regular(
    hosts: int, degree: int, seed: int = 1, **options: Unpack[NetworkOptions]
) -> Network:
    """Return hosts with `degree` links each, drawn at random."""
    return load_network(f"random-regular:{hosts}x{degree}x{seed}", **options)


def dgx1(**options: Unpack[NetworkOptions]) -> Network:
    """Return the eight GPUs of a DGX-1V and their NVLinks."""
    return load_network("dgx1", **options)


def dragonfly(
    routers: int, hosts: int, global_links: int, **options: Unpack[NetworkOptions]
) -> Network:
    """Return routers * global_links + 1 groups of `routers` switches with `hosts` hosts each."""
    return load_network(f"dragonfly:{routers}x{hosts}x{global_links}", **options)
