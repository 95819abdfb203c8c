"""A job in virtual time is summed exactly, and a seed is a history."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopsum.cli.job_commands import make_submission
from hopsum.simulation.cluster import VirtualCluster
from hopsum.simulation.faults import Faults
from hopsum.simulation.wire import WireOptions
from tests.support.virtual_cluster import attached, exact, run, running, spines, submit


@pytest.mark.slow
def test_a_job_is_summed_exactly(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h2,h3")
        await exact(cluster, "a")

    cluster = run(tmp_path, "star:4", test)
    assert "Write" in "\n".join(cluster.trace)


@pytest.mark.slow
def test_workers_sum_among_themselves(tmp_path: Path) -> None:
    async def test(cluster: VirtualCluster) -> None:
        await cluster.until(lambda: attached(cluster), "the agents")
        submission = make_submission("ring", "h1,h2,h3", "1", elements=256, algorithm="ring")
        await cluster.people.Submit(submission)
        await exact(cluster, "ring")

    run(tmp_path, "star:4", test)


@pytest.mark.slow
def test_one_seed_is_one_history(tmp_path: Path) -> None:
    """Byte for byte: every message, rule and frame count, with faults, and in another process."""

    def history(seed: int, folder: str) -> bytes:
        (tmp_path / folder).mkdir()
        return eventful(tmp_path / folder, seed)

    first, again, other = history(1, "a"), history(1, "b"), history(2, "c")
    assert first == again
    assert first != other
    script = (
        "import sys; from pathlib import Path;"
        "from tests.simulation.test_cluster_history import eventful;"
        "sys.stdout.buffer.write(eventful(Path(sys.argv[1]), 1))"
    )
    (tmp_path / "d").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "d")],
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": "."},
    )
    assert done.stdout == first


def eventful(folder: Path, seed: int) -> bytes:
    """The history of a cluster in which much goes wrong, and of its journal."""

    async def test(cluster: VirtualCluster) -> None:
        await submit(cluster, "a", "h1,h3", rounds=12)
        await submit(cluster, "b", "h2,h4", rounds=5)
        await running(cluster, "a")
        (spine,) = spines(cluster, "a")
        cluster.switches[spine].crash()
        await asyncio.sleep(5.0)
        cluster.switches[spine].start()
        await exact(cluster, "a")
        await exact(cluster, "b")

    cluster = run(
        folder,
        "leaf-spine:2x2x2",
        test,
        seed=seed,
        faults=Faults(loss=0.01, duplicate=0.01, reorder=0.02),
        wires=WireOptions(loss=0.02),
    )
    return "\n".join([*cluster.trace, cluster.disk.read(folder / "jobs").decode()]).encode()
