"""Hosts with several links: each tree's frames leave by its own link, over real interfaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopsum.experiment.description import Experiment, PacketIo, WorldKind
from tests.support.emulated_runs import run_together

pytestmark = pytest.mark.network

HOSTS = ("h1", "h2", "ps")


@pytest.mark.parametrize(
    ("packet_io", "elements"), [(PacketIo.FAST, 60_000), (PacketIo.SCAPY, 3_000)]
)
def test_two_trees_use_both_links_of_every_host(
    packet_io: PacketIo, elements: int, tmp_path: Path
) -> None:
    """Bytes are as predicted on every link, half of them on each of a host's two."""
    nodes = [{"id": name, "kind": "switch"} for name in ("s1", "s2")]
    nodes += [{"id": host, "kind": "host"} for host in HOSTS]
    edges = [{"source": "s1", "target": "s2", "bandwidth": 1e6}]
    edges += [{"source": h, "target": s, "bandwidth": 5e6} for h in HOSTS for s in ("s1", "s2")]
    path = tmp_path / "planes.json"
    path.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    experiment = Experiment(
        str(path),
        workers=2,
        elements=elements,
        rounds=2,
        world=WorldKind.MININET,
        planner="multi-tree",
        link_rate=None,
        packet_io=packet_io,
    )
    (report,) = run_together(experiment)
    assert report.problems == []
    assert report.measured is not None
    for host in HOSTS:
        first, second = (report.measured.links[host, switch] for switch in ("s1", "s2"))
        assert 0.8 < first / second < 1.25
