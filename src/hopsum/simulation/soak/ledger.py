"""Ledger of all sums that workers received; it is checked at the end even if the jobs failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hopsum.collectives.choices import Collective
from hopsum.collectives.plan import JobPlan
from hopsum.collectives.workload import RANDOM, WorkloadSpec
from hopsum.host_agent.node.work import Work
from hopsum.host_agent.operator_training import OperatorTraining
from hopsum.host_agent.session import Assignment
from hopsum.host_agent.task import Task, task_from
from hopsum.host_agent.workload import (
    CheckedWorkload,
    RandomTensors,
    Tensor,
    Workload,
    random_tensor,
    verify_result,
)

OVERFLOW = 1 << 32
"""Seeds of jobs with a sum that overflows have the number of its tensor, from 1, above this."""
GREAT = 1 << 30
"""A value that overflows when two workers have it."""


@dataclass(frozen=True, slots=True)
class ReceivedSum:
    """A sum that a worker received, and the plan that partitioned its tensor."""

    worker: int
    result: Tensor
    plan: JobPlan | None


@dataclass
class Ledger:
    """All sums of random tensors by job and round, and the other workloads of a run."""

    sums: dict[tuple[int, int], list[ReceivedSum]] = field(
        default_factory=lambda: defaultdict(list[ReceivedSum])
    )
    others: list[tuple[int, CheckedWorkload]] = field(default_factory=list)
    specs: dict[int, WorkloadSpec] = field(default_factory=dict)
    _tensors: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

    def work(self, assignment: Assignment) -> Work:
        """Return the work of a job, recorded in the ledger (`VirtualHosts.work`)."""
        return _RecordedWork(task_from(assignment.task), self, assignment.plan.job)

    def tensor(self, job: int, worker: int, number: int) -> Tensor:
        """Return a worker's tensor of a round; it is made once."""
        key = job, worker, number
        if key not in self._tensors:
            spec = self.specs[job]
            self._tensors[key] = random_tensor(spec, worker, number)
            if overflows(spec, number):
                self._tensors[key][spec.seed % spec.elements] = GREAT
        return self._tensors[key]

    def wrong(self) -> Iterator[str]:
        """Describe sums that are wrong, or not the same at all workers."""
        for (job, number), given in sorted(self.sums.items()):
            spec = self.specs[job]
            first = given[0]
            if overflows(spec, number) and spec.workers > 1:
                yield f"job {job}, tensor {number}: worker {first.worker} has a sum that overflows"
            for other in given[1:]:
                if _apart(spec):
                    continue  # each has a part of its own
                if first.result.tobytes() != other.result.tobytes():
                    yield (
                        f"job {job}, tensor {number}: workers {first.worker} and {other.worker} "
                        f"have different sums"
                    )
            for each in given if _apart(spec) else _distinct(given):
                tensors = (self.tensor(job, worker, number) for worker in range(spec.workers))
                verdict = verify_result(spec, each.worker, tensors, each.result, each.plan)
                if verdict.wrong:
                    yield (
                        f"job {job}, tensor {number}, worker {each.worker}: {verdict.wrong} of "
                        f"{verdict.checked} elements are wrong"
                    )
        for job, checked in self.others:
            if wrong := checked.verdict().wrong:
                yield f"job {job}: {wrong} elements of a training's sums are wrong"


def overflows(spec: WorkloadSpec, number: int) -> bool:
    """Return whether the sum of a tensor overflows, which no worker may take for a sum."""
    return spec.seed // OVERFLOW == number + 1


def _apart(spec: WorkloadSpec) -> bool:
    """Return whether each worker gets a result of its own."""
    return spec.collective in (Collective.REDUCE_SCATTER, Collective.REDUCE)


def _distinct(given: list[ReceivedSum]) -> list[ReceivedSum]:
    """Return one of each group of equal sums; plans of one epoch and cut are one object."""
    return list({(each.result.tobytes(), id(each.plan)): each for each in given}.values())


class _RecordedWork(Work):
    def __init__(self, task: Task, ledger: Ledger, job: int) -> None:
        super().__init__(task)
        self._ledger = ledger
        self._job = job

    def workload(self, index: int, plan: JobPlan) -> Workload | OperatorTraining:
        spec = self.task.workload
        if self.task.coordination is not None or spec.kind != RANDOM:
            other = super().workload(index, plan)
            self._ledger.others.append((self._job, other))
            return other
        self._ledger.specs[self._job] = spec
        return _RecordedTensors(spec, index, plan, self._ledger, self._job)


class _RecordedTensors(RandomTensors):
    """Random tensors whose sums are also recorded in a ledger."""

    def __init__(
        self, spec: WorkloadSpec, worker: int, plan: JobPlan | None, ledger: Ledger, job: int
    ) -> None:
        super().__init__(spec, worker, plan)
        self._ledger = ledger
        self._job = job
        self._taken = 0

    def next_tensor(self) -> Tensor | None:
        number = self._number
        if number == self._spec.rounds:
            return None
        self._number += 1
        return self._ledger.tensor(self._job, self._worker, number)

    def _check_kept(self) -> None:
        """Do nothing: the ledger checks."""

    def take_result(self, result: Tensor) -> None:
        given = ReceivedSum(self._worker, np.array(result), self._plan)
        self._ledger.sums[self._job, self._taken].append(given)
        self._taken += 1
        super().take_result(result)
