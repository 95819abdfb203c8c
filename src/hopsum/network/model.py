"""The network as data: hosts, switches, links, and the ports that join them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import AddressValueError, IPv4Address
from typing import TYPE_CHECKING

from hopsum.network.names import EXPECTED, MAX_LABEL, is_safe
from hopsum.protocol.errors import InputError

if TYPE_CHECKING:
    import networkx as nx

DEFAULT_SLOTS = 4096
_MAC = re.compile(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}")


class NetworkError(InputError):
    """An unusable network; the message names the node or link and what was expected."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host. `ip`: dotted IPv4, `mac`: colon form.

    `label`: its name for people, '' if the same.
    """

    name: str
    ip: str
    mac: str
    label: str = ""

    @property
    def ip_bytes(self) -> bytes:
        """The IPv4 address, 4 bytes."""
        return bytes(int(part) for part in self.ip.split("."))

    @property
    def mac_bytes(self) -> bytes:
        """The MAC address, 6 bytes."""
        return bytes.fromhex(self.mac.replace(":", ""))


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch. A plain one (`aggregates` False) only forwards; `slots` is its register size.

    `label`: its name for people, '' if the same.
    """

    name: str
    aggregates: bool = True
    slots: int = DEFAULT_SLOTS
    label: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """A full-duplex link between two nodes.

    `a_port`, `b_port`: port numbers at switches (from 1; a host has one port, 0).
    `bandwidth`: bits per second in each direction, of whole Ethernet frames without FCS;
    None is unlimited. `latency`: one way, seconds.
    """

    a: str
    b: str
    a_port: int
    b_port: int
    bandwidth: float | None = None
    latency: float = 0.0


