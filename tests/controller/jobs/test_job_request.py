"""What the controller makes of a job that is submitted: its key."""

from __future__ import annotations

import pytest

from collectives.plan import PlanError
from controller.jobs.job_request import complete_task
from controller.jobs.job_spec import JobSpec, spec_from, submission_of
from network.loaders import load_network
from protocol import hopsum_pb2 as pb

KEY = bytes(range(32))
WORKERS = ("h1", "h2")


def test_only_a_job_with_integrity_has_a_key_and_it_is_the_controllers() -> None:
    network = load_network("star:2")
    chosen = pb.Task(key=b"its submitter's")
    with_lanes = JobSpec("a", 2, task=chosen, integrity=True)
    assert complete_task(with_lanes, network, WORKERS, KEY).task.key == KEY
    assert not complete_task(JobSpec("a", 2, task=chosen), network, WORKERS, KEY).task.key
    assert spec_from(submission_of(with_lanes)).integrity


def test_a_job_among_hosts_has_no_sums_to_check() -> None:
    spec = JobSpec("a", 2, algorithm="ring", integrity=True)
    with pytest.raises(PlanError, match=r"integrity .* algorithm ring hosts sum among themselves"):
        complete_task(spec, load_network("star:2"), WORKERS, KEY)
