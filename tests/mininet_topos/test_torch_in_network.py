"""A PyTorch training whose gradients the switches sum: two processes on two hosts of a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mininet_topos.record import state_folder
from tests.support.emulated_cluster import HOPSUM, Running, emulated_cluster
from tests.support.emulation_turns import wait_for_turn
from tests.support.jobs import GOING
from tests.support.machine import PATIENCE, until
from tests.support.paths import ROOT, SUPPORT
from tests.support.processes import processes

pytestmark = [
    pytest.mark.network,
    pytest.mark.long,
    # Not imported: that takes seconds, in each process that collects the tests.
    pytest.mark.skipif(
        find_spec("torch") is None, reason="torch is an extra: pip install hopsum[torch]"
    ),
]

OPERATIONS = ROOT / "hopsum_torch/tests/support/operations.py"
RESTARTING = ROOT / "hopsum_torch/tests/support/restarting.py"
UNTIL_ENDED = SUPPORT / "torch_until_ended.py"
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


def run(folder: Path, command: list[str]) -> str:
    """What a command that must end well prints on standard output."""
    if "--topology" in command:
        # What ran before in the same test has let others come up.
        wait_for_turn()
    ended = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(folder)},
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


def with_gloo(ranks: int) -> list[str]:
    """The command before a script, for gloo on this machine."""
    torchrun = str(HOPSUM.with_name("torchrun"))
    return [torchrun, "--standalone", "--nproc-per-node", str(ranks)]


def in_switches(ranks: int) -> list[str]:
    """The command before a script, for a cluster of its own."""
    topology = f"star:{ranks + 1}"
    return [str(HOPSUM), "torchrun", "--topology", topology, "--workers", str(ranks), "--json"]


def on_running(ranks: int) -> list[str]:
    """The command before a script, for a cluster that is up."""
    return [str(HOPSUM), "torchrun", "--workers", str(ranks), "--json"]


def test_a_cluster_that_is_up_is_used_and_outlives_restarts_and_interrupts(
    cluster: Running,
) -> None:
    printed = run(cluster.folder, [*on_running(2), "--max-restarts", "1", str(RESTARTING)])
    assert "rank 0, attempt 1: 4 sums, [0, 1]" in printed
    assert "the process on h2 is gone, without a goodbye (h2 is rank 1)" in printed
    measured = json.loads(printed[printed.index("\n{") :])
    assert (measured["restarts"], measured["errors"]) == (1, [])
    replaced, last = [cluster.job(info.name) for info in cluster.queries.jobs()]
    assert (replaced["state"], last["state"]) == ("failed", "finished")

    # A switch that is lost in mid-training costs time, and not the run.
    with training(cluster.folder, [*on_running(2), str(UNTIL_ENDED)]) as process:
        [switch] = cluster.switch("s1")
        os.kill(switch, signal.SIGKILL)
        steps = len(log_of_rank_0(cluster.folder))
        wait(process, lambda: len(log_of_rank_0(cluster.folder)) > steps + 3, "steps after it")
        assert cluster.switch("s1") != [switch]
        # What is asked to end leaves neither ranks nor a job that waits for them.
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143
    assert processes(str(UNTIL_ENDED)) == []
    job = cluster.queries.jobs()[-1]
    assert cluster.job(job.name)["state"] in ("failed", "cancelled")
    cluster.wait_until(cluster.attached, "agents on all hosts")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupts_end_ranks_job_and_cluster(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    command = [str(HOPSUM), "torchrun", "--topology", "star:3", "--workers", "2", str(UNTIL_ENDED)]
    with training(tmp_path, command) as process:
        process.send_signal(number)
        assert process.wait(PATIENCE) == code, (tmp_path / "log").read_text()
    log = (tmp_path / "log").read_text()
    assert "interrupted; everything that was started has been taken down" in log
    assert "Traceback" not in log
    # torchrun itself says that it was asked to end: its ranks were, and not killed.
    assert "SIGTERM" in (tmp_path / "logs/rank-1.log").read_text()
    assert processes() == []
    assert not Path("/sys/class/net/s1-eth1").exists()
    assert list(state_folder().glob("*.json")) == []


@contextlib.contextmanager
def training(folder: Path, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A command that trains until it is ended, once it trains."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        wait(process, lambda: len(log_of_rank_0(folder)) > 2, "some steps")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def log_of_rank_0(folder: Path) -> list[str]:
    """What rank 0 says of its steps."""
    log = folder / "logs/rank-0.log"
    return re.findall("^step .*", log.read_text(), re.MULTILINE) if log.exists() else []


def wait(process: subprocess.Popen[bytes], true: Callable[[], bool], what: str) -> None:
    """Ask again and again while a training goes on."""

    def ask() -> bool:
        assert process.poll() is None, f"the training ended before {what}"
        return true()

    until(ask, what)


def test_the_example_trains_as_with_gloo(tmp_path: Path) -> None:
    options = [str(EXAMPLE), "--epochs", "3"]
    alone = run(tmp_path, [*with_gloo(2), *options, "--backend", "gloo"])
    together = run(tmp_path, [*in_switches(2), *options])
    losses = [re.findall(r"loss (\S+),", text) for text in (alone, together)]
    assert len(losses[0]) == len(losses[1]) == 3
    assert float(losses[1][-1]) == pytest.approx(float(losses[0][-1]), rel=0.01)
    measured = json.loads(together[together.index("\n{") :])
    assert measured["errors"] == []
    assert 0 < measured["summing"] < measured["seconds"]
    # 45 steps of 85,000 parameters.
    assert 45 * 4 * 85_000 < measured["in_switches"] <= measured["sent"]


def test_every_operation_gives_gloos_values(tmp_path: Path) -> None:
    """Those of hopsum_torch's own tests, on three hosts."""
    import torch

    for command, backend in ((with_gloo(3), "gloo"), (in_switches(3), "hopsum")):
        run(tmp_path, [*command, str(OPERATIONS), backend, str(tmp_path / backend)])
    for rank in range(3):
        expected, found = (
            torch.load(tmp_path / f"{backend}.{rank}", weights_only=False)
            for backend in ("gloo", "hopsum")
        )
        for results in (expected, found):
            del results["modules"]
        assert len(expected) >= 36
        for name, values in expected.items():
            assert not isinstance(values, str), values
            # float16 and bfloat16 are rounded more often by gloo.
            half = "16" in name or name == "avg"
            tolerance = 5e-2 if half else 1e-4
            _compare(name, found[name], values, tolerance)


def _compare(name: str, found: Any, expected: Any, tolerance: float) -> None:
    """They are alike, however nested."""
    assert type(found) is type(expected), (name, found)
    if isinstance(expected, list | tuple):
        for one, other in zip(found, expected, strict=True):
            _compare(name, one, other, tolerance)
    elif hasattr(expected, "dtype"):
        assert found.dtype == expected.dtype, name
        assert found.shape == expected.shape, name
        assert found.allclose(expected, rtol=tolerance, atol=tolerance), name
    else:
        assert found == expected, name
