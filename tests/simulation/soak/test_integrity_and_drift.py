"""Bits that flip unseen, and clocks of hosts that drift: sums stay exact, and schedules last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.cli.soak_command import make_data_plane
from hopsum.protocol.errors import InputError
from hopsum.simulation.host import HostClock
from hopsum.simulation.soak.inputs import check
from hopsum.simulation.soak.oracles import Oracle
from hopsum.simulation.soak.run import run_schedule
from hopsum.simulation.soak.schedule import (
    EVERYWHERE,
    ClockDrift,
    FaultSchedule,
    JobEntry,
    NetworkEntry,
    Noise,
    from_json,
    to_json,
)

JOB = JobEntry("a", 0.0, ("h1", "h2"), ("ps",), elements=600, rounds=6, integrity=True)
NETWORK = NetworkEntry("star:3", 1e6, latency=1e-4)
FLIPS = Noise(EVERYWHERE, 0.0, 20.0, flip=0.02, loss=0.01)


@pytest.mark.slow
def test_jobs_with_integrity_outlast_bits_that_flip() -> None:
    schedule = FaultSchedule(5, NETWORK, (JOB,), (FLIPS,))
    assert from_json(to_json(schedule)) == schedule
    result = run_schedule(schedule, make_data_plane())
    assert not result.violations
    # Without it the same faults are wrong sums, so no such schedule is drawn.
    unprotected = replace(schedule, jobs=(replace(JOB, integrity=False),))
    assert {each.oracle for each in run_schedule(unprotected, make_data_plane()).violations} == {
        Oracle.SUMS
    }
    check(schedule)
    with pytest.raises(InputError, match="sums of a would be wrong"):
        check(unprotected)


@pytest.mark.parametrize("pace", [0.5, 1.0001, 2.0])
def test_jobs_outlast_clocks_that_drift(pace: float) -> None:
    loss = Noise(EVERYWHERE, 0.0, 20.0, loss=0.05)
    faults = (ClockDrift("h1", 0.1, pace), ClockDrift("ps", 0.2, 1 / pace), loss)
    schedule = FaultSchedule(5, NETWORK, (replace(JOB, integrity=False),), faults)
    assert from_json(to_json(schedule)) == schedule
    result = run_schedule(schedule, make_data_plane())
    assert not result.violations
    assert result.injected["clock drift"] == 2


def test_a_clock_goes_on_from_what_it_shows() -> None:
    clock = HostClock()
    assert clock.shows(3.0) == 3.0
    clock.drift(3.0, 2.0)
    assert (clock.shows(3.0), clock.shows(4.0), clock.time_of(5.0)) == (3.0, 5.0, 4.0)
    clock.drift(4.0, 0.5)
    assert (clock.shows(6.0), clock.time_of(6.0)) == (6.0, 6.0)


@pytest.mark.parametrize("pace", [0.5, 0.99, 1.0, 1.01, 1.9])
def test_a_timer_is_due_at_the_time_of_its_reading(pace: float) -> None:
    """Times are rounded: one that comes too early is set again for the same instant, for ever."""
    clock = HostClock()
    clock.drift(2.016091, pace)
    readings = [clock.shows(2.016091) + number / 7 for number in range(1000)]
    assert all(clock.shows(clock.time_of(reading)) >= reading for reading in readings)
