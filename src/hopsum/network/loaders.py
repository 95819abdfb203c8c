"""Networks from files: node-link JSON, GraphML, GML, formats for Mininet; and saving them.

`load_network` is the one way to get a network, by name or from a file.

**Node-link JSON** (networkx `node_link_data`): `nodes` with `id`, `kind` (`host` or `switch`), a
`label`, a host's `ip` and `mac`, a switch's `aggregates` and `slots`; `edges` (or `links`) with
`source`, `target`, `source_port`, `target_port`, `bandwidth` (bit/s or text such as `100M`) and
`latency` (s or text such as `5ms`). Only `id`, `kind`, `source` and `target` are needed.

**GraphML and GML** with a `kind` on every node mean the same. Without any (the Internet Topology
Zoo) every node is a switch named after its label with `hosts_per_switch` hosts, or, if that is 0, a
host that forwards; `LinkSpeedRaw` is the bandwidth, and where both ends have `Latitude` and
`Longitude` the latency is the great circle at 200,000 km/s. There self-loops and nodes without
links are left out, with a note in the log.

**Formats for Mininet** (the P4 tutorials, p4app, p4-utils): `hopsum.network.mininet_formats`.

Names that are unsafe in commands are replaced, and stay as labels (`hopsum.network.names`).
Parallel links of any file are merged into one of their summed bandwidth, with a note in the log.
As many extra server hosts `ps` (on the switches with the most links) are added as the workers
asked for make necessary; else servers are hosts of the file.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Any, TypeVar

import networkx as nx

from hopsum.files.json_text import parse_json
from hopsum.files.output import write_file
from hopsum.network.builder import MAX_HOSTS, MAX_SLOTS, NetworkBuilder
from hopsum.network.mininet_formats import (
    is_p4utils_graph,
    p4utils_records,
    records_of,
    topology_part,
)
from hopsum.network.model import DEFAULT_SLOTS, Network, NetworkError, shorten
from hopsum.network.names import is_safe, label_of, unique_names
from hopsum.network.topologies import (
    TopologyOptions,
    is_topology,
    known_topologies,
    make_topology,
    set_plain,
    suggestion,
)
from hopsum.network.units import parse_rate, parse_time

LOGGER = logging.getLogger("hopsum.network")
LIGHT_IN_FIBRE = 2e8
"""Metres per second."""
EARTH_RADIUS = 6_371_000.0
"""Metres."""
_NODE_KEYS = ("id", "kind", "label", "aggregates", "slots", "ip", "mac")
_EDGE_KEYS = ("source", "target", "bandwidth", "latency", "source_port", "target_port")

_T = TypeVar("_T")


def load_network(
    spec: str | nx.Graph[Any],
    *,
    link_rate: str | float | None = None,
    uplink_rate: str | float | None = None,
    latency: str | float | None = None,
    servers: int = 1,
    workers: int | None = None,
    slots: int = DEFAULT_SLOTS,
    plain: Iterable[str] = (),
    hosts_per_switch: int = 1,
    largest_piece: bool = False,
) -> Network:
    """Make the network that `spec` names (`fat-tree:4`), or that a file or a graph describes.

    `link_rate` and `latency` hold for every link, over what a file says; `uplink_rate` for links
    between switches. `largest_piece`: of a file whose network is in several pieces take the one
    with the most nodes. The rest as in `topologies.TopologyOptions`. Raises NetworkError.
    """
    try:
        options = TopologyOptions(
            link_rate=None if link_rate is None else parse_rate(link_rate),
            uplink_rate=None if uplink_rate is None else parse_rate(uplink_rate),
            latency=0.0 if latency is None else parse_time(latency),
            servers=servers,
            workers=workers,
            slots=slots,
            plain=tuple(plain),
        )
    except ValueError as error:
        raise NetworkError(str(error)) from None
    for name, count, least in (("workers", workers, 1), ("servers", servers, 0)):
        if count is not None and not least <= count <= MAX_HOSTS:
            raise NetworkError(f"{name} {count}: expected {least} to {MAX_HOSTS}")
    if not 0 <= hosts_per_switch <= MAX_HOSTS:
        raise NetworkError(f"hosts per switch {hosts_per_switch}: expected 0 to {MAX_HOSTS}")
    if isinstance(spec, str) and is_topology(spec):
        return make_topology(spec, options)
    builder = (
        _read(Path(spec), options, hosts_per_switch)
        if isinstance(spec, str)
        else _of_graph(spec, options, hosts_per_switch)
    )
    if largest_piece:
        builder = builder.largest_piece()
    if link_rate is not None or uplink_rate is not None or latency is not None:
        builder = _override(builder, options, latency is not None)
    if workers is not None:
        _add_missing_servers(builder, workers, servers)
    return set_plain(builder, options.plain).build()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        # A name that is too long, say.
        return False


def _of_graph(
    graph: nx.Graph[Any], options: TopologyOptions, hosts_per_switch: int
) -> NetworkBuilder:
    builder = NetworkBuilder(str(graph.name) or "graph", slots=options.slots)
    _from_graph(builder, graph, hosts_per_switch)
    return builder


def _read(path: Path, options: TopologyOptions, hosts_per_switch: int) -> NetworkBuilder:
    if not _is_file(path):
        raise NetworkError(
            f"{str(path)!r:.200} is neither a file nor the name of a topology"
            f"{suggestion(str(path))}; names are:\n{known_topologies()}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NetworkError(f"{path}: cannot be read: {error}") from None
    builder = NetworkBuilder(path.stem, slots=options.slots)
    try:
        if text.lstrip().startswith("<"):
            _from_graph(builder, _graphml(text), hosts_per_switch)
        elif re.search(r"^\s*graph\s*\[", text, re.MULTILINE):
            _from_graph(builder, _gml(text), hosts_per_switch)
        else:
            _from_json(builder, text)
    except NetworkError as error:
        raise NetworkError(f"{path}: {error}") from None
    return builder


def _override(
    builder: NetworkBuilder, options: TopologyOptions, set_latency: bool
) -> NetworkBuilder:
    """Apply the requested rate and latency to every link."""
    changed = NetworkBuilder(builder.name, slots=builder.slots)
    for switch in builder.switches.values():
        changed.add_switch(switch.name, switch.aggregates, switch.slots, switch.label)
    for host in builder.hosts.values():
        changed.add_host(host.name, host.ip, host.mac, host.label)
    for link in builder.links:
        rate = options.link_rate if options.link_rate is not None else link.bandwidth
        if options.uplink_rate is not None and {link.a, link.b} <= set(builder.switches):
            rate = options.uplink_rate
        latency = options.latency if set_latency else link.latency
        changed.link(link.a, link.b, rate, latency, link.a_port, link.b_port)
    return changed


def _add_missing_servers(builder: NetworkBuilder, workers: int, servers: int) -> None:
    missing = workers + servers - len(builder.hosts)
    if missing <= 0 or not builder.switches:
        return
    if missing > servers:
        raise NetworkError(
            f"{builder.name} has {len(builder.hosts)} hosts: too few for {workers} workers; use "
            "fewer workers, or (GraphML) more hosts per switch"
        )
    links = dict.fromkeys(builder.switches, 0)
    for link in builder.links:
        for end in (link.a, link.b):
            if end in links:
                links[end] += 1
    builder.add_servers(missing, sorted(links, key=lambda name: (-links[name], name)))


def _from_json(builder: NetworkBuilder, text: str) -> None:
    try:
        data = parse_json(text)
    except json.JSONDecodeError as error:
        raise NetworkError(
            f"line {error.lineno}, column {error.colno}: expected JSON, GraphML or GML: {error.msg}"
        ) from None
    except ValueError as error:
        raise NetworkError(str(error)) from None
    if isinstance(data, dict) and isinstance(data.get("nodes"), list):
        edges = data.get("edges", data.get("links"))
        if not isinstance(edges, list):
            raise NetworkError("node-link JSON without a list `edges` (or `links`)")
        graph = data.get("graph")
        if isinstance(graph, dict) and isinstance(graph.get("name"), str) and graph["name"]:
            builder.name = graph["name"]
        nodes = [_record(node, f"nodes[{i}]") for i, node in enumerate(data["nodes"])]
        edges = [_record(edge, f"edges[{i}]") for i, edge in enumerate(edges)]
        if is_p4utils_graph(data):
            nodes, edges = p4utils_records(nodes, edges)
        _from_nodes(builder, nodes, edges)
        return
    part = topology_part(data) if isinstance(data, dict) else None
    if part is None:
        raise NetworkError(
            "expected node-link JSON (`nodes` and `edges`), or a topology.json or p4app.json "
            "(`hosts`, `switches` and `links`)"
        )
    _from_nodes(builder, *records_of(part))


def _record(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NetworkError(f"{where}: expected an object, found {value!r}")
    return value


def _from_nodes(
    builder: NetworkBuilder, nodes: list[dict[str, Any]], edges: list[dict[str, Any]]
) -> None:
    for i, node in enumerate(nodes):
        if "id" not in node:
            raise NetworkError(f"nodes[{i}]: no `id`")
        if not isinstance(node["id"], (str, int)) or not str(node["id"]):
            raise NetworkError(f"nodes[{i}]: id {node['id']!r:.40}: expected a name")
    ids = dict.fromkeys(str(node["id"]) for node in nodes)
    safe = [each for each in ids if is_safe(each)]
    names = dict(zip(safe, safe, strict=True))
    names |= unique_names({each: label_of(each) for each in ids if each not in names}, "n", safe)
    for node in nodes:
        name = names[str(node["id"])]
        label = _label(node)
        _check_spelling(node, _NODE_KEYS, f"node {name}")
        match node.get("kind"):
            case "switch":
                aggregates, slots = node.get("aggregates", True), node.get("slots", builder.slots)
                if not isinstance(aggregates, bool):
                    raise NetworkError(f"node {name}: aggregates {aggregates!r}: expected a bool")
                if type(slots) is not int or not 1 <= slots <= MAX_SLOTS:
                    raise NetworkError(
                        f"node {name}: slots {slots!r:.40}: expected 1 to {MAX_SLOTS}"
                    )
                builder.add_switch(name, aggregates, slots, label)
            case "host":
                ip, mac = node.get("ip"), node.get("mac")
                builder.add_host(
                    name, None if ip is None else _ip(name, ip), _mac(name, mac), label
                )
            case kind:
                found = f"kind {kind!r}" if "kind" in node else "no `kind`"
                raise NetworkError(f"node {name}: {found}; expected `host` or `switch`")
    for i, edge in enumerate(edges):
        if "source" not in edge or "target" not in edge:
            raise NetworkError(f"edges[{i}]: expected `source` and `target`")
        ends = str(edge["source"]), str(edge["target"])
        for end in ends:
            if end not in names:
                raise NetworkError(
                    f"link {ends[0]:.80}-{ends[1]:.80}: there is no node {end!r:.80}; nodes: "
                    f"{shorten(names)}"
                )
        a, b = (names[end] for end in ends)
        where = f"link {a}-{b}"
        _check_spelling(edge, _EDGE_KEYS, where)
        builder.link(
            a,
            b,
            _optional(edge, "bandwidth", where, parse_rate),
            _optional(edge, "latency", where, parse_time),
            _optional(edge, "source_port", where, _port),
            _optional(edge, "target_port", where, _port),
        )


def _check_spelling(record: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Raise NetworkError for a key that is nearly one of `known`; others are for other programs."""
    for key in record.keys() - set(known):
        meant = get_close_matches(str(key).lower(), known, 1, 0.8)
        if meant and meant[0] not in record:
            raise NetworkError(f"{where}: {key!r:.40}: is `{meant[0]}` meant?")


