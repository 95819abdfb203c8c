from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.collectives.plan import PlanError
from hopsum.network.model import NetworkError
from hopsum.protocol.errors import InputError
from hopsum.reports.network_drawing import TREE_COLOURS

TORUS = ("--topology", "torus:3x3", "--link-rate", "none")
COMPLETE = ("--topology", "complete:7", "--link-rate", "none")
OVERSUBSCRIBED = ("--topology", "leaf-spine:4x4", "--link-rate", "8M", "--uplink-rate", "2M")


def plan(*arguments: str) -> str:
    """The output of `hopsum plan`; its exception is raised in the test."""
    result = CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def planned(*arguments: str) -> dict[str, Any]:
    """The object that `hopsum plan --json` prints."""
    values = json.loads(plan(*arguments, "--json"))
    assert isinstance(values, dict)
    return values


def test_json_has_rates_bound_and_trees() -> None:
    values = planned("--planner", "multi-tree", *OVERSUBSCRIBED)
    assert values["planner"] == "multi-tree"
    assert values["throughput"] == values["bound"] == 8_000_000
    assert values["gap"] == 0
    assert values["status"] == "optimal"
    assert values["unit"] == "bit/s"
    assert values["certificate"]["kind"] == "cut"
    assert values["certificate"]["text"].startswith("every tree leaves {h1}")
    assert values["seconds"] > 0
    assert len(values["trees"]) == 4
    tree = values["trees"][0]
    assert (tree["root"], tree["rate"], tree["height"]) == ("ps", 2_000_000, 4)
    assert tree["parents"]["l1"] == "ps"
    assert ["l1", "ps"] in tree["edges"]
    assert len(tree["edges"]) == len(tree["parents"]) == 21
    assert tree["share"] == 0.25
    assert tree["switches"]["l1"]["slot_base"] == 0
    assert values["prediction"]["seconds"] < 15


def test_options_bind() -> None:
    few = planned("--planner", "multi-tree", "-O", "max-trees=3", *OVERSUBSCRIBED)
    assert few["throughput"] == few["bound"] == 6_000_000
    with pytest.raises(PlanError, match="no tree is of height 3 or less"):
        plan("--planner", "multi-tree", "-O", "max-height=3", *OVERSUBSCRIBED)
    with pytest.raises(PlanError, match="no tree of rate 3000000 joins all workers"):
        plan("--planner", "multi-tree", "-O", "min-rate=3M", *OVERSUBSCRIBED)
    with pytest.raises(InputError, match="min-rate: rate 'much'"):
        plan("--planner", "multi-tree", "-O", "min-rate=much")


def test_delays_are_limited_or_refused() -> None:
    late = (*OVERSUBSCRIBED, "--latency", "1ms", "-O")
    values = planned("--planner", "multi-tree", "--explain", *late, "max-delay=4ms")
    assert values["throughput"] == values["bound"] == 8_000_000
    assert "delay 4 ms from the farthest node to its root, of at most 4 ms" in values["explanation"]
    with pytest.raises(PlanError, match=r"delay of 0\.003 s or less: h5 is 0\.004 s away"):
        plan("--planner", "multi-tree", *late, "max-delay=3ms")
    for planner in ("multi-hop", "embedding"):
        with pytest.raises(PlanError, match=f"{planner} has no such option, but multi-tree and mt"):
            plan("--planner", planner, *late, "max-delay=9ms")
    with pytest.raises(InputError, match="max-delay: time 'soon'"):
        plan("--planner", "mtree", "-O", "max-delay=soon")
    with pytest.raises(InputError, match="max-delay: 5: expected a unit, such as 5ms or 5s"):
        plan("--planner", "mtree", "-O", "max-delay=5")
    hosts = ("--topology", "torus:3x3", "--latency", "1ms", "--planner", "multi-tree")
    assert planned(*hosts, "-O", "max-delay=2ms")["trees"][0]["height"] <= 2
    with pytest.raises(PlanError, match=r"no tree is as low as 0\.001 s"):
        plan(*hosts, "-O", "max-delay=1ms")


