"""Output of the commands about jobs and slots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app, main
from hopsum.collectives.algorithms.level_wise import Siblings
from hopsum.collectives.algorithms.level_wise_form import FormOptions, Shape
from hopsum.controller.jobs.job_spec import spec_from
from hopsum.controller.jobs.job_state import JobState
from hopsum.coordination.tree import TreeLimits
from hopsum.host_agent.task import task_from, task_message
from hopsum.protocol import hopsum_pb2 as pb

SUBMITTED: list[pb.Submission] = []


class Answers:
    """A controller that always says the same."""

    def __init__(self, address: str | None) -> None:
        pass

    def state(self) -> pb.ClusterState:
        hosts = [pb.Host(name=name) for name in ("h1", "h2", "h3", "ps")]
        return pb.ClusterState(network=pb.Network(hosts=hosts, switches=[pb.Switch(name="s1")]))

    def submit(self, submission: pb.Submission) -> pb.JobInfo:
        SUBMITTED.append(submission)
        report = pb.Report(verdict=pb.Verdict(checked=2), forms=["flat: ..."])
        return pb.JobInfo(job=3, name="mine", state="finished", reports={"h1": report})

    def jobs(self) -> list[pb.JobInfo]:
        return [
            pb.JobInfo(job=1, name="old", state="running", epoch=2, bypassed=["s1", "s2"]),
            pb.JobInfo(job=2, name="new", state="queued", reason="no slots"),
            pb.JobInfo(
                job=3, name="both", state="running", reason="switch s3 away", bypassed=["s4"]
            ),
        ]

    def status(self) -> list[pb.JobStatus]:
        return [pb.JobStatus(job=3, epoch=2, state="running", waits_for="switch s3 away")]

    def switches(self) -> list[pb.SwitchStatus]:
        return [
            pb.SwitchStatus(name="s1", state="ready", seconds=71.6),
            pb.SwitchStatus(name="s3", state="connecting", seconds=12.3, health="unreachable"),
        ]

    def nodes(self) -> list[pb.NodeInfo]:
        return [
            pb.NodeInfo(host="h1", attached=True, seconds=80.0),
            pb.NodeInfo(host="h5", seconds=12.0),
        ]

    def use(self) -> pb.UseReply:
        return pb.UseReply(
            links=[
                pb.LinkUse(sender="s1", receiver="h1"),
                pb.LinkUse(sender="s3", receiver="h5", health="switch s3 unreachable"),
            ],
            slots=[pb.SlotUse(switch="s1", slots=4096, quota=1024, held={1: 64})],
        )


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("hopsum.controller.api.client.ControllerClient", Answers)


def said(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("command", ["submit", "job"])
@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
def test_stopping_to_wait_ends_only_a_queued_job_of_this_command(
    command: str,
    state: JobState,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cancelled = []

    def interrupt(self: Answers, which: int) -> pb.JobInfo:
        raise KeyboardInterrupt

    def cancel(self: Answers, which: str) -> None:
        cancelled.append(which)

    info = pb.JobInfo(job=3, name="mine", state=state)
    monkeypatch.setattr(Answers, "wait", interrupt, raising=False)
    monkeypatch.setattr(Answers, "job", lambda self, which: info, raising=False)
    monkeypatch.setattr(Answers, "cancel", cancel, raising=False)
    monkeypatch.setattr("sys.argv", ["hopsum", command, "mine", "--wait"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    said = capsys.readouterr().err
    if command == "submit" and state is JobState.QUEUED:
        assert cancelled == ["3"]
        assert said.startswith("interrupted; job 3 was queued, and is withdrawn")
    else:
        assert not cancelled
        assert said.startswith("interrupted; job 3 continues; `hopsum job 3 --wait` waits for it")
    assert "removed" not in said


@pytest.mark.parametrize(
    ("options", "workers", "servers"),
    [
        ((), 3, 1),
        (("--servers", "ps,h1"), 2, 0),
        (("--servers", "0"), 4, 0),
        (("--collective", "broadcast"), 4, 0),
        (("--workers", "2"), 2, 1),
    ],
)
def test_all_hosts_but_the_servers_are_workers_by_default(
    options: tuple[str, ...], workers: int, servers: int
) -> None:
    said("submit", "mine", *options)
    submission = SUBMITTED[-1]
    assert (submission.worker_count, submission.server_count) == (workers, servers)
    assert submission.task.workload.workers == workers


def test_a_task_says_for_how_many_workers_it_is(tmp_path: Path) -> None:
    task = tmp_path / "task.json"
    task.write_text('{"workload": {"kind": "random", "workers": 2, "elements": 10, "rounds": 1}}')
    said("submit", "mine", "--task", str(task))
    assert SUBMITTED[-1].worker_count == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--dtype", "bfloat16"], (pb.BFLOAT16, 0)),
        (["--dtype", "float32", "--wire-bits", "16"], (pb.FLOAT32, 16)),
    ],
)
def test_a_job_has_the_type_and_width_that_are_asked_for(
    options: list[str], expected: tuple[int, int]
) -> None:
    assert CliRunner().invoke(app, ["submit", "narrow", *options]).exit_code == 0
    workload = SUBMITTED[-1].task.workload
    assert (workload.dtype, workload.wire_bits) == expected


def test_the_seed_is_the_planners_too() -> None:
    said("submit", "mine", "--seed", "7")
    assert (SUBMITTED[-1].seed, SUBMITTED[-1].task.workload.seed) == (7, 7)


def test_a_job_has_the_steps_and_limits_that_are_asked_for() -> None:
    said("submit", "mine")
    assert spec_from(SUBMITTED[-1]).options == {}
    assert spec_from(SUBMITTED[-1]).coordination_limits == TreeLimits()
    said(
        *("submit", "mine", "-O", "weight-steps=32", "--planner-option", "penalty=4"),
        *("--coordination-height", "3", "--coordination-fan-out", "2"),
        *("--coordination-distance", "5"),
    )
    spec = spec_from(SUBMITTED[-1])
    assert spec.options == {"weight-steps": "32", "penalty": "4"}
    assert spec.coordination_limits == TreeLimits(fan_out=2, height=3, distance=5)


def test_a_job_may_be_refused_rather_than_wait() -> None:
    said("submit", "mine")
    said("submit", "mine", "--immediate")
    assert [each.immediate for each in SUBMITTED[-2:]] == [False, True]


def test_a_job_says_where_it_gave_up_slots_and_why_it_waits() -> None:
    old, new, both = said("jobs").splitlines()[-4:-1]
    assert "bypasses s1, s2" in old
    assert "no slots" in new
    assert "switch s3 away; bypasses s4" in both
    shown = json.loads(said("jobs", "--json"))
    assert [job["bypasses"] for job in shown] == [["s1", "s2"], [], ["s4"]]


def test_no_jobs_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answers, "jobs", lambda _: [])
    assert said("jobs") == "no job yet; `hopsum submit NAME --workers 4` submits one\n"
    assert said("jobs", "--json") == "[]\n"


def test_figures_of_a_job_have_no_empty_head() -> None:
    assert said("submit", "mine").splitlines()[1].startswith("┌")


def test_status_shows_unreachable_elements() -> None:
    lines = [" ".join(line.split()) for line in said("status").splitlines()]
    assert "waits: switch s3 away" in lines
    assert any(
        "s1" in line and "ready" in line and "72 s" in line and "ok" in line for line in lines
    )
    assert any(
        "s3" in line and "connecting" in line and "12 s" in line and "unreachable" in line
        for line in lines
    )
    assert "no agent attached on h5 (12 s)" in lines
    assert any("s3 -> h5" in line and "switch s3 unreachable" in line for line in lines)
    # Idle links that work are left out.
    assert not any("s1 -> h1" in line for line in lines)
    (job,) = json.loads(said("status", "--json"))
    assert job["waits_for"] == "switch s3 away"


def test_nodes_show_how_long_agents_have_been_up_or_down() -> None:
    lines = said("nodes").splitlines()
    assert any("h1" in line and "attached for 80 s" in line for line in lines)
    assert any("h5" in line and "away for 12 s" in line for line in lines)
    assert [node["seconds"] for node in json.loads(said("nodes", "--json"))] == [80.0, 12.0]


def test_status_shows_the_quota_of_slots() -> None:
    output = said("status")
    assert "a job at most" in output
    assert any(
        "4096" in line and "1024" in line and "1: 64" in line for line in output.splitlines()
    )


def test_the_form_of_level_wise_is_submitted_and_shown() -> None:
    options = ["--level-wise-form", "levels", "--siblings", "hierarchical"]
    shown = json.loads(said("submit", "mine", "--algorithm", "level-wise", *options, "--json"))
    assert shown["level_wise"] == ["flat: ..."]
    task = task_from(SUBMITTED[-1].task)
    assert task.form == FormOptions(Shape.LEVELS, Siblings.HIERARCHICAL)
    assert task_from(task_message(task)) == task
    refused = CliRunner().invoke(app, ["submit", "mine", *options])
    assert "options of the algorithm level-wise" in str(refused.exception)


def test_ranks_are_numbered_host_by_host() -> None:
    options = ["--workers", "h3,h1", "--from-processes", "--ranks-per-host", "2"]
    said("submit", "mine", *options, "--json")
    workload = SUBMITTED[-1].task.workload
    assert list(workload.ranks) == ["h3", "h3", "h1", "h1"]
    assert workload.workers == 2


@pytest.mark.parametrize(
    ("options", "servers"),
    [([], 1), (["--servers", "2"], 2), (["--servers", "0"], 0)],
)
def test_workers_whose_processes_submit_may_be_the_servers(
    options: list[str], servers: int
) -> None:
    said("submit", "mine", "--from-processes", "--workers", "4", *options, "--json")
    assert SUBMITTED[-1].server_count == servers
