"""The multi-hop planner: a tree for each server, flows summed where they meet (001 S1).

Only switches forward and hosts are leaves. Of several candidate trees (`steiner`) the one is taken
whose busiest link is least busy, then the one with the fewest frames on all links, then the least
deep. At a switch that aggregates, two flows or more become one; beyond MAX_CHILDREN flows the rest
pass and are summed further up. A switch that does not aggregate passes every flow on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from collectives.network import Network, NetworkError, shorten
from collectives.plan import JobPlan, PlanError, Results, SwitchPart, TreePlan
from controller.allocation import Allocator, Grant, TreeNeeds
from controller.planners.request import Algorithm, PlanRequest
from controller.planners.steiner import SwitchGraph, candidates
from protocol.wire import (
    MAX_CHILDREN,
    MAX_HOPS,
    MAX_PORT,
    MAX_WORKERS,
    Hop,
    LayoutError,
    check_lanes,
)

MAX_TREES = 256
MAX_WINDOW = 1 << 30


@dataclass(frozen=True, slots=True)
class Flow:
    """Packets that come in at a node: from which neighbour, summing which workers."""

    via: str
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Meeting:
    """The flows that meet at a node, in order of port; the first `merged` of them are summed."""

    flows: tuple[Flow, ...]
    merged: int


@dataclass(frozen=True)
class Route:
    """A tree for one server: `parents` as in TreePlan, and what meets where, leaves first."""

    server: str
    parents: Mapping[str, str]
    meetings: Mapping[str, Meeting]


def plan_multi_hop(network: Network, request: PlanRequest, allocator: Allocator) -> JobPlan:
    """Plan a job; PlanError says what stands in the way."""
    _check(network, request)
    results = request.results or (
        Results.REPLICATED if request.algorithm is Algorithm.IN_NETWORK else Results.UNICAST
    )
    shares = request.shares or tuple(1 / len(request.servers) for _ in request.servers)
    loads: dict[tuple[str, str], float] = {}
    routes = []
    for server, share in zip(request.servers, shares, strict=True):
        route = _choose_route(network, request, server, results, share, loads)
        routes.append(route)
        for link, load in _loads(request, route, results).items():
            loads[link] = loads.get(link, 0.0) + share * load
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
    )


def _check(network: Network, request: PlanRequest) -> None:
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
        if count > 1:
            raise PlanError(f"{role} {name!r} is named twice; a host has one place in a job")
    both = sorted(set(request.workers) & set(request.servers))
    if both:
        raise PlanError(f"host {both[0]!r} cannot be worker and server of one job")
    try:
        check_lanes(request.lanes)
    except LayoutError as error:
        raise PlanError(str(error)) from None
    window = request.window
    if not 1 <= window <= MAX_WINDOW or window & (window - 1):
        raise PlanError(f"window {window}: expected a power of two")
    if request.shares is not None:
        if len(request.shares) != len(request.servers):
            raise PlanError(f"{len(request.shares)} shares for {len(request.servers)} servers")
        if min(request.shares) < 0 or abs(sum(request.shares) - 1) > 1e-9:
            raise PlanError(f"shares {request.shares}: expected 0 or more each, together 1")
    if not network.switches:
        raise PlanError(
            f"{network.name} has no switches, and hosts forward no packets of this protocol; "
            "use a ring or spanning trees there"
        )


def _choose_route(
    network: Network,
    request: PlanRequest,
    server: str,
    results: Results,
    share: float,
    loads: Mapping[tuple[str, str], float],
) -> Route:
    try:
        root = network.access_switch(server)
        access = [network.access_switch(worker) for worker in request.workers]
    except NetworkError as error:
        raise PlanError(str(error)) from None
    for host, switch in zip((server, *request.workers), (root, *access), strict=True):
        if switch not in network.switches:
            raise PlanError(f"host {host!r} is attached to {switch!r}, which is not a switch")
    names = list(network.switches)
    number = {name: i for i, name in enumerate(names)}
    graph = _switch_graph(network, request, loads)
    terminals = sorted({number[switch] for switch in access})
    distance, _ = graph.distances({number[root]: 0.0}, set())
    cut_off = [
        worker
        for worker, switch in zip(request.workers, access, strict=True)
        if distance[number[switch]] == float("inf")
    ]
    if cut_off:
        raise PlanError(f"no way over switches to server {server} from {shorten(cut_off)}")
    best: tuple[tuple[float, ...], Route] | None = None
    deepest = 0
    for tree in candidates(graph, number[root], terminals):
        parents = dict(zip(request.workers, access, strict=True))
        for node in sorted(tree):
            parents[names[node]] = names[tree[node]]
        parents[root] = server
        depth = max(_depth(parents, worker, server) for worker in request.workers)
        deepest = max(depth, deepest)
        if depth > MAX_HOPS - 1:
            continue
        route = Route(server, parents, _meetings(network, request, parents, server))
        score = _score(network, request, route, results, share, loads, depth)
        if best is None or score < best[0]:
            best = (score, route)
    if best is None:
        raise PlanError(
            f"some way to server {server} crosses {deepest} switches; "
            f"at most {MAX_HOPS - 1} fit a packet's stack of {MAX_HOPS} entries"
        )
    route = best[1]
    _check_ports(network, route)
    children = len(route.meetings[server].flows)
    if children > MAX_CHILDREN and request.algorithm is Algorithm.IN_NETWORK:
        raise PlanError(
            f"{children} flows would reach server {server}; at most {MAX_CHILDREN} can. "
            "Let more switches aggregate, use several servers, or the algorithm `server`"
        )
    return route


def _check_ports(network: Network, route: Route) -> None:
    for name, meeting in route.meetings.items():
        if name in network.switches:
            for peer in (route.parents[name], *(flow.via for flow in meeting.flows)):
                if not 1 <= network.port(name, peer) < MAX_PORT:
                    raise PlanError(
                        f"switch {name}, port {network.port(name, peer)} (to {peer}): "
                        f"packets can only take ports 1 to {MAX_PORT - 1}"
                    )


def _depth(parents: Mapping[str, str], worker: str, server: str) -> int:
    """How many switches a worker's packets cross."""
    depth, node = 0, parents[worker]
    while node != server:
        depth, node = depth + 1, parents[node]
    return depth