def _optional(
    record: Mapping[str, Any], key: str, where: str, parse: Callable[[Any], _T]
) -> _T | None:
    if record.get(key) is None:
        return None
    try:
        return parse(record[key])
    except ValueError as error:
        raise NetworkError(f"{where}: {key}: {error}") from None


def _port(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"port {value!r}: expected a whole number")
    return value


def _label(node: Mapping[str, Any]) -> str:
    """Return a node's name for people: its `label`, else its id where that is not its name."""
    label = node.get("label")
    return label_of(label if isinstance(label, str) and label else str(node["id"]))


def _ip(name: str, value: object) -> str:
    """Return the dotted address of `10.0.1.1` or `10.0.1.1/24`."""
    try:
        return str(IPv4Address(str(value).partition("/")[0]))
    except AddressValueError:
        raise NetworkError(
            f"host {name}: ip {value!r:.40}: expected an IPv4 address such as 10.0.1.1"
        ) from None


def _mac(name: str, value: object) -> str:
    if value is None:
        return ""
    if not re.fullmatch(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}", str(value)):
        raise NetworkError(f"host {name}: mac {value!r}: expected six bytes 02:00:0a:00:00:01")
    return str(value).lower()


def _graphml(text: str) -> nx.Graph[Any]:
    try:
        return nx.parse_graphml(text)
    except (nx.NetworkXError, SyntaxError, KeyError, ValueError) as error:
        raise NetworkError(f"expected JSON, GraphML or GML: {error}") from None


