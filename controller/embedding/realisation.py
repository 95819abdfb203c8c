"""From an embedding plan to what runs: schedules among hosts, and a job's trees in the switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from collectives.algorithms.ring import ring_all_reduce
from collectives.algorithms.rooted import RootedTree
from collectives.algorithms.trees import DEFAULT_BLOCK, SharedTree, multi_tree_all_reduce
from collectives.network import Network
from collectives.plan import JobPlan, PlanError, Results
from collectives.schedule import Schedule
from controller.allocation import Allocator
from controller.embedding.demand import Model
from controller.embedding.embedding import JobEmbedding, Part
from controller.embedding.logical_topologies import LogicalTopology
from controller.planners.job_plans import check_request, job_plan
from controller.planners.request import PlanRequest
from controller.planners.routes import make_route
from protocol.wire import LANES_DEFAULT


def schedule_of(
    topology: LogicalTopology, workers: Sequence[str], elements: int, block: int = DEFAULT_BLOCK
) -> Schedule:
    """The all-reduce of `elements` over one topology of hosts; ranks are `workers`, in order.

    Blocks of `block` elements are passed on one by one, so that collecting and broadcasting
    overlap. Auxiliary nodes are relays. PlanError for a tree of switches, which is no schedule.
    """
    if topology.model is Model.IN_NETWORK:
        raise PlanError(f"{topology.describe()}: runs in the switches, not as a schedule of hosts")
    if topology.model is Model.RING:
        schedule = ring_all_reduce(len(topology.order), elements)
        return replace(schedule, names=topology.order)
    tree = SharedTree(RootedTree(topology.root, topology.parents))
    schedule = multi_tree_all_reduce(workers, elements, [tree], block)
    return replace(schedule, algorithm=topology.model.value)


def schedules_of(
    embedding: JobEmbedding, elements: int, block: int = DEFAULT_BLOCK
) -> list[tuple[int, int, Schedule]]:
    """Of a tensor of `elements`, each range (start, stop) that hosts sum, and its schedule.

    Elements of a schedule count from its start. Ranges without elements are left out.
    """
    workers = embedding.demand.workers
    return [
        (start, stop, schedule_of(part.topology, workers, stop - start, block))
        for part, (start, stop) in zip(embedding.parts, embedding.ranges(elements), strict=True)
        if start < stop and part.topology.model is not Model.IN_NETWORK
    ]


def in_network_weight(embedding: JobEmbedding) -> Fraction:
    """The part of the data that the switches sum."""
    return sum((part.weight for part in _in_switches(embedding)), Fraction(0))


def in_network_plan(
    network: Network,
    embedding: JobEmbedding,
    epoch: int,
    allocator: Allocator,
    lanes: int = LANES_DEFAULT,
) -> JobPlan | None:
    """The plan of the part that the switches sum, None if there is none; shares add up to 1.

    Reserves slots and groups. PlanError as `job_plan` where packets cannot take a tree, or if
    slots ran out since.
    """
    parts = _in_switches(embedding)
    if not parts:
        return None
    demand = embedding.demand
    request = PlanRequest(
        job=demand.job,
        epoch=epoch,
        workers=demand.workers,
        servers=tuple(dict.fromkeys(part.topology.root for part in parts)),
        lanes=lanes,
        window=demand.window,
    )
    check_request(network, request)
    routes = [
        make_route(
            network,
            demand.workers,
            part.topology.parents,
            part.topology.root,
            # Slots are held where flows meet; a switch that passes one flow on sums nothing.
            part.topology.slots_at,
        )
        for part in parts
    ]
    whole = in_network_weight(embedding)
    shares = [float(part.weight / whole) for part in parts]
    return job_plan(network, request, routes, shares, Results.REPLICATED, allocator)


def _in_switches(embedding: JobEmbedding) -> list[Part]:
    return [part for part in embedding.parts if part.topology.model is Model.IN_NETWORK]
