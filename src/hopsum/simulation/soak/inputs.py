"""What a fault schedule describes: its network, and the submissions of its jobs."""

from __future__ import annotations

from hopsum.collectives.choices import LEVEL_WISE, SCHEDULE_NAMES, DataType
from hopsum.collectives.task_messages import workload_message
from hopsum.collectives.workload import PROCESS, WorkloadSpec
from hopsum.network.builder import NetworkBuilder
from hopsum.network.model import Network
from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import InputError
from hopsum.simulation.soak.ledger import OVERFLOW
from hopsum.simulation.soak.schedule import (
    Attack,
    ClockDrift,
    FaultSchedule,
    JobEntry,
    NetworkEntry,
    Noise,
)


def network_of(entry: NetworkEntry) -> Network:
    """Return the network of an entry. Raises NetworkError."""
    if entry.topology:
        options = TopologyOptions(
            link_rate=entry.rate,
            uplink_rate=entry.uplink_rate,
            latency=entry.latency,
            slots=entry.slots,
            plain=entry.plain,
        )
        return make_topology(entry.topology, options)
    builder = NetworkBuilder("graph", None, 0.0, entry.slots)
    nodes = dict.fromkeys(node for link in entry.links for node in (link.a, link.b))
    for node in nodes:
        if node.startswith(("h", "p")):
            builder.add_host(node)
        else:
            builder.add_switch(node, aggregates=node not in entry.plain)
    for link in entry.links:
        builder.link(link.a, link.b, link.rate, link.latency)
    return builder.build()


def submission_of(job: JobEntry) -> pb.Submission:
    """Return the message that submits a job."""
    submission = pb.Submission(
        name=job.name,
        workers=job.workers,
        servers=job.servers,
        algorithm=job.algorithm,
        planner="" if job.algorithm in SCHEDULE_NAMES else job.planner,
        window=job.window,
        coordination=job.coordination,
        integrity=job.integrity,
    )
    submission.task.workload.CopyFrom(workload_message(workload_of(job)))
    if job.algorithm in SCHEDULE_NAMES:
        submission.task.schedule = job.algorithm
    if job.algorithm == LEVEL_WISE:
        submission.task.level_wise.SetInParent()
    if job.kind == PROCESS and not job.servers:
        submission.server_count = 0
    if job.results is not None:
        submission.MergeFrom(pb.Submission(results=job.results.name))
    if job.trees:
        submission.planner_options["max-trees"] = str(job.trees)
    if job.first_fragment:
        submission.task.options.first_fragment = job.first_fragment
    return submission


def workload_of(job: JobEntry) -> WorkloadSpec:
    """Return the workload of a job."""
    if job.kind == PROCESS:
        return WorkloadSpec(PROCESS, len(job.workers), 0, 0, DataType.INT32, 0, ranks=job.ranks)
    return WorkloadSpec(
        job.kind,
        len(job.workers),
        job.elements,
        job.rounds,
        DataType(job.dtype),
        job.seed + job.overflow * OVERFLOW,
        job.coordinate,
        collective=job.collective,
        wire_bits=job.wire_bits,
    )


def protected(job: JobEntry) -> bool:
    """Return whether bit flips in frames that switches sum cannot harm a job."""
    return job.integrity or (job.algorithm in SCHEDULE_NAMES and not job.coordinate)


def check(schedule: FaultSchedule) -> None:
    """Raise InputError for a schedule whose jobs or faults name something its network lacks."""
    network = network_of(schedule.network)
    for job in schedule.jobs:
        for host in (*job.workers, *job.servers, *job.ranks):
            network.access_switch(host)
    for fault in schedule.faults:
        if isinstance(fault, (Attack, ClockDrift)):
            network.access_switch(fault.host)
        if isinstance(fault, Noise) and fault.flip:
            unprotected = [job.name for job in schedule.jobs if not protected(job)]
            if unprotected:
                raise InputError(
                    f"flip {fault.flip}: sums of {', '.join(unprotected)} would be wrong; expected "
                    "jobs with integrity, or among hosts"
                )
