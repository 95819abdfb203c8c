"""`p4switch demo`: what it shows, in process and over veth pairs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from p4switch.cli import demo
from p4switch.cli.main import app

OUTCOMES: list[list[int]] = [[2], [3], [], [], []]
"""The ports that each packet of the demo leaves at."""

needs_veth = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"
)


def run(*options: str) -> Result:
    result = CliRunner().invoke(app, ["demo", *options])
    assert result.exit_code == 0, result.output
    return result


def outcomes(result: Result) -> list[list[int]]:
    traces = map(json.loads, result.stdout.splitlines())
    return [[packet["port"] for packet in trace["out"]] for trace in traces]


def test_each_packet_goes_where_its_title_says() -> None:
    assert outcomes(run("--in-process", "--format", "json")) == OUTCOMES


def test_text_names_steps_entries_and_drops() -> None:
    shown = run("--in-process").stdout
    for step in demo.steps():
        assert f"# {step.title}\n" in shown
    assert "hit hdr.ipv4.dst=0xa000200/24 -> RouterIngress.forward" in shown
    assert "miss -> RouterIngress.drop()" in shown
    assert shown.count("DROP:") == 3


@pytest.mark.network
@needs_veth
def test_frames_cross_veth_pairs_and_none_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    run_command = subprocess.run

    def watched(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[:3] == ("ip", "link", "add"):
            made.extend((command[3], command[-1]))
        return run_command(command, **options)

    monkeypatch.setattr(subprocess, "run", watched)
    assert outcomes(run("--format", "json")) == OUTCOMES
    assert len(made) == 2 * len(demo.PORTS)
    assert not [name for name in made if Path("/sys/class/net", name).exists()]


def test_without_root_it_runs_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = run("--format", "json")
    assert outcomes(result) == OUTCOMES
    assert "in this process (not root)" in result.stderr


@needs_veth
def test_an_interface_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: str) -> None:
        raise demo.DemoError("ip link add: Operation not permitted")

    monkeypatch.setattr(demo, "_ip", refused)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1
    assert "Operation not permitted" in result.stderr


def test_the_source_is_what_runs() -> None:
    assert run("--source").stdout == demo.ROUTER.read_text()
