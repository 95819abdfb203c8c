"""Planners of host trees: throughput against the proved optimum, and planning time.

python -m benchmarks.planning [--output FOLDER] [NAME ...]
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from time import process_time
from typing import Any

from benchmarks.report import Rows, arguments, run_benchmarks
from hopsum.collectives.plan import PlanError
from hopsum.network.loaders import load_network
from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.forest import Forest, ForestOptions
from hopsum.planning.model.forest_checker import check_forest
from hopsum.planning.model.graph import PlanningGraph, planning_graph
from hopsum.planning.spanning.mtree import plan_mtree
from hopsum.planning.spanning.multi_tree import plan_multi_tree

WIDE_AREA = tuple(
    f"examples/networks/{name}.json" for name in ("abilene", "attmpls", "b4", "nsfnet")
)
REGULAR = ("complete:8", "dgx1", "torus:4x4", "hypercube:4", "random-regular:16x4")
LARGE = (
    *("complete:64", "torus:8x8", "hypercube:6", "random-regular:64x4"),
    *("complete:256", "torus:16x16", "hypercube:8", "random-regular:256x8"),
)
TIME_LIMIT = 300.0
"""Seconds: long enough that a busy machine does not affect results; CPU time is measured."""
SKEW = 1.2
"""Shape of the Pareto distribution from which skewed bandwidths are drawn."""
PLANNERS: dict[str, Callable[[PlanningGraph, ForestOptions], Forest]] = {
    "mtree": plan_mtree,
    "multi-tree": plan_multi_tree,
}


def network(spec: str, skewed: bool = False) -> PlanningGraph:
    """Return a network of hosts with its bandwidths or, if `skewed`, heavy-tailed random ones."""
    loaded = load_network(spec)
    if any(link.bandwidth is None for link in loaded.links):
        loaded = load_network(spec, link_rate=1e9)
    graph = planning_graph(loaded)
    if not skewed:
        return graph
    draw = random.Random(5)
    capacity = {edge: Fraction(int(1000 * draw.paretovariate(SKEW))) for edge in graph.capacity}
    return replace(graph, name=f"{graph.name}, skewed", capacity=capacity)


def measure(graph: PlanningGraph, planner: str, options: ForestOptions) -> dict[str, Any]:
    """Return the row of one plan, checked against the strength of the network."""
    options = replace(options, time_limit=TIME_LIMIT)
    started = process_time()
    row: dict[str, Any] = {
        "network": graph.name,
        "nodes": len(graph.nodes),
        "links": len(graph.capacity),
        "K": options.max_trees or "",
        "H": options.max_height or "",
        "planner": planner,
    }
    try:
        forest = PLANNERS[planner](graph, options)
    except PlanError as error:
        return (
            row
            | dict.fromkeys(("of_strength", "of_bound", "trees", "height"), "")
            | {
                "verdict": str(error).partition(": ")[2].partition(",")[0].partition(":")[0],
                "cpu_seconds": round(process_time() - started, 2),
            }
        )
    seconds = process_time() - started
    check_forest(graph, forest, options)
    return row | {
        "of_strength": round(float(forest.throughput / strength(graph).bound), 4),
        "of_bound": round(float(forest.throughput / forest.bound), 4),
        "trees": len(forest.trees),
        "height": max(tree.height for tree in forest.trees),
        "verdict": str(forest.verdict),
        "cpu_seconds": round(seconds, 2),
    }


def both(graph: PlanningGraph, options: ForestOptions) -> Iterator[dict[str, Any]]:
    """Yield a plan of each planner."""
    for planner in PLANNERS:
        yield measure(graph, planner, options)


def number() -> Rows:
    """Return rows of small networks, with any number of trees, 10 and 5."""
    graphs = [network(spec) for spec in (*REGULAR, *WIDE_AREA)]
    graphs += [network(spec, skewed=True) for spec in WIDE_AREA]
    return [
        row
        for graph in graphs
        for most in (None, 10, 5)
        for row in both(graph, ForestOptions(max_trees=most))
    ]


def height() -> Rows:
    """Return rows of trees limited to a few hops."""
    return [
        row
        for spec, heights in (
            ("torus:4x4", (4, 5, 6)),
            ("examples/networks/attmpls.json", (4, 5, 6)),
            ("torus:8x8", (8, 10)),
            ("random-regular:64x4", (6, 8)),
        )
        for most in (None, 10)
        for high in heights
        for row in both(network(spec), ForestOptions(max_trees=most, max_height=high))
    ]


def size() -> Rows:
    """Return rows of 64 and 256 nodes."""
    graphs = [network(spec) for spec in LARGE]
    skewed = ("complete:64", "random-regular:64x4", "random-regular:256x4")
    graphs += [network(spec, skewed=True) for spec in skewed]
    return [
        row
        for graph in graphs
        for most in (None, 10)
        for row in both(graph, ForestOptions(max_trees=most))
    ]


BENCHMARKS: dict[str, Callable[[], Rows]] = {"number": number, "height": height, "size": size}


def main() -> None:
    """Run the benchmarks named, or all."""
    run_benchmarks(BENCHMARKS, arguments(__doc__, BENCHMARKS).parse_args(), prefix="planning-")


if __name__ == "__main__":
    main()
