"""What a job does, as its description crosses from the controller to the agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from hopsum.collectives.algorithms.catalogue import MULTI_TREE, SCHEDULES
from hopsum.collectives.algorithms.trees import SharedTree
from hopsum.collectives.choices import DEFAULT_FORM, FormOptions
from hopsum.collectives.messages import shared_tree_from, shared_tree_message
from hopsum.collectives.task_messages import (
    form_from,
    form_message,
    given,
    workload_from,
    workload_message,
)
from hopsum.collectives.workload import WorkloadSpec
from hopsum.coordination.tree import CoordinationTree
from hopsum.host_agent.options import WorkerOptions
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import InputError


class TaskError(InputError):
    """A task that agents cannot execute; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Task:
    """The tensors of a job, and how they are summed; every agent of the job has the same.

    `schedule`: the algorithm of the workers among themselves, for a plan without trees and parts of
    hosts. `options`: those of `WorkerOptions` that are set, by name; the others are chosen for the
    plan (`timing.suitable_options`). `trees`: of the
    algorithm multi-tree; `form`: options of level-wise. `coordination`: the tree over the plan's
    workers, by index and with their names, by which they agree on an order, if the workload needs
    one. `vectors`: the job that combines their bit vectors in the switches; None: they are combined
    on the tree, or its ring. `key`: for the check lanes of a plan with integrity. `attend_seconds`:
    from the start, in which a process must attend as each rank; infinite: no limit.
    """

    workload: WorkloadSpec
    schedule: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    trees: tuple[SharedTree, ...] = ()
    coordination: CoordinationTree | None = None
    vectors: int | None = None
    form: FormOptions = DEFAULT_FORM
    key: bytes | None = None
    attend_seconds: float = inf


def checked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options of workers, by name. ValueError for an invalid one."""
    WorkerOptions(**options)
    return options


def task_message(task: Task) -> pb.Task:
    """Return the message of a task."""
    order = task.coordination
    return pb.Task(
        workload=workload_message(task.workload),
        schedule=task.schedule,
        options=pb.WorkerOptions(**task.options) if task.options else None,
        trees=[shared_tree_message(tree) for tree in task.trees],
        level_wise=form_message(task.form),
        coordination=None if order is None else pb.CoordinationTree(**asdict(order)),
        vectors=task.vectors,
        key=task.key or b"",
        attend_seconds=task.attend_seconds if task.attend_seconds < inf else 0.0,
    )


def task_from(message: pb.Task) -> Task:
    """Return the task of a message, of which all but the workload may be absent.

    Raises TaskError.
    """
    tree, known = message.coordination, (MULTI_TREE, *SCHEDULES)
    try:
        if message.schedule and message.schedule not in known:
            names = ", ".join(known)
            raise ValueError(f"schedule {message.schedule!r:.40}: expected one of {names}")
        if message.vectors > 0xFFFF:
            raise ValueError(f"vectors {message.vectors}: expected the number of a job")
        coordination = CoordinationTree(tuple(tree.names), tuple(tree.parents), tuple(tree.ring))
        return Task(
            workload_from(message.workload),
            message.schedule or None,
            checked(given(message.options)),
            tuple(shared_tree_from(tree) for tree in message.trees),
            coordination if message.HasField("coordination") else None,
            message.vectors or None,
            form_from(message.level_wise),
            message.key or None,
            message.attend_seconds if message.attend_seconds > 0 else inf,
        )
    except ValueError as error:
        raise TaskError(f"the job's task cannot be followed: {error}") from None
