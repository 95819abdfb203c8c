"""A cluster in Mininet: jobs that come and go at once, agents that are killed, bad input."""

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

from cli.job_commands import job_dict, make_submission
from cli.main import app
from controller.api.client import ControllerClient
from controller.jobs.priorities import PriorityPolicy
from network.loaders import load_network, save_network
from protocol.channel import ControllerError
from tests.support.machine import PATIENCE
from tests.support.processes import process, processes

pytestmark = pytest.mark.network

HOPSUM = Path(sys.executable).with_name("hopsum")
GOING = ("queued", "waiting", "running")


class Running:
    """`hopsum cluster` in a folder of its own, and commands to it."""

    def __init__(self, folder: Path, topology: str, *options: str) -> None:
        self.folder = folder
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(HOPSUM), "cluster", topology, *options], cwd=folder, stdout=log, stderr=log
            )

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
        """What became of a command."""
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def cluster(folder: Path) -> Iterator[Callable[..., Running]]:
    with contextlib.ExitStack() as stack:

        def start(topology: str, *options: str) -> Running:
            running = Running(folder, topology, *options)
            stack.callback(running.stop)
            running.wait_until_up()
            return running

        yield start


def test_eight_jobs_at_once_are_exact(cluster: Callable[..., Running]) -> None:
    up = cluster("fat-tree:4")
    # On a busy machine the others may end one before the next: this one is there all the time.
    up.queries.submit(make_submission("beside", "2", "1", elements=20_000, rounds=1_000_000))
    for number in range(8):
        up.queries.submit(
            make_submission(
                f"job{number}",
                str(2 + number % 4),
                str(1 + number % 2),
                elements=20_000 * (1 + number),
                rounds=40 - 4 * number,
                seed=number,
            )
        )
    up.wait_until(
        lambda: [job.state for job in up.queries.jobs()].count("running") > 1, "jobs at once"
    )
    for number in range(8):
        job = up.finished(f"job{number}")
        assert job["checked"] == (2 + number % 4) * 20_000 * (1 + number) * (40 - 4 * number)
    assert up.queries.cancel("beside").state == "cancelled"
    up.wait_until(lambda: not any(node.jobs for node in up.queries.nodes()), "the end of all")


def test_one_jobs_end_is_not_the_others(cluster: Callable[..., Running]) -> None:
    up = cluster("leaf-spine:2x3")

    def submit(name: str, workers: str, server: str, rounds: int) -> None:
        up.queries.submit(make_submission(name, workers, server, rounds=rounds))

    submit("doomed", "h1,h2", "ps", 1000)
    submit("unwanted", "h2,h3", "ps", 1000)
    submit("steady", "h4,h5", "h6", 100)
    submit("beside", "h2,h5", "ps", 20)
    for name in ("doomed", "unwanted", "steady"):
        up.wait_until(lambda n=name: up.job(n)["round"] > 0, f"rounds of {name}")  # type: ignore[misc]

    assert up.queries.cancel("unwanted").state == "cancelled"
    os.kill(up.agent("h1"), signal.SIGKILL)
    up.wait_until(lambda: up.job("doomed")["state"] not in GOING, "the doomed job's end")
    doomed = up.job("doomed")
    assert doomed["state"] == "failed"
    assert "h1: its connection ended" in doomed["reason"]
    up.finished("beside")

    # A server is started again, and its job goes on in a new epoch.
    assert up.job("steady")["state"] == "running"
    os.kill(up.agent("h6"), signal.SIGKILL)
    steady = up.finished("steady")
    assert steady["checked"] == 2 * 100_000 * 100
    assert steady["epoch"] >= 2
    assert "agent on h6 ended (code -9); starting it again" in up.log.read_text()

    # The names and hosts of jobs that are over can be used again.
    up.wait_until(up.attached, "all agents")
    submit("doomed", "h1,h2", "1", 3)
    up.finished("doomed")