def _gml(text: str) -> nx.Graph[Any]:
    """Return the graph of a GML file; labels need not be unique, nor edges."""
    several = re.sub(r"^(\s*graph\s*\[)", r"\1 multigraph 1", text, count=1, flags=re.MULTILINE)
    try:
        return nx.parse_gml(text if "multigraph" in text else several, label="id")
    except (nx.NetworkXError, KeyError, ValueError) as error:
        raise NetworkError(f"expected JSON, GraphML or GML: {error}") from None


def _from_graph(builder: NetworkBuilder, graph: nx.Graph[Any], hosts_per_switch: int) -> None:
    if graph.is_directed():
        graph = graph.to_undirected()
    nodes: dict[Any, dict[str, Any]] = dict(graph.nodes(data=True))
    edges: list[tuple[Any, Any, dict[str, Any]]] = list(graph.edges(data=True))
    if any("kind" in data for data in nodes.values()):
        _from_nodes(
            builder,
            [{**data, "id": node} for node, data in nodes.items()],
            [{"source": a, "target": b, **data} for a, b, data in edges],
        )
        return
    labels = {node: label_of(_zoo_label(data)) for node, data in nodes.items()}
    for node in (a for a, b, _ in edges if a == b):
        LOGGER.warning("%s: a link of %s with itself is left out", builder.name, labels[node])
    edges = [(a, b, data) for a, b, data in edges if a != b]
    linked = {end for a, b, _ in edges for end in (a, b)}
    if linked and len(linked) < len(nodes):
        alone = [labels[node] or str(node) for node in nodes if node not in linked]
        LOGGER.warning("%s: nodes without links are left out: %s", builder.name, shorten(alone))
        nodes = {node: data for node, data in nodes.items() if node in linked}
    names = unique_names({node: labels[node] for node in nodes}, "s" if hosts_per_switch else "h")
    for node, name in names.items():
        if hosts_per_switch:
            builder.add_switch(name, label=labels[node])
        else:
            builder.add_host(name, label=labels[node])
    for name in names.values():
        for _ in range(hosts_per_switch):
            builder.link(builder.add_host(), name)
    for a, b, data in edges:
        rate = _optional(data, "LinkSpeedRaw", f"link {names[a]}-{names[b]}", parse_rate)
        builder.link(names[a], names[b], rate, _distance(nodes[a], nodes[b]))


