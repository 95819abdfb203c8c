"""The first random schedules pass, 10 a day and 100 in `make search`; `hopsum soak` runs more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hopsum.cli.soak_command import make_data_plane
from hopsum.simulation.parallel import in_processes
from hopsum.simulation.soak.campaign import soak
from hopsum.simulation.soak.generator import WIDTHS, make_schedule
from tests.support.search import examples

SCHEDULES, PART = 100, 10


def test_schedules_have_narrow_jobs_of_every_type() -> None:
    jobs = [job for seed in range(1, SCHEDULES) for job in make_schedule(seed).jobs]
    assert {(job.dtype, job.wire_bits) for job in jobs} >= {*WIDTHS}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 1 + examples(PART, of=SCHEDULES), PART))
def test_random_schedules_pass(first: int) -> None:
    summary = soak(range(first, first + PART), make_data_plane, in_processes(1))
    assert [failure.violations for failure in summary.failures] == []
    assert summary.jobs["finished"] > summary.schedules / 2


@pytest.mark.slow
def test_compiled_code_reads_nothing_that_python_has_freed() -> None:
    """Agents whose flows have ended still have timers; what Python frees is overwritten here."""
    program = (
        "from hopsum.cli.soak_command import make_data_plane\n"
        "from hopsum.simulation.parallel import in_processes\n"
        "from hopsum.simulation.soak.campaign import soak\n"
        "assert not soak(range(12, 13), make_data_plane, in_processes(1)).failures\n"
    )
    command = [sys.executable, "-X", "faulthandler", "-c", program]
    environment = os.environ | {"PYTHONMALLOC": "debug"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
