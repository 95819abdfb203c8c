"""Hosts with several links: their jobs go over one of them, in plans and in runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.experiment.description import Experiment
from cli.experiment.runner import run_experiment
from collectives.choices import Algorithm
from collectives.plan import PlanError
from collectives.plan_checker import check_plans
from network.loaders import load_network
from network.model import Network, NetworkError
from planning.model.demand import Model
from planning.model.request import EmbeddingOptions, PlanRequest
from planning.registry import EMBEDDING, PLANNERS, make_plan

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


def test_the_fastest_link_is_home_and_stays_it(network: Network) -> None:
    homes = {host: network.access_switch(host) for host in network.hosts}
    assert homes == {"h1": "s1", "h2": "s2", "h3": "s2", "ps": "s2"}
    cut = network.without(links=[("h1", "s1")])
    with pytest.raises(NetworkError, match="h1' has lost its link to s1, which its agent uses"):
        cut.access_switch("h1")
    assert network.at_home().ports("h1") == {0: "s1"}
    torus = load_network("torus:3x3")
    assert torus.at_home() is torus


@pytest.mark.parametrize("planner", list(PLANNERS))
def test_every_planner_takes_the_link_of_the_agent(planner: str, network: Network) -> None:
    plan = make_plan(network, request(planner), planner=planner)
    check_plans(network, [plan])
    for tree in plan.trees:
        for host in (*plan.workers, tree.server):
            peers = {tree.parents.get(host)} | {n for n, p in tree.parents.items() if p == host}
            assert peers - {None} == {network.access_switch(host)}
    cut = network.without(links=[("h2", "s2")])
    with pytest.raises(PlanError, match="no in-network" if planner == EMBEDDING else "h2"):
        make_plan(cut, request(planner), planner=planner)


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
