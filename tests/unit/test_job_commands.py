"""What people see of jobs and slots."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from controller.commands import app
from protocol import hopsum_pb2 as pb


class Answers:
    """A controller that always says the same."""

    def __init__(self, address: str | None) -> None:
        pass

    def jobs(self) -> list[pb.JobInfo]:
        return [
            pb.JobInfo(job=1, name="old", state="running", epoch=2, bypassed=["s1", "s2"]),
            pb.JobInfo(job=2, name="new", state="queued", reason="no slots"),
        ]

    def status(self) -> list[pb.JobStatus]:
        return []

    def use(self) -> pb.UseReply:
        return pb.UseReply(slots=[pb.SlotUse(switch="s1", slots=4096, quota=1024, held={1: 64})])


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for module in ("job_commands", "status_command"):
        monkeypatch.setattr(f"controller.{module}.ControllerQueries", Answers)


def said(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_job_says_where_it_gave_up_slots_and_why_it_waits() -> None:
    old, new = said("jobs").splitlines()[-3:-1]
    assert "bypasses s1, s2" in old
    assert "no slots" in new
    shown = json.loads(said("jobs", "--json"))
    assert [job["bypasses"] for job in shown] == [["s1", "s2"], []]


def test_the_status_tells_the_quota_of_slots() -> None:
    output = said("status")
    assert "a job at most" in output
    assert any(
        "4096" in line and "1024" in line and "1: 64" in line for line in output.splitlines()
    )
