"""The multi-hop planner: a tree for each server, flows summed where they meet (001 S1).

Only switches forward and hosts are leaves. Of several candidate trees (`steiner`) the one is taken
whose busiest link is least busy, then the one with the fewest frames on all links, then the least
deep. At a switch that aggregates, two flows or more become one; beyond MAX_CHILDREN flows the rest
pass and are summed further up. A switch that does not aggregate passes every flow on.
"""

from __future__ import annotations

from collections.abc import Mapping

from collectives.network import Network, NetworkError, shorten
from collectives.plan import JobPlan, PlanError, Results
from controller.allocation import Allocator
from controller.planners.job_plans import check_request, job_plan
from controller.planners.request import Algorithm, PlanRequest
from controller.planners.routes import Route, depth, link_loads, make_route
from controller.planners.steiner import SwitchGraph, candidates
from protocol.wire import MAX_HOPS


def plan_multi_hop(network: Network, request: PlanRequest, allocator: Allocator) -> JobPlan:
    """Plan a job; PlanError says what stands in the way."""
    check_request(network, request)
    if request.shares is not None and len(request.shares) != len(request.servers):
        raise PlanError(f"{len(request.shares)} shares for {len(request.servers)} servers")
    results = request.results or (
        Results.REPLICATED if request.algorithm is Algorithm.IN_NETWORK else Results.UNICAST
    )
    shares = request.shares or tuple(1 / len(request.servers) for _ in request.servers)
    loads: dict[tuple[str, str], float] = {}
    routes = []
    for server, share in zip(request.servers, shares, strict=True):
        route = _choose_route(network, request, server, results, share, loads)
        routes.append(route)
        for link, load in link_loads(route, results).items():
            loads[link] = loads.get(link, 0.0) + share * load
    return job_plan(network, request, routes, shares, results, allocator)


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
    sums = {name for name in names if _sums(request, network.switches[name].aggregates)}
    best: tuple[tuple[float, ...], Route] | None = None
    deepest = 0
    for tree in candidates(graph, number[root], terminals):
        parents = dict(zip(request.workers, access, strict=True))
        for node in sorted(tree):
            parents[names[node]] = names[tree[node]]
        parents[root] = server
        crossed = max(depth(parents, worker, server) for worker in request.workers)
        deepest = max(crossed, deepest)
        if crossed > MAX_HOPS - 1:
            continue
        route = make_route(network, request.workers, parents, server, sums)
        score = _score(network, request, route, results, share, loads, crossed)
        if best is None or score < best[0]:
            best = (score, route)
    if best is None:
        raise PlanError(
            f"some way to server {server} crosses {deepest} switches; "
            f"at most {MAX_HOPS - 1} fit a packet's stack of {MAX_HOPS} entries"
        )
    return best[1]


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
    for (u, v), load in link_loads(route, results).items():
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
