"""Work of a job's agents, from its task: tensors and schedules."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from hopsum.collectives.algorithms.catalogue import make_schedule
from hopsum.collectives.algorithms.host_part import host_part_all_reduce
from hopsum.collectives.plan import HostPart, JobPlan
from hopsum.collectives.schedule import Schedule
from hopsum.host_agent.operator_training import OperatorTraining
from hopsum.host_agent.task import Task, TaskError
from hopsum.host_agent.workload import ExpectedSums, Workload, make_workload
from hopsum.network.model import Network


class Work:
    """Work from `task`; a simulation may substitute its own.

    `expected`: shared by workers in one process.
    """

    def __init__(self, task: Task, expected: ExpectedSums | None = None) -> None:
        self.task = task
        self._expected = expected
        self._schedule: Callable[[int], Schedule] | None = None

    def workload(self, index: int, plan: JobPlan) -> Workload | OperatorTraining:
        """Return the workload of worker number `index`."""
        if self.task.coordination is None:
            return make_workload(self.task.workload, index, plan, self._expected)
        return OperatorTraining(self.task.workload, index, plan)

    def schedule(
        self, network: Network, plan: JobPlan, part: HostPart | None
    ) -> Callable[[int], Schedule]:
        """Return the schedule of a part for this number of elements, or (None) of the task's
        algorithm."""
        if part is not None:
            return partial(host_part_all_reduce, part, plan.workers)
        task, algorithm = self.task, self.task.schedule
        if algorithm is None:
            raise TaskError(
                f"job {plan.job}: neither its plan nor its task says how to sum; expected trees or "
                'parts of hosts in the plan, or "schedule" in the task'
            )
        if self._schedule is None:
            self._schedule = cache(
                lambda elements: make_schedule(
                    algorithm, network, plan.workers, elements, task.trees, task.form
                )
            )
        return self._schedule
