from __future__ import annotations

import math

import pytest

from hopsum.controller.telemetry.nodes import NodeError, Nodes
from hopsum.controller.telemetry.state import ReportError
from hopsum.network.builder import NetworkBuilder
from hopsum.network.loaders import load_network
from hopsum.protocol import hopsum_pb2 as pb


def report(peer: str = "s1", **rates: float) -> pb.NodeReport:
    return pb.NodeReport(interfaces=[pb.InterfaceReport(peer=peer, **rates)])


def test_a_host_has_one_process_at_a_time() -> None:
    nodes = Nodes(load_network("star:3"))
    nodes.attach("h1", 1.0)
    with pytest.raises(NodeError, match=r"h1 has an agent process already, last heard 2\.0 s ago"):
        nodes.attach("h1", 3.0)
    with pytest.raises(NodeError, match="no host 'h9' in star:3; hosts: h1, h2"):
        nodes.attach("h9", 3.0)
    assert nodes.attached == ("h1",)
    nodes.detach("h1", 3.0)
    assert not nodes.attached
    nodes.attach("h1", 4.0)


def test_a_session_may_replace_its_stream_and_no_other() -> None:
    nodes = Nodes(load_network("star:2"))
    nodes.attach("h1", 1.0, instance="a")
    nodes.attach("h1", 2.0, instance="a")
    for other in ("b", ""):
        with pytest.raises(NodeError, match="has an agent process already"):
            nodes.attach("h1", 3.0, instance=other)


@pytest.mark.parametrize("rate", [-1.0, math.inf, math.nan])
def test_false_reports_are_refused_and_not_kept(rate: float) -> None:
    nodes = Nodes(load_network("star:2", link_rate=1e6))
    nodes.attach("h1", 0.0)
    nodes.take("h1", report("s1", sent=5.0), 1.0)
    with pytest.raises(ReportError, match=r"h1 reports that it sends .* expected a finite rate"):
        nodes.take("h1", report("s1", sent=rate), 2.0)
    node = nodes.node("h1")
    assert node.report == report("s1", sent=5.0)
    assert (node.reported, node.heard) == (1.0, 2.0)
    assert nodes.state.link("h1", "s1", 2.0).used == 5.0
    nodes.detach("h1", 3.0)
    assert nodes.state.link("h1", "s1", 2.0).age is None


def test_silence() -> None:
    nodes = Nodes(load_network("star:2"))
    nodes.attach("h1", 0.0)
    nodes.attach("h2", 0.0)
    nodes.take("h2", report(), 20.0)
    assert nodes.silent(31.0) == ["h1"]
    assert nodes.silent(29.0) == []
    nodes.was_away(100.0, 110.0)
    assert nodes.silent(110.0) == []
    assert nodes.silent(130.5) == ["h1"]


def test_a_process_receives_its_links() -> None:
    nodes = Nodes(load_network("star:2", link_rate=1e6))
    assert nodes.links("h1") == [pb.LinkRate(peer="s1", rate=1e6)]
    assert Nodes(load_network("star:2")).links("h1") == [pb.LinkRate(peer="s1", rate=0.0)]


def test_a_process_receives_all_of_its_links() -> None:
    builder = NetworkBuilder("planes", 5e6)
    builder.add_host("h1")
    for switch in ("s1", "s2"):
        builder.add_switch(switch)
        builder.link("h1", switch)
    builder.link("s1", "s2")
    assert Nodes(builder.build()).links("h1") == [
        pb.LinkRate(peer="s1", rate=5e6, port=0),
        pb.LinkRate(peer="s2", rate=5e6, port=1),
    ]
