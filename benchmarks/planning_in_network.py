"""In-network planners: time to the proved optimum, heuristic against exact, large networks, SOAR.

And the time of the bidirected-cut bound.

python -m benchmarks.planning_in_network [--output FOLDER] [NAME ...]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from random import Random
from time import perf_counter, process_time
from typing import Any

import networkx as nx

from benchmarks.report import Rows, arguments, run_benchmarks
from hopsum.collectives.plan import PlanError
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.bounds.bidirected_cut import bidirected_cut
from hopsum.planning.model.graph import PlanningGraph
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import Method
from hopsum.planning.steiner.multi_hop import solve_tasks
from hopsum.planning.steiner.multi_hop_answer import MultiHopAnswer
from hopsum.planning.steiner.soar import soar
from hopsum.planning.steiner.tree_problem import Limits, TreeTask

UNLIMITED = 1 << 20
"""A fan-in that no switch reaches, as in the model of published planners."""
SPEEDS = (10.0, 25.0, 40.0, 100.0)


def job(
    network: Network, workers: int, aggregating: float, random: Random, fan_in: int = 32
) -> tuple[TreeTask, Limits]:
    """Return a job of random workers, and random switches that can sum."""
    server = place(network, 1).servers[0]
    hosts = [name for name in network.hosts if name != server]
    able = random.sample(list(network.switches), round(aggregating * len(network.switches)))
    most = 32 if fan_in < UNLIMITED else None
    task = TreeTask(server, tuple(random.sample(hosts, workers)), frozenset(able), max_flows=most)
    return task, Limits(max_children=fan_in)


def with_speeds(network: Network, random: Random) -> Network:
    """Return the network with random speeds between switches, and the fastest for hosts."""
    links = tuple(
        replace(
            link,
            bandwidth=random.choice(SPEEDS)
            if {link.a, link.b} <= network.switches.keys()
            else SPEEDS[-1],
        )
        for link in network.links
    )
    return Network(network.name, network.hosts, network.switches, links)


def timed(solve: Callable[[], MultiHopAnswer]) -> tuple[dict[str, Any], MultiHopAnswer | None]:
    """Return the row of one plan and the answer (None where there are no trees)."""
    wall, spent = perf_counter(), process_time()
    try:
        answer = solve()
    except PlanError as error:
        answer, text = None, str(error)
    row: dict[str, Any] = {
        "cpu_seconds": round(process_time() - spent, 3),
        "seconds": round(perf_counter() - wall, 3),
    }
    if answer is None:
        return row | {"rate": 0.0, "bound": 0.0, "verdict": text.partition(";")[0]}, None
    found = {"rate": float(answer.rate), "bound": float(answer.bound)}
    return row | found | {"verdict": answer.verdict.value}, answer


def exact() -> Rows:
    """Plan one job on a 24 x 24 leaf-spine of 576 hosts to the proved optimum."""
    network = load_network("leaf-spine:24x24")
    rows = []
    for fan_in in (UNLIMITED, 32):
        for aggregating in (0.2, 0.5, 1.0):
            for workers in (100, 200, 400):
                for seed in range(3):
                    task, limits = job(network, workers, aggregating, Random(seed), fan_in)
                    row, _ = timed(
                        lambda t=task, m=limits: solve_tasks(  # type: ignore[misc]
                            network, [t], m, method=Method.EXACT, time_limit=30
                        )
                    )
                    rows.append(
                        {
                            "fan_in": "any" if fan_in == UNLIMITED else fan_in,
                            "aggregating": aggregating,
                            "workers": workers,
                            "seed": seed,
                        }
                        | row
                    )
    return rows


def jobs() -> Rows:
    """Plan four jobs that share a 24 x 24 leaf-spine, maximising the slowest one's rate."""
    network = load_network("leaf-spine:24x24", servers=4)
    servers = place(network, 1, 4).servers
    hosts = [name for name in network.hosts if name not in servers]
    rows = []
    for aggregating in (0.2, 1.0):
        for workers in (100, 400):
            for seed in range(3):
                random = Random(seed)
                able = frozenset(random.sample(list(network.switches), round(aggregating * 48)))
                tasks = [
                    TreeTask(server, tuple(random.sample(hosts, workers)), able, max_flows=None)
                    for server in servers
                ]
                row, _ = timed(
                    lambda t=tasks: solve_tasks(  # type: ignore[misc]
                        network,
                        t,
                        Limits(max_children=UNLIMITED),
                        method=Method.EXACT,
                        time_limit=30,
                    )
                )
                rows.append({"aggregating": aggregating, "workers": workers, "seed": seed} | row)
    return rows


CASES = (
    ("leaf-spine:24x24", 100, 0.5, None),
    ("leaf-spine:24x24", 100, 1.0, 8),
    ("leaf-spine:24x24", 200, 1.0, 12),
    ("leaf-spine:8x8", 40, 0.4, None),
    ("leaf-spine:8x8", 40, 1.0, 5),
    ("fat-tree:4", 12, 0.4, None),
    ("fat-tree:4", 15, 1.0, 6),
    ("fat-tree:8", 60, 0.5, None),
    ("dragonfly:2", 40, 0.5, None),
    ("dragonfly:2", 40, 1.0, 10),
)