def _zoo_label(data: Mapping[str, Any]) -> str:
    """Return a node's label on one line; '' if it has none."""
    label = data.get("label")
    return "" if label is None else " ".join(str(label).split())


def _distance(a: Mapping[str, Any], b: Mapping[str, Any]) -> float | None:
    """Return the delay in fibre between two places in seconds; None if a place is unknown."""
    try:
        phi1, lam1, phi2, lam2 = (
            math.radians(float(node[key])) for node in (a, b) for key in ("Latitude", "Longitude")
        )
    except (KeyError, TypeError, ValueError):
        return None
    half = (
        math.sin((phi2 - phi1) / 2) ** 2
        + math.cos(phi1) * math.cos(phi2) * math.sin((lam2 - lam1) / 2) ** 2
    )
    return 2 * EARTH_RADIUS * math.asin(min(1.0, math.sqrt(half))) / LIGHT_IN_FIBRE


def node_link(network: Network) -> dict[str, Any]:
    """Return the network as node-link data, which `load_network` reads back to the same network."""
    nodes: list[dict[str, Any]] = [
        {"id": s.name, "kind": "switch", "aggregates": s.aggregates, "slots": s.slots}
        | ({"label": s.label} if s.label else {})
        for s in network.switches.values()
    ]
    nodes += [
        {"id": h.name, "kind": "host", "ip": h.ip, "mac": h.mac}
        | ({"label": h.label} if h.label else {})
        for h in network.hosts.values()
    ]
    edges: list[dict[str, Any]] = [
        {
            "source": link.a,
            "target": link.b,
            "source_port": link.a_port,
            "target_port": link.b_port,
            "latency": link.latency,
        }
        | ({} if link.bandwidth is None else {"bandwidth": link.bandwidth})
        for link in network.links
    ]
    return {
        "directed": False,
        "multigraph": False,
        "graph": {"name": network.name},
        "nodes": nodes,
        "edges": edges,
    }


def save_network(network: Network, path: Path) -> None:
    """Write the network as node-link JSON."""
    write_file(path, json.dumps(node_link(network), indent=1) + "\n")
