"""Submissions of jobs that sum tensors and check every sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from hopsum.collectives.choices import (
    DEFAULT_FORM,
    LEVEL_WISE,
    SCHEDULE_NAMES,
    Collective,
    DataType,
    FormOptions,
)
from hopsum.collectives.task_messages import form_message, workload_message
from hopsum.collectives.workload import WorkloadSpec
from hopsum.controller.jobs.job_state import JobError
from hopsum.protocol import hopsum_pb2 as pb


class SubmissionOptions(TypedDict, total=False):
    """Options of `submission_of`, with their defaults there."""

    collective: Collective
    ranks_per_host: int
    elements: int
    rounds: int
    dtype: DataType
    wire_bits: int
    kind: str
    seed: int
    coordinate: bool
    algorithm: str
    form: FormOptions


def submission_of(
    name: str,
    workers: int | Sequence[str],
    servers: int | Sequence[str] = 1,
    *,
    collective: Collective = Collective.ALL_REDUCE,
    ranks_per_host: int = 1,
    elements: int = 100_000,
    rounds: int = 3,
    dtype: DataType = DataType.INT32,
    wire_bits: int = 0,
    kind: str = "random",
    seed: int = 1,
    coordinate: bool = False,
    algorithm: str = "in-network",
    form: FormOptions = DEFAULT_FORM,
) -> pb.Submission:
    """Return a job; `workers` and `servers`: how many, or their names, 0 servers: the workers.

    `kind`: `random` tensors of `elements`, a data set to train on, or `process`: what processes on
    the workers' hosts hand to their agents, `ranks_per_host` of them on each named host, which are
    numbered host by host. `wire_bits`: see `WorkloadSpec`. Raises JobError, WorkloadError.
    """
    submission = pb.Submission(name=name, algorithm=algorithm)
    if isinstance(workers, int):
        submission.worker_count = workers
    else:
        submission.workers.extend(workers)
    if isinstance(servers, int):
        submission.server_count = servers
    else:
        submission.servers.extend(servers)
    if ranks_per_host > 1 and not submission.workers:
        raise JobError(
            f"ranks-per-host {ranks_per_host} with a number of workers: the job says on which host "
            "each rank is; name the hosts, as --workers h1,h2"
        )
    workload = WorkloadSpec(
        kind,
        submission.worker_count or len(submission.workers),
        elements,
        rounds,
        dtype,
        seed,
        coordinate,
        ranks=tuple(host for host in submission.workers for _ in range(ranks_per_host))
        if ranks_per_host > 1
        else (),
        collective=collective,
        wire_bits=wire_bits,
    )
    submission.task.workload.CopyFrom(workload_message(workload))
    if algorithm in SCHEDULE_NAMES:
        submission.task.schedule = algorithm
    if algorithm == LEVEL_WISE:
        submission.task.level_wise.CopyFrom(form_message(form))
    return submission
