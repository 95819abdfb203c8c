from __future__ import annotations

import math

import pytest

from controller.loaders import load_network
from controller.nodes import NodeError, Nodes
from protocol import hopsum_pb2 as pb


def report(peer: str = "s1", **rates: float) -> pb.NodeReport:
    return pb.NodeReport(interfaces=[pb.InterfaceReport(peer=peer, **rates)])


def test_a_host_has_one_process_at_a_time() -> None:
    nodes = Nodes(load_network("star:3"))
    nodes.attach("h1", 1.0)
    with pytest.raises(NodeError, match=r"h1 has an agent process already, heard of 2\.0 s ago"):
        nodes.attach("h1", 3.0)
    with pytest.raises(NodeError, match="no host 'h9' in star:3; hosts: h1, h2"):
        nodes.attach("h9", 3.0)
    assert nodes.attached == ("h1",)
    nodes.detach("h1")
    assert not nodes.attached
    nodes.attach("h1", 4.0)


@pytest.mark.parametrize("rate", [-1.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", ["sent", "received", "free_sent", "free_received"])
def test_lies_are_refused_and_not_kept(name: str, rate: float) -> None:
    seen: list[str] = []
    nodes = Nodes(load_network("star:2"), [lambda host, report, now: seen.append(host)])
    nodes.attach("h1", 0.0)
    nodes.take("h1", report(sent=5.0), 1.0)
    with pytest.raises(NodeError, match=f"h1 reports .* bit/s as {name.replace('_', ' ')} on its"):
        nodes.take("h1", report("s1", **{name: rate}), 2.0)
    node = nodes.node("h1")
    assert node.report == report(sent=5.0)
    assert (node.reported, node.heard) == (1.0, 2.0)
    assert seen == ["h1"]


def test_links_that_are_not_there() -> None:
    nodes = Nodes(load_network("star:2"))
    with pytest.raises(NodeError, match="h1 reports a link to 'h2'; its links go to s1"):
        nodes.take("h1", report("h2"), 1.0)


def test_silence() -> None:
    nodes = Nodes(load_network("star:2"))
    nodes.attach("h1", 0.0)
    nodes.attach("h2", 0.0)
    nodes.take("h2", report(), 20.0)
    assert nodes.silent(31.0) == ["h1"]
    assert nodes.silent(29.0) == []


def test_a_process_is_told_its_links() -> None:
    nodes = Nodes(load_network("star:2", link_rate=1e6))
    assert nodes.links("h1") == [pb.LinkRate(peer="s1", rate=1e6)]
    assert Nodes(load_network("star:2")).links("h1") == [pb.LinkRate(peer="s1", rate=0.0)]
