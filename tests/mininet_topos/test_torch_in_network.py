"""A PyTorch training whose gradients the switches sum: two processes on two hosts of a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.emulated_cluster import Running, emulated_cluster
from tests.support.jobs import GOING
from tests.support.machine import PATIENCE
from tests.support.paths import SUPPORT

pytestmark = pytest.mark.network

pytest.importorskip("torch", reason="torch is an extra: pip install hopsum[torch]")

SCRIPT = SUPPORT / "torch_over_switches.py"
WORKERS = ("h1", "h2")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Running]:
    with emulated_cluster(tmp_path, "star:3") as running:
        yield running


def test_ranks_on_two_hosts_train_as_one_process_does(cluster: Running) -> None:
    before = dict(cluster.queries.switches(counters=True)[0].outcomes)["completed"]
    processes = [
        subprocess.Popen(
            ["mnexec", "-a", str(cluster.agent(host)), sys.executable, str(SCRIPT)],
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
    for process in processes:
        printed, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, printed[-3000:]
    [job] = [info for info in cluster.queries.jobs() if info.name.startswith("torch-")]
    cluster.wait_until(lambda: cluster.job(job.name)["state"] not in GOING, "the job's end")
    assert cluster.job(job.name)["state"] == "finished", cluster.job(job.name)
    after = dict(cluster.queries.switches(counters=True)[0].outcomes)["completed"]
    assert after - before >= 100_000 // 256 + 5
