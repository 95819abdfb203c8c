from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.collectives.algorithms.halving_doubling import halving_doubling_all_reduce
from hopsum.collectives.algorithms.in_network import in_network_all_reduce
from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.algorithms.trees import server_all_reduce
from hopsum.collectives.flows import tree_flows
from hopsum.collectives.link_volumes import link_volumes
from hopsum.collectives.plan import PlanError, Results, tensor_ranges
from hopsum.collectives.schedule import Schedule, ScheduleError
from hopsum.collectives.schedule_checker import check_schedule
from hopsum.collectives.schedule_json import schedule_from_json, schedule_to_json
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.network.paths import PlainRoutes
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.registry import plan_job
from hopsum.reports.schedule_drawing import schedule_svg
from tests.support.halves import all_gather_of
from tests.support.schedules import broadcast_from

CLI = CliRunner()


@pytest.mark.slow
@given(
    st.sampled_from(
        [
            ring_all_reduce,
            lambda n, e: all_gather_of(ring_all_reduce(n, e)),
            halving_doubling_all_reduce,
            lambda n, e: server_all_reduce([f"h{i}" for i in range(n)], e, ["p"]),
            lambda n, e: broadcast_from(0, [f"h{i}" for i in range(n)], e),
        ]
    ),
    st.integers(1, 6),
    st.integers(0, 30),
)
def test_json_keeps_everything(make: Any, ranks: int, elements: int) -> None:
    schedule: Schedule = make(ranks, elements)
    text = schedule_to_json(schedule)
    back = schedule_from_json(text)
    assert schedule_to_json(back) == text
    assert list(back.transfers()) == list(schedule.transfers())
    check_schedule(back)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": None}, "schedule: ranks is missing; expected a whole number"),
        ({"ranks": "3"}, "schedule: ranks '3': expected a whole number"),
        ({"ranks": True}, "schedule: ranks True: expected a whole number"),
        ({"ranks": 0}, "0 ranks: expected at least one"),
        ({"relays": 10**12}, "schedule: 10{11}3 ranks and relays: expected at most 65536"),
        ({"ranks": 2}, r"given, row \[2\]: there is no node \[2\]; expected 0 to 1"),
        ({"collective": "all"}, "collective 'all': expected one of all-reduce, reduce-scatter"),
        ({"steps": {}}, "schedule: steps {}: expected a list of steps"),
        ({"steps": [7]}, "step 0: 7: expected an object"),
        ({"given": [[0, 1]]}, r"schedule: given, row 0: \[0, 1\]: expected \[node, start, stop\]"),
        ({"given": [[0, 1, 2.5]]}, r"schedule: given, row 0: \[0, 1, 2\.5\]: expected"),
        ({"names": ["a", "a", "b"]}, "3 names: expected one a node, 3, all different"),
    ],
)
def test_a_wrong_file_is_refused(change: dict[str, object], message: str) -> None:
    values = json.loads(schedule_to_json(ring_all_reduce(3, 9))) | change
    values = {name: value for name, value in values.items() if value is not None}
    with pytest.raises(ScheduleError, match=message):
        schedule_from_json(json.dumps(values))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"combine": 1}, "step 1: combine 1: expected true or false"),
        ({"combine": None}, "step 1: combine is missing; expected true or false"),
        ({"after": [1]}, r"step 1 waits for steps \[1\]: expected earlier ones only"),
        ({"after": ["0"]}, r"step 1: after \['0'\]: expected numbers of steps"),
        ({"period": 2}, "step 1: 3 rows in groups of 2: expected whole groups"),
        ({"repeat": 10**12}, "step 1: repeat 10{12}: expected at most its period, 3; after"),
        ({"transfers": [[0, 1, 2]]}, r"step 1: transfers, row 0: \[0, 1, 2\]: expected \[source"),
    ],
)
def test_a_wrong_step_is_refused(change: dict[str, object], message: str) -> None:
    values = json.loads(schedule_to_json(ring_all_reduce(3, 9)))
    step = values["steps"][1] | change
    values["steps"][1] = {name: value for name, value in step.items() if value is not None}
    with pytest.raises(ScheduleError, match=message):
        schedule_from_json(json.dumps(values))


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(ScheduleError, match="schedule: not JSON: Expecting value"):
        schedule_from_json("nonsense")
    with pytest.raises(ScheduleError, match=r"schedule: \[\]: expected an object"):
        schedule_from_json("[]")