def test_a_window_that_no_switch_has_slots_for_is_refused() -> None:
    with pytest.raises(PlanError, match="every tree sums at l1, which has no free slots for one"):
        plan("--planner", "multi-tree", "--window", "8192", *OVERSUBSCRIBED)


def test_multi_hop_keeps_to_a_height_and_refuses_other_limits() -> None:
    assert planned("-O", "max-height=4", *OVERSUBSCRIBED)["trees"][0]["height"] == 4
    with pytest.raises(PlanError, match="crosses 3 switches; a height of 3 allows 2"):
        plan("-O", "max-height=3", *OVERSUBSCRIBED)
    for option in ("min-rate=1M", "max-trees=1"):
        with pytest.raises(PlanError, match="multi-hop has no such option, but multi-tree"):
            plan("-O", option, *OVERSUBSCRIBED)


def test_rates_come_from_a_file(tmp_path: Path) -> None:
    """In the units of its bandwidths, under either key for its links."""
    nodes = [
        {"id": "s", "kind": "switch", "aggregates": True},
        *({"id": name, "kind": "host"} for name in ("a", "b", "ps")),
    ]
    links = [
        {"source": name, "target": "s", "bandwidth": rate, "latency": 0}
        for name, rate in (("a", 5), ("b", 3), ("ps", 4))
    ]
    for key in ("edges", "links"):
        path = tmp_path / f"{key}.json"
        path.write_text(json.dumps({"nodes": nodes, key: links}))
        for planner in ("multi-tree", "multi-hop"):
            values = planned("--topology", str(path), "--planner", planner)
            assert values["throughput"] == values["bound"] == 3
            assert values["trees"][0]["parents"] == {"s": "ps", "a": "s", "b": "s"}


def test_hosts_and_servers_by_name() -> None:
    values = planned(
        "--planner", "multi-tree", "--workers", "h1,h5", "--servers", "h16", *OVERSUBSCRIBED
    )
    assert values["workers"] == ["h1", "h5"]
    assert {tree["root"] for tree in values["trees"]} == {"h16"}
    with pytest.raises(NetworkError, match="there is no host 'h99'"):
        plan("--workers", "h1,h99")


def test_multi_hop_has_a_rate_and_a_bound_too() -> None:
    values = planned("--planner", "multi-hop", *OVERSUBSCRIBED)
    assert values["throughput"] == 2_000_000
    assert values["bound"] >= 2_000_000
    assert [tree["rate"] for tree in values["trees"]] == [2_000_000]
    server = planned("--planner", "multi-hop", "--algorithm", "server", *OVERSUBSCRIBED)
    assert server["throughput"] == server["bound"] == 8_000_000 / 16


