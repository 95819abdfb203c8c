from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import load_network, node_link, save_network
from hopsum.network.model import Network, NetworkError, Switch
from hopsum.network.names import is_safe, unique_names
from hopsum.network.units import format_load, format_rate, format_si, parse_rate, parse_time
from tests.support.paths import EXAMPLES

TUTORIAL: dict[str, Any] = {
    "hosts": {
        "h1": {"ip": "10.0.1.1/24", "mac": "08:00:00:00:01:11", "commands": []},
        "h2": {"ip": "10.0.2.2/24", "mac": "08:00:00:00:02:22"},
    },
    "switches": {"s1": {"runtime_json": "s1-runtime.json"}, "s2": {}},
    "links": [["h1", "s1-p1"], ["s1-p3", "s2-p4", "5", 0.5], ["h2", "s2-p2"]],
}


def minimal() -> dict[str, Any]:
    return {
        "nodes": [
            {"id": "s1", "kind": "switch"},
            {"id": "h1", "kind": "host"},
            {"id": "h2", "kind": "host"},
        ],
        "edges": [{"source": "s1", "target": "h1"}, {"source": "h2", "target": "s1"}],
    }


def write(path: Path, data: object) -> str:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


@pytest.mark.parametrize(
    "spec", ["star:3", "leaf-spine:2x2", "fat-tree:4", "torus:3x3", "dragonfly:1"]
)
def test_saved_networks_load_equal(tmp_path: Path, spec: str) -> None:
    network = load_network(spec, link_rate="100M", latency="5us", slots=99)
    path = tmp_path / "nets" / "n.json"
    save_network(network, path)
    assert load_network(str(path)) == network


def test_networkx_reads_what_is_saved() -> None:
    data = node_link(load_network("fat-tree:4"))
    graph = nx.node_link_graph(data, edges="edges")
    assert (len(graph), graph.number_of_edges()) == (36, 48)


def test_minimal_node_link(tmp_path: Path) -> None:
    network = load_network(write(tmp_path / "tiny.json", minimal()))
    assert network.name == "tiny"
    assert network.hosts["h1"].ip == "10.0.0.1"
    assert network.port("s1", "h2") == 2
    assert network.switches["s1"].aggregates


def test_links_key_and_texts(tmp_path: Path) -> None:
    data = minimal()
    data["links"] = data.pop("edges")
    data["links"][0] |= {"bandwidth": "10Mbit", "latency": "2ms", "source_port": 7}
    data["nodes"][0] |= {"aggregates": False, "slots": 12}
    network = load_network(write(tmp_path / "n.json", data))
    link = network.link("s1", "h1")
    assert (link.bandwidth, link.latency, link.a_port) == (1e7, 2e-3, 7)
    assert network.switches["s1"].slots == 12
    assert not network.switches["s1"].aggregates


def test_rates_given_override_those_of_a_file(tmp_path: Path) -> None:
    data = minimal()
    data["edges"][0]["bandwidth"] = 5.0
    path = write(tmp_path / "n.json", data)
    assert load_network(path).link("s1", "h1").bandwidth == 5.0
    assert load_network(path, link_rate="1G").link("s1", "h1").bandwidth == 1e9
    assert load_network(path, latency="1ms").link("s1", "h1").latency == 1e-3


def break_nodes(change: dict[str, Any]) -> dict[str, Any]:
    data = minimal()
    data["nodes"][0] |= change
    return data