def _switch_graph(
    network: Network, request: PlanRequest, loads: Mapping[tuple[str, str], float]
) -> SwitchGraph:
    """Links cost more if they are slower than the fastest, or carry other trees of this job."""
    number = {name: i for i, name in enumerate(network.switches)}
    neighbours: list[dict[int, float]] = [{} for _ in number]
    inner = [link for link in network.links if {link.a, link.b} <= number.keys()]
    fastest = max((link.bandwidth or 0.0 for link in inner), default=0.0)
    for link in inner:
        slower = fastest / link.bandwidth if link.bandwidth else 1.0
        load = loads.get((link.a, link.b), 0.0) + loads.get((link.b, link.a), 0.0)
        cost = slower * (1.0 + load)
        neighbours[number[link.a]][number[link.b]] = cost
        neighbours[number[link.b]][number[link.a]] = cost
    return SwitchGraph(
        [dict(sorted(costs.items())) for costs in neighbours],
        [_sums(request, switch.aggregates) for switch in network.switches.values()],
    )


def _sums(request: PlanRequest, aggregates: bool) -> bool:
    return aggregates and request.algorithm is Algorithm.IN_NETWORK


def _meetings(
    network: Network, request: PlanRequest, parents: Mapping[str, str], server: str
) -> dict[str, Meeting]:
    """What meets at every node of the tree, from the leaves to the server."""
    children: dict[str, list[str]] = {}
    for node, parent in parents.items():
        children.setdefault(parent, []).append(node)
    order: list[str] = [server]
    for node in order:
        order += [child for child in children.get(node, ()) if child in network.switches]
    workers = {name: w for w, name in enumerate(request.workers)}
    meetings: dict[str, Meeting] = {}
    for node in reversed(order):
        flows: list[Flow] = []
        for child in sorted(children.get(node, ()), key=lambda child: network.port(node, child)):
            if child in workers:
                flows.append(Flow(child, (workers[child],)))
            else:
                flows += [Flow(child, sums) for sums in _outgoing(meetings[child])]
        merged = 0
        if node != server and _sums(request, network.switches[node].aggregates) and len(flows) > 1:
            merged = min(len(flows), MAX_CHILDREN)
        meetings[node] = Meeting(tuple(flows), merged)
    return meetings


