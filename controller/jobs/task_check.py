"""Checks of a job's task before the controller accepts the job.

The rest of it is for the agents; what they cannot follow ends the job, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection

from hopsum.collectives.algorithms.catalogue import MULTI_TREE, SCHEDULES
from hopsum.collectives.choices import EMBEDDING
from hopsum.collectives.task_messages import workload_from
from hopsum.collectives.workload import WorkloadSpec
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import JobError
from hopsum.controller.telemetry.nodes import Nodes
from hopsum.network.model import shorten
from hopsum.network.units import format_bytes


def workload_of(spec: JobSpec) -> WorkloadSpec | None:
    """Return the workload in a job's task, if there is one.

    Raises JobError for one that cannot be.
    """
    if not spec.task.HasField("workload"):
        return None
    try:
        return workload_from(spec.task.workload)
    except ValueError as error:
        raise JobError(f"job {spec.name}: {error}") from None


MOST_TASK_BYTES = 1 << 20
"""Maximum bytes of a task: the controller stores, journals and sends it to every agent of the job.
"""


def check_task(spec: JobSpec) -> None:
    """Raise JobError for a task that does not say what to sum, or how."""
    if (size := spec.task.ByteSize()) > MOST_TASK_BYTES:
        raise JobError(
            f"job {spec.name}: its task has {size} bytes; expected at most {MOST_TASK_BYTES}"
        )
    if not spec.task.HasField("workload"):
        raise JobError(
            f"job {spec.name}: its task has no workload; expected one with kind, workers, "
            "elements, rounds, dtype and seed"
        )
    workload = workload_of(spec)
    by_hosts = spec.among_hosts or spec.planner == EMBEDDING
    if by_hosts and workload is not None and workload.for_trees:
        raise JobError(
            f"job {spec.name}: {workload.dtype}, wire_bits {workload.wire_bits}: only switches and "
            "servers can sum that; expected algorithm in-network or server, or float32 or int32 as "
            "they are"
        )
    schedule, known = spec.task.schedule, (MULTI_TREE, *SCHEDULES)
    if schedule and schedule not in known:
        raise JobError(
            f"job {spec.name}: its task's schedule is {schedule!r:.40}; expected one of "
            f"{', '.join(known)}"
        )


def check_workload(
    name: str, workload: WorkloadSpec, workers: Collection[str], nodes: Nodes
) -> None:
    """Raise JobError for a workload of other workers, or too large for their hosts.

    Workers on hosts of one machine share its memory. Of a host without an agent that is not known.
    """
    if workload.workers != len(workers):
        raise JobError(
            f"job {name}: its workload is for {workload.workers} workers, and it has "
            f"{len(workers)}; expected the same number"
        )
    if workload.ranks and set(workload.ranks) != set(workers):
        raise JobError(
            f"job {name}: its ranks are on {shorten(sorted(set(workload.ranks)))}; expected one or "
            f"more on each of its workers, {shorten(sorted(workers))}"
        )
    machines: dict[str, list[str]] = {}
    for host in workers:
        node = nodes.node(host)
        if node.attached and node.memory:
            machines.setdefault(node.machine or host, []).append(host)
    for hosts in machines.values():
        memory = min(nodes.node(host).memory for host in hosts)
        needed = len(hosts) * workload.worker_bytes
        if needed > memory:
            raise JobError(
                f"job {name}: {workload.elements} elements, {workload.rounds} rounds: its workers "
                f"on {shorten(hosts)} need {format_bytes(needed)} of memory, and their machine has "
                f"{format_bytes(memory)}; use fewer elements, rounds or workers"
            )
