"""A run while it runs: what it can be asked, and what it survives."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.controller.api.client import ControllerClient
from hopsum.controller.api.rendezvous import find_controller
from tests.support.machine import PATIENCE
from tests.support.processes import process

pytestmark = [pytest.mark.network, pytest.mark.long]

HOPSUM = Path(sys.executable).with_name("hopsum")


def wait_until(true: Callable[[], bool], what: str, process: subprocess.Popen[bytes]) -> None:
    """Repeat a query while the run continues."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            raise AssertionError(f"the run ended before {what}")


def hopsum(*arguments: str) -> Any:
    """A command's JSON output; in this process, since starting another takes long."""
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class Run:
    """A long run of leaf-spine:2x2x2 in a folder of its own: by slow links, not by much data."""

    def __init__(self, folder: Path) -> None:
        self.report = folder / "report.json"
        self.log = folder / "log"
        command = [
            str(HOPSUM), "run", "--world", "mininet", "--topology", "leaf-spine:2x2x2",
            "--workers", "4", "--elements", "200000", "--rounds", "4", "--dtype", "int32",
            "--link-rate", "4Mbit", "--limit", str(PATIENCE), "--report", str(self.report),
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def wait_for_slots(self) -> None:
        """Return when the switches sum."""
        wait_until(lambda: find_controller() is not None, "its controller", self.process)
        queries = ControllerClient()
        wait_until(
            lambda: any(s.outcomes["completed"] for s in queries.switches(counters=True)),
            "sums",
            self.process,
        )

    def finish(self) -> dict[str, Any]:
        """The report of a run that ended well."""
        assert self.process.wait(PATIENCE) == 0, self.log.read_text()
        report: dict[str, Any] = json.loads(self.report.read_text())
        assert report["checked_elements"] == 4 * 4 * 200_000
        assert report["wrong_elements"] == 0
        return report


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    # An agent that is stopped for 30 s is lost, and its job fails: what commands import on a busy
    # machine should not count. There is no controller yet.
    for command in (["why-stuck"], ["slots", "l1", "--job", "1"], ["status"], ["stats"]):
        assert CliRunner().invoke(app, command).exit_code == 1
    started = Run(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.send_signal(signal.SIGINT)
        started.process.wait()


def test_a_waiting_job_reports_its_reason_and_continues_without_its_spine(run: Run) -> None:
    run.wait_for_slots()
    leaf = ask_while_a_worker_stands_still(run)
    spine = replan_around_a_spine(run)
    report = run.finish()
    assert report["switches"][leaf]["inspected"] > 0
    assert report["retransmissions"] > 0
    assert f"switch {spine} failed: job 1 continues in epoch 2" in run.log.read_text()


def ask_while_a_worker_stands_still(run: Run) -> str:
    """Ask for all that can be known; the switch that waits for the worker."""
    agent = process("serve", "h2")
    os.kill(agent, signal.SIGSTOP)
    try:
        waiting: list[dict[str, Any]] = []

        def only_h2_is_missing() -> bool:
            waiting[:] = hopsum("why-stuck")
            return {worker for m in waiting for worker in m["workers"]} == {"h2"}

        wait_until(only_h2_is_missing, "all to wait for h2", run.process)
        leaf, fragment = waiting[0]["switch"], waiting[0]["fragment"]
        assert waiting[0]["neighbour"] == "h2"
        slots = hopsum("slots", leaf, "--job", "1")
        _, plan = ControllerClient().describe(1)
        assert len(slots) == 2 * plan.in_flight
        (slot,) = [s for s in slots if s["fragment"] == fragment and s["state"] == "waiting"]
        assert slot["count"] == slot["fan_in"] - 1
        (job,) = hopsum("status")
        assert (job["job"], job["epoch"], job["state"]) == (1, 1, "running")
        stats = hopsum("stats")
        assert set(stats) == {"l1", "l2", "s1", "s2"}
        assert stats[leaf]["outcomes"]["aggregated"] > 0
    finally:
        # Not to hide why the run has ended, where it has.
        with contextlib.suppress(ProcessLookupError):
            os.kill(agent, signal.SIGCONT)
    return str(leaf)


def replan_around_a_spine(run: Run) -> str:
    """Stop the spine that the job uses until the job has a plan without it."""
    queries = ControllerClient()
    _, plan = queries.describe(1)
    (spine,) = {"s1", "s2"} & set(plan.trees[0].parts)
    # One that ends is restarted before failover reacts.
    switch = process("run", f"1@{spine}-eth1")
    os.kill(switch, signal.SIGSTOP)
    try:
        wait_until(lambda: queries.describe(1)[1].epoch >= 2, "a new plan", run.process)
        _, again = queries.describe(1)
        assert spine not in again.trees[0].parts
    finally:
        os.kill(switch, signal.SIGCONT)
    return spine
