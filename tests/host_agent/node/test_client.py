"""The job that a host submits for the processes of a training."""

from __future__ import annotations

import pytest

from hopsum.collectives.task_messages import workload_from
from hopsum.host_agent.node.client import MOST_ROOTS, process_job

HOSTS = [f"h{i}" for i in range(1, MOST_ROOTS + 2)]


@pytest.mark.parametrize("count", [2, MOST_ROOTS, MOST_ROOTS + 1])
def test_one_rank_a_host_has_a_server_apart(count: int) -> None:
    submission = process_job("torch", HOSTS[:count])
    assert [*submission.workers] == HOSTS[:count]
    assert not submission.HasField("server_count")
    assert not workload_from(submission.task.workload).ranks


@pytest.mark.parametrize("count", [2, MOST_ROOTS, MOST_ROOTS + 1])
def test_a_few_hosts_with_several_ranks_are_roots(count: int) -> None:
    ranks = [host for host in HOSTS[:count] for _ in range(2)]
    submission = process_job("torch", ranks)
    assert [*submission.workers] == HOSTS[:count]
    assert workload_from(submission.task.workload).ranks == tuple(ranks)
    assert submission.HasField("server_count") == (count <= MOST_ROOTS)
    assert submission.server_count == 0


def test_a_job_that_must_not_wait() -> None:
    assert not process_job("torch", HOSTS).immediate
    assert process_job("torch", HOSTS, immediate=True).immediate
