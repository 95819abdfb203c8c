"""A node leaves a training, and one joins, with torchrun (docs/how-to/pytorch.md)."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.emulated_cluster import RunningCluster, emulated_cluster
from tests.support.jobs import GOING
from tests.support.machine import PATIENCE, until
from tests.support.paths import ROOT
from tests.support.torch_extra import NEEDS_TORCH

pytestmark = [
    pytest.mark.network,
    pytest.mark.acceptance,
    NEEDS_TORCH,
]

PAGE = ROOT / "docs/how-to/pytorch.md"
TRAIN = ROOT / "examples/ddp_cnn/train.py"
JOINING = ROOT / "hopsum_torch/tests/support/joining.py"
STEP = re.compile(r"^process (\d+), (\d) ranks, step (\d+): loss ", re.MULTILINE)
ADDRESSES = {"h1": "10.0.0.1", "h2": "10.0.0.2", "h3": "10.0.0.3", "h4": "10.0.0.4"}
EPOCHS = 40
LOSS = re.compile(r"^epoch (\d+): loss ([\d.]+)", re.MULTILINE)


@dataclass
class Node:
    """torchrun on a host, and its ranks."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def printed(self) -> str:
        """What torchrun and its ranks have printed."""
        return self.log.read_text()

    def kill(self) -> None:
        """Kill torchrun, which can announce nothing, and then its ranks."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        ranks = [int(pid) for each in tasks.glob("*/children") for pid in each.read_text().split()]
        assert ranks
        self.process.kill()
        self.process.wait()
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)


def command(checkpoint: Path, host: str) -> tuple[dict[str, str], list[str]]:
    """Environment and command of a node, as the page has them."""
    [text] = re.findall(r"^```\n(TORCH_DISABLE_SHARE\w+=1 .*?)^```$", PAGE.read_text(), re.M | re.S)
    setting, torchrun, *words = shlex.split(text.replace("\\\n", " "))
    name, value = setting.split("=")
    assert torchrun == "torchrun"
    given = {
        "192.0.2.21:29400": f"{ADDRESSES['h1']}:29400",
        "192.0.2.22": ADDRESSES[host],
        "train.py": str(TRAIN),
        "/shared/digits.pt": str(checkpoint),
        "40": str(EPOCHS),
    }
    assert given.keys() <= set(words)
    words = [given.get(word, word) for word in words]
    if host == "h1":
        # As the page says: without a name service it cannot tell that it keeps the store.
        words[words.index("--rdzv-conf") + 1] += ",is_host=1"
    return {name: value}, words


@dataclass
class Training:
    """Nodes of a training on the hosts of a cluster."""

    cluster: RunningCluster
    nodes: dict[str, Node]
    logs: list[Path]

    def start(self, host: str) -> Node:
        """Let a host take part."""
        environment, words = command(self.cluster.folder / "digits.pt", host)
        log = self.cluster.folder / f"{host}.log"
        self.logs.append(log)
        inside = ["mnexec", "-a", str(self.cluster.agent(host))]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*inside, sys.executable, "-m", "torch.distributed.run", *words],
                env={
                    **os.environ,
                    **environment,
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": f"{host}-eth0",
                },
                stdout=out,
                stderr=out,
                cwd=self.cluster.folder,
            )
        node = self.nodes[host] = Node(process, log)
        return node

    @property
    def losses(self) -> list[tuple[int, float]]:
        """Epochs and their losses, which the node of rank 0 prints, in order of epochs."""
        found = [pair for log in self.logs for pair in LOSS.findall(log.read_text())]
        return sorted((int(epoch), float(loss)) for epoch, loss in found)

    def wait(self, true: Callable[[], bool], what: str) -> None:
        """Return when something is true, while all nodes are there."""

        def seen() -> bool:
            for host, node in self.nodes.items():
                code = node.process.poll()
                assert not code, f"{host} ended with {code}: {node.printed[-3000:]}"
            return true()

        until(seen, what)

    def trained(self, more: int) -> None:
        """Return after some more epochs."""
        last = max((epoch for epoch, _ in self.losses), default=0)
        self.wait(lambda: any(epoch >= last + more for epoch, _ in self.losses), "epochs")

    def workers(self) -> list[tuple[str, ...]]:
        """The hosts of each job so far."""
        return [tuple(sorted(job.workers)) for job in self.cluster.queries.jobs()]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with emulated_cluster(tmp_path, "star:5", "--link-rate", "100Mbit") as running:
        yield running


@pytest.fixture
def training(cluster: RunningCluster) -> Iterator[Training]:
    made = Training(cluster, {}, [])
    try:
        yield made
    finally:
        for node in made.nodes.values():
            if node.process.poll() is None:
                node.process.terminate()
                node.process.wait(PATIENCE)


def test_a_node_leaves_and_another_joins(training: Training) -> None:
    for host in ("h1", "h2", "h3"):
        training.start(host)
    training.trained(3)
    assert training.workers() == [("h1", "h2", "h3")]

    training.nodes.pop("h3").kill()
    training.wait(lambda: len(training.workers()) == 2, "a job of those that are left")
    training.trained(3)
    assert training.workers()[1] == ("h1", "h2")

    training.start("h4")
    training.wait(lambda: len(training.workers()) == 3, "a job with the one that has joined")
    training.wait(
        lambda: all(node.process.poll() == 0 for node in training.nodes.values()), "the end"
    )
    assert training.workers()[2:] == [("h1", "h2", "h4")]

    # Each epoch that counts was gone through once, and the loss is that of one uninterrupted.
    losses = dict(training.losses)
    assert sorted(losses) == [*range(1, EPOCHS + 1)]
    alone = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(str(TRAIN), "--backend", "gloo", "--epochs", str(EPOCHS)),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stdout
    expected = {int(epoch): float(loss) for epoch, loss in LOSS.findall(alone)}
    assert losses == pytest.approx(expected, rel=0.01)
    assert losses[EPOCHS] < 0.1 * losses[1]

    # All three were summed in the switch, and hold none of it any more.
    assert ended(training.cluster) == ["failed", "failed", "finished"]


def ended(cluster: RunningCluster) -> list[str]:
    """The states of all jobs once they have ended; each has summed, and none holds a slot."""
    queries = cluster.queries
    cluster.wait_until(
        lambda: all(job.state not in GOING for job in queries.jobs()), "the jobs' ends"
    )
    jobs = [cluster.job(job.name) for job in queries.jobs()]
    assert all(job["round"] > 0 for job in jobs)
    assert [dict(use.held) for use in queries.use().slots] == [{}]
    return [job["state"] for job in jobs]


def test_a_rank_joins_and_no_process_starts_again(cluster: RunningCluster) -> None:
    steps = 16
    processes = [
        subprocess.Popen(
            [
                *("mnexec", "-a", str(cluster.agent(host))),
                *(sys.executable, str(JOINING), str(steps)),
            ],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": ADDRESSES["h1"],
                "MASTER_PORT": "29500",
                "RANK": str(rank),
                "GLOO_SOCKET_IFNAME": f"{host}-eth0",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, host in enumerate(("h1", "h2", "h3"))
    ]
    printed = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], printed
    found = [STEP.findall(text) for text in printed]
    assert [int(step) for _, _, step in found[0]] == [*range(1, steps + 1)]
    assert found[1] == [(str(processes[1].pid), size, step) for _, size, step in found[0]]
    assert found[2] == [
        (str(processes[2].pid), size, step) for _, size, step in found[0] if size == "3"
    ]
    assert 5 <= len(found[2]) < steps
    workers = [tuple(sorted(job.workers)) for job in cluster.queries.jobs()]
    assert workers == [("h1", "h2"), ("h1", "h2", "h3")]
    assert ended(cluster) == ["finished", "finished"]
