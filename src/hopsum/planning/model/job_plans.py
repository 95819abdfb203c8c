"""Job plans from routes of trees: slots, groups, stacks and the switches' roles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hopsum.collectives.choices import window_fault
from hopsum.collectives.plan import JobPlan, PlanError, Results, SwitchPart, TreePlan
from hopsum.network.model import Network, shorten
from hopsum.planning.model.allocation import Allocator, Grant, TreeNeeds
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.model.routes import Junction, Route
from hopsum.protocol.wire import (
    MAX_CHILDREN,
    MAX_PORT,
    MAX_WORKERS,
    Hop,
    LayoutError,
    Reduction,
    check_lanes,
)

MAX_TREES = 256


def check_request(
    network: Network, request: PlanRequest, *, roots_at_workers: bool = False
) -> None:
    """Raise PlanError for a request that no planner for switches can meet.

    `roots_at_workers`: whether the planner takes workers as servers, all of them also twice.
    """
    for what, number in (("job", request.job), ("epoch", request.epoch)):
        if not 1 <= number <= 0xFFFF:
            raise PlanError(f"{what} {number}: expected 1..65535")
    if not 1 <= len(request.workers) <= MAX_WORKERS:
        raise PlanError(f"{len(request.workers)} workers: expected 1..{MAX_WORKERS}")
    if not 1 <= len(request.servers) <= MAX_TREES:
        raise PlanError(f"{len(request.servers)} servers: expected 1..{MAX_TREES}, one a tree")
    for role, names in (("worker", request.workers), ("server", request.servers)):
        for name in names:
            if name not in network.hosts:
                raise PlanError(
                    f"{role} {name!r}: there is no such host in {network.name}; "
                    f"hosts: {shorten(network.hosts)}"
                )
        name, count = Counter(names).most_common(1)[0]
        twice = roots_at_workers and request.servers == 2 * request.workers
        if count > 1 and not (role == "server" and twice):
            raise PlanError(f"{role} {name!r} is named twice; a host has one place in a job")
    both = sorted(set(request.workers) & set(request.servers))
    if both and not roots_at_workers:
        raise PlanError(
            f"host {both[0]!r} cannot be worker and server of one job with this planner; "
            "expected another host, or the planner multi-hop"
        )
    if both and len(request.workers) == 1:
        raise PlanError(f"worker {both[0]!r} would be its own server; expected two workers or more")
    try:
        check_lanes(request.lanes)
    except LayoutError as error:
        raise PlanError(str(error)) from None
    if request.integrity and request.reduction is not Reduction.SUM:
        raise PlanError(f"integrity with reduction {request.reduction.name}: expected SUM")
    if fault := window_fault(request.window):
        raise PlanError(fault)
    shares = request.shares
    if shares is not None and (min(shares) < 0 or abs(sum(shares) - 1) > 1e-9):
        raise PlanError(f"shares {shares}: expected 0 or more each, together 1")
    if not network.switches:
        raise PlanError(
            f"{network.name} has no switches, and hosts forward no packets of this protocol; "
            "use a ring or spanning trees there"
        )


def job_plan(
    network: Network,
    request: PlanRequest,
    routes: Sequence[Route],
    shares: Sequence[float],
    results: Results,
    allocator: Allocator,
) -> JobPlan:
    """Reserve resources for the routes and return the plan.

    PlanError if slots or groups run out, or packets cannot take a route.
    """
    for route in routes:
        _check_route(network, request, route)
    needs = {
        tree: TreeNeeds(
            slots_at=[name for name, at in _at_switches(network, route) if at.merged],
            groups_at=[name for name, _ in _at_switches(network, route)]
            if results is Results.REPLICATED
            else [],
        )
        for tree, route in enumerate(routes)
    }
    grants = allocator.reserve(request.job, request.epoch, request.window, needs)
    return JobPlan(
        job=request.job,
        epoch=request.epoch,
        workers=request.workers,
        trees=tuple(
            _tree_plan(network, request, tree, route, grants[tree], shares[tree])
            for tree, route in enumerate(routes)
        ),
        lanes=request.lanes,
        window=request.window,
        results=results,
        reduction=request.reduction,
        integrity=request.integrity,
    )


def _check_route(network: Network, request: PlanRequest, route: Route) -> None:
    for name, junction in route.junctions.items():
        if name in network.switches:
            for peer in (route.parents[name], *(flow.via for flow in junction.flows)):
                if not 1 <= network.port(name, peer) < MAX_PORT:
                    raise PlanError(
                        f"switch {name}, port {network.port(name, peer)} (to {peer}): "
                        f"packets can only take ports 1 to {MAX_PORT - 1}"
                    )
    children = len(route.junctions[route.root].flows)
    if children > MAX_CHILDREN and request.algorithm is SwitchRole.IN_NETWORK:
        raise PlanError(
            f"{children} flows would reach server {route.root}; at most {MAX_CHILDREN} can. "
            "Let more switches aggregate, use several servers, or the algorithm `server`"
        )


def _at_switches(network: Network, route: Route) -> list[tuple[str, Junction]]:
    return [(name, route.junctions[name]) for name in network.switches if name in route.junctions]


def _tree_plan(
    network: Network, request: PlanRequest, tree: int, route: Route, grant: Grant, share: float
) -> TreePlan:
    parts = {
        name: _part(network, request, name, route, junction, grant)
        for name, junction in _at_switches(network, route)
    }
    arriving = route.junctions[route.root].flows
    up, down = [], []
    for w, worker in enumerate(request.workers):
        way_up, way_down = _stacks(network, route, worker, w)
        child = next(c for c, flow in enumerate(arriving) if w in flow.workers)
        last = Hop(child=child, fan_in=len(arriving))
        if len(arriving) > MAX_CHILDREN:
            last = Hop(child=0, fan_in=0)
        up.append((*way_up, last))
        down.append(tuple(way_down))
    return TreePlan(
        tree=tree,
        server=route.root,
        parents=dict(route.parents),
        parts=parts,
        up=tuple(up),
        down=tuple(down),
        server_children=tuple(flow.workers for flow in arriving),
        share=share,
    )


def _part(
    network: Network,
    request: PlanRequest,
    name: str,
    route: Route,
    junction: Junction,
    grant: Grant,
) -> SwitchPart:
    ports = tuple(sorted({network.port(name, flow.via) for flow in junction.flows}))
    return SwitchPart(
        switch=name,
        aggregate=junction.merged > 0,
        children={
            child: network.port(name, flow.via)
            for child, flow in enumerate(junction.flows[: junction.merged])
        },
        ports_up=ports,
        port_server=network.port(name, route.parents[name]),
        ports_down=ports,
        slot_base=grant.slot_base.get(name, 0),
        group=grant.group.get(name, 0),
    )


def _stacks(network: Network, route: Route, worker: str, w: int) -> tuple[list[Hop], list[Hop]]:
    """Return the entries of a worker's switches on the way up, and on the way down."""
    up: list[Hop] = []
    down: list[Hop] = []
    before, node = worker, route.parents.get(worker, route.root)
    while node != route.root:
        junction = route.junctions[node]
        index = next(i for i, flow in enumerate(junction.flows) if w in flow.workers)
        port = network.port(node, route.parents[node])
        summed = index < junction.merged
        up.append(
            Hop(aggregate=True, child=index, fan_in=junction.merged, port=port)
            if summed
            else Hop(port=port)
        )
        down.insert(0, Hop(clear=summed, port=network.port(node, before)))
        before, node = node, route.parents[node]
    return up, down
