"""Builds a Network node by node: names, addresses and port numbers by one rule.

Host number i (from 1) of a network gets the address 10.0.x.y with x = (i-1) // 250 and
y = (i-1) % 250 + 1, and the MAC address 02:00 followed by the four bytes of its IPv4 address.
A switch's ports count from 1 in the order of its links, a host's from 0.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

import networkx as nx

from hopsum.network.model import (
    DEFAULT_SLOTS,
    Host,
    Link,
    Network,
    NetworkError,
    Switch,
    check_ip,
    check_name,
    shorten,
)
from hopsum.network.units import format_rate

LOGGER = logging.getLogger("hopsum.network")
MAX_HOSTS = 250 * 256
"""Number of addresses 10.0.x.y that the numbering rule provides."""

MAX_PORT = 0xFFFF
MAX_SLOTS = 1 << 20
MAX_SWITCHES = 1 << 16
MAX_LINKS = 1 << 19


def host_ip(number: int) -> str:
    """Return the IPv4 address of host `number` (from 1); NetworkError beyond MAX_HOSTS."""
    if not 1 <= number <= MAX_HOSTS:
        raise NetworkError(f"host number {number}: at most {MAX_HOSTS} hosts have an address")
    return f"10.0.{(number - 1) // 250}.{(number - 1) % 250 + 1}"


def mac_of(ip: str) -> str:
    """Return the MAC address made from an IPv4 address."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in ip.split("."))