def break_edges(change: dict[str, Any]) -> dict[str, Any]:
    data = minimal()
    data["edges"][0] |= change
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "line 1, column 1: expected JSON, GraphML or GML"),
        ("{", "expected JSON, GraphML or GML"),
        ("<graphml", "expected JSON, GraphML or GML"),
        ({"a": 1}, "expected node-link JSON"),
        ([1], "expected node-link JSON"),
        ({"nodes": []}, "without a list `edges`"),
        ({"nodes": [], "edges": []}, "no hosts"),
        ({"nodes": [3], "edges": []}, r"nodes\[0\]: expected an object, found 3"),
        ({"nodes": [{}], "edges": []}, r"nodes\[0\]: no `id`"),
        (break_nodes({"aggregats": False}), "node s1: 'aggregats': is `aggregates` meant"),
        (break_edges({"bandwith": "1M"}), "link s1-h1: 'bandwith': is `bandwidth` meant"),
        (break_edges({"Latency": "1ms"}), "link s1-h1: 'Latency': is `latency` meant"),
        (break_nodes({"kind": "router"}), "node s1: kind 'router'; expected `host` or `switch`"),
        ({"nodes": [{"id": "a"}], "edges": []}, "node a: no `kind`"),
        (break_nodes({"id": "h1"}), "'h1' is defined twice"),
        (break_nodes({"slots": 0}), "node s1: slots 0"),
        (break_nodes({"aggregates": "yes"}), "aggregates 'yes': expected a bool"),
        (break_nodes({"kind": "host", "ip": "10.1"}), r"host s1: ip '10\.1'"),
        (break_nodes({"kind": "host", "mac": "xx"}), "host s1: mac 'xx'"),
        (break_edges({"bandwidth": "fast"}), "link s1-h1: bandwidth: rate 'fast'"),
        (break_edges({"bandwidth": 0}), "link s1-h1: bandwidth: rate 0: expected above 0"),
        (break_edges({"latency": -1}), "link s1-h1: latency: time -1"),
        (break_edges({"source_port": "x"}), "link s1-h1: source_port: port 'x'"),
        (break_edges({"source_port": 0}), "port 0 of s1: expected 1 to 65535"),
        (break_edges({"target": "s1"}), "cannot be linked to itself"),
        (break_edges({"target": "h2"}), "in 2 pieces.*Cut off: h1"),
        (break_edges({"bandwidth": float("nan")}), "NaN: expected a finite number"),
        (break_edges({"bandwidth": -3}), "link s1-h1: bandwidth: rate -3: expected above 0"),
        (break_edges({"latency": float("nan")}), "NaN: expected a finite number"),
        (break_edges({"target": "h9"}), "no node 'h9'; nodes: s1, h1, h2"),
        ({**minimal(), "edges": minimal()["edges"][:1]}, "in 2 pieces.*Cut off: h2"),
        ({**minimal(), "edges": [{"source": "s1"}]}, r"edges\[0\]: expected `source`"),
    ],
)
def test_clear_errors(tmp_path: Path, data: object, message: str) -> None:
    path = write(tmp_path / "n.json", data)
    with pytest.raises(NetworkError, match=message):
        load_network(path)


def test_errors_of_a_file_name_it(tmp_path: Path) -> None:
    path = write(tmp_path / "broken.json", "{")
    with pytest.raises(NetworkError, match=r"broken\.json: line 1"):
        load_network(path)


def test_neither_name_nor_file() -> None:
    with pytest.raises(NetworkError, match=r"neither a file nor the name(.|\n)*star:H"):
        load_network("no-such.json")


def test_bad_rate_asked_for() -> None:
    with pytest.raises(NetworkError, match="rate 'fast'"):
        load_network("star:2", link_rate="fast")


def test_tutorial_topology(tmp_path: Path) -> None:
    network = load_network(write(tmp_path / "topology.json", TUTORIAL))
    assert network.hosts["h2"].ip == "10.0.2.2"
    assert network.hosts["h2"].mac == "08:00:00:00:02:22"
    assert network.ports("s1") == {1: "h1", 3: "s2"}
    link = network.link("s1", "s2")
    assert (link.bandwidth, link.latency) == (5e5, 5e-3)
    assert network.link("h1", "s1").bandwidth is None


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (["h1"], r"links\[0\]: expected \[node"),
        (["h1", "s1-q1"], r"links\[0\]: 's1-q1': expected a host, a switch, or a switch's port"),
        (["h1", "s7-p1"], "'s7-p1'"),
        (["h1", "s1-p1", "soon"], "time 'soon'"),
        (["h1", "s1-p1", "0", "wide"], "h1-s1"),
    ],
)
def test_tutorial_errors(tmp_path: Path, link: list[str], message: str) -> None:
    data = {**TUTORIAL, "links": [link, *TUTORIAL["links"][1:]]}
    with pytest.raises(NetworkError, match=message):
        load_network(write(tmp_path / "topology.json", data))


