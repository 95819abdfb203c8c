"""Routes of a job's packets: a tree for each server, and the flows that meet at its switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hopsum.collectives.plan import PlanError, Results
from hopsum.collectives.tree import Tree
from hopsum.network.model import Network, shorten
from hopsum.protocol.wire import MAX_CHILDREN


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow that arrives at a node: the neighbour it comes from and the workers it sums."""

    via: str
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Junction:
    """The flows that meet at a node in order of port; the first `merged` of them are summed."""

    flows: tuple[Flow, ...]
    merged: int


@dataclass(frozen=True)
class Route(Tree):
    """A tree with its root at a server, and the flows that meet at each node, leaves first."""

    junctions: Mapping[str, Junction]

    def __post_init__(self) -> None:
        """Leave the check to `make_route`, which follows every worker's flow."""


def make_route(
    network: Network,
    workers: tuple[str, ...],
    parents: Mapping[str, str],
    server: str,
    sums: Collection[str],
    max_children: int = MAX_CHILDREN,
) -> Route:
    """Follow the flows from the leaves to the server; the switches in `sums` sum what meets there.

    At most `max_children` flows become one at a switch; the rest are forwarded. A worker that is
    the server adds a flow of its own there. All planners' trees in switches become routes here.
    PlanError unless every worker has exactly one path to the server.
    """
    children: dict[str, list[str]] = {}
    for node, parent in parents.items():
        children.setdefault(parent, []).append(node)
    order: list[str] = [server]
    for node in order:
        order += [child for child in children.get(node, ()) if child in network.switches]
    number = {name: w for w, name in enumerate(workers)}
    junctions: dict[str, Junction] = {}
    for node in reversed(order):
        flows: list[Flow] = []
        for child in sorted(children.get(node, ()), key=lambda child: network.port(node, child)):
            if child in number:
                flows.append(Flow(child, (number[child],)))
            else:
                flows += [Flow(child, summed) for summed in outgoing(junctions[child])]
        if node == server and server in number:
            flows.append(Flow(server, (number[server],)))
        merged = 0
        if node != server and node in sums and flows:
            merged = min(len(flows), max_children)
        junctions[node] = Junction(tuple(flows), merged)
    _check_arrivals(workers, server, junctions[server])
    return Route(server, parents, junctions)


def _check_arrivals(workers: tuple[str, ...], server: str, last: Junction) -> None:
    """Raise PlanError unless the flows at the server sum every worker once."""
    arrived = Counter(w for flow in last.flows for w in flow.workers)
    wrong = [name for w, name in enumerate(workers) if arrived[w] != 1]
    if wrong:
        raise PlanError(
            f"the route to server {server} is not a tree: expected every worker's data there once, "
            f"but not so that of {shorten(wrong)}; this is a fault of the planner"
        )


def outgoing(junction: Junction) -> list[tuple[int, ...]]:
    """Return the workers summed in each flow that leaves a switch."""
    kept = [flow.workers for flow in junction.flows[junction.merged :]]
    if not junction.merged:
        return kept
    summed = (worker for flow in junction.flows[: junction.merged] for worker in flow.workers)
    return [tuple(sorted(summed)), *kept]


def link_loads(route: Route, results: Results) -> dict[tuple[str, str], float]:
    """Return the frames on each directed link for one fragment of the tree."""
    loads: dict[tuple[str, str], float] = {}
    for node, junction in route.junctions.items():
        for flow in junction.flows:
            if flow.via == node:
                continue  # it crosses no link
            loads[flow.via, node] = loads.get((flow.via, node), 0.0) + 1
            down = 1.0 if results is Results.REPLICATED else float(len(flow.workers))
            before = 0.0 if results is Results.REPLICATED else loads.get((node, flow.via), 0.0)
            loads[node, flow.via] = before + down
    return loads


def depth(parents: Mapping[str, str], worker: str, server: str) -> int:
    """Return the number of switches that a worker's packets cross."""
    crossed, node = 0, parents.get(worker, server)
    while node != server:
        crossed, node = crossed + 1, parents[node]
    return crossed
