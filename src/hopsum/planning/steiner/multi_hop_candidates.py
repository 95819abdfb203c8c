"""Candidate trees of the multi-hop planner, the best first.

The trees of `candidate_trees` are ranked by the load of the busiest link, then by the frames on all
links, then by depth, latency and balance.
"""

from __future__ import annotations

from collections.abc import Collection

from hopsum.collectives.plan import PlanError
from hopsum.network.model import Network, shorten
from hopsum.planning.steiner.candidate_trees import Parents, SwitchGraph, candidates
from hopsum.planning.steiner.tree_problem import NumberedTree, Problem, TreeTask

_MANY = 10_000_000
"""Terminals times links above which slow candidates are omitted."""


def candidate_trees(network: Network, problem: Problem, task: TreeTask) -> tuple[NumberedTree, ...]:
    """Return trees for the problem's only task, the best first, none too deep.

    PlanError if workers are cut off, or are deeper than a packet's stack allows.
    """
    numbered = problem.tasks[0]
    summing = frozenset(v for v, able in enumerate(numbered.can_sum) if able)
    terminals = [v for v, count in enumerate(numbered.local) if count]
    shallow = _fewest_hops(problem, numbered.root)
    joined = {problem.switches[v] for v in (numbered.root, *shallow)}
    cut_off = [worker for worker in task.remote if task.access(network, worker) not in joined]
    if cut_off:
        raise PlanError(f"no path over switches to server {task.server} from {shorten(cut_off)}")
    graph = _switch_graph(problem, summing)
    links = sum(len(near) for near in graph.neighbours)
    quick = len(terminals) * links > _MANY
    trees = [
        tree
        for tree in candidates(graph, numbered.root, terminals, quick=quick)
        if _depth(problem, tree) <= problem.limits.max_switches
    ]
    if not trees:
        trees = [problem.pruned(numbered, shallow)]
        if _depth(problem, trees[0]) > problem.limits.max_switches:
            crossed = _depth(problem, trees[0])
            most, hops = problem.limits.max_switches, problem.limits.max_hops
            reason = f"a height of {most + 1} allows {most}"
            if most >= hops - 1:
                reason = f"{hops} entries of a packet's stack allow {most}; use --max-hops "
                reason += str(crossed + 1)
            raise PlanError(
                f"some worker's every way to server {task.server} crosses {crossed} switches; "
                f"{reason}"
            )
    latencies = _Latencies(network, problem, task)
    found = [NumberedTree(tree, summing) for tree in trees]
    return tuple(sorted(found, key=lambda one: _score(problem, one, latencies)))


def _depth(problem: Problem, tree: Parents) -> int:
    return max(problem.levels(problem.tasks[0], tree).values())


def _fewest_hops(problem: Problem, root: int) -> Parents:
    """Return paths to the root over the fewest switches, from every switch that has one."""
    tree: Parents = {}
    queue = [root]
    for v in queue:
        for arc in problem.leaving[v]:
            peer = problem.head[arc]
            if peer != root and peer not in tree:
                tree[peer] = v
                queue.append(peer)
    return tree


def _switch_graph(problem: Problem, summing: Collection[int]) -> SwitchGraph:
    """Return the graph; links that are slow, or carry other trees of the job, cost more."""
    inner = [arc for arc, head in enumerate(problem.head) if head >= 0]
    limited = [c for arc in inner if (c := problem.capacity[arc]) != float("inf")]
    fastest = max(limited, default=0.0)
    neighbours: list[dict[int, float]] = [{} for _ in problem.switches]
    for arc in inner:
        capacity = problem.capacity[arc]
        slower = fastest / capacity if capacity != float("inf") else 1.0
        load = problem.load[arc] + problem.load[problem.back[arc]]
        neighbours[problem.tail[arc]][problem.head[arc]] = slower * (1.0 + load)
    return SwitchGraph(
        [dict(sorted(costs.items())) for costs in neighbours],
        [v in summing for v in range(len(problem.switches))],
    )


class _Latencies:
    """Latencies in seconds from the farthest worker to the server, over a tree."""

    def __init__(self, network: Network, problem: Problem, task: TreeTask) -> None:
        self.network, self.problem = network, problem
        root = problem.switches[problem.tasks[0].root]
        self.last = network.link(root, task.server).latency
        self.first: dict[int, float] = {}
        number = {name: v for v, name in enumerate(problem.switches)}
        for worker in task.remote:
            v = number[task.access(network, worker)]
            latency = network.link(worker, problem.switches[v]).latency
            self.first[v] = max(self.first.get(v, 0.0), latency)

    def of(self, tree: Parents) -> float:
        root, names = self.problem.tasks[0].root, self.problem.switches
        longest = 0.0
        for v, total in self.first.items():
            while v != root:
                total += self.network.link(names[v], names[tree[v]]).latency
                v = tree[v]
            longest = max(longest, total)
        return longest + self.last


def _score(problem: Problem, chosen: NumberedTree, latencies: _Latencies) -> tuple[float, ...]:
    """Return a score, smaller is better: time of the busiest link, frames, depth, imbalance."""
    loads = problem.loads(problem.tasks[0], chosen)
    squares = sum((load + problem.load[arc]) ** 2 for arc, load in loads.items())
    return (
        _rounded(problem.time([chosen])),
        _rounded(sum(loads.values())),
        _depth(problem, chosen.parents),
        _rounded(latencies.of(chosen.parents)),
        _rounded(squares),
    )


def _rounded(value: float) -> float:
    """Return a value without rounding errors of sums, so that equal candidates compare equal."""
    return float(f"{value:.12g}")
