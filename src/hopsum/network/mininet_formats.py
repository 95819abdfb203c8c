"""Topology files of other programs for Mininet, as records of node-link JSON.

The P4 tutorials' topology.json (also of 2017, where links name no ports), p4app's `p4app.json`
with its `targets`, and p4-utils' `p4app.json` and `topology.json`. Bandwidths there are in Mbit/s
and delays without a unit in ms. A router of p4-utils is a switch that only forwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hopsum.network.model import NetworkError
from hopsum.network.units import parse_rate, parse_time

Records = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Nodes and edges as in node-link JSON."""


def topology_part(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the object of a file that has `hosts`, `switches` and `links`; None if there is none.

    It is the file's own, or `topology` (p4-utils), or the first of `targets` that has them (p4app).
    """
    targets = data.get("targets")
    inner = [data.get("topology"), *(targets.values() if isinstance(targets, dict) else ())]
    for part in (data, *inner):
        if isinstance(part, dict) and "links" in part and part.keys() & {"hosts", "switches"}:
            return part
    return None


def records_of(data: Mapping[str, Any]) -> Records:
    """Return the records of `topology_part`. Raises NetworkError."""
    links = data["links"]
    if not isinstance(links, list):
        raise NetworkError("expected a list `links`")
    hosts, switches, routers = (_named(data, key) for key in ("hosts", "switches", "routers"))
    nodes: dict[str, dict[str, Any]] = {}
    for kind, found in (("switch", switches), ("host", hosts)):
        for name, value in found.items():
            if name in nodes:
                raise NetworkError(f"node {name!r:.80}: it is both a host and a switch")
            nodes[name] = {"id": name, "kind": kind}
            if kind == "host":
                nodes[name] |= {key: value[key] for key in ("ip", "mac") if key in value}
    for name in routers:
        nodes[name] = {"id": name, "kind": "switch", "aggregates": False}
    default = data.get("default") or {}
    if not isinstance(default, dict):
        raise NetworkError(f"default {default!r:.80}: expected an object")
    edges = [_edge(nodes, link, i, default) for i, link in enumerate(links)]
    return list(nodes.values()), edges


def is_p4utils_graph(data: Mapping[str, Any]) -> bool:
    """Return whether node-link JSON is p4-utils' own: nodes say what they are by `isHost` etc."""
    nodes = data.get("nodes")
    return isinstance(nodes, list) and any(
        isinstance(node, dict) and "kind" not in node and node.keys() & {"isHost", "isSwitch"}
        for node in nodes
    )


def p4utils_records(nodes: list[dict[str, Any]], edges: list[dict[str, Any]]) -> Records:
    """Return the records of p4-utils' topology.json. Raises NetworkError."""
    kinds: dict[str, dict[str, Any]] = {}
    for i, node in enumerate(nodes):
        if "id" not in node:
            raise NetworkError(f"nodes[{i}]: no `id`")
        name = str(node["id"])
        kinds[name] = {"id": node["id"], "kind": "host" if node.get("isHost") else "switch"}
        if node.get("isHost"):
            kinds[name] |= {key: node[key] for key in ("ip", "mac") if node.get(key)}
        elif node.get("isRouter"):
            kinds[name]["aggregates"] = False
    records = []
    for i, edge in enumerate(edges):
        if "source" not in edge or "target" not in edge:
            raise NetworkError(f"edges[{i}]: expected `source` and `target`")
        # networkx may have turned an edge around; ports belong to node1 and node2.
        ends = (edge.get("node1", edge["source"]), edge.get("node2", edge["target"]))
        records.append(_with_options(kinds, ends, edge, f"edges[{i}]"))
    return list(kinds.values()), records


def _named(data: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """Return nodes by name, of an object, or of a list of names."""
    value = data.get(key) or {}
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return {name: {} for name in value}
    if not isinstance(value, dict):
        raise NetworkError(f"{key}: expected an object or a list of names, found {value!r:.80}")
    for name, found in value.items():
        if not isinstance(found, dict):
            raise NetworkError(f"{key}: {name}: expected an object, found {found!r:.80}")
    return value


def _edge(
    nodes: dict[str, dict[str, Any]], link: object, i: int, default: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the record of `[node, node, delay, bandwidth]` or `[node, node, options]`."""
    if not isinstance(link, list) or not 2 <= len(link) <= 4:
        raise NetworkError(
            f"links[{i}]: expected [node, node, latency, bandwidth], found {link!r:.80}"
        )
    (a, a_port), (b, b_port) = (_end(nodes, end, i) for end in link[:2])
    options: dict[str, Any] = {"port1": a_port, "port2": b_port, **default}
    if len(link) == 3 and isinstance(link[2], dict):
        options |= link[2]
    else:
        options |= dict(zip(("delay", "bw"), link[2:], strict=False))
    return _with_options(nodes, (a, b), options, f"links[{i}], {a}-{b}")


def _with_options(
    nodes: dict[str, dict[str, Any]],
    ends: tuple[Any, Any],
    options: Mapping[str, Any],
    where: str,
) -> dict[str, Any]:
    """Return the record of an edge with Mininet's options.

    `bw`, `delay`, `portN`, and of hosts `addrN` and `paramsN`, whose address goes to the host.
    """
    edge: dict[str, Any] = {"source": ends[0], "target": ends[1]}
    try:
        if options.get("delay") is not None:
            edge["latency"] = parse_time(options["delay"], unit="ms")
        if options.get("bw"):
            edge["bandwidth"] = parse_rate(float(options["bw"]) * 1e6)
    except (TypeError, ValueError) as error:
        raise NetworkError(f"{where}: {error}") from None
    for end, key, number in ((ends[0], "source_port", 1), (ends[1], "target_port", 2)):
        node = nodes.get(str(end))
        if node is None:
            continue
        port = options.get(f"port{number}")
        if node["kind"] == "switch":
            edge[key] = port
            continue
        params = options.get(f"params{number}")
        given = {"mac": options.get(f"addr{number}")}
        if isinstance(params, dict):
            given["ip"] = params.get("ip")
        for name, value in given.items():
            if value and name not in node:
                node[name] = value
    return edge


def _end(nodes: Mapping[str, Any], end: object, i: int) -> tuple[str, int | None]:
    """Return the node and the port of `h1`, `s1` or `s1-p2`."""
    text = str(end)
    if text in nodes:
        return text, None
    match = re.fullmatch(r"(.+)-p(\d+)", text, re.ASCII)
    if not match or match[1] not in nodes:
        raise NetworkError(
            f"links[{i}]: {text!r:.80}: expected a host, a switch, or a switch's port as s1-p2"
        )
    return match[1], int(match[2])
