from __future__ import annotations

from itertools import pairwise, permutations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import load_network
from hopsum.network.model import Network, NetworkError
from hopsum.network.paths import PlainRoutes
from hopsum.timing.routes import LinkArrays


def test_hosts_forward_only_where_there_are_no_switches() -> None:
    torus = load_network("torus:4x1")
    assert PlainRoutes(torus).path("h1", "h3") == ["h1", "h2", "h3"]
    line = load_network("line:2x2")
    path = PlainRoutes(line).path("h1", "h4")
    assert path == ["h1", "s1", "s2", "h4"]
    assert list(pairwise(path)) == [("h1", "s1"), ("s1", "s2"), ("s2", "h4")]
    with pytest.raises(NetworkError, match="no node 'x'"):
        PlainRoutes(line).path("h1", "x")


def test_hosts_with_two_switches_do_not_connect_them() -> None:
    builder = NetworkBuilder("two pieces but for h2")
    for name in ("s1", "s2"):
        builder.add_switch(name)
    for name in ("h1", "h2", "h3"):
        builder.add_host(name)
    for host, switch in (("h1", "s1"), ("h2", "s1"), ("h2", "s2"), ("h3", "s2")):
        builder.link(host, switch)
    routes = PlainRoutes(builder.build())
    assert routes.path("h1", "h2") == ["h1", "s1", "h2"]
    with pytest.raises(NetworkError, match="no path from h1 to h3"):
        routes.path("h1", "h3")


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Up to six switches with arbitrary links, and hosts that may have several links or none."""
    builder = NetworkBuilder("random")
    switches = [builder.add_switch(f"s{i}") for i in range(draw(st.integers(1, 6)))]
    hosts = [builder.add_host() for _ in range(draw(st.integers(2, 5)))]
    pairs = [(u, v) for i, v in enumerate(switches) for u in switches[:i]]
    pairs += [(host, switch) for host in hosts for switch in switches]
    chosen = draw(st.permutations(pairs))
    for u, v in chosen:
        builder.link(u, v)
    return builder.build().without(links=chosen[draw(st.integers(0, len(pairs))) :])


def ways(network: Network, source: str, target: str) -> list[list[str]]:
    """All shortest paths in dictionary order, by networkx: the rule as it is written down."""
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from([*network.switches, source, target])
    for link in network.links:
        if link.a in graph and link.b in graph:
            graph.add_edge(link.a, link.b)
    rank = {pair: i // 2 for i, pair in enumerate(network.directed_links())}
    if not nx.has_path(graph, source, target):
        return []
    return sorted(
        nx.all_shortest_paths(graph, source, target),
        key=lambda path: [rank[link] for link in pairwise(path)],
    )


@pytest.mark.slow
@given(networks())
def test_of_p_shortest_paths_to_host_d_the_d_mod_pth_is_taken_hop_by_hop(network: Network) -> None:
    routes, links = PlainRoutes(network), LinkArrays(network)
    for number, target in enumerate(network.hosts):
        for source in (*network.hosts, *network.switches):
            if source == target:
                continue
            ends = links.numbers([source]), links.numbers([target])
            if not ways(network, source, target):
                with pytest.raises(NetworkError, match=f"no path from {source} to {target}"):
                    routes.path(source, target)
                with pytest.raises(NetworkError, match=f"no path from {source} to {target}"):
                    links.paths(*ends)
                continue
            expected = [source]
            while expected[-1] != target:
                every = ways(network, expected[-1], target)
                expected.append(every[number % len(every)][1])
            assert routes.path(source, target) == expected
            found = [links.pairs[link] for link in links.paths(*ends)[1]]
            assert found == list(pairwise(expected))


def test_hosts_of_a_rack_are_reached_by_all_spines_alike() -> None:
    network = load_network("leaf-spine:3x8x4", servers=0)
    routes = PlainRoutes(network)
    for number, host in enumerate(network.hosts):
        path = routes.path("h1", host) if host != "h1" else []
        if len(path) > 3:
            assert path[2] == f"s{number % 4 + 1}"


def test_hosts_of_a_pod_are_reached_by_all_core_switches_alike() -> None:
    network = load_network("fat-tree:4", servers=0)
    routes = PlainRoutes(network)
    for (_, source), (number, target) in permutations(enumerate(network.hosts), 2):
        path = routes.path(source, target)
        if len(path) == 7:
            assert path[3] == f"c{number % 4 + 1}"
            # Aggregation switches have two core switches each.
            assert path[2] in (f"a{i + number % 4 // 2}" for i in (1, 3, 5, 7))
        if len(path) == 5:
            assert path[2] in (f"a{i + number % 2}" for i in (1, 3, 5, 7))


def test_more_paths_than_can_be_counted() -> None:
    network = load_network("torus:40x40")
    path = PlainRoutes(network).path("h1", f"h{20 * 40 + 21}")
    links = LinkArrays(network)
    found = links.paths(links.numbers(path[:1]), links.numbers(path[-1:]))[1]
    assert len(path) == 41
    assert [links.pairs[link] for link in found] == list(pairwise(path))
