"""The planner embedding: a job over several logical topologies, and its later epochs ([002][]).

A new epoch moves the trees of switches to other links; the weights, the topologies of hosts and the
servers stay, since all workers must partition a tensor alike. These change only where
`PlanRequest.recut` asks for it, and then take effect at one of the job's boundaries. The hosts that
take part and the number of trees are fixed for a job's lifetime.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from hopsum.collectives.plan import JobPlan, PlanError, Results
from hopsum.network.model import Network
from hopsum.planning.embedding.choice import PlanOptions
from hopsum.planning.embedding.embedding_plan import Embedding, JobEmbedding, Part
from hopsum.planning.embedding.plan_builder import host_part, in_switches, realise, route_of
from hopsum.planning.embedding.planner import plan_embedding
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.demand import JobDemand, Model, Resources, all_resources
from hopsum.planning.model.job_plans import MAX_TREES, job_plan
from hopsum.planning.model.options import EMBEDDING_TIME
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.model.routes import make_route
from hopsum.planning.steiner.multi_hop import solve_tasks
from hopsum.planning.steiner.tree_problem import Limits, TreeTask

LEAST_GAIN = 0.02
"""Minimum fraction of an iteration's time that each topology after the first must save."""
PLANNING_SECONDS = EMBEDDING_TIME.most or 0.0
"""Time limit in seconds."""


def plan_job_embedding(network: Network, request: PlanRequest, allocator: Allocator) -> JobPlan:
    """Plan a job, or its next epoch (`request.before`); PlanError gives the reason if impossible.

    `network`: its links' bandwidth is what is free of them; every link needs some.
    """
    before = request.before
    if before is None:
        return realise(network, request, embed(network, request, allocator).embedding, allocator)
    if request.recut:
        return _recut(network, request, before, allocator)
    return _next_epoch(network, request, before, allocator)


@dataclass(frozen=True, slots=True)
class EmbeddedJob:
    """The embedding of a single job, with what it was chosen from."""

    resources: Resources
    demand: JobDemand
    options: PlanOptions
    found: Embedding

    @property
    def embedding(self) -> JobEmbedding:
        """The job's topologies and weights."""
        return self.found.job(self.demand.job)


def embed(network: Network, request: PlanRequest, allocator: Allocator) -> EmbeddedJob:
    """Choose topologies and weights for a job. PlanError gives the reason if that is impossible."""
    options = PlanOptions(
        weights=request.embedding.weights,
        least_gain=LEAST_GAIN,
        method=request.method,
        time_limit=min(request.forest.time_limit, PLANNING_SECONDS),
        seed=request.forest.seed,
    )
    resources, demand = resources_of(network, request, allocator), demand_of(request)
    return EmbeddedJob(resources, demand, options, plan_embedding(resources, [demand], options))


def demand_of(request: PlanRequest) -> JobDemand:
    """Return the demand of the embedding for a request.

    PlanError if it asks for what an embedding cannot do.
    """
    _check(request)
    wanted = request.embedding
    return JobDemand(
        request.job,
        request.workers,
        (wanted.tensor_bytes,),
        models=wanted.models,
        auxiliary=wanted.auxiliary,
        window=request.window,
        max_hops=request.max_hops,
        relays=wanted.relays,
    )


def resources_of(network: Network, request: PlanRequest, allocator: Allocator) -> Resources:
    """Return the resources free for a job: slots in whole windows, for at most its number of trees.

    PlanError for a link without bandwidth.
    """
    most = MAX_TREES if request.forest.max_trees is None else request.forest.max_trees
    slots = {
        name: min(most, allocator.room(name, request.job, request.window)) * request.window
        for name, switch in network.switches.items()
        if switch.aggregates
    }
    return replace(all_resources(network), slots=slots)


