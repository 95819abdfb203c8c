"""Routes as arrays: the same as those of plain packets."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest

from hopsum.network.loaders import load_network
from hopsum.network.model import NetworkError
from hopsum.network.paths import PlainRoutes
from hopsum.timing.routes import TCP, LinkArrays, plain_routes
from tests.support.framing import BARE


@pytest.mark.parametrize(
    "spec", ["star:4", "line:3x2", "leaf-spine:3x2", "fat-tree:4", "torus:3x4", "dragonfly:2x2x1"]
)
def test_paths_are_those_of_plain_packets(spec: str) -> None:
    network = load_network(spec)
    links, plain = LinkArrays(network), PlainRoutes(network)
    pairs = list(permutations(network.hosts, 2))
    sources = links.numbers([u for u, _ in pairs])
    targets = links.numbers([v for _, v in pairs])
    starts, found = links.paths(sources, targets)
    for i, (u, v) in enumerate(pairs):
        path = [links.pairs[link] for link in found[starts[i] : starts[i + 1]]]
        assert path == list(pairwise(plain.path(u, v)))


def test_no_way_is_an_error() -> None:
    network = load_network("leaf-spine:2x2").without(links=[("l1", "s1"), ("l1", "s2")])
    links = LinkArrays(network)
    with pytest.raises(NetworkError, match="no path from h1 to h3"):
        links.paths(links.numbers(["h1"]), links.numbers(["h3"]))
    with pytest.raises(NetworkError, match="no node 'h9'"):
        links.numbers(["h9"])


def test_packets_are_stored_and_forwarded_at_every_hop() -> None:
    network = load_network("line:2x1", link_rate=8e6, uplink_rate=4e6, latency=0.001)
    links = LinkArrays(network)
    ends = links.numbers(["h1"]), links.numbers(["h2"])
    routes = plain_routes(links, *ends, TCP, overhead=0.5)
    # Three links: the last packet follows over the two fast ones, 1514 bytes at 1e6 bytes/s.
    assert routes.delays.tolist() == pytest.approx([0.5 + 3 * 0.001 + 2 * 1514e-6])
    assert plain_routes(links, *ends, BARE).delays.tolist() == pytest.approx([0.003])


def test_acknowledgements_load_the_way_back() -> None:
    network = load_network("star:2", link_rate=8e6)
    links = LinkArrays(network)
    routes = plain_routes(links, links.numbers(["h1"]), links.numbers(["h2"]))
    loads = routes.usage.loads(np.array([1448.0 * 2]), len(links.pairs))
    by_link = {links.pairs[i]: load for i, load in enumerate(loads) if load}
    assert by_link == pytest.approx(
        {("h1", "s1"): 3028.0, ("s1", "h2"): 3028.0, ("s1", "h1"): 66.0, ("h2", "s1"): 66.0}
    )


def test_acknowledgements_have_a_way_of_their_own() -> None:
    # Packets to h2 go by spine s2, those to h3 by s1.
    links = LinkArrays(load_network("leaf-spine:2x2", link_rate=8e6, servers=0))
    routes = plain_routes(links, links.numbers(["h2"]), links.numbers(["h3"]))
    loads = routes.usage.loads(np.array([1448.0 * 2]), len(links.pairs))
    by_link = {links.pairs[i]: load for i, load in enumerate(loads) if load}
    forth = [("h2", "l1"), ("l1", "s1"), ("s1", "l2"), ("l2", "h3")]
    back = [("h3", "l2"), ("l2", "s2"), ("s2", "l1"), ("l1", "h2")]
    expected = dict.fromkeys(forth, 3028.0) | dict.fromkeys(back, 66.0)
    assert by_link == pytest.approx(expected)


def test_unlimited_links() -> None:
    links = LinkArrays(load_network("star:2"))
    assert np.isinf(links.capacities).all()
    routes = plain_routes(links, links.numbers(["h1"]), links.numbers(["h2"]))
    assert routes.delays.tolist() == [0.0]
