"""The controller's view of its cluster, as messages: the only place that collects each figure.

The service answers people with parts of it; pages, terminals, recordings and Prometheus show
`cluster_state`, the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

from hopsum.collectives.messages import network_message
from hopsum.collectives.plan import JobPlan
from hopsum.controller import clock
from hopsum.controller.dataplane.driver import DriverError, State, SwitchTarget
from hopsum.controller.dataplane.slots import SlotState
from hopsum.controller.jobs.active_job import ActiveJob
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.engine import UnknownJobError
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.telemetry.diagnosis import condition, link_condition
from hopsum.controller.telemetry.slot_diagnosis import MissingChild, find_missing, read_slots
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.outcomes import Outcome, packets, sums
from hopsum.protocol.version import version

COUNTER_SECONDS = 2.0
"""Timeout for reading one switch's counters: one that hangs must not delay the others."""
MOST_ENDED = 50
"""Maximum number of finished jobs in a state, the latest; `hopsum jobs` lists all."""


class SwitchReader(Protocol):
    """Access to the state and the counters of switches (`Driver` has it)."""

    def targets(self) -> Mapping[str, SwitchTarget]:
        """Return the P4Runtime address of every switch."""

    def states(self) -> Mapping[str, State]:
        """Return the state of every switch."""

    async def outcomes(self, name: str) -> Mapping[Outcome, int]:
        """Read a switch's counters."""

    async def inspect(self, name: str, slot: int) -> SlotState:
        """Read a slot of a switch."""


async def cluster_state(cluster: Cluster, switches: SwitchReader | None) -> pb.ClusterState:
    """Return the state of a cluster, without the contents of slots.

    `switches` None: the controller drives none.
    """
    statuses = [] if switches is None else await switch_statuses(cluster, switches, counters=True)
    state = pb.ClusterState(
        date=cluster.date(),
        network=network_message(cluster.network),
        jobs=[job_info(cluster, job, trees=True) for job in recent_jobs(cluster.jobs)],
        nodes=node_infos(cluster),
        links=link_uses(cluster),
        slots=slot_uses(cluster),
        switches=statuses,
        event_counts=cluster.jobs.events.counts,
        version=version(),
    )
    state.active_jobs = sum(not job.over for job in state.jobs)
    state.usable_switches = sum(
        status.state == State.READY and not status.health for status in statuses
    )
    state.attached_agents = sum(node.attached for node in state.nodes)
    for event in cluster.jobs.events:
        state.events.add(
            number=event.number,
            date=event.date,
            kind=event.kind,
            job=event.job,
            epoch=event.epoch,
            text=event.text,
        )
    return state


def recent_jobs(jobs: Iterable[Job]) -> list[Job]:
    """Return active jobs and the `MOST_ENDED` latest finished ones, in order."""
    found = list(jobs)
    ended = [job.number for job in found if job.state.over]
    dropped = set(ended[:-MOST_ENDED])
    return [job for job in found if job.number not in dropped]


def job_info(cluster: Cluster, job: Job, *, trees: bool = False) -> pb.JobInfo:
    """Return the progress of a job, on request with the trees of its plan if it has rules."""
    return pb.JobInfo(
        job=job.number,
        name=job.spec.name,
        state=job.state,
        outcome=job.outcome or "",
        reason=cluster.engine.why_waiting(job),
        epoch=job.epoch,
        workers=job.request.workers,
        servers=job.servers,
        round=job.round,
        submitted=job.submitted,
        started=job.started,
        ended=job.ended,
        bypassed=sorted(job.bypassed),
        algorithm=job.spec.algorithm,
        tensors=job.tensors,
        level=cluster.priorities.level(job.number),
        sent_bytes=job.sent_bytes,
        summed_bytes=job.summed_bytes,
        retransmissions=job.retransmissions,
        trees=_trees(job.plan) if trees and job.active and job.plan is not None else (),
        over=job.state.over,
        owner=job.spec.owner,
    )


