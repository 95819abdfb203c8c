"""Invariants of a cluster at the end of any run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from hopsum.collectives.workload import PROCESS, WorkloadSpec
from hopsum.controller.dataplane.rules import SwitchRules, rules_for
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.job_table import JobTable
from hopsum.simulation.cluster import VirtualCluster
from hopsum.simulation.entries import by_suffix, engine_entry
from hopsum.simulation.soak.schedule import Attack
from hopsum.timing.estimate import estimate
from hopsum.timing.work import PlanWork
from p4switch.targets.v1model.engine import Engine

MANAGED = ("admission", "replication", "ipv4_route", "l2_forward")
"""Tables whose entries depend on jobs or on the network."""
ETHERNET_FRAME_BYTES = 1514


class Oracle(StrEnum):
    """Invariants that a run can violate."""

    SUMS = "sums"
    """Every sum that a worker receives is exact, and the same at all workers of its job."""
    END = "end"
    """Every job ends, or reports what it waits for."""
    REASON = "reason"
    """A job that does not finish gives a reason, and the schedule contains a possible cause."""
    LEAK = "leak"
    """No job that is over holds slots, table entries, groups, members at agents or streams."""
    BYTES = "bytes"
    """Links carry exactly the predicted bytes where nothing was lost or re-planned."""
    JOURNAL = "journal"
    """The journal agrees with the controller about every job."""
    HISTORY = "history"
    """A schedule has exactly one history."""
    DEFECT = "defect"
    """No exception escapes, and nothing runs forever."""


class Violation(NamedTuple):
    """A violated invariant, with details."""

    oracle: Oracle
    text: str


def longest_silence(outages: Iterable[tuple[float, float]]) -> float:
    """Return the longest time without progress of a TCP connection, given outages (start, stop), in
    any unit.

    Its retransmission timeout doubles with each loss in a row (RFC 6298): what an outage has
    silenced tries again after up to the same time once more, and another outage may have begun.
    """
    longest = 0.0
    chains: list[tuple[float, float]] = []
    for start, stop in sorted(outages):
        if chains and start <= 2 * chains[-1][1] - chains[-1][0]:
            first, last = chains[-1]
            chains[-1] = first, max(last, stop)
        else:
            chains.append((start, stop))
        longest = max(longest, 2 * (chains[-1][1] - chains[-1][0]))
    return longest


def flood_seconds(attacks: Iterable[Attack], rate: float) -> float:
    """Return how long the forged frames of attacks may fill a link of `rate` bits/s.

    A TCP connection whose frames wait behind them makes no progress meanwhile.
    """
    frames = sum((attack.stop - attack.start) / attack.every for attack in attacks)
    return frames * ETHERNET_FRAME_BYTES * 8 / rate


def leaks(cluster: VirtualCluster, controller: Cluster) -> Iterator[str]:
    """Describe what jobs that are over still hold, once all are over."""
    plans = controller.plans
    for plan in plans.plans():
        yield f"the controller has a plan of job {plan.job}"
    for switch in cluster.network.switches:
        for job, slots in plans.slots_held(switch).items():
            yield f"job {job} holds {slots} slots of {switch}"
    wanted = rules_for(cluster.network)
    for name, engine in cluster.world.engines.items():
        if engine is None:
            yield f"switch {name} has no program"
            continue
        yield from _entries_left(name, engine, wanted[name])
    for name, host in cluster.hosts.items():
        for job in host.agent.agent.members:
            yield f"{name} attends job {job}"
        if len(host.streams) != 1:
            yield f"{name} has {len(host.streams)} streams to the controller; expected 1"


def _entries_left(name: str, engine: Engine, wanted: SwitchRules) -> Iterator[str]:
    for short in MANAGED:
        table = engine.table(by_suffix(engine.table_names(), short, "table"))
        expected = Counter(
            engine_entry(table, entry).matches for entry in wanted.entries if entry.table == short
        )
        held = Counter(entry.matches for entry in engine.entries(table.name))
        for matches in held - expected:
            values = ", ".join(str(match.value) for match in matches)
            yield f"switch {name}: table {short} has an unused entry for {values}"
        for matches in expected - held:
            values = ", ".join(str(match.value) for match in matches)
            yield f"switch {name}: table {short} lacks its entry for {values}"
    groups = set(engine.multicast_groups()) - set(wanted.groups)
    for group in sorted(groups):
        yield f"switch {name} has the unused multicast group {group}"


def overlapping_slots(controller: Cluster, switches: list[str]) -> Iterator[str]:
    """Describe trees that share slots; at no time may any do so."""
    for switch in switches:
        ranges = sorted(
            (slots.start, slots.stop, owner)
            for owner, slots in controller.plans.slot_ranges(switch).items()
        )
        for (_, stop, one), (start, _, other) in pairwise(ranges):
            if start < stop:
                yield f"switch {switch}: (job, tree) {one} and {other} share slots"


def journal_differs(cluster: VirtualCluster, controller: Cluster) -> Iterator[str]:
    """Describe jobs of which a controller that started now would have a different record."""
    kept = cluster.disk.content()
    known = JobTable(cluster.journal())
    cluster.disk.restore(kept)
    there = {job.number: job for job in known}
    for job in controller.jobs:
        same = there.get(job.number)
        if same is None:
            yield f"job {job.number} ({job.spec.name}) is not in the journal"
        elif (same.state, same.outcome, same.reason) != (job.state, job.outcome, job.reason):
            yield (
                f"job {job.number} ({job.spec.name}) is {job.state} ({job.reason}), and "
                f"{same.state} ({same.reason}) in the journal"
            )


def unpredicted_bytes(
    cluster: VirtualCluster, jobs: list[tuple[Job, WorkloadSpec]]
) -> Iterator[str]:
    """Compare the links' bytes with the prediction for these jobs, which must be all of the run."""
    predicted: Counter[tuple[str, str]] = Counter()
    for job, spec in jobs:
        assert job.plan is not None
        tensors = [(size, spec.dtype) for size in spec.step_sizes()]
        work = PlanWork(job.plan, tensors, spec.steps, spec.collective, spec.wire_bits)
        predicted.update(estimate(cluster.network, work).links)
    for link, carried in cluster.link_bytes().items():
        if carried != predicted[link]:
            wanted = predicted[link]
            yield f"{link[0]} > {link[1]} carried {carried} bytes, and {wanted} were predicted"


def predictable(job: Job) -> bool:
    """Return whether a job's bytes are predictable: it kept its first plan, of trees only."""
    plan = job.plan
    return (
        job.state is JobState.FINISHED
        and plan is not None
        and plan.epoch == 1
        and bool(plan.trees)
        and not plan.host_parts
        and not job.spec.task.vectors
        and job.spec.task.workload.kind != PROCESS
    )
