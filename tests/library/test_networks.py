"""`hopsum.load` and its kin: by name, from files, from and to networkx."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hopsum

FAMILIES = {
    "star:3": lambda: hopsum.star(3),
    "line:2x2": lambda: hopsum.line(2, 2),
    "leaf-spine:2x3": lambda: hopsum.leaf_spine(2, 3),
    "leaf-spine:2x3x4": lambda: hopsum.leaf_spine(2, 3, spines=4),
    "fat-tree:4": lambda: hopsum.fat_tree(4),
    "torus:2x3": lambda: hopsum.torus(2, 3),
    "complete:4": lambda: hopsum.complete(4),
    "hypercube:3": lambda: hopsum.hypercube(3),
    "random-regular:8x3x5": lambda: hopsum.random_regular(8, 3, seed=5),
    "dgx1": lambda: hopsum.dgx1(),
    "dragonfly:4x2x2": lambda: hopsum.dragonfly(4, 2, 2),
}


def links(network: hopsum.Network) -> set[frozenset[tuple[str, int, float | None, float]]]:
    """Links with the ports at their ends, whichever end comes first."""
    return {
        frozenset((node, port, link.bandwidth, link.latency) for node, port in ends)
        for link in network.links
        for ends in [((link.a, link.a_port), (link.b, link.b_port))]
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_those_that_commands_take_by_name(name: str) -> None:
    made, loaded = FAMILIES[name](), hopsum.load(name)
    assert links(made) == links(loaded)
    assert (dict(made.hosts), dict(made.switches)) == (dict(loaded.hosts), dict(loaded.switches))


@given(name=st.sampled_from(sorted(FAMILIES)), rate=st.sampled_from([None, "25Mbit", 1e9]))
def test_a_network_survives_networkx(name: str, rate: str | float | None) -> None:
    network = hopsum.load(name, link_rate=rate, latency="1ms")
    again = hopsum.load(hopsum.to_networkx(network))
    assert links(again) == links(network)
    assert dict(again.hosts) == dict(network.hosts)
    assert dict(again.switches) == dict(network.switches)
    assert again.name == network.name


def test_a_graph_of_one_s_own() -> None:
    graph = nx.cycle_graph(3)
    network = hopsum.load(graph, hosts_per_switch=2, link_rate="10Mbit")
    assert (len(network.switches), len(network.hosts), len(network.links)) == (3, 6, 9)
    assert {link.bandwidth for link in network.links} == {10e6}
    hosts_alone = hopsum.load(graph, hosts_per_switch=0)
    assert (len(hosts_alone.switches), len(hosts_alone.hosts)) == (0, 3)


def test_files(tmp_path: Path) -> None:
    network = hopsum.star(2, link_rate="1Gbit")
    hopsum.save(network, tmp_path / "star.json")
    again = hopsum.load(tmp_path / "star.json")
    assert links(again) == links(network)
    with pytest.raises(hopsum.InputError, match="neither a file nor the name of a topology"):
        hopsum.load(tmp_path / "none.json")
    with pytest.raises(ValueError, match="did you mean star:2"):
        hopsum.load("starr:2")
