"""Link states, combined from both ends.

A switch says over gNMI which of its ports have a link (p4switch does, BMv2 does not), and a host's
agent whether its interface has. A link is down if either end says so; of one that neither end tells
of, nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hopsum.controller.telemetry.health import Element, link_element
from hopsum.controller.telemetry.nodes import Node
from hopsum.network.model import Network


def link_states(
    network: Network, ports: Mapping[str, Mapping[int, bool]], nodes: Iterable[Node]
) -> dict[Element, bool]:
    """Return the state of links where it is known.

    `ports`: of switches, by number. `nodes`: the hosts, with their last reports.
    """
    carriers = {
        (node.host, interface.peer): not interface.no_carrier
        for node in nodes
        if node.report is not None
        for interface in node.report.interfaces
    }
    known: dict[Element, bool] = {}
    for link in network.links:
        ends = ((link.a, link.a_port, link.b), (link.b, link.b_port, link.a))
        said = [ports[node][port] for node, port, _ in ends if port in ports.get(node, {})]
        said += [carriers[node, peer] for node, _, peer in ends if (node, peer) in carriers]
        if said:
            known[link_element(link.a, link.b)] = all(said)
    return known
