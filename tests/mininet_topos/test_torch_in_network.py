"""A PyTorch training whose gradients the switches sum: two processes on two hosts of a cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.emulated_cluster import HOPSUM, Running, emulated_cluster
from tests.support.jobs import GOING
from tests.support.machine import PATIENCE
from tests.support.paths import ROOT, SUPPORT

pytestmark = pytest.mark.network

pytest.importorskip("torch", reason="torch is an extra: pip install hopsum[torch]")

EXAMPLE = ROOT / "examples/ddp_cnn/train.py"
WORKERS = ("h1", "h2")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Running]:
    with emulated_cluster(tmp_path, "star:3") as running:
        yield running


def test_ranks_on_two_hosts_train_as_one_process_does(cluster: Running) -> None:
    before = dict(cluster.queries.switches(counters=True)[0].outcomes)["completed"]
    for process in ranks(cluster, SUPPORT / "torch_over_switches.py"):
        printed, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, printed[-3000:]
    [job] = [info for info in cluster.queries.jobs() if info.name.startswith("torch-")]
    cluster.wait_until(lambda: cluster.job(job.name)["state"] not in GOING, "the job's end")
    assert cluster.job(job.name)["state"] == "finished", cluster.job(job.name)
    after = dict(cluster.queries.switches(counters=True)[0].outcomes)["completed"]
    assert after - before >= 100_000 // 256 + 5

    # In the same cluster: a rank that is killed is named at the other, and its job ends.
    survivor, killed = ranks(cluster, SUPPORT / "torch_rank_dies.py")
    printed, _ = survivor.communicate(timeout=PATIENCE)
    killed.communicate(timeout=PATIENCE)
    assert (survivor.returncode, killed.returncode) == (0, -9), printed[-3000:]
    [line] = [line for line in printed.splitlines() if line.startswith("told ")]
    _, seconds, told = line.split(maxsplit=2)
    assert float(seconds) < 5, line
    assert "the process on h2 is gone, without a goodbye (h2 is rank 1)" in told


def ranks(cluster: Running, script: Path) -> list[subprocess.Popen[str]]:
    """A script on each worker's host, as torchrun would start it."""
    return [
        subprocess.Popen(
            ["mnexec", "-a", str(cluster.agent(host)), sys.executable, str(script)],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "10.0.0.1",
                "MASTER_PORT": "29500",
                "RANK": str(rank),
                "WORLD_SIZE": str(len(WORKERS)),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, host in enumerate(WORKERS)
    ]


def test_the_example_trains_as_with_gloo(tmp_path: Path) -> None:
    options = [str(EXAMPLE), "--epochs", "3"]
    torchrun = str(HOPSUM.with_name("torchrun"))
    alone = [torchrun, "--standalone", "--nproc-per-node", "2", *options, "--backend", "gloo"]
    command = [str(HOPSUM), "torchrun", "--topology", "star:3", "--workers", "2", "--json"]
    found = []
    for each in (alone, [*command, *options]):
        ended = subprocess.run(
            each, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(tmp_path)},
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
        found.append(ended.stdout)
    losses = [re.findall(r"loss (\S+),", text) for text in found]
    assert len(losses[0]) == len(losses[1]) == 3
    assert float(losses[1][-1]) == pytest.approx(float(losses[0][-1]), rel=0.01)
    measured = json.loads(found[1][found[1].index("\n{") :])
    assert measured["errors"] == []
    assert 0 < measured["summing"] < measured["seconds"]
    # 45 steps of 85,000 parameters.
    assert 45 * 4 * 85_000 < measured["in_switches"] <= measured["sent"]