@dataclass
class NetworkBuilder:
    """Collects nodes and links; `build` returns the Network.

    `bandwidth` (bit/s, None: unlimited) and `latency` (s) hold for links that name none.
    """

    name: str
    bandwidth: float | None = None
    latency: float = 0.0
    slots: int = DEFAULT_SLOTS
    hosts: dict[str, Host] = field(default_factory=dict)
    switches: dict[str, Switch] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    _taken: dict[str, set[int]] = field(default_factory=dict)
    _pairs: set[frozenset[str]] = field(default_factory=set)
    _addresses: set[str] = field(default_factory=set)

    def add_switch(
        self, name: str, aggregates: bool = True, slots: int | None = None, label: str = ""
    ) -> str:
        """Add a switch and return its name; NetworkError if the name is unsafe or taken."""
        if len(self.switches) >= MAX_SWITCHES:
            raise NetworkError(f"network {self.name}: more than {MAX_SWITCHES} switches")
        self._claim(name)
        slots = self.slots if slots is None else slots
        self.switches[name] = Switch(name, aggregates, slots, label if label != name else "")
        return name

    def add_host(
        self, name: str | None = None, ip: str | None = None, mac: str = "", label: str = ""
    ) -> str:
        """Add a host (by default h1, h2, ... with the addresses of its number); return its name.

        NetworkError if the name is unsafe or taken.
        """
        name = self._free_name() if name is None else name
        self._claim(name)
        if ip is None:
            ip = self._free_ip()
        check_ip(name, ip)
        self._addresses.add(ip)
        self.hosts[name] = Host(name, ip, mac or mac_of(ip), label if label != name else "")
        return name

    def _free_name(self) -> str:
        number = len(self.hosts) + 1
        while f"h{number}" in self._taken:
            number += 1
        return f"h{number}"

    def _free_ip(self) -> str:
        number = len(self.hosts) + 1
        while host_ip(number) in self._addresses:
            number += 1
        return host_ip(number)

    def _claim(self, name: str) -> None:
        check_name(name)
        if name in self._taken:
            raise NetworkError(
                f"node {name!r} is defined twice; names of hosts and switches are unique"
            )
        self._taken[name] = set()

    def link(
        self,
        a: str,
        b: str,
        bandwidth: float | None = None,
        latency: float | None = None,
        a_port: int | None = None,
        b_port: int | None = None,
    ) -> None:
        """Join two nodes; NetworkError for an unknown node, a self-loop, or a taken port.

        A second link of a pair makes the first one wider, by its bandwidth: a note is logged.
        """
        for node in (a, b):
            if node not in self._taken:
                raise NetworkError(
                    f"link {a}-{b}: there is no node {node!r}; nodes: {shorten(self._taken)}"
                )
        if a == b:
            raise NetworkError(f"link {a}-{b}: a node cannot be linked to itself")
        bandwidth = self.bandwidth if bandwidth is None else bandwidth
        latency = self.latency if latency is None else latency
        pair = frozenset((a, b))
        if pair in self._pairs:
            self._widen(pair, bandwidth, latency)
            return
        where = f"link {a}-{b}"
        if len(self.links) >= MAX_LINKS:
            raise NetworkError(f"network {self.name}: more than {MAX_LINKS} links")
        link = Link(
            a,
            b,
            self._port(a, a_port, where),
            self._port(b, b_port, where),
            bandwidth,
            latency,
        )
        self._pairs.add(pair)
        self._taken[a].add(link.a_port)
        self._taken[b].add(link.b_port)
        self.links.append(link)

    def _widen(self, pair: frozenset[str], bandwidth: float | None, latency: float) -> None:
        """Merge a parallel link into the one there is: bandwidths add up, the slower delay stays.

        Without a bandwidth (unlimited) on one of them there is none on the link.
        """
        place = next(i for i, link in enumerate(self.links) if {link.a, link.b} == pair)
        link = self.links[place]
        both = None
        if link.bandwidth is not None and bandwidth is not None:
            both = link.bandwidth + bandwidth
        self.links[place] = replace(link, bandwidth=both, latency=max(link.latency, latency))
        LOGGER.warning(
            "%s: link %s-%s: parallel links are merged into one of %s",
            self.name,
            link.a,
            link.b,
            format_rate(both),
        )

    def _port(self, node: str, wanted: int | None, where: str) -> int:
        taken = self._taken[node]
        first = 1 if node in self.switches else 0
        if wanted is None:
            wanted = len(taken) + first
            while wanted in taken:
                wanted += 1
        elif wanted in taken:
            raise NetworkError(f"{where}: port {wanted} of {node} is taken")
        if not first <= wanted <= MAX_PORT:
            raise NetworkError(f"{where}: port {wanted} of {node}: expected {first} to {MAX_PORT}")
        return wanted

    def add_servers(self, count: int, switches: list[str]) -> None:
        """Add server hosts (`ps`, or `ps1`, `ps2`, ... if several), on the switches in turn."""
        if len(self.hosts) + count > MAX_HOSTS:
            raise NetworkError(
                f"network {self.name}: {count} servers and {len(self.hosts)} other hosts: at most "
                f"{MAX_HOSTS} hosts have an address"
            )
        for i in range(count):
            name = self.add_host("ps" if count == 1 else f"ps{i + 1}")
            self.link(name, switches[i % len(switches)])

    def largest_piece(self) -> NetworkBuilder:
        """Return the connected piece with the most nodes; a note is logged if there are more."""
        pieces = self._pieces()
        if len(pieces) < 2:
            return self
        kept = max(pieces, key=len)
        LOGGER.warning(
            "%s: %d pieces, the largest with %d of %d nodes is taken",
            self.name,
            len(pieces),
            len(kept),
            len(self._taken),
        )
        hosts = {name: host for name, host in self.hosts.items() if name in kept}
        return replace(
            self,
            hosts=hosts,
            switches={name: switch for name, switch in self.switches.items() if name in kept},
            links=[link for link in self.links if link.a in kept],
            _taken={name: ports for name, ports in self._taken.items() if name in kept},
            _pairs={pair for pair in self._pairs if pair <= kept},
            _addresses={host.ip for host in hosts.values()},
        )

    def _pieces(self) -> list[set[str]]:
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(self._taken)
        graph.add_edges_from((link.a, link.b) for link in self.links)
        return list(nx.connected_components(graph))

    def build(self) -> Network:
        """Return the network. NetworkError: empty, in several pieces, or shares an address."""
        network = Network(self.name, dict(self.hosts), dict(self.switches), tuple(self.links))
        if not network.hosts:
            raise NetworkError(f"network {self.name}: no hosts; expected at least one")
        pieces = [sorted(piece) for piece in self._pieces()]
        if len(pieces) > 1:
            smallest = min(pieces, key=len)
            raise NetworkError(
                f"network {self.name}: in {len(pieces)} pieces; expected one. Cut off: "
                f"{shorten(smallest)}; of a file `hopsum topology FILE --largest-piece --save "
                "ONE.json` makes one of its largest piece"
            )
        for what in ("ip", "mac"):
            owners: dict[str, str] = {}
            for host in network.hosts.values():
                address = getattr(host, what)
                if address in owners:
                    raise NetworkError(
                        f"network {self.name}: hosts {owners[address]} and {host.name} "
                        f"share the {what} address {address}"
                    )
                owners[address] = host.name
        return network
