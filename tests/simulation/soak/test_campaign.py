from __future__ import annotations

import io

import pytest

from hopsum.cli.soak_command import make_data_plane
from hopsum.simulation.soak import campaign
from hopsum.simulation.soak.run import DataPlane, SoakResult
from hopsum.simulation.soak.schedule import FaultSchedule, NetworkEntry
from tests.support.machine import until


def test_a_schedule_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()

    def run_schedule(schedule: FaultSchedule, data_plane: DataPlane) -> SoakResult:
        until(lambda: "seed 4711: not over after 0 s" in said.getvalue(), "its name")
        return SoakResult(schedule, (), "", {})

    monkeypatch.setattr(campaign, "HANG_SECONDS", 0.0)
    monkeypatch.setattr(campaign, "run_schedule", run_schedule)
    monkeypatch.setattr("sys.stderr", said)
    schedule = FaultSchedule(4711, NetworkEntry("star:4", 1e6, latency=1e-4), ())
    assert campaign.run_one(schedule, make_data_plane()).violations == ()
