from __future__ import annotations

import asyncio
import json
import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from hopsum.cli import doctor
from hopsum.cli.main import app
from hopsum.collectives.plan import PlanError
from hopsum.controller.api.client import ControllerClient
from hopsum.controller.api.listening import at
from hopsum.controller.api.rendezvous import announced, find_controller
from hopsum.controller.api.service import ControllerService
from hopsum.controller.dataplane.driver import DriverError, State, SwitchTarget
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.dataplane.slots import SlotState
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.network.builder import NetworkBuilder
from hopsum.network.layout import positions, sizes
from hopsum.network.loaders import load_network
from hopsum.network.model import NetworkError
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.channel import ControllerError
from hopsum.protocol.extras import install_command
from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import Width
from hopsum.reports.network_drawing import TREE_COLOURS, network_svg
from tests.support.machine import PATIENCE as WAIT


def run(*arguments: str) -> str:
    """The output of a command; its exception is raised in the test."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_topology_as_text_and_json(tmp_path: Path) -> None:
    text = run("topology", "leaf-spine:2x2", "--link-rate", "100M", "--plain", "s1")
    assert "5 hosts, 4 switches, 9 links" in text
    assert "1:h1  2:h2  3:s1  4:s2  5:ps" in text
    assert "100 Mbit/s" in text
    data = json.loads(run("topology", "star:2", "--json"))
    assert [node["id"] for node in data["nodes"]] == ["s1", "h1", "h2", "ps"]


def test_topology_is_converted_and_drawn(tmp_path: Path) -> None:
    saved, drawn = tmp_path / "net" / "n.json", tmp_path / "n.svg"
    run("topology", "fat-tree:4", "--save", str(saved), "--svg", str(drawn))
    assert load_network(str(saved)) == load_network("fat-tree:4")
    root = ElementTree.fromstring(drawn.read_text())
    names = {e.text for e in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"h1", "h16", "c4", "a8", "e8"} <= names
    assert len(list(root.iter("{http://www.w3.org/2000/svg}line"))) == 48


def test_unknown_topologies_are_errors() -> None:
    with pytest.raises(NetworkError, match="neither a file nor the name"):
        run("topology", "moebius:3")


def test_plan_as_text() -> None:
    text = run(
        "plan", "--topology", "fat-tree:4", "--workers", "8", "--link-rate", "100M", "--top", "3"
    )
    assert "job 1, tree 0: server h16 takes 1 flow" in text
    assert "c1: sums 2, slots 0 to 255" in text
    assert "bytes on links (3 of 34" in text
    assert "predicted time 1.044 s" in text
    text = run("plan", "--topology", "star:2", "--link-rate", "none")
    assert "multi-hop: 1 link of 1 link at most" in text
    assert "predicted time none: links have no rate" in text
    assert "sums 40" in run("plan", "--topology", "star:40")


def test_plan_as_json(tmp_path: Path) -> None:
    drawn = tmp_path / "p.svg"
    out = run(
        "plan",
        "--topology",
        "star:2",
        "--elements",
        "256",
        "--dtype",
        "int32",
        "--svg",
        str(drawn),
        "--json",
    )
    data = json.loads(out)
    assert data["prediction"]["links"][0] == {"from": "h1", "to": "s1", "bytes": 3 * 1094}
    assert data["trees"][0]["switches"]["s1"]["children"] == {"0": 1, "1": 2}
    assert data["trees"][0]["up"][0] == ["80001003", "00000800"]
    assert TREE_COLOURS[0] in drawn.read_text()


def test_pictures_have_layers() -> None:
    places = positions(load_network("fat-tree:4"))
    heights = Counter(y for _, y in places.values())
    assert [heights[y] for y in sorted(heights)] == [4, 8, 8, 16]
    network = load_network("leaf-spine:2x2", servers=2)
    placement = place(network, None, 2)
    plan = plan_job(network, PlanRequest(1, 1, placement.workers, placement.servers))
    svg = network_svg(network, plan)
    assert TREE_COLOURS[0] in svg
    assert TREE_COLOURS[1] in svg
    ElementTree.fromstring(svg)
    ElementTree.fromstring(network_svg(load_network("torus:3x3")))


@pytest.mark.parametrize("topology", ["fat-tree:8", "torus:12x12", "star:200", "star:1"])
def test_nodes_of_large_networks_do_not_overlap(topology: str) -> None:
    network = load_network(topology)
    places = positions(network)
    size = sizes(network, places)
    for nodes, width in (
        (network.hosts, size.host_width),
        (network.switches, 2 * size.switch_radius),
    ):
        assert all(math.dist(places[a], places[b]) > width for a, b in combinations(nodes, 2))


def test_names_are_drawn_where_they_fit() -> None:
    small, large = (load_network(name) for name in ("star:4", "fat-tree:8"))
    for network, some in ((small, {"h1", "ps", "s1"}), (large, {"c1"})):
        size = sizes(network, positions(network))
        nodes = (*network.hosts, *network.switches)
        named = {name for name in nodes if size.fitted(name, host=name in network.hosts) == name}
        assert some <= named
        assert (named == set(nodes)) is (network is small)
        assert (">h1</text>" in network_svg(network)) is ("h1" in named)


def test_nodes_grow_with_their_names_and_longer_names_are_cut() -> None:
    network = NetworkBuilder("named")
    network.add_switch("spine-1")
    hosts = [network.add_host(name) for name in ("worker-10", "w", "a-host-with-a-long-name")]
    for host in hosts:
        network.link(host, "spine-1")
    built = network.build()
    size = sizes(built, positions(built))
    assert [size.fitted(name, host=True) for name in hosts] == ["worker-10", "w", "a-host-with-…"]
    assert size.fitted("spine-1", host=False) == "spine-1"


@pytest.mark.slow
def test_doctor_finds_what_there_is() -> None:
    findings = {finding["name"]: finding for finding in json.loads(run("doctor", "--json"))}
    assert findings["numpy"]["ok"]
    assert findings["python"]["found"].startswith("3.")
    assert "needed for" in run("doctor")


def test_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    findings = {finding.name: finding for finding in doctor.examine()}
    assert not findings["p4c"].ok
    assert "the embedded switch runs the same program" in findings["p4c"].without
    assert not findings["mininet"].ok
    assert not findings["htb"].ok
    assert findings["numpy"].ok


def test_doctor_says_that_bmv2_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = tmp_path / "simple_switch_grpc"
    switch.write_text("#!/bin/sh\necho 'switch: libbmpi.so.0: not found' >&2\nexit 127\n")
    switch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    findings = {finding.name: finding for finding in doctor.examine()}
    assert not findings["simple_switch_grpc"].ok
    assert findings["simple_switch_grpc"].without == (
        f"{switch} is there, but cannot start: switch: libbmpi.so.0: not found"
    )
    switch.write_text("#!/bin/sh\necho 1.15.5-abc\n")
    findings = {finding.name: finding for finding in doctor.examine()}
    assert findings["simple_switch_grpc"].found == "1.15.5"


def test_doctor_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("importlib.metadata.version", not_found)
    findings = {finding.name: finding for finding in doctor.examine()}
    for name, words in {
        "cc": "apt-get install gcc",
        "mininet": "apt-get install mininet",
        "tc": "apt-get install iproute2",
        "ethtool": "apt-get install ethtool",
        "tshark": "apt-get install tshark",
        "simple_switch_grpc": "p4lang",
        "matplotlib": install_command("plots"),
        "scikit-learn": install_command("demo"),
        "scapy": install_command("scapy"),
        "torch": install_command("torch"),
        "etcd3gw": install_command("etcd"),
    }.items():
        assert words in findings[name].without, name


# -- A running controller


class FakeSwitches:
    """Two switches, one unreachable; slot 1 of s1 waits for child 1."""

    def targets(self) -> Mapping[str, SwitchTarget]:
        return {name: SwitchTarget(name, f"127.0.0.1:{name}") for name in ("s1", "s2")}

    def states(self) -> Mapping[str, State]:
        return {"s1": State.READY, "s2": State.CONNECTING}

    async def outcomes(self, name: str) -> Mapping[Outcome, int]:
        return {Outcome.AGGREGATED: 12, Outcome.STALE: 0}

    async def inspect(self, name: str, slot: int) -> SlotState:
        if name != "s1" or slot > 255:
            raise DriverError(name, f"slot {slot}: no")
        waiting = slot == 1
        return SlotState(
            slot=slot,
            valid=waiting,
            cleared=False,
            job=1,
            tree=0,
            epoch=1,
            fragment=slot,
            bitmap=1,
            count=1,
            fan_in=2,
            weight=1,
            flags=0,
            exponent=0,
            width=Width.WIDTH_16,
            lanes=np.array([-7] * 64, dtype=np.int32),
        )


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[str]:
    """The address of a running controller with one job."""
    network = load_network("star:2")
    plan = plan_job(network, PlanRequest(1, 1, ("h1", "h2"), ("ps",)))
    up = threading.Event()
    stop: dict[str, Any] = {}

    async def install(rules: Mapping[str, SwitchRules]) -> None:
        pass

    async def main() -> None:
        cluster = Cluster(network, install)
        await cluster.submit(JobSpec("a", plan.workers, plan.servers, window=plan.window))
        stop["event"], stop["loop"] = asyncio.Event(), asyncio.get_running_loop()
        service = ControllerService(cluster, FakeSwitches())
        async with service.serve(at(f"unix:{tmp_path}/c.sock")):
            up.set()
            await stop["event"].wait()
        await cluster.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert up.wait(WAIT)
    yield f"unix:{tmp_path}/c.sock"
    stop["loop"].call_soon_threadsafe(stop["event"].set)
    thread.join(WAIT)


def test_jobs_and_status(controller: str) -> None:
    (job,) = json.loads(run("jobs", "--controller", controller, "--json"))
    assert (job["job"], job["epoch"], job["state"], job["round"]) == (1, 1, "waiting", 0)
    assert (len(job["workers"]), len(job["servers"])) == (2, 1)
    (job,) = json.loads(run("status", "--controller", controller, "--json"))
    assert [agent["state"] for agent in job["agents"]] == ["expected"] * 3
    assert "job 1, epoch 1: waiting" in run("status", "--controller", controller)
    assert "waiting" in run("jobs", "--controller", controller)


def test_stats(controller: str) -> None:
    data = json.loads(run("stats", "--controller", controller, "--json"))
    assert data["s1"]["outcomes"] == {"aggregated": 12, "stale": 0}
    assert data["s2"] == {
        "state": "connecting",
        "seconds": 0.0,
        "health": "",
        "address": "127.0.0.1:s2",
        "outcomes": {},
        "counters_error": "",
    }
    text = run("stats", "--controller", controller)
    assert "aggregated" in text
    assert "stale" not in text
    assert "stale" in run("stats", "--all", "--controller", controller)


def test_slots(controller: str) -> None:
    arguments = ("--controller", controller)
    found = json.loads(run("slots", "s1", "--count", "2", "--values", "--json", *arguments))
    assert [slot["state"] for slot in found] == ["empty", "waiting"]
    assert (found[1]["width"], found[1]["lanes"]) == (16, [-7] * 64)
    assert len(json.loads(run("slots", "s1", "--job", "1", "--json", *arguments))) == 256
    assert "waiting" in run("slots", "s1", *arguments)
    with pytest.raises(ControllerError, match="switch s1: slot 256: no"):
        run("slots", "s1", "--first", "256", *arguments)
    with pytest.raises(PlanError, match="no slots at switch s7; it has some at s1"):
        run("slots", "s7", "--job", "1", *arguments)


def test_reasons_of_a_stall(controller: str) -> None:
    (missing,) = json.loads(run("why-stuck", "--controller", controller, "--json"))
    assert (missing["fragment"], missing["switch"], missing["child"]) == (1, "s1", 1)
    assert missing["workers"] == ["h2"]
    assert "nothing from h2" in run("why-stuck", "1", "--controller", controller)
    with pytest.raises(ControllerError, match="there is no job 5; jobs: 1"):
        run("why-stuck", "5", "--controller", controller)


def test_nothing_is_reported_where_no_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = type("Idle", (), {"status": lambda _: []})
    monkeypatch.setattr("hopsum.cli.controller_commands.connect", lambda _: idle())
    assert run("why-stuck") == "no job is running\n"
    assert json.loads(run("why-stuck", "--json")) == []


def test_shell_names_switches(controller: str) -> None:
    with pytest.raises(PlanError, match="there is no switch 's9'; switches: s1, s2"):
        run("shell", "s9", "--controller", controller)


def test_the_running_controller_is_found(
    controller: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    with pytest.raises(ControllerError, match="no controller found"):
        ControllerClient()
    with announced(controller):
        assert ControllerClient().address == controller
        assert "waiting" in run("jobs")
        with announced("unix:/another"):
            assert find_controller() == controller
    assert find_controller() is None