def test_switches_agents_and_links_come_back(cluster: Callable[..., Running]) -> None:
    """Nobody needs them while they are away, and a job that waits for them says so."""
    up = cluster("leaf-spine:2x2")

    def health() -> dict[str, tuple[str, str]]:
        return {switch.name: (switch.state, switch.health) for switch in up.queries.switches()}

    [before] = up.switch("l2")
    os.kill(before, signal.SIGKILL)
    os.kill(up.agent("h3"), signal.SIGKILL)
    up.wait_until(lambda: "switch l2 ended (code -9); starting it" in up.log.read_text(), "its end")
    up.wait_until(lambda: up.switch("l2") not in ([], [before]), "another switch process")
    up.wait_until(lambda: health()["l2"] == ("ready", ""), "the switch's return")
    up.wait_until(up.attached, "the agent's return")
    up.queries.submit(make_submission("after", "h1,h3", "h2"))
    up.finished("after")

    # The rack of h3 and h4 loses its uplinks.
    uplinks = [f"l2-eth{port}" for port in (3, 4)]
    for interface in uplinks:
        subprocess.run(["ip", "link", "set", interface, "down"], check=True)
    up.wait_until(
        lambda: sum("planned around" in link.health for link in up.queries.use().links) == 4,
        "the failure of two links, both ways",
    )
    assert health()["l2"][1] == ""
    up.queries.submit(make_submission("near", "h1", "h2"))
    up.finished("near")
    info = up.queries.submit(make_submission("far", "h1,h3", "h2"))
    assert info.state == "queued"
    assert "h3 cut off: link l2-s1 unreachable for" in info.reason
    shown = json.loads(up.run("jobs", "--json").stdout)
    assert "link l2-s1 unreachable" in shown[-1]["reason"]
    for interface in uplinks:
        subprocess.run(["ip", "link", "set", interface, "up"], check=True)
    up.finished("far")


def test_a_new_job_takes_the_slots_of_one_that_has_run_for_long(
    cluster: Callable[..., Running], tmp_path: Path
) -> None:
    """The older one bypasses the switches for a while and sums there again; both are exact."""
    file = tmp_path / "network.json"
    save_network(load_network("leaf-spine:2x2x1", slots=64), file)
    up = cluster(str(file), "--quota", "1")

    def submit(name: str, rounds: int) -> None:
        up.queries.submit(make_submission(name, "h1,h2,h3", rounds=rounds))

    submit("old", 250)
    early = PriorityPolicy().early_iterations
    up.wait_until(lambda: least_reported(up, ("h1", "h2", "h3")) >= early, "a lower level of old")
    submit("new", 20)
    old = up.job("old")
    assert (old["epoch"], old["bypasses"]) == (2, ["l1"])
    # Not as a process: it might start when the new job is over.
    assert "bypasses l1" in CliRunner().invoke(app, ["jobs"]).stdout
    assert up.job("new")["state"] in ("waiting", "running")
    up.finished("new")
    assert up.job("old")["state"] == "running"
    up.wait_until(lambda: not up.job("old")["bypasses"], "old's return to the switches")
    old = up.finished("old")
    assert old["epoch"] == 3
    assert old["checked"] == 3 * 100_000 * 250


def least_reported(up: Running, hosts: tuple[str, ...]) -> int:
    """The rounds that all of these hosts have reported of their job."""
    reports = {node.host: node.report for node in up.queries.nodes()}
    return min(max((job.round for job in reports[host].jobs), default=0) for host in hosts)


def test_wrong_jobs_are_refused_at_the_caller(cluster: Callable[..., Running]) -> None:
    up = cluster("star:3")
    up.queries.submit(make_submission("a", "h1,h2", rounds=1000))
    wrong = {
        "there is a job 'a' already: number 1": make_submission("a", "h1,h3"),
        "there is no host 'h9'": make_submission("b", "h1,h9"),
        "worker h1 is named more than once": make_submission("b", "h1,h1"),
        "cannot be worker and server": make_submission("b", "h1,h2", "h2"),
        "9 workers: expected 1 to 3": make_submission("b", "9"),
        "algorithm 'gossip'": make_submission("b", "2", algorithm="gossip"),
        "job name 'b c'": make_submission("b c", "2"),
    }
    for words, submission in wrong.items():
        with pytest.raises(ControllerError, match=words):
            up.queries.submit(submission)
    done = up.run("submit", "b", "--window", "65536")
    assert done.returncode != 0
    assert "65536 slots: its quota at switch s1 is 2048 of 4096" in " ".join(done.stderr.split())
    with pytest.raises(ControllerError, match=r"there is no job nobody; 1 job is known"):
        up.queries.cancel("nobody")
    assert up.job("a")["state"] == "running"
    assert up.queries.cancel("1").state == "cancelled"
