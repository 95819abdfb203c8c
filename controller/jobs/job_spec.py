"""Specification of a job, as its owner submits it and the journal keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from google.protobuf.message import Message

from hopsum.collectives.algorithms.catalogue import SCHEDULES
from hopsum.collectives.choices import DEFAULT_PLANNER, EMBEDDING, MULTI_TREE, Coordination, Results
from hopsum.collectives.task_messages import choice
from hopsum.controller.jobs.job_state import JobError
from hopsum.coordination.tree import DEFAULT_LIMITS, TreeLimits
from hopsum.planning.model.request import SwitchRole
from hopsum.planning.registry import PLANNERS
from hopsum.protocol import hopsum_pb2 as pb


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Specification of a job. `algorithm`: of `SwitchRole`, or a schedule among its workers.

    `workers`, `servers`: names, or how many; 0 servers: each worker is one. `lanes`, `window` None:
    the cluster's choice. `task`: what its agents do. `results`: as of `PlanRequest`. `options`:
    of the planner, by name, as texts; `seed`: of its random choices. `coordination`: how workers
    agree on an order of tensors, if the task's workload needs that; `coordination_limits`: of the
    tree by which they do.
    `owner`: name of the caller who submitted it; "": unknown. `limited`: the owner's jobs together
    have a quota of slots. `integrity`: its sums have check lanes, with a key in its task
    (`host_agent/datapath/check_lanes.h`). `immediate`: it starts on free slots at once or is
    refused; it neither waits for other jobs nor preempts them. `awaited`: it is withdrawn from the
    queue when its submitter no longer waits for it (`submitters`).
    """

    name: str
    workers: tuple[str, ...] | int
    servers: tuple[str, ...] | int = 1
    algorithm: str = SwitchRole.IN_NETWORK
    planner: str = DEFAULT_PLANNER
    lanes: int | None = None
    window: int | None = None
    task: pb.Task = field(default_factory=pb.Task)
    results: Results | None = None
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    seed: int = 0
    coordination: Coordination = Coordination.AUTO
    coordination_limits: TreeLimits = DEFAULT_LIMITS
    owner: str = ""
    limited: bool = False
    integrity: bool = False
    immediate: bool = False
    awaited: bool = False

    @property
    def among_hosts(self) -> bool:
        """Whether the workers sum among themselves, without trees."""
        return self.algorithm in SCHEDULES or self.algorithm == MULTI_TREE


def spec_from(message: pb.Submission) -> JobSpec:
    """Return a job as it was submitted; the algorithm embedding is the planner of that name.

    Raises JobError for a planner that would have no part in it, and for options that cannot be.
    """
    algorithm, planner = message.algorithm or SwitchRole.IN_NETWORK, message.planner
    if algorithm == EMBEDDING:
        algorithm, planner = SwitchRole.IN_NETWORK, planner or EMBEDDING
        if planner != EMBEDDING:
            raise JobError(
                f"job {message.name}: algorithm embedding implies the planner of that name, not "
                f"planner {planner}; omit one of the two"
            )
    if planner and algorithm in SCHEDULES:
        raise JobError(
            f"job {message.name}: the workers run algorithm {algorithm} among themselves, and "
            f"planner {planner} would not be used; omit the planner or the algorithm"
        )
    return JobSpec(
        name=message.name,
        workers=tuple(message.workers) or message.worker_count,
        servers=tuple(message.servers)
        or (message.server_count if message.HasField("server_count") else 1),
        algorithm=algorithm,
        planner=planner or DEFAULT_PLANNER,
        lanes=message.lanes or None,
        window=message.window or None,
        task=message.task,
        results=_results_from(message),
        options={
            **_earlier_options(message, planner or DEFAULT_PLANNER),
            **message.planner_options,
        },
        seed=message.seed or message.trees.seed,
        coordination=_coordination_from(message),
        coordination_limits=TreeLimits(**_given(message.coordination_limits)),
        owner=message.owner,
        limited=message.limited,
        integrity=message.integrity,
        immediate=message.immediate,
        awaited=message.awaited,
    )


def submission_of(spec: JobSpec) -> pb.Submission:
    """Return the message that `spec_from` reads."""
    message = pb.Submission(
        name=spec.name,
        algorithm=spec.algorithm,
        planner="" if spec.algorithm in SCHEDULES else spec.planner,
        lanes=spec.lanes or 0,
        window=spec.window or 0,
        task=spec.task,
        planner_options=spec.options,
        seed=spec.seed,
        coordination=spec.coordination,
        coordination_limits=pb.CoordinationLimits(**asdict(spec.coordination_limits)),
        results=None if spec.results is None else spec.results.name,
        owner=spec.owner,
        limited=spec.limited,
        integrity=spec.integrity,
        immediate=spec.immediate,
        awaited=spec.awaited,
    )
    if isinstance(spec.workers, int):
        message.worker_count = spec.workers
    else:
        message.workers.extend(spec.workers)
    if isinstance(spec.servers, int):
        message.server_count = spec.servers
    else:
        message.servers.extend(spec.servers)
    return message


def _results_from(message: pb.Submission) -> Results | None:
    if not message.HasField("results"):
        return None
    try:
        return choice("results", message.results, pb.Results, Results)
    except ValueError as error:
        raise JobError(f"job {message.name}: {error}") from None


def _coordination_from(message: pb.Submission) -> Coordination:
    if message.coordination in ("", *Coordination):
        return Coordination(message.coordination or Coordination.AUTO)
    raise JobError(
        f"job {message.name}: coordination {message.coordination!r:.40}: expected one of "
        f"{', '.join(Coordination)}"
    )


def _given(message: Message) -> dict[str, Any]:
    """Return the fields of a message that are set."""
    return {field.name: value for field, value in message.ListFields()}


def _earlier_options(message: pb.Submission, planner: str) -> dict[str, str]:
    """Return the options of a planner as the records of earlier versions have them.

    These have some for other planners, too, with their defaults.
    """
    given = {**_given(message.trees), **_given(message.weights)}
    given.pop("seed", None)
    if "steps" in given:
        given["weight_steps"] = given.pop("steps")
    known = {option.name for option in PLANNERS[planner].options} if planner in PLANNERS else set()
    texts = {name.replace("_", "-"): str(value) for name, value in given.items()}
    return {name: text for name, text in texts.items() if name in known}
