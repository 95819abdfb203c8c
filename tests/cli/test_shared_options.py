"""Options that `run`, `submit` and `plan` share have one definition, with the same default."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from typer.testing import CliRunner

from hopsum.cli.commands import COMMANDS
from hopsum.cli.main import app, load_command
from hopsum.collectives.plan import PlanError
from hopsum.library.plans import planner_options
from hopsum.network.loaders import load_network, save_network
from hopsum.network.model import NetworkError

NAMES = ("run", "submit", "plan")


def options(name: str) -> dict[str, Any]:
    command = load_command(COMMANDS[name].target, name, COMMANDS[name].passes_on)
    return {each.opts[0]: (each.default, each.help) for each in command.params}


@pytest.mark.parametrize(("one", "other"), combinations(NAMES, 2))
def test_shared_options_have_the_same_default_and_help(one: str, other: str) -> None:
    ours, theirs = options(one), options(other)
    shared = ours.keys() & theirs.keys()
    assert len(shared) >= 12
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


def test_a_comparison_takes_network_and_planner_as_a_run_does() -> None:
    names = {"--topology", "--link-rate", "--uplink-rate", "--latency", "--largest-piece"}
    names |= {"--planner", "--planner-option", "--window", "--lanes", "--dtype", "--siblings"}
    ours, theirs = options("run"), options("simulate")
    assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}


def test_links_have_the_same_rate_by_default(tmp_path: Path) -> None:
    file = tmp_path / "network.json"
    save_network(load_network("star:2", link_rate="8M"), file)
    invoke = CliRunner().invoke
    for network, rate in (("star:2", 25e6), (str(file), 8e6)):
        shared = ("--topology", network, "--workers", "2", "--elements", "1000", "--json")
        ran, planned = invoke(app, ["run", *shared]), invoke(app, ["plan", *shared])
        assert ran.exit_code == planned.exit_code == 0, (ran.output, planned.output)
        found = json.loads(planned.stdout)
        assert (found["unit"], found["throughput"]) == ("bit/s", rate)
        predicted = json.loads(ran.stdout)["predicted_seconds"]
        assert predicted == found["prediction"]["seconds"]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--link-rate", "100", "link-rate 100: expected a unit, such as 100Mbit or 100bit"),
        ("--uplink-rate", "1e8", "uplink-rate 1e8: expected a unit, such as 1e8Mbit or 1e8bit"),
        ("--latency", "5", "latency 5: expected a unit, such as 5us, 5ms or 5s"),
        ("--topology", "fattree:4", "did you mean fat-tree:4?"),
        ("--topology", "leafspine:2x2", "did you mean leaf-spine:2x2?"),
        ("--elements", "1.5", "expected a whole number such as 1000000, 1e6 or 1M"),
        ("--loss", "much", "expected a fraction such as 0.01 or 1%"),
    ],
)
def test_what_could_be_meant_otherwise_is_refused_with_what_to_write(
    option: str, value: str, message: str
) -> None:
    result = CliRunner().invoke(app, ["run", "--topology", "star:2", option, value])
    output = result.output + str(result.exception)
    assert result.exit_code != 0
    assert message in output


def two_pieces(folder: Path) -> Path:
    """Write a network of a large piece and a small one."""
    graph: nx.Graph[str] = nx.path_graph(["a", "b", "c"])
    graph.add_edge("d", "e")
    file = folder / "pieces.graphml"
    nx.write_graphml(graph, file)
    return file


@pytest.mark.parametrize(
    "command",
    [
        ["run", "--elements", "1000", "--topology"],
        ["plan", "--elements", "1000", "--topology"],
        ["simulate", "--size", "1kB", "--algorithm", "in-network", "--topology"],
        ["topology"],
    ],
)
def test_the_largest_piece_of_a_file_is_taken_on_request(
    command: list[str], tmp_path: Path
) -> None:
    asked = [*command, str(two_pieces(tmp_path)), "--link-rate", "10M", "--json"]
    refused = CliRunner().invoke(app, asked)
    assert isinstance(refused.exception, NetworkError)
    done = CliRunner().invoke(app, [*asked, "--largest-piece"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)


def test_numbers_are_read_as_people_write_them() -> None:
    shared = ["--topology", "star:2", "--link-rate", "10mbit", "--latency", "0", "--json"]
    ran = CliRunner().invoke(app, ["run", *shared, "--elements", "1e3", "--loss", "1%"])
    assert ran.exit_code == 0, ran.output
    experiment = json.loads(ran.stdout)
    assert experiment["elements"] == 1000
    assert experiment["loss"] == 0.01


def test_runs_and_plans_have_the_width_that_is_asked_for() -> None:
    shared = ["--topology", "star:2", "--elements", "3000", "--rounds", "1", "--json"]
    narrow = [*shared, "--wire-bits", "16"]
    ran = CliRunner().invoke(app, ["run", *narrow])
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert (report["dtype"], report["wire_bits"], report["problems"]) == ("float32", 16, [])
    plans = [CliRunner().invoke(app, ["plan", *asked]) for asked in (narrow, shared)]
    sizes = [json.loads(each.stdout)["prediction"]["total_bytes"] for each in plans]
    assert sizes[0] < 0.6 * sizes[1]
    refused = CliRunner().invoke(app, ["plan", *shared, "--dtype", "int8", "--wire-bits", "16"])
    assert "wire-bits 16 of int8: expected 8 or 32" in str(refused.exception)


@pytest.mark.parametrize("penalty", [1, 64])
def test_a_run_is_planned_with_the_penalty_that_is_asked_for(penalty: int) -> None:
    shared = ["--topology", "leaf-spine:2x2", "--uplink-rate", "10M", "--elements", "2000"]
    asked = [*shared, "-O", f"penalty={penalty}", "--json"]
    ran = CliRunner().invoke(app, ["run", *asked, "--algorithm", "embedding"])
    planned = CliRunner().invoke(app, ["plan", *asked, "--rounds", "3", "--planner", "embedding"])
    assert ran.exit_code == planned.exit_code == 0, (ran.output, planned.output)
    report, plan = json.loads(ran.stdout), json.loads(planned.stdout)
    options = report["planner_options"]
    assert (options["weight-steps"], options["penalty"]) == ("64", str(penalty))
    assert report["problems"] == []
    assert len(plan["parts"]) == (2 if penalty == 1 else 1)
    used = {link["from"] for link in report["links"] if link["measured_bytes"]}
    assert len(used & {"s1", "s2"}) == len(plan["parts"])


def test_a_run_without_an_embedding_or_an_order_says_nothing_of_their_limits() -> None:
    ran = CliRunner().invoke(app, ["run", "--topology", "star:2", "--elements", "10", "--json"])
    report = json.loads(ran.stdout)
    assert report["coordination_tree"] is None
    known = {row["option"] for row in planner_options("multi-hop")}
    assert report["planner_options"].keys() == known
    for option in (("-O", "penalty=3"), ("--coordination-fan-out", "3")):
        refused = CliRunner().invoke(app, ["run", "--topology", "star:2", *option])
        assert isinstance(refused.exception, PlanError)


@pytest.mark.slow
def test_a_training_agrees_on_its_order_over_the_tree_that_is_asked_for() -> None:
    """By default all others would be children of one worker, as far away as they are."""
    line = ["run", "--topology", "line:4x1", "--train", "digits", "--rounds", "1", "--json"]
    limits = ["--coordination-fan-out", "2", "--coordination-height", "3"]
    ran = CliRunner().invoke(app, [*line, *limits, "--coordination-distance", "4"])
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert report["coordination_tree"] == {"fan_out": 2, "height": 2, "distance": 4}
    assert report["problems"] == []


def test_a_report_of_another_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    result = CliRunner().invoke(app, ["run", "--topology", "star:2", "--report", str(file)])
    assert "expected a name that ends in .json or .html" in str(result.exception)
    assert not file.exists()
