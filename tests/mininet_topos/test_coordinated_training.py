"""Training whose gradients are ready in another order on every worker, on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopsum.collectives.choices import Coordination
from hopsum.collectives.plan import DataType
from hopsum.controller.api.client import ControllerClient
from hopsum.controller.api.rendezvous import find_controller
from hopsum.experiment.description import Experiment, WorldKind
from hopsum.host_agent.operator_training import NAMES
from hopsum.host_agent.workload import WorkloadSpec
from hopsum.protocol.channel import ControllerError
from tests.support.emulated_runs import run_together
from tests.support.machine import PATIENCE
from tests.support.processes import process

pytestmark = pytest.mark.network

HOPSUM = Path(sys.executable).with_name("hopsum")
SENT_AGAIN = ("duplicate", "re_emitted", "stale", "bypassed", "taken_over")
"""The outcomes at a switch of a fragment that is sent more than once."""


class Run:
    """`hopsum run --train digits` in a folder of its own, its vectors in the switches."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        command = [
            str(HOPSUM), "run", "--world", "mininet", "--topology", "star:4", "--workers", "4",
            "--train", "digits", "--rounds", "50", "--coordination", "switches",
            "--link-rate", "50Mbit", "--limit", str(PATIENCE),
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

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
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Iterator[Run]:
    started = Run(folder)
    yield started
    if started.process.poll() is None:
        started.process.send_signal(signal.SIGINT)
        started.process.wait()


def test_training_is_exact_wherever_vectors_are_combined(folder: Path) -> None:
    base = Experiment(
        topology="star:4",
        workers=4,
        rounds=1,
        train="digits",
        coordinate=True,
        world=WorldKind.MININET,
        link_rate=50e6,
        limit=PATIENCE,
    )
    ways = (Coordination.TREE, Coordination.RING, Coordination.SWITCHES)
    before: Counter[str] = Counter()
    for report in run_together(*(replace(base, coordination=way) for way in ways)):
        written = report.to_dict()
        assert written["problems"] == []
        assert written["checked_elements"] > 0
        assert sorted(written["operator_order"]) == sorted(NAMES)
        assert report.measured is not None
        # Counters go on from the run before.
        after = Counter(report.measured.switches["s1"])
        check_sums(written, after - before)
        before = after


def check_sums(report: Mapping[str, Any], counts: Counter[str]) -> None:
    """Check that the switch has summed what a training of one epoch takes."""
    spec = WorkloadSpec("digits", 4, 0, 1, DataType.FLOAT32, 1, coordinate=True)
    fragments = [-(-size // report["lanes"]) + 1 for size in spec.step_sizes()]
    sums = 4 * spec.steps * sum(fragments)
    joined = counts["aggregated"] + counts["completed"]
    # Others send again what waits for a process that stands still, in the end around the switch.
    again = sum(counts[name] for name in SENT_AGAIN)
    # The first step is negotiated; each later one takes a vector of every worker at least.
    coordination = report["coordination"]
    least = sums + (4 * (spec.steps - 1) if coordination == Coordination.SWITCHES else 0)
    assert joined + again >= least
    if coordination != Coordination.SWITCHES and not again:
        assert joined == sums


def test_a_killed_process_is_named(folder: Path, run: Run) -> None:
    run.wait_for_rounds()
    os.kill(process("serve", "h2", "--interface"), signal.SIGKILL)
    assert run.process.wait(PATIENCE) == 1
    assert "h2" in run.log.read_text()
    # The run ends its agents as soon as it knows: some may not have said a word.
    received = [(folder / "logs" / f"{host}.log").read_text() for host in ("h1", "h3", "h4")]
    assert all("h2 is lost" in text for text in received if "ERROR" in text), received
