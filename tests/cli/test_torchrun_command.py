"""`hopsum torchrun`: the processes of a training, and their output."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.experiment.description import ExperimentError
from cli.experiment.training import Training, check_script, step_times, torchrun, trained
from cli.reports.step_times import step_times_plot
from network.loaders import load_network
from protocol import hopsum_pb2 as pb
from protocol.extras import MissingExtraError

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
    monkeypatch.setattr("protocol.extras.find_spec", lambda name: object())
    script = tmp_path / "train.py"
    script.touch()
    check_script([str(script)])
    with pytest.raises(ExperimentError, match=r"nothing\.py: No such file .*; expected a Python"):
        check_script(["nothing.py"])
    monkeypatch.setattr("protocol.extras.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match="torchrun: torch is not installed; install it with"
    ):
        check_script([str(script)])