def test_hosts_alone_need_no_server() -> None:
    values = planned(*TORUS, "--planner", "mtree", "-O", "max-trees=3")
    assert values["unit"] == "links"
    assert values["bound"] == 2  # of any number of trees 9 / 4
    assert "not_runnable" not in values
    assert len(values["trees"][0]["parents"]) == 8
    ours = planned(*TORUS, "--workers", "9")
    assert (ours["planner"], ours["throughput"], ours["bound"]) == ("multi-tree", 9 / 4, 9 / 4)
    assert "not_runnable" not in ours
    assert "hopsum run" not in plan(*TORUS, "--planner", "multi-tree")
    text = plan(*TORUS, "--planner", "mtree")
    assert "2.25 links at most" in text
    assert "hopsum run cannot run it" not in text
    some = planned(*TORUS, "--planner", "mtree", "--workers", "4")
    assert all(set(tree["parents"]) < {"h1", "h2", "h3", "h4"} for tree in some["trees"])
    whole = planned(*COMPLETE, "--planner", "mtree", "-O", "tree-bandwidth=1")
    assert (len(whole["trees"]), whole["throughput"]) == (1, 1)
    default = planned(*COMPLETE, "--planner", "mtree")
    assert default["throughput"] == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--planner", "magic"), "there is no planner 'magic'; planners: multi-hop, multi-tree"),
        (("--topology", "torus:3x3", "--planner", "multi-hop"), "needs switches"),
        (("--topology", "star:3", "--planner", "mtree"), "networks of hosts only"),
        (("--topology", "torus:4x4", "--workers", "h1,h11"), "hosts that only forward: no path"),
        (("--topology", "torus:4x4", "--planner", "mtree", "--workers", "h1,h11"), "no path from"),
        (("--topology", "torus:3x3", "-O", "tree-bandwidth=1"), "no such option, but mtree has"),
        (("--topology", "star:3", "-O", "keep=0.9"), "'keep': planner multi-hop has no such"),
        (("--planner", "embedding", "-O", "keep=0.9"), "'keep': planner embedding has no such"),
        (("--topology", "torus:3x3", "--planner", "mtree", "-O", "keep=2"), "keep: '2': expected"),
        (("--planner", "mtree", "-O", "tree-bandwidth=x"), "tree-bandwidth: "),
    ],
)
def test_planners_say_what_they_are_for(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(*arguments)


@pytest.mark.slow
def test_explanations_name_what_is_full() -> None:
    lines = planned("--planner", "multi-tree", "--explain", *OVERSUBSCRIBED)["explanation"]
    assert lines[0].startswith("no plan is faster than 8M: every tree leaves {h1}")
    assert lines[1] == "the plan reaches this bound"
    assert "l1-s1" in lines[2]
    assert lines[-3] == "any number of trees: Steiner cut 8M, bidirected cut 8M"
    assert lines[-2].startswith("relay, if switches only forwarded: 4.33333M, ")
    assert lines[-1].startswith(
        "pipelining: a tree of height 4 takes 4.007 s in 3907 chunks, and at most 8M no plan less"
    )


@pytest.mark.slow
def test_explanations_name_the_plans_that_a_bound_holds_for() -> None:
    """Several trees reach four times the rate of one here: multi-hop's bound is not theirs."""
    network = ("--topology", "leaf-spine:4x4", "--link-rate", "1G", "--uplink-rate", "250M")
    lines = planned(*network, "--workers", "8", "--explain")["explanation"]
    assert lines[0].startswith("no plan of one tree for each server is faster than 250M: ")
    assert "any number of trees: Steiner cut 1G, bidirected cut 1G" in lines
    two = planned(
        *network, "--workers", "8", "--explain", "--planner", "multi-tree", "-O", "max-trees=2"
    )
    assert two["explanation"][0].startswith("no plan of at most 2 trees is faster than 500M: ")
    text = plan("--planner", "multi-tree", "--explain", "--window", "1024", *OVERSUBSCRIBED)
    assert "switches without slots for one more tree: l1 (4096 slots, 1024 a tree)" in text


def test_trees_are_drawn_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "trees.svg"
    plan("--planner", "multi-tree", "--draw", str(path), *OVERSUBSCRIBED)
    lines = ElementTree.fromstring(path.read_text()).iter("{http://www.w3.org/2000/svg}line")
    ends = {}
    for line in lines:
        title = line.findtext("{http://www.w3.org/2000/svg}title")
        if title and title.startswith("l1 → ps: ") and "stroke" in line.attrib:
            ends[line.attrib["stroke"]] = line.attrib["x1"]
    assert set(ends) == set(TREE_COLOURS[:4])
    assert len(set(ends.values())) == 4
    plan("--topology", "torus:3x3", "--planner", "mtree", "--draw", str(path))
    assert TREE_COLOURS[0] in path.read_text()


@pytest.mark.slow
def test_runs_take_their_rates_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    runner = CliRunner()
    saved = ("--link-rate", "8M", "--uplink-rate", "2M", "--save", str(path))
    assert runner.invoke(app, ["topology", "leaf-spine:2x1", *saved]).exit_code == 0
    run = ["run", "--topology", str(path), "--workers", "2", "--elements", "2000", "--rounds", "1"]
    result = runner.invoke(app, [*run, "--planner", "multi-tree", "--json"])
    report = json.loads(result.stdout)
    assert report["link_rate"] is None
    assert report["problems"] == []
    # 64 kbit at no more than two uplinks of 2 Mbit/s.
    assert report["seconds"] > 64_000 / 4e6
    run = ["run", "--topology", "torus:4x4", "--planner", "multi-tree", "--workers", "h1,h11"]
    assert "no path from h1 to h11" in str(runner.invoke(app, run).exception)


def test_a_bound_is_a_rate_for_people() -> None:
    text = plan("--topology", "star:2", "--link-rate", "100M", "--explain")
    assert "some host's own link carries no more than 100M" in text


SLOW_SERVER = ("--topology", "leaf-spine:2x3", "--link-rate", "8M", "--planner", "embedding")


@pytest.mark.slow
def test_an_embedding_says_its_topologies_weights_and_bottleneck() -> None:
    values = planned(*SLOW_SERVER, "--explain", "--elements", "100000")
    assert values["planner"] == "embedding"
    (part,) = values["parts"]
    assert (part["model"], part["weight"], part["root"]) == ("in-network", "1", "ps")
    assert values["seconds_an_iteration"] == pytest.approx(0.4) == values["bound"]
    assert values["busiest"].startswith("link ")
    assert values["trees"][0]["server"] == "ps" and values["trees"][0]["share"] == 1
    assert values["prediction"]["seconds"] > 0.4
    busiest, alone = values["explanation"]
    assert busiest.startswith("the busiest decides: link h1->l1 400 ms")
    assert "parameter-server" in alone and "in-network 400 ms" in alone
    text = plan(*SLOW_SERVER, "--explain")
    assert "100.0% of every tensor: in-network" in text and "steps of 1/64" in text


def test_an_embedding_has_the_step_and_penalty_that_are_asked_for() -> None:
    """Two trees over two spines by default; a penalty of all steps leaves one."""
    racks = ("--topology", "leaf-spine:2x2", "--uplink-rate", "10M", "--planner", "embedding")
    fine, coarse = (planned(*racks, "-O", f"penalty={penalty}") for penalty in ("1", "64"))
    for values, penalty, weights in ((fine, 1, ["1/2", "1/2"]), (coarse, 64, ["1"])):
        assert (values["weight_steps"], values["penalty"]) == (64, penalty)
        assert [part["weight"] for part in values["parts"]] == weights
    thirds = planned(*racks, "-O", "weight-steps=3")["parts"]
    assert {part["weight"] for part in thirds} == {"2/3", "1/3"}
    with pytest.raises(PlanError, match="penalty 9: expected 1 to the number of weight steps, 8"):
        plan(*racks, "-O", "weight-steps=8", "-O", "penalty=9")
    with pytest.raises(PlanError, match="multi-hop has no such option, but embedding has"):
        plan("--topology", "star:2", "-O", "penalty=9")


@pytest.mark.slow
def test_an_embedding_of_hosts_shows_its_rings_and_trees(tmp_path: Path) -> None:
    torus = (*TORUS, "--planner", "embedding")
    text = plan(*torus, "--explain", "--draw", str(tmp_path / "plan.svg"))
    assert "of every tensor: ring h1" in text
    assert "x a tensor on a link" in text and "in-network impossible" in text
    assert ElementTree.parse(tmp_path / "plan.svg").getroot() is not None
    helped = planned(
        "--topology", "star:5", "--workers", "h1,h2,h3", "--servers", "h5", "--planner", "embedding"
    )
    assert {part["root"] for part in helped["parts"]} <= {"", "h5"}
    with pytest.raises(PlanError, match="planner multi-hop"):
        plan(*torus, "--algorithm", "server")