def job_status(cluster: Cluster, active: ActiveJob) -> pb.JobStatus:
    """Return the state of a job that has rules, and of its agents."""
    now = clock.now()
    return pb.JobStatus(
        job=active.job.number,
        epoch=active.tracker.plan.epoch,
        state=active.job.state,
        waits_for=cluster.engine.why_waiting(active.job),
        agents=[
            pb.AgentStatus(
                host=agent.host,
                role=agent.role,
                state=agent.state,
                round=agent.round,
                detail=agent.reason,
                silent_seconds=now - agent.heard if agent.connected else 0.0,
            )
            for agent in active.tracker.agents.values()
        ],
    )


def _trees(plan: JobPlan) -> list[pb.JobTree]:
    return [
        pb.JobTree(
            tree=tree.tree,
            server=tree.server,
            parents=dict(tree.parents),
            sums=[part.switch for part in tree.parts.values() if part.aggregate],
        )
        for tree in plan.trees
    ]


def node_infos(cluster: Cluster) -> list[pb.NodeInfo]:
    """Return the hosts, whether they have an agent, and its report."""
    now = clock.now()
    infos = []
    for node in cluster.nodes:
        info = pb.NodeInfo(host=node.host, attached=node.attached, seconds=now - node.since)
        info.jobs.extend(
            job.number for job in cluster.jobs if not job.state.over and node.host in job.hosts
        )
        if node.report is not None:
            info.report.CopyFrom(node.report)
            info.report_age = now - node.reported
        infos.append(info)
    return infos


def link_uses(cluster: Cluster) -> list[pb.LinkUse]:
    """Return the load of each direction of each link."""
    now = clock.now()
    return [
        pb.LinkUse(
            sender=u,
            receiver=v,
            used=state.used,
            free=state.free,
            age=state.age,
            health=link_condition(cluster.health, u, v, now),
        )
        for (u, v), state in cluster.nodes.state.links(now).items()
    ]


def slot_uses(cluster: Cluster) -> list[pb.SlotUse]:
    """Return the owners of slots at switches that aggregate."""
    uses = []
    for name, switch in cluster.network.switches.items():
        if switch.aggregates:
            quota = cluster.settings.sharing.slots(cluster.network, name)
            held = cluster.plans.slots_held(name)
            use = pb.SlotUse(
                switch=name,
                slots=switch.slots,
                held=held,
                quota=quota,
                taken=sum(held.values()),
            )
            for (job, tree), slots in cluster.plans.slot_ranges(name).items():
                use.ranges.add(job=job, tree=tree, first=slots.start, count=len(slots))
            uses.append(use)
    return uses


async def switch_statuses(
    cluster: Cluster, switches: SwitchReader, *, counters: bool
) -> list[pb.SwitchStatus]:
    """Return the switches: addresses, states, and packet counters."""
    health, states, now = cluster.health, switches.states(), clock.now()
    statuses = [
        pb.SwitchStatus(
            name=name,
            address=target.address,
            device_id=target.device_id,
            state=states[name],
            seconds=health.changed_for(name, now) or 0.0,
            health=condition(health, name, now),
        )
        for name, target in switches.targets().items()
    ]
    if counters:
        ready = [status for status in statuses if status.state == State.READY]
        await asyncio.gather(*(_count(switches, status) for status in ready))
    return statuses


async def _count(switches: SwitchReader, status: pb.SwitchStatus) -> None:
    """Add a switch's counters, or why they cannot be read."""
    try:
        async with asyncio.timeout(COUNTER_SECONDS):
            counts = await switches.outcomes(status.name)
    except DriverError as error:
        status.counters_error = str(error)
    except TimeoutError:
        status.counters_error = f"no counters received within {COUNTER_SECONDS:g} s"
    else:
        status.outcomes.update({cell.name.lower(): n for cell, n in counts.items()})
        status.packets, status.sums = packets(counts), sums(counts)


async def missing_children(
    cluster: Cluster, switches: SwitchReader, job: int
) -> list[MissingChild]:
    """Read all slots of a job; return the missing children of incomplete ones.

    Raises UnknownJobError, also for a job that has no slots, and DriverError where a slot cannot
    be read.
    """
    found = cluster.jobs.get(job)
    if found is not None and (found.state.over or found.state is JobState.QUEUED):
        raise UnknownJobError(f"job {found.spec.name} is {found.state}: it has no slots")
    plan = cluster.engine.tracker(job).plan
    return find_missing(cluster.network, plan, await read_slots(plan, switches.inspect))