def _check(request: PlanRequest) -> None:
    if request.embedding.period == 1 or request.embedding.period < 0:
        raise PlanError(
            f"boundaries every {request.embedding.period} tensors: expected 0 (none), or 2 or "
            "more; a host asks for the next one when all have passed the last"
        )
    if request.algorithm is not SwitchRole.IN_NETWORK or request.results is Results.UNICAST:
        raise PlanError(
            "planner embedding lets switches sum and copy results where that is best, and hosts "
            "elsewhere; leave --algorithm and --results out, or use the planner multi-hop"
        )


def _next_epoch(
    network: Network, request: PlanRequest, before: JobPlan, allocator: Allocator
) -> JobPlan:
    """Recompute the trees of switches, with the same servers and shares; hosts' parts stay.

    A server that is not among `request.servers`, if there are any, gives way to the first of these
    that has no tree yet.
    """
    if not before.trees:
        return replace(before, epoch=request.epoch)
    shares = tuple(tree.share for tree in before.trees)
    sums = frozenset(name for name, switch in network.switches.items() if switch.aggregates)
    units = request.embedding.weights.units
    tasks = [
        TreeTask(server, request.workers, sums, Fraction(share).limit_denominator(units))
        for server, share in zip(_servers(request, before), shares, strict=True)
    ]
    room = {name: allocator.room(name, request.job, request.window) for name in sums}
    limits = Limits(None, room, max_switches=request.max_hops - 1, max_hops=request.max_hops)
    found = solve_tasks(network, tasks, limits, seed=request.forest.seed)
    plan = job_plan(network, request, found.routes, shares, Results.REPLICATED, allocator)
    return replace(plan, host_parts=before.host_parts, period=before.period)


def _recut(
    network: Network, request: PlanRequest, before: JobPlan, allocator: Allocator
) -> JobPlan:
    """Recompute weights and topologies among the attending hosts, with no more trees than before.

    A tree keeps its server if the embedding still has one there; a tree that is no longer needed
    keeps its links but gets no data. PlanError if there are more trees than before.
    """
    models = request.embedding.models
    if not before.trees:
        models = models - {Model.IN_NETWORK}
    wanted = replace(request.embedding, models=models, auxiliary=before.auxiliary)
    embedding = embed(network, replace(request, embedding=wanted), allocator).embedding
    fresh = [part for part in embedding.parts if in_switches(part)]
    if len(fresh) > len(before.trees):
        raise PlanError(
            f"job {before.job}: the best embedding has {len(fresh)} trees of switches, and the job "
            f"{len(before.trees)} for its life"
        )
    places: list[Part | None] = []
    for tree in before.trees:
        same = next((part for part in fresh if part.topology.root == tree.server), None)
        if same is not None:
            fresh.remove(same)
        places.append(same)
    places = [part if part is not None or not fresh else fresh.pop(0) for part in places]
    used = sum((part.weight for part in places if part is not None), Fraction(0))
    shares = [
        tree.share if not used else 0.0 if part is None else float(part.weight / used)
        for tree, part in zip(before.trees, places, strict=True)
    ]
    sums = [name for name, switch in network.switches.items() if switch.aggregates]
    routes = [
        make_route(network, request.workers, tree.parents, tree.server, sums)
        if part is None
        else route_of(network, request.workers, part)
        for tree, part in zip(before.trees, places, strict=True)
    ]
    plan = job_plan(network, request, routes, shares, Results.REPLICATED, allocator)
    hosts = tuple(host_part(part) for part in embedding.parts if not in_switches(part))
    return replace(plan, host_parts=hosts, period=before.period)


def _servers(request: PlanRequest, before: JobPlan) -> list[str]:
    servers = [tree.server for tree in before.trees]
    if request.servers:
        spare = iter([host for host in request.servers if host not in servers])
        replaced = {server: server for server in servers}
        for server in before.servers:
            if server not in request.servers:
                replaced[server] = next(spare, server)
        servers = [replaced[server] for server in servers]
    return servers
