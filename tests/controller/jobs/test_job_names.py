"""Jobs by name and by number: neither is ever taken for the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.collectives.choices import Coordination
from hopsum.controller.api.client import ControllerClient, job_query
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_request import vectors_spec
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import JobError, JobState
from hopsum.controller.jobs.job_table import JobTable
from hopsum.planning.model.placement import Placement
from hopsum.planning.model.request import PlanRequest
from hopsum.protocol import hopsum_pb2 as pb


def table_of(*names: str) -> JobTable:
    """A table of running jobs 1, 2, ... (also of names that are refused by now)."""
    table = JobTable()
    for name in names:
        number = table.next_number()
        request = PlanRequest(number, 1, ("h1", "h2"), ("h3",))
        table.add(Job(number, JobSpec(name, ("h1", "h2")), request, 1.0, JobState.RUNNING))
    return table


def found(table: JobTable, text: str) -> int:
    """The number of the job that a command finds by `text`."""
    query = job_query(text)
    return table.find(query.job, query.name).number


@pytest.mark.parametrize("name", ["1", "007", "65536", "123456789012345678901234567890"])
def test_names_of_digits_are_refused(name: str) -> None:
    with pytest.raises(JobError, match=f"job name '{name}' is a number"):
        JobTable().check(JobSpec(name, ("h1", "h2")))


@pytest.mark.parametrize("name", ["-x", "--json", "-", "1a", "_a", "a.b", "x" * 63])
def test_other_names_are_taken(name: str) -> None:
    JobTable().check(JobSpec(name, ("h1", "h2")))


@pytest.mark.parametrize("name", ["", "x" * 64, "a b", "a\n", "ä", "１", ".", "..", "a/b"])
def test_invalid_job_names_are_refused(name: str) -> None:
    with pytest.raises(JobError, match="expected 1 to 63"):
        JobTable().check(JobSpec(name, ("h1", "h2")))


def test_a_name_goes_before_a_number() -> None:
    """A journal of an earlier version may have jobs that are named like numbers."""
    table = table_of("a", "1", "3")
    assert [found(table, text) for text in ("a", "1", "2", "3")] == [1, 2, 2, 3]


@pytest.mark.parametrize("text", ["0", "4", "65536", "99999999999999999999", "１", "-1", "²", ""])
def test_numbers_without_a_job(text: str) -> None:
    with pytest.raises(JobError, match="there is no job"):
        found(table_of("a", "b", "c"), text)


@pytest.mark.parametrize("command", ["job", "cancel"])
def test_a_leading_dash_after_two(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(self: ControllerClient, job: str) -> pb.JobInfo:
        asked.append(job)
        return pb.JobInfo(job=7, name=job, state="running")

    monkeypatch.setattr(ControllerClient, command, answer)
    done = CliRunner().invoke(app, [command, "--controller", "unix:/nowhere", "--", "-x"])
    assert (done.exit_code, asked) == (0, ["-x"]), done.output


def test_waiting_is_for_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that was submitted is waited for, not one that is named like its number."""
    asked: list[str | int] = []

    def answer(self: ControllerClient, query: pb.JobQuery) -> pb.JobInfo:
        asked.append(query.name or query.job)
        return pb.JobInfo(job=7, name="mine", state="running" if len(asked) < 3 else "finished")

    monkeypatch.setattr(ControllerClient, "_details", answer)
    monkeypatch.setattr("hopsum.controller.api.client.POLL_SECONDS", 0.0)
    done = CliRunner().invoke(app, ["job", "mine", "--wait", "--controller", "unix:/nowhere"])
    assert done.exit_code == 0, done.output
    assert asked == ["mine", 7, 7]


def test_a_name_that_leaves_no_room_for_the_job_of_vectors_is_refused() -> None:
    task = pb.Task(workload=pb.Workload(kind="digits", workers=2, rounds=1, coordinate=True))
    spec = JobSpec("x" * 56, 2, task=task, coordination=Coordination.SWITCHES)
    placed = Placement(("h1", "h2"), ("ps",))
    with pytest.raises(JobError, match="use a name of at most 55, or another coordination"):
        vectors_spec(spec, placed)
    named = vectors_spec(replace(spec, name="x" * 55), placed)
    assert named is not None
    JobTable().check(named)