def zoo() -> nx.MultiGraph[int]:
    graph: nx.MultiGraph[int] = nx.MultiGraph()
    graph.add_node(0, label="New York", Latitude=40.71, Longitude=-74.0)
    graph.add_node(1, label="Chicago", Latitude=41.85, Longitude=-87.65)
    graph.add_node(2, label="Chicago")
    graph.add_edge(0, 1, LinkSpeedRaw=1e9)
    graph.add_edge(0, 1, LinkSpeedRaw=2e9)
    graph.add_edge(1, 2)
    return graph


def test_topology_zoo(tmp_path: Path) -> None:
    path = tmp_path / "zoo.graphml"
    nx.write_graphml(zoo(), path)
    network = load_network(str(path), hosts_per_switch=2)
    assert list(network.switches) == ["NewYork", "Chicago", "Chicago3"]
    assert len(network.hosts) == 6
    assert network.access_switch("h3") == "Chicago"
    link = network.link("NewYork", "Chicago")
    assert link.bandwidth == 3e9
    assert link.latency == pytest.approx(1.145e6 / 2e8, rel=0.01)
    assert network.link("Chicago", "Chicago3").latency == 0


def test_topology_zoo_of_hosts_that_forward(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "zoo.graphml"
    nx.write_graphml(zoo(), path)
    network = load_network(str(path), hosts_per_switch=0, link_rate="10M")
    assert list(network.hosts) == ["NewYork", "Chicago", "Chicago3"]
    assert not network.switches
    assert [link.bandwidth for link in network.links] == [1e7, 1e7]
    assert "link NewYork-Chicago: parallel links are merged" in caplog.text


def test_parallel_links_of_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = minimal()
    data["edges"] += [{"source": "h1", "target": "s1", "bandwidth": "3M"}]
    data["edges"][0]["bandwidth"] = "2M"
    network = load_network(write(tmp_path / "n.json", data))
    assert network.link("s1", "h1").bandwidth == 5e6
    assert "link s1-h1: parallel links are merged into one of 5 Mbit/s" in caplog.text


@pytest.mark.parametrize(
    ("name", "hosts", "links"),
    [("abilene", 11, 14), ("attmpls", 25, 56), ("b4", 12, 19), ("nsfnet", 14, 21)],
)
def test_wide_area_networks_of_the_examples(name: str, hosts: int, links: int) -> None:
    network = load_network(str(EXAMPLES / f"{name}.json"))
    assert (network.name, len(network.hosts), len(network.links)) == (name, hosts, links)
    assert not network.switches
    assert all(link.bandwidth for link in network.links)


def test_files_get_a_server_only_if_needed(tmp_path: Path) -> None:
    path = tmp_path / "zoo.graphml"
    nx.write_graphml(zoo(), path)
    assert "ps" not in load_network(str(path), workers=2).hosts
    network = load_network(str(path), workers=3)
    assert network.access_switch("ps") == "Chicago"
    with pytest.raises(NetworkError, match="too few for 4 workers"):
        load_network(str(path), workers=4)


def test_graphml_with_kinds(tmp_path: Path) -> None:
    graph: nx.Graph[str] = nx.Graph()
    graph.add_node("s1", kind="switch", aggregates=False)
    graph.add_node("a", kind="host")
    graph.add_node("b", kind="host")
    graph.add_edge("a", "s1", bandwidth=1e6)
    graph.add_edge("b", "s1")
    path = tmp_path / "g.graphml"
    nx.write_graphml(graph, path)
    network = load_network(str(path))
    assert list(network.hosts) == ["a", "b"]
    assert not network.switches["s1"].aggregates
    assert network.link("a", "s1").bandwidth == 1e6


def test_zoo_self_loop_and_lonely_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = zoo()
    graph.add_edge(1, 1)
    graph.add_node(7, label="Nowhere")
    path = tmp_path / "zoo.graphml"
    nx.write_graphml(graph, path)
    network = load_network(str(path))
    assert list(network.switches) == ["NewYork", "Chicago", "Chicago3"]
    assert len(network.hosts) == 3
    assert "zoo: a link of Chicago with itself is left out" in caplog.text
    assert "zoo: nodes without links are left out: Nowhere" in caplog.text


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100M", 1e8), ("1Gbit", 1e9), ("1.5e3", 1500), (7, 7), ("10 Mbit/s", 1e7), ("2kbps", 2e3)],
)
def test_rates_as_people_write_them(text: str | float, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "M", "-1", "0", "inf", "1 MB", float("nan")])
def test_no_rates(text: str | float) -> None:
    with pytest.raises(ValueError, match="rate"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5ms", 5e-3), ("20us", 2e-5), (0.5, 0.5), ("2", 2.0), ("0", 0.0)]
)
def test_times(text: str | float, seconds: float) -> None:
    assert parse_time(text) == pytest.approx(seconds)


