"""A PyTorch training whose gradients the switches sum: processes on the hosts of a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hopsum.mininet_topos.emulation import Emulation
from hopsum.mininet_topos.record import state_folder
from hopsum.network.loaders import load_network
from tests.support.emulated_cluster import HOPSUM, RunningCluster, emulated_cluster
from tests.support.emulation_turns import refused, run_when_free, wait_for_turn
from tests.support.jobs import GOING
from tests.support.machine import PATIENCE, until
from tests.support.paths import ROOT, SUPPORT
from tests.support.processes import processes
from tests.support.served_cluster import LINK_RATE, TOPOLOGY, ServedCluster
from tests.support.torch_extra import NEEDS_TORCH

pytestmark = [
    pytest.mark.network,
    pytest.mark.long,
    NEEDS_TORCH,
]

OPERATIONS = ROOT / "hopsum_torch/tests/support/operations.py"
COMPARE = ROOT / "hopsum_torch/tests/support/compare.py"
SCALING = ROOT / "hopsum_torch/tests/support/scaling.py"
RESTARTING = ROOT / "hopsum_torch/tests/support/restarting.py"
UNTIL_ENDED = SUPPORT / "torch_until_ended.py"
WORKERS = ("h1", "h2", "h3")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with emulated_cluster(tmp_path, "star:3") as running:
        yield running


def test_ranks_on_several_hosts_train_as_one_process_does(cluster: RunningCluster) -> None:
    before = dict(cluster.queries.switches(counters=True)[0].outcomes)["completed"]
    for process in ranks(cluster, SUPPORT / "torch_over_switches.py"):
        printed, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, printed[-3000:]
    [job] = [info for info in cluster.queries.jobs() if info.name.startswith("torch-")]
    cluster.wait_until(lambda: cluster.job(job.name)["state"] not in GOING, "the job's end")
    assert cluster.job(job.name)["state"] == "finished", cluster.job(job.name)
    after = dict(cluster.queries.switches(counters=True)[0].outcomes)["completed"]
    assert after - before >= 100_000 // 256 + 5

    # In the same cluster: a loss scaler skips the steps that it skips with gloo.
    by_switches, by_gloo = (scaled(cluster, backend) for backend in ("hopsum", "gloo"))
    for mine, others in zip(by_switches, by_gloo, strict=True):
        assert [step[:2] for step in mine] == [step[:2] for step in others]
        assert 0 < sum(skipped for _, skipped, *_ in mine) < len(mine)
        for one, other in zip(mine, others, strict=True):
            assert one[2:] == pytest.approx(other[2:], rel=1e-4)

    # A rank that is killed is named at all others, and its job ends.
    processes = ranks(cluster, SUPPORT / "torch_rank_dies.py")
    printed_by = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, -9, 0], printed_by
    for survivor in (0, 2):
        [line] = [line for line in printed_by[survivor].splitlines() if line.startswith("error ")]
        _, seconds, error = line.split(maxsplit=2)
        assert float(seconds) < 5, line
        assert "the process on h2 disconnected without leaving (h2 is rank 1)" in error


def scaled(cluster: RunningCluster, backend: str) -> list[list[list[float]]]:
    """By rank what a loss scaler does at each step."""
    steps = []
    for process in ranks(cluster, SCALING, backend, "ddp"):
        printed, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, printed[-3000:]
        found = re.search("^steps (.*)$", printed, re.MULTILINE)
        assert found is not None, printed[-3000:]
        steps.append(json.loads(found[1]))
    return steps


def ranks(cluster: RunningCluster, script: Path, *arguments: str) -> list[subprocess.Popen[str]]:
    """A script on each worker's host, as torchrun would start it."""
    return [
        subprocess.Popen(
            ["mnexec", "-a", str(cluster.agent(host)), sys.executable, str(script), *arguments],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "10.0.0.1",
                "MASTER_PORT": "29500",
                "RANK": str(rank),
                "WORLD_SIZE": str(len(WORKERS)),
                "GLOO_SOCKET_IFNAME": f"{host}-eth0",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, host in enumerate(WORKERS)
    ]


def with_gloo(ranks: int) -> list[str]:
    """The command before a script, for gloo on this machine."""
    torchrun = str(HOPSUM.with_name("torchrun"))
    return [torchrun, "--standalone", "--nproc-per-node", str(ranks)]


def in_switches(hosts: int, here: int = 1) -> list[str]:
    """The command before a script, for a cluster of its own; `here`: ranks a host."""
    hopsum, torchrun, *options = on_running(hosts, here)
    return [hopsum, torchrun, "--topology", f"star:{hosts + 1}", *options]


def on_running(hosts: int, here: int = 1) -> list[str]:
    """The command before a script, for a cluster that is up; `here`: ranks a host."""
    options = ["--workers", str(hosts), "--ranks-per-host", str(here), "--json"]
    return [str(HOPSUM), "torchrun", *options]


def test_a_cluster_that_is_up_is_used_and_outlives_restarts_and_interrupts(
    cluster: RunningCluster,
) -> None:
    printed = run_when_free(
        cluster.folder, [*on_running(2), "--max-restarts", "1", str(RESTARTING)]
    )
    assert "rank 0, attempt 1: 4 sums, [0, 1]" in printed
    assert "the process on h2 disconnected without leaving (h2 is rank 1)" in printed
    measured = json.loads(printed[printed.index("\n{") :])
    assert (measured["restarts"], measured["errors"]) == (1, [])
    replaced, last = [cluster.job(info.name) for info in cluster.queries.jobs()]
    assert (replaced["state"], last["state"]) == ("failed", "finished")

    # The same with two ranks a host, of which one is killed.
    several = run_when_free(
        cluster.folder, [*on_running(2, 2), "--max-restarts", "1", str(RESTARTING)]
    )
    assert "rank 0, attempt 1: 4 sums, [0, 1, 2, 3]" in several
    measured = json.loads(several[several.index("\n{") :])
    assert (measured["restarts"], measured["errors"]) == (1, [])
    for rank in (2, 3):
        log = (cluster.folder / f"logs/rank-{rank}.log").read_text()
        # The hosts are roots of trees: each knows what is missing there.
        assert "the process of rank 1 on h1 disconnected without leaving; fragment" in log
        assert "lacks h1 (h1 is ranks 0, 1)" in log
        assert f"rank {rank}, attempt 1: 4 sums" in log

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


def test_a_controller_that_is_lost_costs_time_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    network = load_network(TOPOLOGY, link_rate=LINK_RATE)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    with Emulation(network) as emulation:
        served = ServedCluster(tmp_path, network, emulation, environment)
        address, jobs = f"unix:{tmp_path}/controller", str(tmp_path / "jobs")
        try:
            served.serve(address, "--jobs", jobs)
            for host in network.hosts:
                served.attach(host, address)
            until(lambda: served.attached() == set(network.hosts), "all agents")
            process = start_ranks(emulation, tmp_path)[0]
            wait(process, lambda: len(log_of_rank_0(tmp_path)) > 2, "some steps")
            assert served.controller is not None
            served.controller.kill()
            served.controller.wait()
            steps = len(log_of_rank_0(tmp_path))
            wait(process, lambda: len(log_of_rank_0(tmp_path)) > steps + 2, "steps without one")
            served.serve(address, "--jobs", jobs)
            until(lambda: served.attached() == set(network.hosts), "all agents")
            steps = len(log_of_rank_0(tmp_path))
            wait(process, lambda: len(log_of_rank_0(tmp_path)) > steps + 2, "steps under the next")
            [job] = served.ask("jobs")
            assert (job["state"], job["epoch"]) == ("running", 1)
            process.kill()
            until(lambda: served.ask("jobs")[0]["state"] not in GOING, "the end of its job")
            assert "the process on h1 disconnected" in served.ask("jobs")[0]["reason"]
        finally:
            served.stop_controller()


def start_ranks(emulation: Emulation, folder: Path) -> list[subprocess.Popen[bytes]]:
    """A training until it is ended, without torchrun, on each worker's host."""
    processes = []
    (folder / "logs").mkdir(exist_ok=True)
    for rank, host in enumerate(WORKERS):
        variables = [
            "OMP_NUM_THREADS=1", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500",
            f"RANK={rank}", f"WORLD_SIZE={len(WORKERS)}",
        ]  # fmt: skip
        log = str(folder / f"logs/rank-{rank}.log")
        command = ["env", *variables, sys.executable, str(UNTIL_ENDED)]
        shell = ["sh", "-c", 'exec "$@" >"$0" 2>&1', log]
        processes.append(emulation.popen(host, [*shell, *command]))
    return processes


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupts_end_ranks_job_and_cluster(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    command = [str(HOPSUM), "torchrun", "--topology", "star:3", "--workers", "2", str(UNTIL_ENDED)]
    with training(tmp_path, command) as process:
        process.send_signal(number)
        assert process.wait(PATIENCE) == code, (tmp_path / "log").read_text()
    log = (tmp_path / "log").read_text()
    assert "interrupted; all processes and interfaces were removed" in log
    assert "Traceback" not in log
    # torchrun itself says that it was asked to end: its ranks were, and not killed.
    assert "SIGTERM" in (tmp_path / "logs/rank-1.log").read_text()
    assert processes() == []
    assert not Path("/sys/class/net/s1-eth1").exists()
    assert list(state_folder().glob("*.json")) == []


@contextlib.contextmanager
def training(folder: Path, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A command that trains until it is ended, once it trains."""
    process = begin(folder, command)
    while refused((folder / "log").read_text()):
        wait_for_turn()
        process = begin(folder, command)
    try:
        assert process.poll() is None, (folder / "log").read_text()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def begin(folder: Path, command: list[str]) -> subprocess.Popen[bytes]:
    """Start a training; return when it has summed something, or has ended."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    until(lambda: len(log_of_rank_0(folder)) > 2 or process.poll() is not None, "some steps")
    return process


def log_of_rank_0(folder: Path) -> list[str]:
    """The steps that rank 0 reports."""
    log = folder / "logs/rank-0.log"
    return re.findall("^step .*", log.read_text(), re.MULTILINE) if log.exists() else []


def wait(process: subprocess.Popen[bytes], true: Callable[[], bool], what: str) -> None:
    """Repeat a query while a training continues."""

    def ask() -> bool:
        assert process.poll() is None, f"the training ended before {what}"
        return true()

    until(ask, what)


@pytest.mark.parametrize(("hosts", "here"), [(3, 1), (2, 3)])
def test_every_operation_gives_gloos_values(hosts: int, here: int, tmp_path: Path) -> None:
    """Those of hopsum_torch's own tests, with one rank a host and several."""
    ranks = hosts * here
    for command, backend in ((with_gloo(ranks), "gloo"), (in_switches(hosts, here), "hopsum")):
        run_when_free(tmp_path, [*command, str(OPERATIONS), backend, str(tmp_path / backend)])
    results = [str(tmp_path / backend) for backend in ("hopsum", "gloo")]
    compared = json.loads(
        run_when_free(tmp_path, [sys.executable, str(COMPARE), str(ranks), *results])
    )
    assert len(compared) >= 36
    assert compared["sum_float32"]["switches"] == 4
    assert compared["sub_groups"]["switches"] >= 2
    assert [name for name, each in compared.items() if not each["equal"]] == []
