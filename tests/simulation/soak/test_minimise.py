"""Delta debugging of schedules, of made-up failures."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.simulation.soak.generator import make_schedule
from hopsum.simulation.soak.minimise import minimise
from hopsum.simulation.soak.schedule import ClockJump, FaultSchedule, JobEntry, NetworkEntry

JOB = JobEntry("a", 0.0, ("h1", "h2", "h3"), ("ps",), rounds=16, elements=100)
FAULTS = tuple(ClockJump(float(number), 1.0) for number in range(12))


@settings(max_examples=40)
@given(st.sets(st.sampled_from(range(12)), max_size=4))
def test_faults_that_fail_together_remain(needed: set[int]) -> None:
    schedule = FaultSchedule(1, NetworkEntry("star:3"), (JOB,), FAULTS)
    wanted = {FAULTS[number] for number in needed}

    def fails(candidate: FaultSchedule) -> bool:
        return wanted <= set(candidate.faults)

    smallest = minimise(schedule, fails)
    assert set(smallest.faults) == wanted
    assert smallest.jobs == ()


def test_jobs_become_simpler() -> None:
    job = replace(JOB, window=8, cancel=1.0)
    schedule = FaultSchedule(1, NetworkEntry("star:3", plain=("s1",)), (job,), FAULTS)

    def fails(candidate: FaultSchedule) -> bool:
        return any("h2" in job.workers and job.rounds > 2 for job in candidate.jobs)

    smallest = minimise(schedule, fails)
    [left] = smallest.jobs
    assert smallest.faults == ()
    assert (left.workers, left.rounds, left.elements, left.window) == (("h2",), 4, 1, 0)
    assert smallest.network.plain == ()


def test_runs_are_bounded() -> None:
    runs = 0

    def fails(candidate: FaultSchedule) -> bool:
        nonlocal runs
        runs += 1
        return False

    minimise(make_schedule(12), fails, runs=7)
    assert runs == 7
