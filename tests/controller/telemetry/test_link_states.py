"""States of links as their ends report them."""

from __future__ import annotations

from hopsum.controller.telemetry.link_states import link_states
from hopsum.controller.telemetry.nodes import Nodes
from hopsum.network.loaders import load_network
from hopsum.protocol import hopsum_pb2 as pb

NETWORK = load_network("leaf-spine:2x2x1")
L1 = {peer: port for port, peer in NETWORK.ports("l1").items()}
L2 = {peer: port for port, peer in NETWORK.ports("l2").items()}
S1 = {peer: port for port, peer in NETWORK.ports("s1").items()}


def report(peer: str, *, carrier: bool) -> pb.NodeReport:
    return pb.NodeReport(interfaces=[pb.InterfaceReport(peer=peer, no_carrier=not carrier)])


def test_a_link_is_down_if_either_end_says_so() -> None:
    ports = {
        "l1": {L1["s1"]: True, L1["h1"]: True, L1["h2"]: False},
        "s1": {S1["l1"]: True, S1["l2"]: False},
        "l2": {L2["s1"]: True},
    }
    assert link_states(NETWORK, ports, Nodes(NETWORK)) == {
        ("l1", "s1"): True,
        ("l2", "s1"): False,
        ("h1", "l1"): True,
        ("h2", "l1"): False,
    }


def test_agents_report_links_of_switches_that_do_not() -> None:
    nodes = Nodes(NETWORK)
    assert link_states(NETWORK, {}, nodes) == {}
    for host, carrier in (("h1", True), ("h2", False)):
        nodes.attach(host, 0.0)
        nodes.take(host, report("l1", carrier=carrier), 1.0)
    assert link_states(NETWORK, {}, nodes) == {("h1", "l1"): True, ("h2", "l1"): False}
    # An agent's word counts as much as a switch's, and is forgotten with the agent.
    says_up = {"l1": {L1["h2"]: True}}
    assert not link_states(NETWORK, says_up, nodes)["h2", "l1"]
    nodes.detach("h2", 2.0)
    assert link_states(NETWORK, says_up, nodes)["h2", "l1"]