def heuristic(seeds: int = 4) -> Rows:
    """Compare the heuristic with the exact method on links of equal and of mixed speeds."""
    rows = []
    for spec, workers, aggregating, most in CASES:
        for mixed in (False, True):
            for seed in range(seeds):
                random = Random(seed)
                network = load_network(spec)
                if mixed:
                    network = with_speeds(network, random)
                task, limits = job(network, workers, aggregating, random)
                limits = replace(limits, max_summing=most)
                found = {}
                for method in (Method.HEURISTIC, Method.EXACT):
                    found[method] = timed(
                        lambda n=network, t=task, m=limits, how=method: solve_tasks(  # type: ignore[misc]
                            n, [t], m, method=how, time_limit=20
                        )
                    )[0]
                near, best = found[Method.HEURISTIC], found[Method.EXACT]
                rows.append(
                    {
                        "topology": spec,
                        "workers": workers,
                        "aggregating": aggregating,
                        "most": most or "any",
                        "speeds": "mixed" if mixed else "equal",
                        "seed": seed,
                        "of_exact": round(near["rate"] / best["rate"], 4) if best["rate"] else "",
                        "of_bound": round(near["rate"] / best["bound"], 4) if best["rate"] else "",
                        "heuristic_cpu": near["cpu_seconds"],
                        "exact_cpu": best["cpu_seconds"],
                        "exact_verdict": best["verdict"],
                    }
                )
    return rows


def large() -> Rows:
    """Plan a fat-tree of 9,826 hosts and 1,445 switches with the heuristic."""
    network = load_network("fat-tree:34")
    workers = len(network.hosts) - 1
    rows = []
    for aggregating, most, mixed in (
        (1.0, None, False),
        (0.7, None, False),
        (1.0, 700, False),
        (1.0, 400, False),
        (0.7, None, True),
    ):
        random = Random(1)
        fabric = with_speeds(network, random) if mixed else network
        task, limits = job(fabric, workers, aggregating, random)
        limits = replace(limits, max_summing=most)
        row, _ = timed(
            lambda n=fabric, t=task, m=limits: solve_tasks(n, [t], m, method=Method.HEURISTIC)  # type: ignore[misc]
        )
        case = {"hosts": len(network.hosts), "aggregating": aggregating, "most": most or "any"}
        rows.append(case | {"speeds": "mixed" if mixed else "equal"} | row)
    return rows


def dynamic_program() -> Rows:
    """Solve SOAR's problem: 64 of 1,000 switches, on random trees of height at most 12."""
    rows = []
    for seed in range(3):
        random = Random(seed)
        parents, depth = [-1], [1]
        while len(parents) < 1000:
            parent = random.randrange(len(parents))
            if depth[parent] < 12:
                parents.append(parent)
                depth.append(depth[parent] + 1)
        local = [random.randint(0, 30) for _ in parents]
        for most in (0, 8, 64):
            spent = process_time()
            placement = soar(parents, local, [1.0] * len(parents), most)
            rows.append(
                {
                    "switches": len(parents),
                    "height": max(depth),
                    "most": most,
                    "seed": seed,
                    "messages": round(placement.cost),
                    "cpu_seconds": round(process_time() - spent, 3),
                }
            )
    return rows


def regular(workers: int, mixed: bool, seed: int) -> PlanningGraph:
    """Return a network of 256 nodes with 6 links each that all sum, some of which are workers."""
    random = Random(seed)
    edges = sorted(map(sorted, nx.random_regular_graph(6, 256, seed=seed).edges))
    nodes = tuple(f"n{i}" for i in range(256))
    capacity = {
        (nodes[u], nodes[v]): Fraction(random.choice((1, 2, 4) if mixed else (1,)))
        for u, v in edges
    }
    return PlanningGraph(
        "regular",
        nodes,
        capacity,
        dict.fromkeys(capacity, 0.0),
        frozenset(random.sample(nodes, workers)),
        frozenset(nodes),
    )


def cuts() -> Rows:
    """Compute the bidirected-cut bound of random regular networks with 256 nodes."""
    rows = []
    for workers, mixed in ((16, False), (64, False), (64, True), (128, False), (200, False)):
        graph = regular(workers, mixed, 0)
        spent = process_time()
        proof = bidirected_cut(graph)
        rows.append(
            {
                "nodes": len(graph.nodes),
                "workers": workers,
                "speeds": "mixed" if mixed else "equal",
                "cpu_seconds": round(process_time() - spent, 3),
                "bound": float(proof.bound),
                "sets": len(proof.parts),
            }
        )
    return rows


BENCHMARKS: dict[str, Callable[[], Rows]] = {
    "multi-hop exact": exact,
    "multi-hop four jobs": jobs,
    "multi-hop heuristic": heuristic,
    "multi-hop large": large,
    "soar": dynamic_program,
    "bidirected cut": cuts,
}


def main() -> None:
    """Run the benchmarks named, or all."""
    run_benchmarks(BENCHMARKS, arguments(__doc__, BENCHMARKS).parse_args(), prefix="in-network-")


if __name__ == "__main__":
    main()