def test_rates_for_people() -> None:
    assert format_rate(1e8) == "100 Mbit/s"
    assert format_si(Fraction(65_000_000, 3)) == "21.6667M"
    assert (format_si(Fraction(40_000)), format_si(Fraction(7, 2))) == ("40k", "7/2")
    assert format_rate(None) == "unlimited"
    assert (format_load(13_734_217.0), format_load(999.9)) == ("13.7 Mbit/s", "1 kbit/s")


def test_largest_piece(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = zoo()
    graph.add_edge("a", "b")
    path = tmp_path / "zoo.graphml"
    nx.write_graphml(graph, path)
    with pytest.raises(NetworkError, match=r"in 2 pieces.*hopsum topology FILE --largest-piece"):
        load_network(str(path))
    network = load_network(str(path), largest_piece=True, workers=3, link_rate="1M")
    assert list(network.switches) == ["NewYork", "Chicago", "Chicago3"]
    assert list(network.hosts) == ["h1", "h2", "h3", "ps"]
    assert "zoo: 2 pieces, the largest with 6 of 10 nodes is taken" in caplog.text


LABELS = ["Los Angeles", "Reykjavík", "München", "Chicago", "Chicago", "Chicago5", "", "東京", "h2"]


@pytest.mark.parametrize("suffix", ["graphml", "gml"])
@pytest.mark.parametrize("hosts", [0, 1])
def test_labels_of_the_zoo_are_kept_beside_safe_names(
    tmp_path: Path, suffix: str, hosts: int
) -> None:
    graph: nx.MultiGraph[int] = nx.MultiGraph()
    for number, label in enumerate(LABELS):
        graph.add_node(number, label=label)
        graph.add_edge(number, 0)
    graph.add_edge(0, 1)
    path = tmp_path / f"zoo.{suffix}"
    if suffix == "graphml":
        nx.write_graphml(graph, path)
    else:
        # As the Zoo has it: labels that repeat, and repeated edges without `multigraph`.
        lines = [
            *(f'node [ id {n} label "{label}" ]' for n, label in enumerate(LABELS)),
            *(f"edge [ source {a} target {b} ]" for a, b in graph.edges()),
        ]
        path.write_text("\n".join(["graph [", *lines, "]"]))
    network = load_network(str(path), hosts_per_switch=hosts)
    names = list(network.switches if hosts else network.hosts)
    other = "s" if hosts else "h"
    assert names == [
        *("LosAngele", "Reykjavik", "Munchen", "Chicago", "Chicago6", "Chicago5"),
        *(f"{other}{number}" for number in (7, 8, 9)),
    ]
    shown = [network.label(name) for name in names]
    assert shown == [label or f"{other}7" for label in LABELS]
    saved = tmp_path / "saved.json"
    save_network(network, saved)
    assert load_network(str(saved)) == replace(network, name="zoo")


INJECTIONS = [
    "$(id)",
    "a;reboot",
    "a b",
    "`id`",
    "é1",
    "a\nb",
    "-n",
    "..",
    "a/b",
    "x|y",
    "'",
    "a&",
    "{}",
]


def shell_topologies(name: str) -> dict[str, dict[str, Any]]:
    """A host of this name in every format of JSON."""
    links = [[name, "s1"], ["h2", "s1"]]
    hosts, switches = {name: {}, "h2": {}}, {"s1": {}}
    edges = [{"source": a, "target": b} for a, b in links]
    kinds = {name: "host", "h2": "host", "s1": "switch"}
    return {
        "node-link": {"nodes": [{"id": n, "kind": k} for n, k in kinds.items()], "edges": edges},
        "p4-utils graph": {
            "nodes": [{"id": n, f"is{k.title()}": True} for n, k in kinds.items()],
            "links": edges,
        },
        "tutorial": {"hosts": hosts, "switches": switches, "links": links},
        "p4app": {"topology": {"hosts": hosts, "switches": switches, "links": links}},
    }


@pytest.mark.parametrize("kind", ["node-link", "p4-utils graph", "tutorial", "p4app"])
@pytest.mark.parametrize("name", INJECTIONS)
def test_no_name_of_a_file_reaches_commands(tmp_path: Path, name: str, kind: str) -> None:
    network = load_network(write(tmp_path / "n.json", shell_topologies(name)[kind]))
    [made] = set(network.hosts) - {"h2"}
    assert re.fullmatch("[A-Za-z0-9]+", made)
    assert network.label(made) == name.replace("\n", "\N{REPLACEMENT CHARACTER}")


def test_made_names_are_no_ends_of_links(tmp_path: Path) -> None:
    data = shell_topologies("é1")["node-link"]
    data["edges"][0]["source"] = "e1"
    with pytest.raises(NetworkError, match="no node 'e1'; nodes: h2, s1, é1"):
        load_network(write(tmp_path / "n.json", data))


@pytest.mark.parametrize("name", [*INJECTIONS, "", "a" * 64])
def test_names_made_by_programs_are_checked(name: str) -> None:
    builder = NetworkBuilder("mine")
    with pytest.raises(NetworkError, match="expected a name of"):
        builder.add_host(name)
    with pytest.raises(NetworkError, match="expected a name of"):
        builder.add_switch(name)
    with pytest.raises(NetworkError, match="expected a name of"):
        Network("mine", {}, {name: Switch(name)}, ())


@pytest.mark.parametrize(
    ("ip", "mac"), [("10.0.0.1;id", ""), ("10.0.0.²", ""), ("10.0.0.1", "$(id)")]
)
def test_addresses_made_by_programs_are_checked(ip: str, mac: str) -> None:
    builder = NetworkBuilder("mine")
    with pytest.raises(NetworkError, match=r"host h1: (ip|mac)"):
        builder.add_host("h1", ip, mac)
        builder.build()


@given(st.lists(st.text(st.sampled_from("chs5p1 é"), max_size=12), max_size=12))
def test_safe_names_are_unique(labels: list[str]) -> None:
    names = unique_names({str(i): label for i, label in enumerate(labels)}, "s", {"c1", "s2"})
    made = list(names.values())
    assert len({*made, "c1", "s2"}) == len(made) + 2
    assert all(is_safe(name) and len(name) <= 9 for name in made)
    assert not any(re.fullmatch(r"h\d+|ps\d*", name) for name in made)


def test_tutorial_topology_of_2017(tmp_path: Path) -> None:
    """Hosts as a list, and links that name no ports."""
    links = [["h1", "s1"], ["h2", "s1"], ["s1", "s2", "3", 2], ["h3", "s2"]]
    data = {"hosts": ["h1", "h2", "h3"], "switches": {"s1": {}, "s2": {}}, "links": links}
    for file in (data, {"program": "mri.p4", "targets": {"multiswitch": data}}):
        network = load_network(write(tmp_path / "topology.json", file))
        assert network.ports("s1") == {1: "h1", 2: "h2", 3: "s2"}
        assert (network.link("s1", "s2").bandwidth, network.link("s1", "s2").latency) == (2e6, 3e-3)


def test_p4utils_p4app(tmp_path: Path) -> None:
    data = {
        "p4_src": "a.p4",
        "topology": {
            "default": {"bw": 5, "auto_arp_tables": False},
            "links": [
                ["h1", "s1", {"params1": {"ip": "1.0.0.2/24"}, "addr1": "00:00:00:00:00:07"}],
                ["s1", "r1", {"port1": 7, "delay": 4, "bw": 20}],
                ["r1", "h2", {"delay": "2ms"}],
            ],
            "hosts": {"h1": {"defaultRoute": "via 1.0.0.1"}, "h2": {}},
            "switches": {"s1": {"p4_src": "b.p4"}},
            "routers": {"r1": {"int_conf": "r1.conf"}},
        },
    }
    network = load_network(write(tmp_path / "p4app.json", data))
    assert (network.hosts["h1"].ip, network.hosts["h1"].mac) == ("1.0.0.2", "00:00:00:00:00:07")
    assert network.ports("s1") == {1: "h1", 7: "r1"}
    assert not network.switches["r1"].aggregates
    links = [(link.bandwidth, link.latency) for link in network.links]
    assert links == [(5e6, 0), (2e7, 4e-3), (5e6, 2e-3)]


def test_p4utils_graph(tmp_path: Path) -> None:
    """Ports belong to node1 and node2, whichever way networkx has turned the edge."""
    data = {
        "nodes": [
            {"id": "h1", "isHost": True, "ip": "10.0.0.9/24"},
            {"id": "h2", "isHost": True},
            {"id": "s1", "isSwitch": True, "isP4Switch": True},
            {"id": "r1", "isSwitch": True, "isRouter": True},
        ],
        "links": [
            {"source": "h1", "target": "s1", "port2": 4},
            {"source": "s1", "target": "r1", "node1": "r1", "node2": "s1", "port1": 2, "port2": 3},
            {"source": "h2", "target": "r1", "port1": 0, "bw": 1.5},
        ],
    }
    network = load_network(write(tmp_path / "topology.json", data))
    assert network.hosts["h1"].ip == "10.0.0.9"
    assert network.ports("s1") == {3: "r1", 4: "h1"}
    assert network.port("r1", "s1") == 2
    assert network.link("h2", "r1").bandwidth == 1.5e6
    assert not network.switches["r1"].aggregates


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hosts": 3}, "hosts: expected an object or a list of names, found 3"),
        ({"hosts": {"h1": 3}}, "hosts: h1: expected an object, found 3"),
        ({"hosts": {"s1": {}}}, "node 's1': it is both a host and a switch"),
        ({"links": 3}, "expected a list `links`"),
        ({"default": 3}, "default 3: expected an object"),
        ({"links": [["h1", "s1", {"bw": "wide"}]]}, "links.0., h1-s1"),
        ({"links": [["h1", "s1", {"port2": "x"}]]}, "link h1-s1: target_port: port 'x'"),
    ],
)
def test_p4app_errors(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    data = {"hosts": {"h1": {}}, "switches": {"s1": {}}, "links": [["h1", "s1"]], **change}
    with pytest.raises(NetworkError, match=message):
        load_network(write(tmp_path / "p4app.json", {"topology": data}))
