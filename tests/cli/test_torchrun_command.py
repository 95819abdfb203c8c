"""`hopsum torchrun`: the processes of a training, and their output."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from hopsum.experiment.description import ExperimentError
from hopsum.experiment.training import (
    Trainer,
    Training,
    TrainingResult,
    check_script,
    named,
    step_times,
    torchrun,
    trained,
    with_comparison,
)
from hopsum.mininet_topos.hosts import EmulatedHosts
from hopsum.network.loaders import load_network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.extras import MissingExtraError
from hopsum.reports.step_times import step_times_plot

WORKERS = ("h1", "h2")
LINKS = {("h1", "s1"): 100, ("h2", "s1"): 100, ("ps", "s1"): 100, ("s1", "h1"): 100}


def job(state: str, reason: str = "", name: str = "torch-1", later: float = 0.0) -> pb.JobInfo:
    intervals = pb.Intervals(starts=[later + 1.0, later + 2.0], finishes=[1.5, later + 2.25])
    return pb.JobInfo(
        name=name,
        state=state,
        reason=reason,
        round=2,
        workers=WORKERS,
        servers=["ps"],
        sent_bytes=120,
        reports={host: pb.Report(intervals=intervals) for host in WORKERS},
    )


def test_measurements_of_a_training() -> None:
    after = {link: count + 150 for link, count in LINKS.items()}
    found = trained(9.0, WORKERS, [job("finished")], LINKS, after, [0, 0])
    assert (found.seconds, found.summing, found.sums) == (9.0, 0.75, 2)
    assert (found.sent, found.in_switches) == (450, 120)
    assert found.restarts == 0
    assert found.errors == ()


def test_ranks_and_jobs_that_failed_are_named() -> None:
    failed = job("failed", "agent on h2: gone")
    failed.ClearField("reports")
    found = trained(9.0, WORKERS, [failed], LINKS, LINKS, [0, -9])
    assert found.summing == 0
    assert found.errors == (
        "rank 1 on h2 ended with -9: logs/rank-1.log",
        "job torch-1: failed: agent on h2: gone",
    )


def test_the_ranks_of_a_host_that_failed_are_named() -> None:
    found = trained(9.0, WORKERS, [job("finished")], LINKS, LINKS, [0, 1], 2)
    assert found.errors == ("ranks 2, 3 on h2 ended with 1: logs/rank-2.log, logs/rank-3.log",)


def test_a_job_that_a_restart_replaced_is_no_error() -> None:
    jobs = [
        job("failed", "agent on h2: gone"),
        job("failed", name="torch-2"),
        job("finished", name="torch-3"),
    ]
    found = trained(9.0, WORKERS, jobs, LINKS, LINKS, [0, 0])
    assert (found.sums, found.restarts, found.errors) == (6, 2, ())
    found = trained(9.0, WORKERS, jobs[:2], LINKS, LINKS, [1, 1])
    assert found.restarts == 1
    assert len(found.errors) == 3


def test_jobs_of_sub_groups_are_those_of_an_attempt() -> None:
    jobs = [
        job("failed", "agent on h2: gone"),
        job("failed", "agent on h2: gone", "torch-1.1"),
        job("finished", name="torch-2"),
        job("finished", name="torch-2.1", later=0.25),
    ]
    found = trained(9.0, WORKERS, jobs, LINKS, LINKS, [0, 0])
    assert (found.sums, found.restarts, found.errors) == (8, 1, ())
    # Both at once from 1.25 to 1.5; from 2 to 2.25, and to 2.5.
    assert found.summing == 0.5 + 0.5
    jobs[3] = job("failed", "its server is gone", "torch-2.1")
    found = trained(9.0, WORKERS, jobs, LINKS, LINKS, [0, 0])
    assert found.errors == ("job torch-2.1: failed: its server is gone",)


def test_the_command_of_torchrun_names_hosts_restarts_and_run() -> None:
    training = Training(["train.py", "--epochs", "2"], max_restarts=3, ranks_per_host=2)
    command = torchrun(load_network("star:3"), WORKERS, 1, "29511", "hopsum-ab", training)
    assert command[1:3] == ["-m", "torch.distributed.run"]
    assert command[-3:] == ["train.py", "--epochs", "2"]
    start = command.index("--no-python")
    assert command[start + 1 : start + 3] == ["sh", "-c"]
    options = dict(zip(command[3:start:2], command[4:start:2], strict=True))
    assert options == {
        "--nnodes": "2",
        "--node-rank": "1",
        "--nproc-per-node": "2",
        "--master-addr": "10.0.0.1",
        "--master-port": "29511",
        "--rdzv-id": "hopsum-ab",
        "--max-restarts": "3",
        "--log-dir": "/dev/null",
    }


def test_the_times_of_steps_are_read_from_what_rank_0_prints() -> None:
    printed = "W: 3 ms\nepoch 1: loss 0.9, 12.5 ms a step\nnothing\nstep 20: 8 ms a step\n"
    assert step_times(printed) == (12.5, 8.0)


@pytest.mark.slow
def test_the_picture_of_steps() -> None:
    pytest.importorskip("matplotlib")
    times = {"switches": [3.0, 2.0], "gloo": [4.0, 4.5, 4.0]}
    assert step_times_plot(times).startswith(b"\x89PNG")
    assert step_times_plot(times) == step_times_plot(times)


def test_a_missing_script_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum.protocol.extras.find_spec", lambda name: object())
    script = tmp_path / "train.py"
    script.touch()
    check_script([str(script)])
    with pytest.raises(ExperimentError, match=r"nothing\.py: No such file .*; expected a Python"):
        check_script(["nothing.py"])
    monkeypatch.setattr("hopsum.protocol.extras.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match="torchrun: torch is not installed; install it with"
    ):
        check_script([str(script)])


def test_a_missing_module_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum.protocol.extras.find_spec", lambda name: object())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "training").mkdir()
    (tmp_path / "training/main.py").touch()
    check_script(["-m", "training.main", "--epochs", "2"])
    with pytest.raises(ExperimentError, match="-m nothing: there is no such module"):
        check_script(["-m", "nothing"])
    with pytest.raises(ExperimentError, match="expected the name of a module"):
        check_script(["-m"])


def timed(*steps: float, errors: tuple[str, ...] = ()) -> TrainingResult:
    return TrainingResult(1.0, 0.5, 2, 100, 50, 0, errors, steps)


def test_trainings_of_equal_length_are_compared() -> None:
    compared = with_comparison(timed(1.0, 2.0), timed(3.0, 4.0))
    assert compared.errors == ()
    assert compared.gloo is not None


def test_a_training_that_resumed_is_not_compared_with_a_whole_one() -> None:
    compared = with_comparison(timed(1.0, 2.0), timed())
    (error,) = compared.errors
    assert "printed 2 step times, and over gloo 0" in error
    assert "{run}" in error
    (error,) = with_comparison(timed(), timed()).errors
    assert "no step times" in error
    # What ended the training over gloo is an error already.
    assert with_comparison(timed(1.0), timed(errors=("killed",))).errors == ()


def test_each_training_has_its_name_in_its_arguments() -> None:
    training = named(Training(["train.py", "--checkpoints", "out/{run}"]), "gloo")
    assert training.command == ["train.py", "--checkpoints", "out/gloo"]


class LocalHosts(EmulatedHosts):
    """Hosts whose programs are processes that sleep on this machine."""

    def __init__(self) -> None:
        super().__init__(load_network("star:2"))
        self.processes: list[subprocess.Popen[bytes]] = []

    def pid(self, host: str) -> int:
        return os.getpid()

    def link_bytes(self) -> dict[tuple[str, str], int]:
        return {}

    def run(self, host: str, arguments: Sequence[str], timeout: float = 30) -> str:
        return "29511"

    def popen(self, host: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        self.processes.append(subprocess.Popen(["sleep", "1000"]))
        return self.processes[-1]


class Jobs:
    """A controller with one job; notes how many processes were running when it was cancelled."""

    def __init__(self, hosts: LocalHosts) -> None:
        self.hosts = hosts
        self.name = ""
        self.running_when_cancelled: list[int] = []

    def jobs(self) -> list[pb.JobInfo]:
        return [pb.JobInfo(name=f"torch-{self.name}-1", job=1, state="running")]

    def job(self, number: int) -> pb.JobInfo:
        return self.jobs()[0]

    def cancel(self, name: str) -> None:
        self.running_when_cancelled.append(sum(p.poll() is None for p in self.hosts.processes))


def test_an_interrupted_training_is_cancelled_before_its_ranks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hosts = LocalHosts()
    jobs = Jobs(hosts)
    monkeypatch.setattr("secrets.token_hex", lambda size: "ab")
    jobs.name = "hopsum-ab"

    async def interrupt() -> None:
        trainer = Trainer(hosts, WORKERS, cast(Any, jobs), lambda text: None)
        training = asyncio.create_task(trainer.run(Training(["train.py"])))
        while len(hosts.processes) < len(WORKERS):
            await asyncio.sleep(0)
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training

    asyncio.run(interrupt())
    assert jobs.running_when_cancelled == [len(WORKERS)]
    assert all(process.poll() is not None for process in hosts.processes)
