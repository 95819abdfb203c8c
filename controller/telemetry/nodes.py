"""Hosts with an attached agent process, and their latest reports.

No input or output, no clock of its own: every method that needs the time is given it (seconds).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hopsum.controller.telemetry.state import NetworkState
from hopsum.network.model import Network, shorten
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import InputError
from hopsum.protocol.liveness import SILENCE_SECONDS

REPORT_SECONDS = 1.0


class NodeError(InputError):
    """An invalid report of an agent."""


@dataclass(slots=True)
class Node:
    """One host. `heard`: time of its process's last message; `report`: its last valid one.

    `memory`: bytes of its machine, which all hosts of `machine` share; 0: not known.
    `since`: when its process came, or when it went; before the first, when the controller began.
    """

    host: str
    attached: bool = False
    memory: int = 0
    machine: str = ""
    since: float = 0.0
    heard: float = 0.0
    report: pb.NodeReport | None = None
    reported: float = 0.0
    instance: str = ""
    """Name of its process's session."""


class Nodes:
    """The hosts of a network; their reports make up `state`."""

    def __init__(self, network: Network, now: float = 0.0) -> None:
        self.state = NetworkState(network)
        self._network = network
        self._nodes = {host: Node(host, since=now) for host in network.hosts}

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def node(self, host: str) -> Node:
        """Return a host by name; NodeError if the network has none of that name."""
        if host not in self._nodes:
            raise NodeError(
                f"there is no host {host!r} in {self._network.name}; hosts: "
                f"{shorten(self._network.hosts)}"
            )
        return self._nodes[host]

    @property
    def attached(self) -> tuple[str, ...]:
        """The hosts with an attached process, in the network's order."""
        return tuple(node.host for node in self._nodes.values() if node.attached)

    def attach(
        self, host: str, now: float, memory: int = 0, machine: str = "", instance: str = ""
    ) -> Node:
        """Register a host's process, or its next stream (`instance`).

        NodeError for an unknown host, or one that has another process.
        """
        node = self.node(host)
        if node.attached and not (instance and instance == node.instance):
            raise NodeError(
                f"host {host} has an agent process already, last heard "
                f"{now - node.heard:.1f} s ago; stop it first, or give this one "
                "the name of its own host"
            )
        node.attached, node.heard, node.since = True, now, now
        node.memory, node.machine, node.instance = memory, machine, instance
        return node

    def detach(self, host: str, now: float) -> None:
        """Remove a host's process and its report."""
        node = self.node(host)
        node.attached, node.report, node.since = False, None, now
        self.state.forget(host)

    def take(self, host: str, report: pb.NodeReport, now: float) -> None:
        """Process a report; ReportError if it is impossible, and it is ignored."""
        node = self.node(host)
        node.heard = now
        self.state.take_report(host, report, now)
        node.report, node.reported = report, now

    def was_away(self, seconds: float, now: float) -> None:
        """Do not count the time in which the controller was stopped, as silence of others."""
        for node in self._nodes.values():
            node.heard = min(node.heard + seconds, now)

    def silent(self, now: float) -> list[str]:
        """Return attached hosts that have been silent for longer than `SILENCE_SECONDS`."""
        return [
            node.host
            for node in self._nodes.values()
            if node.attached and now - node.heard > SILENCE_SECONDS
        ]

    def links(self, host: str) -> list[pb.LinkRate]:
        """Return the links of a host, their rates, and the ports where its agent has them."""
        return [
            pb.LinkRate(peer=peer, rate=self._network.link(host, peer).bandwidth or 0.0, port=port)
            for port, peer in self._network.ports(host).items()
        ]