@dataclass(frozen=True)
class Network:
    """Hosts, switches and links. Raises NetworkError when they do not fit together."""

    name: str
    hosts: Mapping[str, Host]
    switches: Mapping[str, Switch]
    links: tuple[Link, ...]
    _ports: dict[tuple[str, int], tuple[str, int]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        for host_name, host in self.hosts.items():
            _check_node(host_name, host)
            check_ip(host.name, host.ip)
            if not _MAC.fullmatch(host.mac):
                raise NetworkError(
                    f"host {host.name}: mac {host.mac!r:.40}: expected six bytes 02:00:0a:00:00:01"
                )
        for switch_name, switch in self.switches.items():
            _check_node(switch_name, switch)
        for link in self.links:
            for node, port, peer, peer_port in (
                (link.a, link.a_port, link.b, link.b_port),
                (link.b, link.b_port, link.a, link.a_port),
            ):
                if node not in self.hosts and node not in self.switches:
                    raise NetworkError(f"link {link.a}-{link.b}: there is no node {node!r}")
                if (node, port) in self._ports:
                    raise NetworkError(f"link {link.a}-{link.b}: port {port} of {node} is taken")
                self._ports[node, port] = (peer, peer_port)
            if link.bandwidth is not None and not link.bandwidth > 0:
                raise NetworkError(
                    f"link {link.a}-{link.b}: bandwidth {link.bandwidth}: expected above 0 bit/s"
                )
            if not link.latency >= 0:
                raise NetworkError(
                    f"link {link.a}-{link.b}: latency {link.latency}: expected 0 s or more"
                )

    @cached_property
    def graph(self) -> nx.Graph[str]:
        """The undirected graph; nodes have `kind`, edges `link`."""
        # Agents use a Network without its graph: networkx would double their time to start.
        import networkx as nx

        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(self.hosts, kind="host")
        graph.add_nodes_from(self.switches, kind="switch")
        for link in self.links:
            graph.add_edge(link.a, link.b, link=link)
        return graph

    @cached_property
    def _port_to(self) -> dict[tuple[str, str], int]:
        return {(node, peer): port for (node, port), (peer, _) in self._ports.items()}

    @cached_property
    def _ports_of(self) -> dict[str, dict[int, str]]:
        ports: dict[str, dict[int, str]] = {}
        for (node, port), (peer, _) in sorted(self._ports.items()):
            ports.setdefault(node, {})[port] = peer
        return ports

    def label(self, node: str) -> str:
        """Return a node's name for people: its label, where a file has one that is not its name."""
        found = self.hosts.get(node) or self.switches.get(node)
        return (found.label if found is not None else "") or node

    def port(self, node: str, neighbour: str) -> int:
        """Return the port of `node` that leads to `neighbour`.

        NetworkError if they are not linked.
        """
        try:
            return self._port_to[node, neighbour]
        except KeyError:
            raise NetworkError(f"no link between {node!r} and {neighbour!r}") from None

    def neighbour(self, node: str, port: int) -> str:
        """Return the neighbour at a port; NetworkError if the port is not in use."""
        try:
            return self._ports[node, port][0]
        except KeyError:
            raise NetworkError(f"{node!r} has no port {port}") from None

    def ports(self, node: str) -> dict[int, str]:
        """Return the ports of a node in use, with the neighbour at each, in order of port."""
        return dict(self._ports_of.get(node, {}))

    def link(self, u: str, v: str) -> Link:
        """Return the link between two nodes; NetworkError if there is none."""
        self.port(u, v)
        return self._link_between[u, v]

    def link_named(self, text: str) -> Link:
        """Return the link that `A-B` means, in either order; NetworkError if there is none."""
        for (u, v), link in self._link_between.items():
            if text == f"{u}-{v}":
                return link
        names = [f"{link.a}-{link.b}" for link in self.links]
        raise NetworkError(
            f"{self.name} has no link {text!r:.40}; expected one of {', '.join(names[:20])}"
        )

    @cached_property
    def _link_between(self) -> dict[tuple[str, str], Link]:
        links = {(link.a, link.b): link for link in self.links}
        return links | {(link.b, link.a): link for link in self.links}

    def directed_links(self) -> Iterator[tuple[str, str]]:
        """Return all links in both directions, in order."""
        for link in self.links:
            yield link.a, link.b
            yield link.b, link.a

    def without(self, nodes: Iterable[str] = (), links: Iterable[tuple[str, str]] = ()) -> Network:
        """Return the network without failed nodes and links; ports keep their numbers."""
        gone = set(nodes)
        cut = {frozenset(pair) for pair in links}
        return Network(
            self.name,
            {name: host for name, host in self.hosts.items() if name not in gone},
            {name: switch for name, switch in self.switches.items() if name not in gone},
            tuple(
                link
                for link in self.links
                if not {link.a, link.b} & gone and frozenset((link.a, link.b)) not in cut
            ),
        )

    def around(self, nodes: Iterable[str]) -> Network:
        """Return the part of the network that packets to and from these nodes can reach.

        Where there are switches hosts do not forward. Unknown names are ignored; the network itself
        is returned where all of it is reachable.
        """
        starts = {node for node in nodes if node in self.hosts or node in self.switches}
        reached = set(starts)
        queue = list(reached)
        for node in queue:
            if node in self.hosts and self.switches and node not in starts:
                continue
            fresh = {peer for peer in self._ports_of.get(node, {}).values() if peer not in reached}
            reached |= fresh
            queue += fresh
        gone = [node for node in (*self.hosts, *self.switches) if node not in reached]
        return self.without(gone) if gone else self

    def access_switch(self, host: str) -> str:
        """Return the neighbour on a host's link, of several the fastest to a switch.

        Of equally fast ones it is the first. Where frames belong to a tree, its plan says which
        link they take. NetworkError if there is no link.
        """
        if host not in self.hosts:
            raise NetworkError(f"there is no host {host!r}; hosts: {shorten(self.hosts)}")
        neighbours = list(self.ports(host).values())
        if not neighbours:
            raise NetworkError(f"host {host!r} has 0 links; expected one or more")
        return max(
            neighbours,
            key=lambda peer: (peer in self.switches, self.link(host, peer).bandwidth or math.inf),
        )


def check_name(name: str) -> None:
    """Raise NetworkError for a node's name that is unsafe in commands and files."""
    if not is_safe(name):
        raise NetworkError(f"node {name!r:.80}: expected a name of {EXPECTED}")


def check_ip(host: str, ip: str) -> None:
    """Raise NetworkError unless `ip` is a dotted IPv4 address."""
    try:
        IPv4Address(ip)
    except AddressValueError:
        raise NetworkError(
            f"host {host}: ip {ip!r:.40}: expected an IPv4 address such as 10.0.1.1"
        ) from None


def _check_node(key: str, node: Host | Switch) -> None:
    """Raise NetworkError for a name that is unsafe or not the key, or an unprintable label."""
    check_name(node.name)
    if key != node.name:
        raise NetworkError(f"node {node.name!r} is listed as {key!r:.80}; expected its name")
    if len(node.label) > MAX_LABEL or not node.label.isprintable():
        raise NetworkError(
            f"node {node.name}: label {node.label!r:.80}: expected at most {MAX_LABEL} printable "
            "characters"
        )


def shorten(names: Iterable[str], limit: int = 12) -> str:
    """Return names for an error message, at most `limit` of them."""
    listed = list(names)
    more = f", ... ({len(listed)} in all)" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
