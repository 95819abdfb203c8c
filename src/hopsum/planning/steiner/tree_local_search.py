"""A tree that local search changes: a switch, with its subtree, moves below another one.

The search of `multi_hop_heuristic` asks whether a tree can take at most a given time. The load of
links beyond what they carry in that time is the *excess*, in flows; the answer is a tree without
excess.
"""

from __future__ import annotations

import heapq
import math
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from hopsum.planning.steiner.tree_problem import SLACK, NumberedTree, Problem

Path = list[int]
"""Path from a switch to the one below which it is attached."""


@dataclass(slots=True)
class Work:
    """How many arcs a search may still examine; a count, so that results are reproducible."""

    arcs: float = math.inf

    @property
    def done(self) -> bool:
        """Return whether none are left."""
        return self.arcs <= 0


class MutableTree:
    """The tree of a problem's only task, with `excess` and `frames` over all its links.

    `work` counts the arcs that `best_path` examines; the tree stays usable when none are left.
    """

    def __init__(
        self, problem: Problem, chosen: NumberedTree, time: float, work: Work | None = None
    ) -> None:
        self.problem = problem
        self.work = work or Work()
        self.task = problem.tasks[0]
        self.root = self.task.root
        count = len(problem.switches)
        self.summing = set(chosen.summing)
        self.room = [
            math.floor((capacity * time - load) / self.task.share * (1 + SLACK) + SLACK)
            if math.isfinite(capacity * time)
            else self.task.workers
            for capacity, load in zip(problem.capacity, problem.load, strict=True)
        ]
        self.room[self.task.exit] = min(self.room[self.task.exit], self.task.max_flows)
        # The other direction, for results; the server's own link has capacity for them.
        self.back_room = [
            self.room[back] if back >= 0 else self.task.workers for back in problem.back
        ]
        # Excess outweighs all the frames that a detour can cost.
        self.weight = float(self.task.workers * problem.limits.max_switches)
        self.parent = [-1] * count
        self.children: list[set[int]] = [set() for _ in range(count)]
        self.meet = [0] * count
        self.out = [0] * count
        self.below = [0] * count
        self.excess = 0
        self.frames = 0
        for v, parent in chosen.parents.items():
            self.parent[v] = parent
            self.children[parent].add(v)
        meet = problem.inflows(self.task, chosen)
        below = problem.inflows(self.task, NumberedTree(chosen.parents, frozenset()))
        for v, flows in meet.items():
            self.meet[v], self.below[v] = flows, below[v]
            self.out[v] = problem.leaves_on(flows, v in self.summing)
            self._count(v, 1)

    def chosen(self) -> NumberedTree:
        """Return the present tree."""
        parents = {v: parent for v, parent in enumerate(self.parent) if parent >= 0}
        return NumberedTree(parents, frozenset(self.summing))

    def copy(self) -> MutableTree:
        """Return an independent copy of the tree."""
        twin = copy(self)
        for name in ("parent", "meet", "out", "below"):
            setattr(twin, name, list(getattr(self, name)))
        twin.children = [set(below) for below in self.children]
        twin.summing = set(self.summing)
        return twin

    def attach_all(self, random: Random, shuffle: float = 0.0) -> bool:
        """Attach the workers' switches that are not in the tree yet, those with most flows first.

        `shuffle`: differences of up to this many flows are ignored. False if a switch would be too
        deep anywhere.
        """
        task = self.task
        missing = [v for v, count in enumerate(task.local) if count and not self.inside(v)]
        for v in missing:
            self.meet[v] = self.below[v] = task.local[v]
            self.out[v] = self.problem.leaves_on(task.local[v], v in self.summing)
        order = {v: shuffle * random.random() - self.out[v] for v in missing}
        for v in sorted(missing, key=lambda v: (order[v], v)):
            if not self.inside(v):
                path = self.best_path(v, 0.0, random)
                if path is None:
                    return False
                self.attach(path)
        return True

    def leaves(self) -> list[int]:
        """Return the leaves among the switches."""
        return [v for v, near in enumerate(self.children) if not near and self.parent[v] >= 0]

    def overloaded(self) -> list[int]:
        """Return the switches whose link towards the root has excess."""
        return [v for v, out in enumerate(self.out) if out and self._over(v, out, self.below[v])]

    def bound_to_sum(self) -> frozenset[int]:
        """Return the switches where more flows begin than any of their links can carry."""
        widest = {
            v: max((self.room[arc] for arc in arcs), default=0)
            for v, arcs in enumerate(self.problem.leaving)
        }
        widest[self.root] = self.room[self.task.exit]
        return frozenset(v for v, room in widest.items() if self.task.local[v] > room)

    def inside(self, v: int) -> bool:
        """Return whether a switch is in the tree."""
        return v == self.root or self.parent[v] >= 0

    def under(self, v: int) -> list[int]:
        """Return a switch and those below it."""
        found = [v]
        for node in found:
            found += self.children[node]
        return found

    def set_summing(self, v: int, sums: bool) -> None:
        """Set whether a switch sums."""
        (self.summing.add if sums else self.summing.discard)(v)
        if self.inside(v):
            self._change(v, 0, 0)

    def detach(self, v: int) -> Path:
        """Detach a switch, and those above it that are then unused; return its former path."""
        self._count(v, -1)
        path = [v]
        flows, below = self.out[v], self.below[v]
        while True:
            node = self.parent[path[-1]]
            self.children[node].discard(path[-1])
            self.parent[path[-1]] = -1
            path.append(node)
            if node == self.root or self.children[node] or self.task.local[node]:
                break
            self._count(node, -1)
            # It had no other child: all flows that left it came from below.
            flows = self.out[node]
            self.meet[node] = self.out[node] = self.below[node] = 0
        self._change(path[-1], -flows, -below)
        return path

    def attach(self, path: Path) -> None:
        """Attach a detached switch below the end of a path."""
        for v, node in pairwise(path):
            self.parent[v] = node
            self._count(v, 1)
            self.children[node].add(v)
            if node == path[-1]:
                self._change(node, self.out[v], self.below[v])
                break
            self.meet[node] = self.task.local[node] + self.out[v]
            self.below[node] = self.task.local[node] + self.below[v]
            self.out[node] = self.problem.leaves_on(self.meet[node], node in self.summing)

    def best_path(self, v: int, noise: float, random: Random) -> Path | None:
        """Return the best path to attach a detached switch: least excess, then fewest frames.

        A shortest-path search in which switches that sum reduce the flows; `noise` raises links'
        costs by up to that factor at random. None if no place is near enough to the root.
        """
        problem, parent, root, room = self.problem, self.parent, self.root, self.room
        head, leaving, back_room = problem.head, problem.leaving, self.back_room
        local, summing, weight = self.task.local, self.summing, self.weight
        below = self.below[v]
        down = below if self.task.unicast else 1
        deepest = problem.limits.max_switches - self._height(v)
        # Heap entries: cost, steps, flows that leave, switch, and whether it is the place.
        heap: list[tuple[float, int, int, int, bool]] = [(0.0, 0, self.out[v], v, False)]
        back: dict[int, int] = {}
        cheapest = {v: 0.0}
        closed = set(self.under(v)) - {v}
        best = math.inf
        while heap:
            cost, steps, flows, node, is_place = heapq.heappop(heap)
            if is_place:
                path = [node]
                while path[-1] != v:
                    path.append(back[path[-1]])
                return path[::-1]
            if node in closed:
                continue
            closed.add(node)
            self.work.arcs -= len(leaving[node])
            for arc in leaving[node]:
                peer = head[arc]
                if peer in closed:
                    continue
                # As `_excess`, inlined: the search spends most of its time here.
                over = max(flows - room[arc], 0) + max(down - back_room[arc], 0)
                step = flows + weight * over
                if noise:
                    step *= 1 + noise * random.random()
                reached = cost + step
                if reached >= best or reached >= cheapest.get(peer, math.inf):
                    continue
                if peer == root or parent[peer] >= 0:
                    if steps + self._level(peer) >= deepest:
                        continue
                    cheapest[peer] = reached
                    total = reached + self._price_above(peer, flows, below)
                    if total > best:
                        continue
                    best = total
                    entry = (total, steps + 1, flows, peer, True)
                else:
                    if steps + 1 >= deepest:
                        continue
                    passed = problem.leaves_on(flows + local[peer], peer in summing)
                    if reached + passed > best:
                        continue
                    cheapest[peer] = reached
                    entry = (reached, steps + 1, passed, peer, False)
                back[peer] = node
                heapq.heappush(heap, entry)
        return None

    def _level(self, v: int) -> int:
        level = 1
        while v != self.root:
            level, v = level + 1, self.parent[v]
        return level

    def _height(self, v: int) -> int:
        """Return the number of switches on the longest path down from one, without itself."""
        height, layer = -1, {v}
        while layer:
            height += 1
            layer = {child for node in layer for child in self.children[node]}
        return height

    def _arc(self, v: int) -> int:
        return self.task.exit if v == self.root else self.problem.arc[v, self.parent[v]]

    def _excess(self, arc: int, flows: int, below: int) -> int:
        down = below if self.task.unicast else 1
        return max(flows - self.room[arc], 0) + max(down - self.back_room[arc], 0)

    def _over(self, v: int, flows: int, below: int) -> int:
        return self._excess(self._arc(v), flows, below) if flows else 0

    def _price_above(self, v: int, flows: int, below: int) -> float:
        """Return the cost from a switch of the tree to the server of additional flows."""
        price = 0.0
        while flows or self.task.unicast:
            before = self.out[v]
            after = self.problem.leaves_on(self.meet[v] + flows, v in self.summing)
            flows = after - before
            more = self._over(v, after, self.below[v] + below) - self._over(
                v, before, self.below[v]
            )
            price += flows + self.weight * more
            if v == self.root:
                break
            v = self.parent[v]
        return max(price, 0.0)

    def _count(self, v: int, sign: int) -> None:
        """Add the link above a switch to the totals, or subtract it."""
        self.excess += sign * self._over(v, self.out[v], self.below[v])
        self.frames += sign * self.out[v]

    def _change(self, v: int, flows: int, below: int) -> None:
        """Add flows of more workers at a switch of the tree, and update the links above."""
        while True:
            self._count(v, -1)
            before = self.out[v]
            self.meet[v] += flows
            self.below[v] += below
            self.out[v] = self.problem.leaves_on(self.meet[v], v in self.summing)
            self._count(v, 1)
            flows = self.out[v] - before
            if v == self.root or not (flows or below):
                return
            v = self.parent[v]