def _outgoing(meeting: Meeting) -> list[tuple[int, ...]]:
    """The workers summed in each flow that leaves a switch."""
    kept = [flow.workers for flow in meeting.flows[meeting.merged :]]
    if not meeting.merged:
        return kept
    summed = (worker for flow in meeting.flows[: meeting.merged] for worker in flow.workers)
    return [tuple(sorted(summed)), *kept]


def _loads(request: PlanRequest, route: Route, results: Results) -> dict[tuple[str, str], float]:
    """Frames on each directed link for one fragment."""
    loads: dict[tuple[str, str], float] = {}
    for node, meeting in route.meetings.items():
        for flow in meeting.flows:
            loads[flow.via, node] = loads.get((flow.via, node), 0.0) + 1
            down = 1.0 if results is Results.REPLICATED else float(len(flow.workers))
            before = 0.0 if results is Results.REPLICATED else loads.get((node, flow.via), 0.0)
            loads[node, flow.via] = before + down
    return loads


def _score(
    network: Network,
    request: PlanRequest,
    route: Route,
    results: Results,
    share: float,
    loads: Mapping[tuple[str, str], float],
    depth: int,
) -> tuple[float, ...]:
    """Smaller is better: time of the busiest link, frames on all links, depth, imbalance."""
    unlimited = all(link.bandwidth is None for link in network.links)
    busiest = total = squares = 0.0
    for (u, v), load in _loads(request, route, results).items():
        sent = loads.get((u, v), 0.0) + share * load
        bandwidth = network.link(u, v).bandwidth
        if bandwidth is not None or unlimited:
            busiest = max(busiest, sent / (bandwidth or 1.0))
        total += load
        squares += sent * sent
    latency = max(_latency(network, route, worker) for worker in request.workers)
    return (_rounded(busiest), total, depth, _rounded(latency), _rounded(squares))


def _rounded(value: float) -> float:
    """A value without the noise of summation, so that equal candidates are equal."""
    return float(f"{value:.12g}")


def _latency(network: Network, route: Route, worker: str) -> float:
    total, node = 0.0, worker
    while node != route.server:
        total += network.link(node, route.parents[node]).latency
        node = route.parents[node]
    return total


def _at_switches(network: Network, route: Route) -> list[tuple[str, Meeting]]:
    return [(name, route.meetings[name]) for name in network.switches if name in route.meetings]


def _tree_plan(
    network: Network, request: PlanRequest, tree: int, route: Route, grant: Grant, share: float
) -> TreePlan:
    parts = {
        name: _part(network, request, name, route, meeting, grant)
        for name, meeting in _at_switches(network, route)
    }
    arriving = route.meetings[route.server].flows
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
        server=route.server,
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
    meeting: Meeting,
    grant: Grant,
) -> SwitchPart:
    ports = tuple(sorted({network.port(name, flow.via) for flow in meeting.flows}))
    return SwitchPart(
        switch=name,
        aggregate=meeting.merged > 0,
        children={
            child: network.port(name, flow.via)
            for child, flow in enumerate(meeting.flows[: meeting.merged])
        },
        ports_up=ports,
        port_server=network.port(name, route.parents[name]),
        ports_down=ports,
        slot_base=grant.slot_base.get(name, 0),
        group=grant.group.get(name, 0),
    )


def _stacks(network: Network, route: Route, worker: str, w: int) -> tuple[list[Hop], list[Hop]]:
    """The entries of a worker's switches on the way up, and on the way down."""
    up: list[Hop] = []
    down: list[Hop] = []
    before, node = worker, route.parents[worker]
    while node != route.server:
        meeting = route.meetings[node]
        index = next(i for i, flow in enumerate(meeting.flows) if w in flow.workers)
        port = network.port(node, route.parents[node])
        summed = index < meeting.merged
        up.append(
            Hop(aggregate=True, child=index, fan_in=meeting.merged, port=port)
            if summed
            else Hop(port=port)
        )
        down.insert(0, Hop(clear=summed, port=network.port(node, before)))
        before, node = node, route.parents[node]
    return up, down