# In-network plans are schedules too.


def along(parents: Mapping[str, str], source: str, target: str) -> list[str]:
    """The way up a tree, or down it to a child."""
    if parents.get(target) == source:
        return [source, target]
    path = [source]
    while path[-1] != target:
        path.append(parents[path[-1]])
    return path


@pytest.mark.parametrize("spec", ["star:6", "leaf-spine:3x3", "fat-tree:4", "line:3x2"])
@pytest.mark.parametrize("results", list(Results))
@pytest.mark.parametrize("algorithm", list(SwitchRole))
@pytest.mark.parametrize("servers", [1, 2])
def test_plans_are_proved(spec: str, results: Results, algorithm: SwitchRole, servers: int) -> None:
    network = load_network(spec)
    placement = place(network, 4, servers)
    request = PlanRequest(
        1, 1, placement.workers, placement.servers, algorithm=algorithm, results=results
    )
    plan = plan_job(network, request)
    schedule = in_network_all_reduce(network, plan, 5000)
    check_schedule(schedule)
    assert len(set(schedule.chains)) == servers
    # The same links as the plan's flows. What only forwards is on the way along the plan's tree,
    # which need not be the way of plain packets.
    expected: dict[tuple[str, str], int] = {}
    for tree, (start, stop) in zip(plan.trees, tensor_ranges(plan, 5000), strict=True):
        for flow in tree_flows(network, plan, tree).all():
            link = (flow.u, flow.v)
            expected[link] = expected.get(link, 0) + stop - start
    volumes = link_volumes(schedule, PlainRoutes(network).path)
    if algorithm is SwitchRole.IN_NETWORK and results is Results.REPLICATED and servers == 1:
        assert link_volumes(schedule, partial(along, plan.trees[0].parents)) == expected
    assert sum(volumes.values()) == sum(expected.values())


def test_a_plan_with_plain_switches_is_proved() -> None:
    network = load_network("leaf-spine:3x3")
    plain = {
        name: type(switch)(name, aggregates=name != "l2", slots=switch.slots)
        for name, switch in network.switches.items()
    }
    assert "l2" in plain
    network = Network("plain", network.hosts, plain, network.links)
    placement = place(network, 8)
    plan = plan_job(network, PlanRequest(1, 1, placement.workers, placement.servers))
    schedule = in_network_all_reduce(network, plan, 1000)
    check_schedule(schedule)
    combining = {t.target for t in schedule.transfers() if t.combine}
    assert "l2" not in {schedule.name(node) for node in combining}


# Pictures.


