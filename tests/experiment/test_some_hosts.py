"""Trees of hosts among some of a network's: planned, run and timed, over these hosts only."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.collectives.choices import Algorithm
from hopsum.collectives.plan import PlanError
from hopsum.experiment.comparison import Comparison, compare
from hopsum.experiment.description import Experiment, ExperimentError
from hopsum.experiment.runner import run_experiment
from hopsum.network.loaders import load_network
from hopsum.network.model import NetworkError
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import HOST_PLANNERS, make_plan
from hopsum.protocol.errors import InputError

BLOCK = ("h2", "h3", "h6", "h7")
"""A square of a 4x4 torus."""


def experiment(planner: str, *names: str) -> Experiment:
    return Experiment(
        "torus:4x4",
        workers=len(names) or 5,
        worker_names=names,
        elements=4000,
        rounds=1,
        algorithm=Algorithm.MULTI_TREE,
        planner=planner,
    )


@pytest.mark.slow
@pytest.mark.parametrize("planner", list(HOST_PLANNERS))
@pytest.mark.parametrize("names", [BLOCK, ()])
def test_runs_over_the_workers_only(planner: str, names: tuple[str, ...]) -> None:
    report = run_experiment(experiment(planner, *names))
    assert not report.problems
    assert report.measured is not None
    used = {host for link, size in report.measured.links.items() if size for host in link}
    assert used == set(names or ("h1", "h2", "h3", "h4", "h5"))


@pytest.mark.parametrize("planner", list(HOST_PLANNERS))
def test_plans_fit_the_links_between_workers(planner: str) -> None:
    torus = load_network("torus:4x4", link_rate=1.0)
    forest = make_plan(torus, PlanRequest(1, 1, BLOCK, ()), planner).forest
    # A cycle of four: two of its spanning trees share each of three links of four.
    assert forest.throughput == forest.bound == pytest.approx(4 / 3, rel=0.01)
    assert {node for tree in forest.trees for node in tree.nodes} == set(BLOCK)
    with pytest.raises(PlanError, match="without hosts that only forward: no path from h1 to h6"):
        make_plan(torus, PlanRequest(1, 1, ("h1", "h6"), ()), planner)


def test_workers_by_name_at_the_command_line() -> None:
    asked = ["run", "--topology", "torus:3x3", "--elements", "500", "--rounds", "1", "--json"]
    asked += ["--planner", "multi-tree", "--workers"]
    done = CliRunner().invoke(app, [*asked, "h1,h2,h5"], catch_exceptions=False)
    assert done.exit_code == 0
    with pytest.raises(NetworkError, match="no host 'h77' in torus:3x3"):
        CliRunner().invoke(app, [*asked, "h1,h77"], catch_exceptions=False)
    with pytest.raises(ExperimentError, match="h1, h1: expected 2 different hosts"):
        CliRunner().invoke(app, [*asked, "h1,h1"], catch_exceptions=False)


@pytest.mark.slow
def test_a_comparison_times_some_hosts() -> None:
    (timed,) = compare(
        Comparison("torus:3x3", sizes=(100_000,), workers=(6,), algorithms=("multi-tree",))
    )
    assert timed.workers == 6
    assert timed.seconds > 0


def test_servers_by_name_at_the_command_line() -> None:
    asked = ["run", "--topology", "star:4", "--elements", "500", "--rounds", "1", "--json"]
    asked += ["--workers", "h1,h2", "--servers"]
    done = CliRunner().invoke(app, [*asked, "h4"], catch_exceptions=False)
    report = json.loads(done.stdout)
    links = {(link["from"], link["to"]): link["measured_bytes"] for link in report["links"]}
    assert report["problems"] == []
    assert links["s1", "h4"] > 0
    assert links["s1", "ps"] == 0
    # A worker may be the server: one host does both, and no other takes part.
    done = CliRunner().invoke(app, [*asked, "h1"], catch_exceptions=False)
    report = json.loads(done.stdout)
    busy = {(link["from"], link["to"]) for link in report["links"] if link["measured_bytes"]}
    assert report["problems"] == []
    assert busy == {("h1", "s1"), ("s1", "h1"), ("h2", "s1"), ("s1", "h2")}


@pytest.mark.slow
def test_collectives_at_the_command_line() -> None:
    asked = ["--topology", "star:4", "--workers", "3", "--elements", "500", "--json"]
    checked = {"reduce-scatter": 500, "all-gather": 1500, "reduce": 500, "broadcast": 1500}
    for collective, elements in checked.items():
        options = [*asked, "--rounds", "1", "--collective", collective]
        done = CliRunner().invoke(app, ["run", *options], catch_exceptions=False)
        report = json.loads(done.stdout)
        assert report["problems"] == []
        assert report["collective"] == collective
        assert report["checked_elements"] == elements
        done = CliRunner().invoke(app, ["plan", *asked, "--collective", collective])
        assert json.loads(done.stdout)["trees"], done.stdout


@pytest.mark.parametrize(
    "options",
    [
        ["--collective", "reduce", "--servers", "1"],
        ["--collective", "reduce", "--algorithm", "ring"],
        ["--collective", "reduce", "--planner", "embedding"],
        ["--collective", "reduce", "--train", "digits"],
    ],
)
def test_collectives_take_roots_at_workers(options: list[str]) -> None:
    with pytest.raises(InputError, match="collective reduce"):
        CliRunner().invoke(app, ["run", *options], catch_exceptions=False)


@pytest.mark.parametrize("names", [(), ("h1", "h2", "ps", "h3")])
def test_workers_of_a_ring_may_be_all_hosts(names: tuple[str, ...]) -> None:
    """No host serves where they sum among themselves."""
    report = run_experiment(
        Experiment(
            "star:3",
            workers=4,
            worker_names=names,
            elements=1000,
            rounds=1,
            algorithm=Algorithm.RING,
        )
    )
    assert not report.problems
    assert report.measured is not None
    assert all(report.measured.links.values())
    with pytest.raises(NetworkError, match="5 workers: expected 1 to 4"):
        run_experiment(Experiment("star:3", workers=5, algorithm=Algorithm.RING))
