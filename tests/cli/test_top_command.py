"""`hopsum top`: the state document in a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console, Group
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.cli.top_command import view
from hopsum.controller.web.recording import Recording
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import InputError


def state() -> pb.ClusterState:
    made = pb.ClusterState(date=100.0)
    made.network.name = "star:2"
    made.network.hosts.add(name="h1", ip="10.0.0.1", mac="02:00:00:00:00:01")
    for name in ("s1", "s2"):
        made.network.switches.add(name=name)
    made.network.links.add(a="h1", b="s1", bandwidth=1e6)
    made.links.add(sender="h1", receiver="s1", used=5e5, age=0.5)
    made.links.add(sender="s1", receiver="h1", health="switch s1 unreachable")
    made.nodes.add(host="h1", attached=True)
    made.switches.add(
        name="s1", state="ready", outcomes={"completed": 30, "stale": 4}, sums=32, packets=99
    )
    made.slots.add(switch="s1", slots=100, held={1: 25}, taken=25)
    made.active_jobs = made.usable_switches = made.attached_agents = 1
    made.jobs.add(
        job=1, name="mine", state="running", epoch=3, round=5, tensors=10, retransmissions=7,
        reason="h1 cut off [now]",
    )  # fmt: skip
    for number, switches in enumerate((["s1"], ["s1", "s2"])):
        made.jobs[0].trees.add(tree=number, sums=switches)
    made.jobs.add(job=2, name="done", state="finished", round=10, tensors=10, over=True)
    made.events.add(number=1, date=99.0, kind="failover", job=1, epoch=3, text="around switch s2")
    return made


def shown(now: pb.ClusterState, before: pb.ClusterState | None = None, width: int = 140) -> str:
    console = Console(width=width, record=True)
    console.print(Group(*view(now, before)))
    return console.export_text()


def test_what_the_terminal_shows() -> None:
    text = shown(state())
    for words in (
        "jobs 1 of 2 active", "switches 1 of 1 in use", "agents 1 of 1", "h1 cut off [now]",
        "5 of 10", "25 of 100", "███░░░", "500 kbit/s", "s1 unreachable",
        "not measured", "mine: 2 trees, sums at s1, s2",
        "failover", "around switch s2",
    ):  # fmt: skip
        assert words in text, (words, text)


def test_a_terminal_of_80_columns_shows_whole_words() -> None:
    text = shown(state(), width=80)
    for words in ("running", "finished", "priority", "resent", "duplicates", "25 of 100"):
        assert words in text
    assert "…" not in text


def test_a_busy_cluster_in_80_columns() -> None:
    busy = state()
    busy.network.name = "leaf-spine:4x4"
    for name, condition, health in (
        ("l1", "writing rules", ""), ("s2", "connecting", "unreachable, planned around"),
    ):  # fmt: skip
        busy.switches.add(
            name=name, state=condition, health=health, sums=1_234_567, packets=4_938_268,
            outcomes={"duplicate": 12_345, "stale": 1_234},
        )  # fmt: skip
        busy.slots.add(switch=name, slots=4096, held={1: 128}, taken=128)
    text = shown(busy, width=80)
    assert "…" not in text
    for words in ("4.938 M", "1.235 M", "12,345", "128 of 4096", "writing", "agents 1 of 1"):
        assert words in text, (words, text)
    assert "s2: unreachable, planned around" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_rates_are_of_two_states() -> None:
    now, before = state(), state()
    before.date = 98.0
    before.switches[0].sums = 12
    assert re.search(r"s1 +ready +99 +32 +10 ", shown(now, before))


def test_sums_of_unread_counters_are_unknown() -> None:
    now, before = state(), state()
    before.date = 98.0
    before.switches[0].ClearField("sums")
    assert re.search(r"s1 +ready +99 +32 {6,}0 ", shown(now, before))
    assert re.search(r"s1 +ready +99 +unknown ", shown(before))


def test_the_first_screen_has_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    now, before = state(), state()
    before.date = 98.0
    before.switches[0].sums = 12
    states = iter([before, now])
    client = SimpleNamespace(state=lambda: next(states))
    monkeypatch.setattr("hopsum.cli.top_command.connect", lambda controller: client)
    monkeypatch.setattr("hopsum.cli.top_command.FIRST_SECONDS", 0.0)
    done = CliRunner().invoke(app, ["top", "--once"], env={"COLUMNS": "140"})
    assert re.search(r"s1 +ready +99 +32 +10 ", done.stdout), done.output


def test_a_recording_in_json_and_as_text(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(Recording([state()]).to_lines())
    done = CliRunner().invoke(app, ["top", "--replay", str(file), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["jobs"][0]["retransmissions"] == "7"
    assert document["network"]["name"] == "star:2"
    done = CliRunner().invoke(app, ["top", "--replay", str(file)])
    assert "mine waits" in done.stdout
    assert "UTC" not in done.stdout and re.search(r"0\.00 s +failover", done.stdout)
    refused = CliRunner().invoke(
        app, ["top", "--replay", str(file), "--controller", "unix:/nowhere"]
    )
    assert isinstance(refused.exception, InputError)
    assert str(refused.exception) == "controller and replay: expected one of them"
