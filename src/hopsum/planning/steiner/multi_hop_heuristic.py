"""Fast in-network trees for networks of any size.

For one tree: start from the best of some candidates (`candidate_trees`); where few switches may
sum, choose them by the two dynamic programs on trees (`low_congestion`, `soar`). Then try to meet
target times between the bound and the best time so far: reattach switches whose links have excess,
or those below them, elsewhere (`tree_local_search`), occasionally also where that is worse, and
exchange switches that sum. Several trees: one after the other, then each again given the others.

The size of the network fixes the number of trials, and their effort is counted, not timed, so that
the same seed gives the same trees.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from hopsum.planning.steiner.candidate_trees import Parents
from hopsum.planning.steiner.low_congestion import least_congestion, place_within
from hopsum.planning.steiner.multi_hop_bound import next_time, time_bound
from hopsum.planning.steiner.soar import soar
from hopsum.planning.steiner.tree_local_search import MutableTree, Work
from hopsum.planning.steiner.tree_problem import SLACK, NumberedTree, Problem

_TARGETS = 8
_NOISE = 0.5
_PULL_DOWN_EVERY = 8
_MOST_ENDS = 20
_MOST_ARCS = 16_000_000
"""Arcs that the search for one tree examines, approximately: a few seconds."""
TURNS = 3
"""How many times `improve_together` searches for each tree."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Effort of the search: trials for each target time, per switch of the network.

    `arcs`: number that the search may examine, and as many again to find a first tree.
    """

    trials: int = 80
    arcs: int = _MOST_ARCS

    def of(self, problem: Problem) -> int:
        """Return the number of trials: fewer in large networks, where each takes longer."""
        count = self.trials * len(problem.switches)
        return 50 + min(count, count * 2000 // (len(problem.tail) + 1))


@dataclass(frozen=True, slots=True)
class _Budget:
    """Resources of a search: `trials` for each target time, and `work` for all of them."""

    trials: int
    random: Random
    work: Work


def improve(
    problem: Problem,
    starts: Sequence[NumberedTree],
    bound: float,
    random: Random,
    effort: Effort | None = None,
) -> NumberedTree | None:
    """Search for a faster tree of the problem's only task, starting from some trees.

    `starts` may violate the limit on flows at the server, but not the one on depth. `bound`: a time
    that is good enough. None if every tree found violates a limit.
    """
    effort = effort or Effort()
    budget = _Budget(effort.of(problem), random, Work(effort.arcs))
    task, deepest = problem.tasks[0], problem.limits.max_switches
    starts = [
        start for start in starts if max(problem.levels(task, start.parents).values()) <= deepest
    ]
    if not starts:
        return None
    starts = sorted(
        (one for start in starts for one in _with_few(problem, start)),
        key=lambda one: _rank(problem, one),
    )
    best = next((one for one in starts if problem.fits([one])), None)
    time = math.inf if best is None else problem.time([best])
    low = bound
    if best is None:
        # Trees within the limits are hard to find: try for the best time at once.
        best = _meet(problem, starts[0], low, budget)
        budget = replace(budget, work=Work(effort.arcs))
        if best is None:
            best = _meet(problem, starts[0], math.inf, budget)
        if best is None:
            return None
        time = problem.time([best])
    target = low
    for _ in range(_TARGETS):
        if (
            budget.work.done
            or time <= low * (1 + SLACK)
            or next_time(problem, low) > time * (1 + SLACK)
        ):
            break
        found = None
        for start in (best, *starts[:2]):
            found = _meet(problem, start, target, budget)
            if found is not None:
                break
        if found is not None and problem.time([found]) < time * (1 - SLACK):
            best, time = found, problem.time([found])
        else:
            low = max(next_time(problem, target), target * (1 + 4 * SLACK))
        target = low if next_time(problem, low) > time * (1 - SLACK) else (low + time) / 2
    return best


def _rank(problem: Problem, chosen: NumberedTree) -> tuple[bool, float, int]:
    """Return the rank of a tree as a starting point; smaller is better."""
    frames = sum(problem.outflows(problem.tasks[0], chosen).values())
    return (not problem.fits([chosen]), problem.time([chosen]), frames)


def _with_few(problem: Problem, start: NumberedTree) -> Iterable[NumberedTree]:
    """Return a tree with a choice of the switches that sum, where few may."""
    task, most = problem.tasks[0], problem.limits.max_summing
    if most is None:
        yield start
        return
    if len(problem.used(task, start)) <= most:
        yield NumberedTree(start.parents, problem.used(task, start))
        return
    fastest = least_congestion(problem, start.parents, most)
    if fastest is not None:
        yield fastest
    yield NumberedTree(start.parents, least_busy(problem, start.parents, most))
    able = [v for v, sums in enumerate(task.can_sum) if sums]
    fullest = sorted(able, key=lambda v: (v != task.root, -task.local[v], v))[:most]
    yield NumberedTree(start.parents, frozenset(fullest))


def least_busy(problem: Problem, parents: Parents, most: int) -> frozenset[int]:
    """Return the switches of a tree that minimise the total time of its links (SOAR)."""
    task = problem.tasks[0]
    names = [task.root, *parents]
    number = {v: i for i, v in enumerate(names)}
    arcs = [task.exit, *(problem.arc[v, parent] for v, parent in parents.items())]
    placement = soar(
        [-1, *(number[parent] for parent in parents.values())],
        [task.local[v] for v in names],
        [1 / problem.capacity[arc] for arc in arcs],
        most,
        [task.can_sum[v] for v in names],
    )
    return frozenset(names[i] for i in placement.summing)


def _meet(
    problem: Problem, start: NumberedTree, time: float, budget: _Budget
) -> NumberedTree | None:
    """Change a tree until it takes at most a time and meets the limits; None if that fails."""
    tree = MutableTree(problem, start, time, budget.work)
    able = frozenset(v for v, sums in enumerate(problem.tasks[0].can_sum) if sums)
    bound_to = tree.bound_to_sum()
    most = problem.limits.max_summing
    if not bound_to <= able or (most is not None and len(bound_to) > most):
        return None
    if most is None:
        tree = min((tree, *_grow_tree(problem, start.summing, time, budget)), key=_excess)
        tree = _settle(tree, budget.trials, budget.random)
        return None if tree.excess else tree.chosen()
    return _SubsetSearch(problem, time, able, bound_to, most, budget).meet(start)


def _grow_tree(
    problem: Problem, summing: frozenset[int], time: float, budget: _Budget
) -> tuple[MutableTree, ...]:
    """Build a tree switch by switch, each where it fits best; return none if one is too deep."""
    tree = MutableTree(problem, NumberedTree({}, summing), time, budget.work)
    return (tree,) if tree.attach_all(budget.random) else ()


def _excess(tree: MutableTree) -> int:
    return tree.excess


def _settle(tree: MutableTree, trials: int, random: Random) -> MutableTree:
    """Reattach switches elsewhere until there is no excess, or trials or work run out."""
    for trial in range(trials):
        if not tree.excess or tree.work.done:
            break
        v = _below(tree, random.choice(tree.overloaded()), random)
        if trial % _PULL_DOWN_EVERY == _PULL_DOWN_EVERY - 1:
            tree = _rebuilt(tree, v, random)
        elif v != tree.root:
            _reattach(tree, v, random)
    return tree


def _rebuilt(tree: MutableTree, v: int, random: Random) -> MutableTree:
    """Return the tree with some of its leaves reattached, among them one below a switch."""
    leaves = tree.leaves()
    if not leaves:
        return tree
    while tree.children[v]:
        v = random.choice(sorted(tree.children[v]))
    number = min(_MOST_ENDS, 1 + random.randrange(len(leaves)))
    changed = tree.copy()
    for leaf in {v, *random.sample(leaves, number)}:
        if changed.parent[leaf] >= 0 and not changed.children[leaf]:
            changed.detach(leaf)
    if not changed.attach_all(random, shuffle=random.choice((0.0, 1.0, 4.0))):
        return tree
    worse = (changed.excess, changed.frames) > (tree.excess, tree.frames)
    return tree if worse and not _accept_worse(changed.excess - tree.excess, random) else changed


@dataclass
class _SubsetSearch:
    """Search over sets of summing switches, where few may sum, with a tree for each set."""

    problem: Problem
    time: float
    able: frozenset[int]
    bound_to: frozenset[int]
    most: int
    budget: _Budget

    def meet(self, start: NumberedTree) -> NumberedTree | None:
        """Try sets near the best so far until a tree has no excess."""
        size = len(self.problem.switches)
        a_set = 20 + size
        tree = best = self._with(start)
        for _ in range(max(self.budget.trials // a_set, min(8, 4000 // size))):
            tree = self._placed(tree)
            if tree.excess and tree.excess < best.excess + self.problem.tasks[0].workers:
                tree = self._placed(_settle(tree, a_set, self.budget.random))
            if not tree.excess:
                return tree.chosen()
            if self.budget.work.done:
                break
            if tree.excess <= best.excess:
                best = tree
            tree = self._exchanged(best)
        return None

    def _placed(self, tree: MutableTree) -> MutableTree:
        """Return a tree, or the same one with other summing switches if that removes its excess."""
        if not tree.excess:
            return tree
        placed = place_within(self.problem, tree.chosen().parents, self.most, self.time)
        return tree if placed is None else min(tree, self._with(placed), key=_excess)

    def _with(self, chosen: NumberedTree) -> MutableTree:
        """Return a tree, or a new one for the same set, in which all switches sum that must."""
        tree = MutableTree(self.problem, chosen, self.time)
        others = sorted(tree.summing - self.bound_to, key=lambda v: (tree.out[v] - tree.meet[v], v))
        summing = self.bound_to.union(others[: self.most - len(self.bound_to)])
        for v in sorted(tree.summing ^ summing):
            tree.set_summing(v, v in summing)
        if not tree.excess:
            return tree
        grown = _grow_tree(self.problem, summing, self.time, self.budget)
        return min((tree, *grown), key=_excess)

    def _exchanged(self, tree: MutableTree) -> MutableTree:
        """Return a tree with one or two summing switches exchanged, preferably where flows meet."""
        random = self.budget.random
        summing = set(tree.summing)
        number = random.choice((1, 1, 2))
        free = sorted(summing - self.bound_to)
        for v in random.sample(free, min(number, len(free))):
            summing.discard(v)
        meeting = [v for v in sorted(self.able - summing) if tree.meet[v] > 1]
        others = sorted(self.able - summing)
        while len(summing) < self.most and others:
            v = random.choice(meeting if meeting and random.random() < 0.7 else others)
            summing.add(v)
            others.remove(v)
            meeting = [other for other in meeting if other != v]
        chosen = frozenset(summing)
        for grown in _grow_tree(self.problem, chosen, self.time, self.budget):
            return grown
        # If the rebuilt tree is too deep: the present shape is within the limit.
        shape = NumberedTree(tree.chosen().parents, chosen)
        return MutableTree(self.problem, shape, self.time, self.budget.work)


def _below(tree: MutableTree, v: int, random: Random) -> int:
    """Return a random switch below one."""
    while tree.children[v] and (v == tree.root or random.random() < 0.6):
        v = random.choice(sorted(tree.children[v]))
    return v


def _reattach(tree: MutableTree, v: int, random: Random) -> None:
    before = (tree.excess, tree.frames)
    old = tree.detach(v)
    path = tree.best_path(v, _NOISE * random.random(), random)
    if path is None or path == old:
        tree.attach(old)
        return
    tree.attach(path)
    worse = (tree.excess, tree.frames) > before
    if worse and not _accept_worse(tree.excess - before[0], random):
        tree.detach(v)
        tree.attach(old)


def _accept_worse(excess: int, random: Random) -> bool:
    """Return at random whether to continue from a tree with this much more excess."""
    return random.random() < 0.3 * math.exp(-max(excess, 0))


def improve_together(
    problem: Problem, chosen: Sequence[NumberedTree], bound: float, random: Random
) -> tuple[NumberedTree, ...]:
    """Search again for each tree given the others, while that makes the job faster."""
    best = list(chosen)
    time = problem.time(best)
    for _ in range(TURNS):
        before = time
        for number in range(len(best)):
            if time <= bound * (1 + SLACK):
                return tuple(best)
            alone = given_other_trees(problem, best, number)
            floor = time_bound(alone, alone.time([best[number]])).time
            found = improve(alone, [best[number]], max(bound, floor), random)
            if found is not None:
                trial = [*best[:number], found, *best[number + 1 :]]
                if problem.fits(trial) and problem.time(trial) < time * (1 - SLACK):
                    best, time = trial, problem.time(trial)
        if time >= before:
            break
    return tuple(best)


def drop_detours(problem: Problem, chosen: Sequence[NumberedTree]) -> tuple[NumberedTree, ...]:
    """Return trees as fast as these, without useless detours."""
    best = list(chosen)
    time = problem.time(best)
    random = Random(0)
    for number in range(len(best)):
        tree = MutableTree(given_other_trees(problem, best, number), best[number], time)
        for v in list(best[number].parents):
            if v == tree.root or not tree.inside(v) or tree.excess:
                continue
            before = tree.frames
            old = tree.detach(v)
            path = tree.best_path(v, 0.0, random) or old
            tree.attach(path)
            if (tree.excess, tree.frames) >= (0, before):
                tree.detach(v)
                tree.attach(old)
        trial = [*best[:number], tree.chosen(), *best[number + 1 :]]
        if problem.fits(trial) and problem.time(trial) <= time * (1 + SLACK):
            best = trial
    return tuple(best)


def given_other_trees(
    problem: Problem, chosen: Sequence[NumberedTree | None], number: int
) -> Problem:
    """Return the problem of task `number` given the load of the others' trees (None: none yet)."""
    loads: dict[int, float] = {}
    taken = [0] * len(problem.switches)
    summing: set[int] = set()
    for other, one in enumerate(chosen):
        if one is None or other == number:
            continue
        task = problem.tasks[other]
        for arc, load in problem.loads(task, one).items():
            loads[arc] = loads.get(arc, 0.0) + load
        for v in problem.used(task, one):
            taken[v] += 1
            summing.add(v)
    task, limits = problem.tasks[number], problem.limits
    able = [sums and taken[v] < problem.ranges[v] for v, sums in enumerate(task.can_sum)]
    most = limits.max_summing
    if most is not None and len(summing) >= most:
        # Switches that sum for other trees may sum for this one too: they count once.
        able = [sums and v in summing for v, sums in enumerate(able)]
        limits = replace(limits, max_summing=None)
    elif most is not None:
        limits = replace(limits, max_summing=most - len(summing))
    return problem.variant((replace(task, can_sum=tuple(able)),), loads, limits)
