"""`hopsum cluster` as a process, and queries of tests to it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsum.controller.api.client import ControllerClient
from hopsum.controller.api.records import job_dict
from tests.support.emulation_turns import refused, wait_for_turn
from tests.support.jobs import GOING
from tests.support.machine import PATIENCE, until
from tests.support.processes import process, processes

HOPSUM = Path(sys.executable).with_name("hopsum")


class RunningCluster:
    """`hopsum cluster` in a folder of its own, and commands to it."""

    def __init__(self, folder: Path, topology: str, *options: str) -> None:
        self.folder = folder
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(HOPSUM), "cluster", topology, *options], cwd=folder, stdout=log, stderr=log
            )

    def said(self) -> str:
        """Its output once its controller is up, or it has ended."""

        def is_there() -> bool:
            there = "its controller at" in self.log.read_text()
            return there or self.process.poll() is not None

        until(is_there, "the cluster")
        return self.log.read_text()

    def wait_until_up(self) -> None:
        """Return when every host has its agent."""
        self.wait_until(lambda: "its controller at" in self.log.read_text(), "the cluster")
        self.queries = ControllerClient()
        self.wait_until(self.attached, "agents on all hosts")

    def stop(self) -> None:
        """Take it down."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(PATIENCE)

    def wait_until(self, true: Callable[[], bool], what: str) -> None:
        """Ask again and again while the cluster runs."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The result of a command."""
        return subprocess.run(
            [str(HOPSUM), *arguments], capture_output=True, text=True, check=False
        )

    def job(self, name: str) -> dict[str, Any]:
        """How far a job is."""
        return job_dict(self.queries.job(name))

    def attached(self) -> bool:
        """Whether every host has its agent."""
        return all(node.attached for node in self.queries.nodes())

    def finished(self, name: str) -> dict[str, Any]:
        """A job that has ended well, all its sums exact."""
        self.wait_until(lambda: self.job(name)["state"] not in GOING, f"the end of {name}")
        job = self.job(name)
        assert job["state"] == "finished", job
        assert job["checked"] > 0
        assert job["wrong"] == 0
        return job

    def switch(self, name: str) -> list[int]:
        """The process of a switch; none while it is away."""
        return processes("run", f"1@{name}-eth1")

    def agent(self, host: str) -> int:
        """The process of a host's agent."""
        return process("serve", host, "--interface")


@contextlib.contextmanager
def emulated_cluster(folder: Path, topology: str, *options: str) -> Iterator[RunningCluster]:
    """A cluster in a folder of its own, where commands and clients of this process find it."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_RUNTIME_DIR", str(folder))
        while refused((running := RunningCluster(folder, topology, *options)).said()):
            wait_for_turn()
        try:
            running.wait_until_up()
            yield running
        finally:
            running.stop()
