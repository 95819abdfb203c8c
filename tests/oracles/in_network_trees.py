"""Every in-network tree of a small network: the oracle of the multi-hop planners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product
from random import Random

from hopsum.collectives.plan import Results
from hopsum.network.builder import NetworkBuilder
from hopsum.network.model import Network
from hopsum.planning.model.routes import Route, make_route
from hopsum.planning.steiner.tree_problem import Limits, TreeTask


def small_network(random: Random, switches: int, hosts: int, links: int = 1) -> Network:
    """Connected switches with links of 1 to 4, and hosts anywhere, on links of 8.

    With `links` above 1, hosts have up to as many, of 1 to 8.
    """
    builder = NetworkBuilder("small", 8.0)
    names = [builder.add_switch(f"s{i}") for i in range(switches)]
    linked = set()
    for i in range(1, switches):
        linked.add((random.randrange(i), i))
    for _ in range(random.randint(0, switches)):
        i, j = sorted(random.sample(range(switches), 2)) if switches > 1 else (0, 0)
        linked.add((i, j))
    for i, j in sorted(pair for pair in linked if pair[0] != pair[1]):
        builder.link(names[i], names[j], float(random.randint(1, 4)))
    for _ in range(hosts):
        host = builder.add_host()
        if links == 1:
            builder.link(host, random.choice(names))
            continue
        for name in random.sample(names, random.randint(1, min(links, switches))):
            builder.link(host, name, float(random.randint(1, 8)))
    return builder.build()


def all_parents(network: Network, task: TreeTask) -> Iterator[dict[str, str]]:
    """The parents of every tree that leads from all workers to the server, and no farther.

    Over one link of each host, any of those it has.
    """
    hosts = (task.server, *task.workers)
    for root, *homes in product(*(network.ports(host).values() for host in hosts)):
        yield from _parents(network, task, root, dict(zip(task.workers, homes, strict=True)))


def _parents(
    network: Network, task: TreeTask, root: str, access: dict[str, str]
) -> Iterator[dict[str, str]]:
    others = [name for name in network.switches if name != root]
    near = [
        [peer for peer in network.ports(name).values() if peer in network.switches]
        for name in others
    ]
    seen = set()
    for choice in product(*near):
        up = dict(zip(others, choice, strict=True))
        parents: dict[str, str] = {}
        for switch in access.values():
            node, steps = switch, 0
            while node != root and steps <= len(others):
                parents[node] = up[node]
                node, steps = up[node], steps + 1
            if node != root:
                break
        else:
            key = tuple(sorted(parents.items()))
            if key not in seen:
                seen.add(key)
                yield {**access, **parents, root: task.server}


def best_time(network: Network, tasks: Sequence[TreeTask], limits: Limits) -> Fraction | None:
    """The least time of any trees within the limits, None if there are none."""
    best: Fraction | None = None
    able = sorted(set().union(*(task.sums for task in tasks)))
    most = len(able) if limits.max_summing is None else min(len(able), limits.max_summing)
    trees = [list(all_parents(network, task)) for task in tasks]
    for chosen in combinations(able, most):
        for sums in product(*(_subsets(task.sums & set(chosen), tasks) for task in tasks)):
            if any(
                sum(name in one for one in sums) > limits.ranges.get(name, len(tasks))
                for name in able
            ):
                continue
            for parents in product(*trees):
                routes = [
                    make_route(network, t.workers, p, t.server, s, limits.max_children)
                    for t, p, s in zip(tasks, parents, sums, strict=True)
                ]
                if all(_allowed(r, t, limits) for r, t in zip(routes, tasks, strict=True)):
                    time = time_of(network, tasks, routes)
                    best = time if best is None else min(best, time)
    return best


def _subsets(names: frozenset[str], tasks: Sequence[TreeTask]) -> Iterator[frozenset[str]]:
    """Where a tree may sum: wherever it can, unless trees compete for slots."""
    fewest = len(names) if len(tasks) == 1 else 0
    for size in range(fewest, len(names) + 1):
        yield from map(frozenset, combinations(sorted(names), size))


def _allowed(route: Route, task: TreeTask, limits: Limits) -> bool:
    flows = len(route.junctions[task.server].flows)
    if task.max_flows is not None and flows > task.max_flows:
        return False
    for worker in task.workers:
        node, crossed = route.parents[worker], 0
        while node != task.server:
            node, crossed = route.parents[node], crossed + 1
        if crossed > limits.max_switches:
            return False
    return True


def time_of(network: Network, tasks: Sequence[TreeTask], routes: Sequence[Route]) -> Fraction:
    """The busiest link's time, counted flow by flow."""
    frames: dict[tuple[str, str], Fraction] = {}
    for task, route in zip(tasks, routes, strict=True):
        for node, meeting in route.junctions.items():
            down: dict[str, int] = {}
            for flow in meeting.flows:
                key = (flow.via, node)
                frames[key] = frames.get(key, Fraction(0)) + task.share
                copies = 1 if task.results is Results.REPLICATED else len(flow.workers)
                more = down.get(flow.via, 0) + copies
                down[flow.via] = 1 if task.results is Results.REPLICATED else more
            for via, copies in down.items():
                frames[node, via] = frames.get((node, via), Fraction(0)) + copies * task.share
    return max(load / Fraction(_bandwidth(network, *link)) for link, load in frames.items())


def _bandwidth(network: Network, u: str, v: str) -> float:
    bandwidth = network.link(u, v).bandwidth
    assert bandwidth is not None
    return bandwidth
