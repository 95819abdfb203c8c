"""A cluster in Mininet: jobs that come and go at once, agents that are killed, bad input."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator

import pytest

from hopsum.cli.job_commands import make_submission
from hopsum.protocol.channel import ControllerError
from tests.support.emulated_cluster import RunningCluster, emulated_cluster
from tests.support.jobs import GOING

pytestmark = pytest.mark.network

TOPOLOGY = "leaf-spine:2x3"
SLOW = ("--link-rate", "5Mbit")
"""Long jobs keep links busy, not the machine."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """The cluster of all tests but those that need another."""
    with emulated_cluster(tmp_path_factory.mktemp("cluster"), TOPOLOGY, *SLOW) as running:
        yield running


@pytest.fixture
def up(shared: RunningCluster) -> Iterator[RunningCluster]:
    """The cluster, all agents there; the test's jobs are over afterwards."""
    shared.wait_until(shared.attached, "agents on all hosts")
    yield shared
    for job in shared.queries.jobs():
        if job.state in GOING:
            shared.queries.cancel(str(job.job))


def test_eight_jobs_at_once_are_exact(up: RunningCluster) -> None:
    # On a busy machine the others may end one before the next: this one is there all the time.
    up.queries.submit(make_submission("always", "2", "1", elements=10_000, rounds=1_000_000))
    for number in range(8):
        up.queries.submit(
            make_submission(
                f"job{number}",
                str(2 + number % 4),
                str(1 + number % 2),
                elements=1000 * (1 + number),
                rounds=40 - 4 * number,
                seed=number,
            )
        )
    up.wait_until(
        lambda: [job.state for job in up.queries.jobs()].count("running") > 1, "jobs at once"
    )
    for number in range(8):
        job = up.finished(f"job{number}")
        assert job["checked"] == (2 + number % 4) * 1000 * (1 + number) * (40 - 4 * number)
    assert up.queries.cancel("always").state == "cancelled"
    up.wait_until(lambda: not any(node.jobs for node in up.queries.nodes()), "the end of all")


def test_one_jobs_end_is_not_the_others(up: RunningCluster) -> None:
    def submit(name: str, workers: str, server: str, rounds: int) -> None:
        up.queries.submit(make_submission(name, workers, server, elements=10_000, rounds=rounds))

    submit("doomed", "h1,h2", "ps", 1000)
    submit("unwanted", "h2,h3", "ps", 1000)
    submit("steady", "h4,h5", "h6", 100)
    submit("second", "h2,h5", "ps", 20)
    for name in ("doomed", "unwanted", "steady"):
        up.wait_until(lambda n=name: up.job(n)["round"] > 0, f"rounds of {name}")  # type: ignore[misc]

    assert up.queries.cancel("unwanted").state == "cancelled"
    os.kill(up.agent("h1"), signal.SIGKILL)
    up.wait_until(lambda: up.job("doomed")["state"] not in GOING, "the doomed job's end")
    doomed = up.job("doomed")
    assert doomed["state"] == "failed"
    # Unless the agent that takes the place of the first one reports before.
    assert re.search("h1: (its connection ended|it lost its part in the job)", doomed["reason"])
    up.finished("second")

    # A server is started again, and its job continues in a new epoch.
    assert up.job("steady")["state"] == "running"
    os.kill(up.agent("h6"), signal.SIGKILL)
    steady = up.finished("steady")
    assert steady["checked"] == 2 * 10_000 * 100
    assert steady["epoch"] >= 2
    assert "agent on h6 ended (code -9); restarting it" in up.log.read_text()

    # The names and hosts of jobs that are over can be used again.
    up.wait_until(up.attached, "all agents")
    submit("doomed", "h1,h2", "1", 3)
    up.finished("doomed")


def test_switches_agents_and_links_come_back(up: RunningCluster) -> None:
    """Jobs do without them, and a job that has to wait for them says so."""

    def health() -> dict[str, tuple[str, str]]:
        return {switch.name: (switch.state, switch.health) for switch in up.queries.switches()}

    [before] = up.switch("l2")
    os.kill(before, signal.SIGKILL)
    os.kill(up.agent("h4"), signal.SIGKILL)
    up.wait_until(
        lambda: "switch l2 ended (code -9); restarting it" in up.log.read_text(), "its end"
    )
    up.wait_until(lambda: up.switch("l2") not in ([], [before]), "another switch process")
    up.wait_until(lambda: health()["l2"] == ("ready", ""), "the switch's return")
    up.wait_until(up.attached, "the agent's return")
    up.queries.submit(make_submission("after", "h1,h4", "h2"))
    up.finished("after")

    # The rack of h4 to h6 loses its uplinks.
    uplinks = ("l2-s1", "s2-l2")
    for link in uplinks:
        assert "is cut" in up.run("link", "down", link).stdout
    up.wait_until(
        lambda: sum("planned around" in link.health for link in up.queries.use().links) == 4,
        "the failure of two links, both ways",
    )
    assert health()["l2"][1] == ""
    up.queries.submit(make_submission("near", "h1", "h2"))
    up.finished("near")
    info = up.queries.submit(make_submission("far", "h1,h4", "h2"))
    assert info.state == "queued"
    assert "h4 cut off: link l2-s1 unreachable for" in info.reason
    shown = json.loads(up.run("jobs", "--json").stdout)
    assert "link l2-s1 unreachable" in shown[-1]["reason"]
    listed = json.loads(up.run("link", "list", "--json").stdout)
    assert sum("planned around" in each["health"] for each in listed) == 4
    assert "expected one of" in up.run("link", "down", "l2-l1").stderr
    for link in uplinks:
        assert "is restored" in up.run("link", "up", link).stdout
    up.finished("far")


def test_wrong_jobs_are_refused_at_the_caller(up: RunningCluster) -> None:
    first = up.queries.submit(make_submission("a", "h1,h2", rounds=1000))
    wrong = {
        f"a job 'a' exists already: number {first.job}": make_submission("a", "h1,h3"),
        "there is no host 'h9'": make_submission("b", "h1,h9"),
        "worker h1 is named more than once": make_submission("b", "h1,h1"),
        "9 workers: expected 1 to 6": make_submission("b", "9"),
        "algorithm 'gossip'": make_submission("b", "2", algorithm="gossip"),
        "job name 'b c'": make_submission("b c", "2"),
    }
    for words, submission in wrong.items():
        with pytest.raises(ControllerError, match=words):
            up.queries.submit(submission)
    done = up.run("submit", "b", "--window", "65536")
    assert done.returncode != 0
    assert "65536 slots: its quota at switch l1 is 2048 of 4096" in " ".join(done.stderr.split())
    with pytest.raises(ControllerError, match=r"there is no job nobody; \d+ jobs? (is|are) known"):
        up.queries.cancel("nobody")
    assert up.job("a")["state"] == "running"
    assert up.queries.cancel(str(first.job)).state == "cancelled"
