"""Networks from files: node-link JSON, GraphML, the P4 tutorials' topology.json; and saving them.

`load_network` is the one way to get a network, by name or from a file.

**Node-link JSON** (networkx `node_link_data`): `nodes` with `id`, `kind` (`host` or `switch`), a
host's `ip` and `mac`, a switch's `aggregates` and `slots`; `edges` (or `links`) with `source`,
`target`, `source_port`, `target_port`, `bandwidth` (bit/s or text such as `100M`) and `latency`
(s or text such as `5ms`). Only `id`, `kind`, `source` and `target` are needed.

**GraphML** with a `kind` on every node means the same. Without any (the Internet Topology Zoo)
every node is a switch named after its label with `hosts_per_switch` hosts, or, if that is 0, a host
that forwards; `LinkSpeedRaw` is the bandwidth, and where both ends have `Latitude` and `Longitude`
the latency is the great circle at 200,000 km/s.

**The P4 tutorials' topology.json**: `hosts`, `switches` and `links` as
`[node, "s1-p2", latency in ms, bandwidth in Mbit/s]`; the last two are optional.

Parallel links of any file are merged into one of their summed bandwidth, with a note in the log.
As many extra server hosts `ps` (on the switches with the most links) are added as the workers
asked for make necessary; else servers are hosts of the file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import networkx as nx

from files.json_text import parse_json
from files.output import write_file
from network.builder import MAX_HOSTS, MAX_SLOTS, NetworkBuilder
from network.model import DEFAULT_SLOTS, Network, NetworkError
from network.topologies import (
    Options,
    is_topology,
    known_topologies,
    make_topology,
    set_plain,
    suggestion,
)
from network.units import parse_rate, parse_time

MAX_LABEL = 10
"""Characters of a switch name made from a label: NAME-eth12 must fit into 15 characters."""
LIGHT_IN_FIBRE = 2e8
"""Metres per second."""
EARTH_RADIUS = 6_371_000.0
"""Metres."""
_NODE_KEYS = ("id", "kind", "aggregates", "slots", "ip", "mac")
_EDGE_KEYS = ("source", "target", "bandwidth", "latency", "source_port", "target_port")

_T = TypeVar("_T")


def load_network(
    spec: str,
    *,
    link_rate: str | float | None = None,
    uplink_rate: str | float | None = None,
    latency: str | float | None = None,
    servers: int = 1,
    workers: int | None = None,
    slots: int = DEFAULT_SLOTS,
    plain: Iterable[str] = (),
    hosts_per_switch: int = 1,
) -> Network:
    """Make the network that `spec` names (`fat-tree:4`) or a file describes.

    `link_rate` and `latency` hold for every link, over what a file says; `uplink_rate` for links
    between switches. The rest as in `topologies.Options`. Raises NetworkError.
    """
    try:
        options = Options(
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
    if is_topology(spec):
        return make_topology(spec, options)
    path = Path(spec)
    if not _is_file(path):
        raise NetworkError(
            f"{spec!r:.200} is neither a file nor the name of a topology{suggestion(spec)}; "
            f"names are:\n{known_topologies()}"
        )
    builder = _read(path, options, hosts_per_switch)
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


def _read(path: Path, options: Options, hosts_per_switch: int) -> NetworkBuilder:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NetworkError(f"{path}: cannot be read: {error}") from None
    builder = NetworkBuilder(path.stem, slots=options.slots)
    try:
        if text.lstrip().startswith("<"):
            _from_graphml(builder, text, hosts_per_switch)
        else:
            _from_json(builder, text)
    except NetworkError as error:
        raise NetworkError(f"{path}: {error}") from None
    return builder


def _override(builder: NetworkBuilder, options: Options, set_latency: bool) -> NetworkBuilder:
    """Apply the requested rate and latency to every link."""
    changed = NetworkBuilder(builder.name, slots=builder.slots)
    for switch in builder.switches.values():
        changed.add_switch(switch.name, switch.aggregates, switch.slots)
    for host in builder.hosts.values():
        changed.add_host(host.name, host.ip, host.mac)
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
            f"line {error.lineno}, column {error.colno}: expected JSON or GraphML: {error.msg}"
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
        _from_nodes(
            builder,
            [_record(node, f"nodes[{i}]") for i, node in enumerate(data["nodes"])],
            [_record(edge, f"edges[{i}]") for i, edge in enumerate(edges)],
        )
    elif isinstance(data, dict) and {"hosts", "switches", "links"} <= set(data):
        _from_tutorial(builder, data)
    else:
        raise NetworkError(
            "expected node-link JSON (`nodes` and `edges`) or a topology.json of the P4 tutorials "
            "(`hosts`, `switches` and `links`)"
        )


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
        if not isinstance(node["id"], (str, int)):
            raise NetworkError(f"nodes[{i}]: id {node['id']!r:.40}: expected a name")
        name = str(node["id"])
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
                builder.add_switch(name, aggregates, slots)
            case "host":
                ip = node.get("ip")
                builder.add_host(
                    name, None if ip is None else _ip(name, ip), _mac(name, node.get("mac"))
                )
            case kind:
                found = f"kind {kind!r}" if "kind" in node else "no `kind`"
                raise NetworkError(f"node {name}: {found}; expected `host` or `switch`")
    for i, edge in enumerate(edges):
        if "source" not in edge or "target" not in edge:
            raise NetworkError(f"edges[{i}]: expected `source` and `target`")
        a, b = str(edge["source"]), str(edge["target"])
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


def _ip(name: str, value: object) -> str:
    """Return the dotted address of `10.0.1.1` or `10.0.1.1/24`."""
    parts = str(value).partition("/")[0].split(".")
    if len(parts) != 4 or not all(part.isdigit() and int(part) < 256 for part in parts):
        raise NetworkError(f"host {name}: ip {value!r}: expected an IPv4 address such as 10.0.1.1")
    return ".".join(str(int(part)) for part in parts)


def _mac(name: str, value: object) -> str:
    if value is None:
        return ""
    if not re.fullmatch(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}", str(value)):
        raise NetworkError(f"host {name}: mac {value!r}: expected six bytes 02:00:0a:00:00:01")
    return str(value).lower()


def _from_tutorial(builder: NetworkBuilder, data: dict[str, Any]) -> None:
    hosts, switches, links = data["hosts"], data["switches"], data["links"]
    if not (isinstance(hosts, dict) and isinstance(switches, dict) and isinstance(links, list)):
        raise NetworkError("expected objects `hosts` and `switches` and a list `links`")
    for name in switches:
        builder.add_switch(str(name))
    for name, value in hosts.items():
        host = _record(value, f"host {name}")
        ip = host.get("ip")
        builder.add_host(name, None if ip is None else _ip(name, ip), _mac(name, host.get("mac")))
    for i, link in enumerate(links):
        if not isinstance(link, list) or not 2 <= len(link) <= 4:
            raise NetworkError(
                f"links[{i}]: expected [node, node, latency, bandwidth], found {link!r}"
            )
        (a, a_port), (b, b_port) = (_tutorial_end(builder, end, i) for end in link[:2])
        try:
            latency = parse_time(link[2], unit="ms") if len(link) > 2 else None
            bandwidth = parse_rate(float(link[3]) * 1e6) if len(link) > 3 and link[3] else None
        except (TypeError, ValueError) as error:
            raise NetworkError(f"links[{i}], {a}-{b}: {error}") from None
        builder.link(a, b, bandwidth, latency, a_port, b_port)


def _tutorial_end(builder: NetworkBuilder, end: object, i: int) -> tuple[str, int | None]:
    text = str(end)
    if text in builder.hosts:
        return text, None
    match = re.fullmatch(r"(.+)-p(\d+)", text)
    if not match or match[1] not in builder.switches:
        raise NetworkError(f"links[{i}]: {text!r}: expected a host, or a switch's port as s1-p2")
    return match[1], int(match[2])


def _from_graphml(builder: NetworkBuilder, text: str, hosts_per_switch: int) -> None:
    try:
        graph = nx.parse_graphml(text)
    except (nx.NetworkXError, SyntaxError, KeyError, ValueError) as error:
        raise NetworkError(f"expected JSON or GraphML: {error}") from None
    if graph.is_directed():
        graph = graph.to_undirected()
    nodes: dict[Any, dict[str, Any]] = dict(graph.nodes(data=True))
    edges: list[tuple[Any, Any, dict[str, Any]]] = list(graph.edges(data=True))
    if any("kind" in data for data in nodes.values()):
        _from_nodes(
            builder,
            [{**data, "id": node} for node, data in nodes.items()],
            [{**data, "source": a, "target": b} for a, b, data in edges],
        )
        return
    names: dict[Any, str] = {}
    for number, (node, data) in enumerate(nodes.items(), 1):
        names[node] = _short_name(
            str(data.get("label") or ""), number, set(names.values()), hosts_per_switch == 0
        )
        if hosts_per_switch:
            builder.add_switch(names[node])
        else:
            builder.add_host(names[node])
    for name in names.values():
        for _ in range(hosts_per_switch):
            builder.link(builder.add_host(), name)
    for a, b, data in edges:
        rate = _optional(data, "LinkSpeedRaw", f"link {names[a]}-{names[b]}", parse_rate)
        builder.link(names[a], names[b], rate, _distance(nodes[a], nodes[b]))


def _short_name(label: str, number: int, taken: set[str], host: bool) -> str:
    """Return a node name of at most MAX_LABEL characters from a label, else sN, of a host hN."""
    name = re.sub(r"[^A-Za-z0-9]", "", label)[:MAX_LABEL]
    if not name or name[0].isdigit() or re.fullmatch(r"h\d+|ps\d*", name):
        name = f"h{number}" if host else f"s{number}"
    if name in taken:
        suffix = str(number)
        name = name[: MAX_LABEL - len(suffix)] + suffix
    return name


def _distance(a: Mapping[str, Any], b: Mapping[str, Any]) -> float | None:
    """Propagation delay in fibre between two places in seconds; None if a place is unknown."""
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
        for s in network.switches.values()
    ]
    nodes += [
        {"id": h.name, "kind": "host", "ip": h.ip, "mac": h.mac} for h in network.hosts.values()
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
