from __future__ import annotations

import networkx as nx
import pytest

from hopsum.network.builder import NetworkBuilder, host_ip
from hopsum.network.model import NetworkError
from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.planning.model.placement import Placement, place


@pytest.mark.parametrize(
    ("spec", "hosts", "switches", "links"),
    [
        ("star:8", 9, 1, 9),
        ("line:3x2", 7, 3, 9),
        ("leaf-spine:4x4", 17, 8, 33),
        ("leaf-spine:2x4x1", 9, 3, 11),
        ("fat-tree:4", 16, 20, 48),
        ("fat-tree:8", 128, 80, 384),
        ("torus:4x4", 16, 0, 32),
        ("torus:2x3", 6, 0, 9),
        ("torus:3x3x3", 27, 0, 81),
        ("complete:5", 5, 0, 10),
        ("hypercube:4", 16, 0, 32),
        ("random-regular:20x3", 20, 0, 30),
        ("dgx1", 8, 0, 16),
        ("dragonfly:4x2x2", 73, 36, 163),
        ("dragonfly:2", 73, 36, 163),
    ],
)
def test_sizes(spec: str, hosts: int, switches: int, links: int) -> None:
    network = make_topology(spec)
    assert (len(network.hosts), len(network.switches), len(network.links)) == (
        hosts,
        switches,
        links,
    )


@pytest.mark.parametrize("k", [2, 4, 6])
def test_fat_tree_shape(k: int) -> None:
    network = make_topology(f"fat-tree:{k}")
    assert len(network.hosts) == k**3 // 4
    for name in network.switches:
        assert len(network.ports(name)) == k
    assert nx.diameter(network.graph) == 6


