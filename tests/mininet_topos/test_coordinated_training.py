"""Training whose gradients are ready in another order on every worker, on real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectives.plan import DataType, fragment_count
from controller.api.client import ControllerClient
from controller.api.rendezvous import find_controller
from host_agent.operator_training import NAMES
from host_agent.workload import WorkloadSpec
from protocol.channel import ControllerError
from tests.support.machine import PATIENCE
from tests.support.processes import process

pytestmark = pytest.mark.network

HOPSUM = Path(sys.executable).with_name("hopsum")
SENT_AGAIN = ("duplicate", "re_emitted", "stale", "bypassed", "taken_over")
"""What becomes at a switch of a fragment that is sent more than once."""


class Run:
    """`hopsum run --train digits` on star:4, in a folder of its own."""

    def __init__(self, folder: Path, coordination: str, epochs: int) -> None:
        self.report = folder / "report.json"
        self.log = folder / "log"
        command = [
            str(HOPSUM), "run", "--world", "mininet", "--topology", "star:4", "--workers", "4",
            "--train", "digits", "--rounds", str(epochs), "--coordination", coordination,
            "--link-rate", "50Mbit", "--limit", str(PATIENCE), "--report", str(self.report),
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def finish(self) -> dict[str, Any]:
        """The report of a run that ended well, all its sums exact."""
        assert self.process.wait(PATIENCE) == 0, self.log.read_text()
        report: dict[str, Any] = json.loads(self.report.read_text())
        assert report["checked_elements"] > 0
        assert report["wrong_elements"] == 0
        assert report["problems"] == []
        assert sorted(report["operator_order"]) == sorted(NAMES)
        return report

    def wait_for_rounds(self) -> None:
        """Return when the workers have summed some operators."""
        deadline = time.monotonic() + PATIENCE
        while not self._rounds():
            assert time.monotonic() < deadline, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def _rounds(self) -> bool:
        if find_controller() is None:
            return False
        try:
            jobs = ControllerClient().status()
        except ControllerError:
            return False
        return any(
            job.job == 1 and all(a.round > 10 for a in job.agents if a.role == "worker")
            for job in jobs
        )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    started: list[Run] = []
    yield started
    for run in started:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGINT)
            run.process.wait()


@pytest.mark.parametrize("coordination", ["tree", "ring", "switches"])
def test_training_is_exact_whatever_combines_the_vectors(
    folder: Path, runs: list[Run], coordination: str
) -> None:
    runs.append(Run(folder, coordination, 1))
    report = runs[0].finish()
    assert report["coordination"] == coordination
    spec = WorkloadSpec("digits", 4, 0, 1, DataType.FLOAT32, 1, coordinate=True)
    fragments = [fragment_count(size, report["lanes"], spec.dtype) for size in spec.step_sizes()]
    sums = 4 * spec.steps * sum(fragments)
    counts = report["switches"]["s1"]
    joined = counts["aggregated"] + counts["completed"]
    # Others send again what waits for a process that stands still, in the end around the switch.
    again = sum(counts[name] for name in SENT_AGAIN)
    # The first step is negotiated; each later one takes a vector of every worker at least.
    least = sums + (4 * (spec.steps - 1) if coordination == "switches" else 0)
    assert joined + again >= least
    if coordination != "switches" and not again:
        assert joined == sums


@pytest.mark.parametrize("coordination", ["tree", "switches"])
def test_a_killed_process_is_named(folder: Path, runs: list[Run], coordination: str) -> None:
    runs.append(Run(folder, coordination, 50))
    run = runs[0]
    run.wait_for_rounds()
    os.kill(process("serve", "h2", "--interface"), signal.SIGKILL)
    assert run.process.wait(PATIENCE) == 1
    assert "h2" in run.log.read_text()
    # The run ends its agents as soon as it knows: some may not have said a word.
    told = [(folder / "logs" / f"{host}.log").read_text() for host in ("h1", "h3", "h4")]
    assert all("h2 is lost" in text for text in told if "ERROR" in text), told
