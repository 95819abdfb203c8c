"""Job plans from embedding plans: trees in the switches, and parts that hosts sum."""

from __future__ import annotations

from dataclasses import replace

from hopsum.collectives.plan import HostPart, JobPlan, Results
from hopsum.network.model import Network
from hopsum.planning.embedding.embedding_plan import JobEmbedding, Part
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.demand import Model
from hopsum.planning.model.job_plans import check_request, job_plan
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.model.routes import Route, make_route


def host_part(part: Part) -> HostPart:
    """Return a topology of hosts as agents run it; ValueError for a tree of switches."""
    topology = part.topology
    if topology.model is Model.IN_NETWORK:
        raise ValueError(f"{topology.describe()}: the switches sum it, not hosts")
    return HostPart(part.weight, topology.order, topology.root, dict(topology.parents))


def realise(
    network: Network, request: PlanRequest, embedding: JobEmbedding, allocator: Allocator
) -> JobPlan:
    """Return the job plan of an embedding; `request` gives job, epoch, workers, lanes and window.

    Reserves slots and groups for the trees of switches, whose shares add up to 1. PlanError, as
    from `job_plan`, where packets cannot take a tree, or if slots have run out since.
    """
    hosts = tuple(host_part(part) for part in embedding.parts if not in_switches(part))
    parts = [part for part in embedding.parts if in_switches(part)]
    if not parts:
        return JobPlan(
            request.job,
            request.epoch,
            request.workers,
            (),
            request.lanes,
            request.window,
            host_parts=hosts,
            period=request.embedding.period,
            integrity=request.integrity,
        )
    request = replace(request, servers=tuple(dict.fromkeys(p.topology.root for p in parts)))
    check_request(network, replace(request, shares=None))
    routes = [route_of(network, request.workers, part) for part in parts]
    whole = sum(part.weight for part in parts)
    shares = [float(part.weight / whole) for part in parts]
    plan = job_plan(network, request, routes, shares, Results.REPLICATED, allocator)
    return replace(plan, host_parts=hosts, period=request.embedding.period)


def in_switches(part: Part) -> bool:
    """Return whether a part's topology is a tree of switches."""
    return part.topology.model is Model.IN_NETWORK


def route_of(network: Network, workers: tuple[str, ...], part: Part) -> Route:
    """Return a tree of switches as a route."""
    topology = part.topology
    # Slots are held where flows meet; a switch that forwards one flow sums nothing.
    return make_route(network, workers, topology.parents, topology.root, topology.slots_at)