def test_every_two_dragonfly_groups_share_one_link() -> None:
    network = make_topology("dragonfly:3x1x2")
    group = {f"r{i + 1}": i // 3 for i in range(21)}
    between = [
        frozenset((group[link.a], group[link.b]))
        for link in network.links
        if link.a in group and link.b in group and group[link.a] != group[link.b]
    ]
    assert len(between) == len(set(between)) == 21
    routers = [name for name in network.switches if name != "r1"]
    assert {len(network.ports(name)) for name in routers} == {1 + 2 + 2}


def test_torus_hosts_have_two_neighbours_a_dimension() -> None:
    network = make_topology("torus:4x5")
    assert {len(network.ports(name)) for name in network.hosts} == {4}
    assert min(min(network.ports(name)) for name in network.hosts) == 0


@pytest.mark.parametrize(("spec", "degree"), [("hypercube:3", 3), ("random-regular:16x4x7", 4)])
def test_regular_networks_of_hosts(spec: str, degree: int) -> None:
    network = make_topology(spec)
    assert {len(network.ports(name)) for name in network.hosts} == {degree}
    assert make_topology(spec) == network


def test_random_regular_networks_differ_by_seed() -> None:
    links = [
        {(link.a, link.b) for link in make_topology(f"random-regular:16x4x{seed}").links}
        for seed in (1, 2)
    ]
    assert links[0] != links[1]
    assert (
        make_topology("random-regular:16x4").links == make_topology("random-regular:16x4x1").links
    )


def test_every_gpu_of_a_dgx1_has_six_nvlinks() -> None:
    network = make_topology("dgx1", TopologyOptions(link_rate=10.0))
    for name in network.hosts:
        rates = [network.link(name, peer).bandwidth for peer in network.ports(name).values()]
        assert sum(rate or 0.0 for rate in rates) == 60.0
    assert make_topology("dgx1").link("h1", "h4").bandwidth == 400e9


def test_parallel_links_become_one_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    builder = NetworkBuilder("n", latency=1e-3)
    for name in ("a", "b", "c"):
        builder.add_host(name)
    builder.link("a", "b", 3e6)
    builder.link("b", "a", 2e6, 5e-3)
    builder.link("b", "c", 1e6)
    builder.link("c", "b")
    network = builder.build()
    assert [(link.bandwidth, link.latency) for link in network.links] == [
        (5e6, 5e-3),
        (None, 1e-3),
    ]
    assert network.port("b", "c") == 1
    assert "link a-b: parallel links are merged into one of 5 Mbit/s" in caplog.text


def test_addresses_are_unique_and_deterministic() -> None:
    network = make_topology("star:600")
    assert len({host.ip for host in network.hosts.values()}) == 601
    assert len({host.mac for host in network.hosts.values()}) == 601
    assert network.hosts["h1"].ip == "10.0.0.1"
    assert network.hosts["h251"].ip == "10.0.1.1"
    assert network.hosts["h251"].mac == "02:00:0a:00:01:01"
    assert network == make_topology("star:600")


def test_addresses_end_somewhere() -> None:
    assert host_ip(64000) == "10.0.255.250"
    with pytest.raises(NetworkError, match="at most 64000"):
        host_ip(64001)


@pytest.mark.parametrize(
    ("spec", "options", "servers"),
    [
        ("star:4", TopologyOptions(), ["ps"]),
        ("star:4", TopologyOptions(servers=2), ["ps1", "ps2"]),
        ("leaf-spine:2x2", TopologyOptions(servers=2), ["ps1", "ps2"]),
        ("fat-tree:4", TopologyOptions(), []),
        ("fat-tree:4", TopologyOptions(workers=15), []),
        ("fat-tree:4", TopologyOptions(workers=16), ["ps"]),
        ("fat-tree:4", TopologyOptions(workers=15, servers=2), ["ps"]),
        ("star:4", TopologyOptions(servers=0), []),
    ],
)
def test_server_hosts(spec: str, options: TopologyOptions, servers: list[str]) -> None:
    network = make_topology(spec, options)
    assert [name for name in network.hosts if name.startswith("ps")] == servers


def test_servers_are_spread_over_leaves() -> None:
    network = make_topology("leaf-spine:2x2", TopologyOptions(servers=3))
    assert [network.access_switch(f"ps{i}") for i in (1, 2, 3)] == ["l1", "l2", "l1"]


def test_rates() -> None:
    network = make_topology(
        "leaf-spine:2x2", TopologyOptions(link_rate=1e8, uplink_rate=1e7, latency=1e-3)
    )
    assert network.link("h1", "l1").bandwidth == 1e8
    assert network.link("l1", "s1").bandwidth == 1e7
    assert {link.latency for link in network.links} == {1e-3}


def test_plain_switches_and_slots() -> None:
    network = make_topology("leaf-spine:2x2", TopologyOptions(plain=("s1",), slots=64))
    assert [s.name for s in network.switches.values() if not s.aggregates] == ["s1"]
    assert {s.slots for s in network.switches.values()} == {64}
    assert not any(
        s.aggregates
        for s in make_topology("fat-tree:2", TopologyOptions(plain=("all",))).switches.values()
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("moebius:4", r"no topology 'moebius'.*(.|\n)*fat-tree:K"),
        ("star", "expected star:H"),
        ("star:0", "whole numbers from 1"),
        ("star:2x2", "expected star:H"),
        ("leaf-spine:4", "leaf-spine:LxH"),
        ("leaf-spine:axb", "such as leaf-spine:4x4"),
        ("fat-tree:3", "K must be even"),
        ("dragonfly:2x2", "dragonfly:AxPxH"),
    ],
)
def test_clear_errors(spec: str, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        make_topology(spec)


def test_unknown_plain_switch() -> None:
    with pytest.raises(NetworkError, match=r"plain switch 's9'.*switches: s1"):
        make_topology("star:2", TopologyOptions(plain=("s9",)))


def test_too_many_workers_for_a_fat_tree() -> None:
    with pytest.raises(NetworkError, match="a fat-tree:6 has 54"):
        make_topology("fat-tree:4", TopologyOptions(workers=17))


def test_builder_refuses_what_does_not_fit() -> None:
    builder = NetworkBuilder("n")
    builder.add_switch("s1")
    builder.add_host("h1")
    builder.link("h1", "s1")
    with pytest.raises(NetworkError, match="'s1' is defined twice"):
        builder.add_host("s1")
    with pytest.raises(NetworkError, match="cannot be linked to itself"):
        builder.link("s1", "s1")
    with pytest.raises(NetworkError, match="no node 'x'"):
        builder.link("s1", "x")
    builder.add_host("h2", ip="10.0.0.1")
    with pytest.raises(NetworkError, match="port 1 of s1 is taken"):
        builder.link("s1", "h2", a_port=1)
    with pytest.raises(NetworkError, match=r"in 2 pieces.*Cut off: h2"):
        builder.build()
    builder.link("s1", "h2")
    with pytest.raises(NetworkError, match=r"h1 and h2 share the ip address 10\.0\.0\.1"):
        builder.build()


def test_place_by_number() -> None:
    star = make_topology("star:4")
    assert place(star).workers == ("h1", "h2", "h3", "h4")
    assert place(star).servers == ("ps",)
    assert place(star, 2).workers == ("h1", "h2")
    tree = make_topology("fat-tree:4")
    assert place(tree, 8).servers == ("h16",)
    assert len(place(tree).workers) == 15
    assert place(tree, 8, 2).servers == ("h16", "h15")


def test_place_by_name() -> None:
    tree = make_topology("fat-tree:4")
    placement = place(tree, ["h16", "h1"], 1)
    assert placement.workers == ("h16", "h1")
    assert placement.servers == ("h15",)
    assert "h3" not in place(tree, None, ["h3"]).workers
    assert place(tree, 3, 0) == Placement(("h1", "h2", "h3"), ("h1", "h2", "h3"))
    assert place(tree, ["h2", "h1"], ["h1"]) == Placement(("h2", "h1"), ("h1",))


@pytest.mark.parametrize(
    ("workers", "servers", "message"),
    [
        (5, 1, "5 workers: expected 1 to 4"),
        (0, 1, "0 workers"),
        (None, 9, "9 servers: expected 1 to 5"),
        (["h1", "nobody"], 1, "no host 'nobody'"),
    ],
)
def test_place_errors(
    workers: int | list[str] | None, servers: int | list[str], message: str
) -> None:
    with pytest.raises(NetworkError, match=message):
        place(make_topology("star:4"), workers, servers)
