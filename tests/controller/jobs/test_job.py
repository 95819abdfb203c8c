"""The states of a job: which may follow which, and what each move leaves behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.controller.jobs.job import move
from hopsum.controller.jobs.job_state import ENDS, NEXT, JobState
from hopsum.planning.model.request import PlanRequest
from tests.support.jobs import job_of

STATES = list(JobState)


@pytest.mark.parametrize("to", STATES)
@pytest.mark.parametrize("state", STATES)
def test_only_the_listed_steps_are_taken(state: JobState, to: JobState) -> None:
    outcome = to if to in ENDS else JobState.FINISHED
    job = job_of(PlanRequest(1, 1, ("h1", "h2"), ("ps",)))
    job.state = state
    job.outcome = outcome if state is JobState.DRAINING else None
    ends = JobState.FINISHED if to is JobState.DRAINING else None
    if to in NEXT[state]:
        move(job, to, 5.0, "why", ends)
        assert job.state is to
    else:
        with pytest.raises(ValueError, match=f"{to} cannot follow"):
            move(job, to, 5.0, "why", ends)
        assert job.state is state


@given(st.lists(st.tuples(st.sampled_from(STATES), st.sampled_from(sorted(ENDS)))))
def test_every_history_has_one_start_one_end_and_one_outcome(
    steps: list[tuple[JobState, JobState]],
) -> None:
    job = job_of(PlanRequest(1, 1, ("h1", "h2"), ("ps",)))
    started: list[float] = []
    known: list[tuple[JobState, float, str]] = []
    for date, (to, outcome) in enumerate(steps, 1):
        drains = to is JobState.DRAINING
        try:
            move(job, to, date, f"reason {date}", outcome if drains else None)
        except ValueError:
            continue
        if to is JobState.RUNNING and not started:
            started.append(date)
        if job.outcome is not None and not known:
            known.append((job.outcome, date, f"reason {date}"))
        assert [job.started] == (started or [0.0])
        assert [(job.outcome, job.ended, job.reason)] == (known or [(None, 0.0, job.reason)])
        assert job.active == (to in (JobState.WAITING, JobState.RUNNING, JobState.CHANGING))
        assert not job.state.over or job.state is job.outcome


def test_a_draining_job_becomes_only_what_it_drains_for() -> None:
    job = job_of(PlanRequest(1, 1, ("h1", "h2"), ("ps",)))
    for to in (JobState.INSTALLING, JobState.WAITING):
        move(job, to, 1.0)
    with pytest.raises(ValueError, match="outcome None with state draining"):
        move(job, JobState.DRAINING, 2.0)
    with pytest.raises(ValueError, match="outcome failed with state running"):
        move(job, JobState.RUNNING, 2.0, outcome=JobState.FAILED)
    move(job, JobState.DRAINING, 2.0, "enough", JobState.CANCELLED)
    with pytest.raises(ValueError, match=r"draining \(cancelled\): finished cannot follow"):
        move(job, JobState.FINISHED, 3.0)
    move(job, JobState.CANCELLED, 3.0)
    assert (job.reason, job.ended) == ("enough", 2.0)