def test_a_picture_shows_every_transfer() -> None:
    schedule = ring_all_reduce(4, 8).named(["a", "b", "<c>", "d"])
    picture = ElementTree.fromstring(schedule_svg(schedule))
    titles = [title.text or "" for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 2 * 3 * 4
    assert titles[0] == "a sends 0 to 2; b adds"
    assert titles[-1].endswith("copies")
    assert any(title.startswith("<c> sends") for title in titles)


def test_a_schedule_too_large_for_a_picture_is_refused() -> None:
    with pytest.raises(ScheduleError, match="transfers: a picture shows at most 20000; draw"):
        schedule_svg(ring_all_reduce(120, 1000))


def test_a_schedule_of_nothing_can_be_drawn() -> None:
    ElementTree.fromstring(schedule_svg(ring_all_reduce(1, 0)))


# The command.


@pytest.mark.parametrize(
    ("algorithm", "topology"),
    [
        ("ring", "star:5"),
        ("level-wise", "fat-tree:4"),
        ("server", "star:5"),
        ("in-network", "leaf-spine:2x3"),
        ("multi-tree", "torus:3x3"),
    ],
)
def test_schedules_are_made_checked_and_drawn(
    algorithm: str, topology: str, tmp_path: Path
) -> None:
    file, picture = tmp_path / "schedule.json", tmp_path / "schedule.svg"
    arguments = ["--topology", topology, "--algorithm", algorithm, "--output", str(file)]
    made = CLI.invoke(app, ["schedule", "make", "--elements", "360", *arguments])
    assert made.exit_code == 0, made.output
    checked = CLI.invoke(app, ["schedule", "check", str(file), "--topology", topology, "--json"])
    assert checked.exit_code == 0, checked.output
    found = json.loads(checked.stdout)
    assert found["algorithm"] == algorithm
    assert found["elements_on_all_links"] == sum(volume for _, _, volume in found["links"])
    assert CLI.invoke(app, ["schedule", "draw", str(file), "--output", str(picture)]).exit_code == 0
    ElementTree.parse(picture)


def test_the_form_of_level_wise_may_be_chosen() -> None:
    arguments = ["schedule", "make", "--topology", "leaf-spine:2x3", "--elements", "360"]
    arguments += ["--workers", "5"]
    level_wise = [*arguments, "--algorithm", "level-wise"]
    flat = CLI.invoke(app, level_wise)
    assert flat.stderr.startswith("level-wise: flat (no link between levels binds")
    levels = CLI.invoke(app, [*level_wise, "--level-wise-form", "levels"])
    assert levels.stderr.startswith("level-wise: 2 levels: siblings exchange around a ring")
    direct = CLI.invoke(app, [*level_wise, "--level-wise-form", "flat", "--siblings=hierarchical"])
    turns = [
        max(t.turn for t in schedule_from_json(result.stdout).transfers())
        for result in (flat, levels, direct)
    ]
    assert turns == [(1, 3), (5, 1), (1, 0)]
    refused = CLI.invoke(app, [*arguments, "--siblings", "ring"])
    assert "options of the algorithm level-wise" in str(refused.exception)


def test_trees_of_document_000_are_a_schedule() -> None:
    arguments = ["schedule", "make", "--topology", "complete:5", "--algorithm", "multi-tree"]
    arguments += ["--planner", "mtree"]
    made = CLI.invoke(app, [*arguments, "-O", "tree-bandwidth=2.5Mbit"])
    assert made.exit_code == 0, made.output
    whole = CLI.invoke(app, [*arguments, "-O", "tree-bandwidth=25Mbit"])
    one, many = (schedule_from_json(result.stdout) for result in (whole, made))
    assert len(set(one.chains)) == 1
    assert len(set(many.chains)) > 1
    refused = CLI.invoke(app, [*arguments[:-1], "multi-hop"])
    assert isinstance(refused.exception, PlanError)
    assert "plans no trees of hosts" in str(refused.exception)


def test_a_file_that_proves_nothing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    values = json.loads(schedule_to_json(ring_all_reduce(3, 9)))
    values["steps"][1]["repeat"] = 1
    file.write_text(json.dumps(values))
    result = CLI.invoke(app, ["schedule", "check", str(file)])
    assert isinstance(result.exception, ScheduleError)
    assert "rank 0, element 6: the contribution of rank 1 is missing" in str(result.exception)
    absent = CLI.invoke(app, ["schedule", "check", str(tmp_path / "none.json")])
    assert "none.json: cannot be read" in str(absent.exception)
    unknown = CLI.invoke(app, ["schedule", "make", "--algorithm", "gossip"])
    assert "algorithm 'gossip': expected one of ring" in str(unknown.exception)
