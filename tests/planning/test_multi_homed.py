"""Hosts with several links: each tree goes over one of them, in plans and in runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hopsum.collectives.choices import EMBEDDING, Algorithm
from hopsum.collectives.plan import PlanError
from hopsum.collectives.plan_checker import check_plans
from hopsum.experiment.description import Experiment
from hopsum.experiment.result import Report
from hopsum.experiment.runner import run_experiment
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.demand import Model
from hopsum.planning.model.request import EmbeddingOptions, PlanRequest
from hopsum.planning.registry import SWITCH_PLANNERS, plan_job
from hopsum.simulation.faults import outage_from

RATE = 25e6
LINKS = {
    "h1": {"s1": RATE, "s2": RATE},
    "h2": {"s1": RATE / 2, "s2": RATE},
    "h3": {"s2": RATE},
    "ps": {"s2": RATE, "s1": RATE},
}


def dual_homed(folder: Path) -> str:
    """Two leaves and a spine; h1, h2 and ps are attached to both leaves."""
    nodes = [{"id": name, "kind": "switch"} for name in ("s1", "s2", "s3")]
    nodes += [{"id": host, "kind": "host"} for host in LINKS]
    edges = [{"source": s, "target": "s3", "bandwidth": RATE} for s in ("s1", "s2")]
    edges += [
        {"source": host, "target": switch, "bandwidth": rate}
        for host, links in LINKS.items()
        for switch, rate in links.items()
    ]
    path = folder / "dual.json"
    path.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    return str(path)


@pytest.fixture
def network(tmp_path: Path) -> Network:
    """The network of `dual_homed`."""
    return load_network(dual_homed(tmp_path))


def request(planner: str) -> PlanRequest:
    wanted = EmbeddingOptions(models=frozenset({Model.IN_NETWORK}), auxiliary=("ps",))
    servers = () if planner == EMBEDDING else ("ps",)
    return PlanRequest(1, 1, ("h1", "h2", "h3"), servers, embedding=wanted)


def test_the_fastest_link_is_the_default(network: Network) -> None:
    homes = {host: network.access_switch(host) for host in network.hosts}
    assert homes == {"h1": "s1", "h2": "s2", "h3": "s2", "ps": "s2"}
    assert network.without(links=[("h1", "s1")]).access_switch("h1") == "s2"


@pytest.mark.parametrize("planner", SWITCH_PLANNERS)
def test_every_planner_goes_on_over_another_link(planner: str, network: Network) -> None:
    plan = plan_job(network, request(planner), planner=planner)
    check_plans(network, [plan])
    for host, other in {"h1": "s2", "h2": "s1", "ps": "s1"}.items():
        cut = network.without(links=[(host, "s1" if other == "s2" else "s2")])
        plan = plan_job(cut, replace(request(planner), epoch=2), planner=planner)
        check_plans(cut, [plan])
        assert {tree.access(host) for tree in plan.trees} == {other}
    cut = network.without(links=[("h3", "s2")])
    with pytest.raises(PlanError, match="h3"):
        plan_job(cut, request(planner), planner=planner)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "planner"),
    [
        (Algorithm.IN_NETWORK, "multi-hop"),
        (Algorithm.IN_NETWORK, "multi-tree"),
        (Algorithm.SERVER, "multi-hop"),
        (Algorithm.EMBEDDING, EMBEDDING),
        (Algorithm.RING, "multi-hop"),
    ],
)
def test_runs_are_exact(algorithm: Algorithm, planner: str, tmp_path: Path) -> None:
    report = run_experiment(
        Experiment(
            dual_homed(tmp_path),
            workers=3,
            elements=3000,
            rounds=1,
            lanes=32,
            link_rate=None,
            algorithm=algorithm,
            planner=planner,
        )
    )
    assert not report.problems


def two_planes(folder: Path) -> Experiment:
    """Two switches between which little fits; each host is attached to both."""
    nodes = [{"id": name, "kind": "switch"} for name in ("s1", "s2")]
    nodes += [{"id": host, "kind": "host"} for host in LINKS]
    edges = [{"source": "s1", "target": "s2", "bandwidth": RATE / 5}]
    edges += [
        {"source": host, "target": switch, "bandwidth": RATE}
        for host in LINKS
        for switch in ("s1", "s2")
    ]
    path = folder / "planes.json"
    path.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    return Experiment(
        str(path), workers=3, elements=60_000, rounds=2, link_rate=None, planner="multi-tree"
    )


def check_both_planes(report: Report) -> None:
    """The bytes are as predicted on every link, and each host has used both of its links."""
    assert not report.problems
    sent = report.measured.links
    for host in LINKS:
        assert min(sent[host, "s1"], sent[host, "s2"]) > 0.4 * max(sent[host, "s1"], 1)


@pytest.mark.slow
def test_a_run_uses_several_links_of_a_host(tmp_path: Path) -> None:
    report = run_experiment(two_planes(tmp_path))
    check_both_planes(report)
    # Twice as fast as one link allows.
    alone = run_experiment(replace(two_planes(tmp_path), planner="multi-hop"))
    assert not alone.problems
    assert report.measured.seconds < 0.6 * alone.measured.seconds


@pytest.mark.slow
@pytest.mark.parametrize("planner", ["multi-hop", "multi-tree"])
def test_a_job_goes_on_over_a_hosts_other_link(planner: str, tmp_path: Path) -> None:
    cut = outage_from("link-cut:h1-s1@0.05")
    report = run_experiment(replace(two_planes(tmp_path), planner=planner, outages=(cut,)))
    assert not report.problems
    assert report.measured.verdict.wrong == 0
