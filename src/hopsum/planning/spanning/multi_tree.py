"""multi-tree: spanning trees with rates near the proved optimum of any algorithm.

Where every node is a worker, the strength of the network bounds the rate of any all-reduce, and
spanning trees reach it. Without limits the trees come from an exact packing (`equal_rates`), with
limits on their height from multiplicative weights and column generation (`low_packing`), at most K
of them by peeling trees off the network one after another (`tree_peeling`) and from a local search
over sets of K trees (`tree_search`). A linear program gives the rates of a set of trees, which
are then made exact. In small networks all spanning trees are enumerated: there the plan is optimal
for H, K and r as well, and the certificate says so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from time import monotonic, perf_counter

import numpy as np

from hopsum.collectives.plan import PlanError
from hopsum.network.units import format_si
from hopsum.planning.bounds.few_trees import bound_of_few, fractions_below, largest_determinant
from hopsum.planning.bounds.strength import strength
from hopsum.planning.model.forest import Certificate, Forest, ForestOptions, Verdict
from hopsum.planning.model.graph import PlanningGraph
from hopsum.planning.spanning.block_trees import BlockTrees
from hopsum.planning.spanning.equal_rates import (
    halved_rates,
    largest_rate,
    trees_of_rate,
    unit_rates,
)
from hopsum.planning.spanning.low_packing import LowPacking
from hopsum.planning.spanning.low_trees import LowTrees
from hopsum.planning.spanning.mtree import mtree_choice, tree_bandwidths
from hopsum.planning.spanning.spanning_trees import (
    Lengths,
    NumberedGraph,
    Tree,
    check_possible,
    limits_of,
)
from hopsum.planning.spanning.tree_choice import (
    NODES,
    Choice,
    choose_trees,
    exact_rates,
    fractional_bound,
)
from hopsum.planning.spanning.tree_enumeration import all_trees, count_trees
from hopsum.planning.spanning.tree_peeling import Peeling
from hopsum.planning.spanning.tree_search import Grow, TreeSearch, moves_for

FEW_TREES = 2000
"""Networks with no more spanning trees than this are enumerated."""
FEW_CHOICES = 150
"""Up to this many trees, branch and bound finds the best K in seconds."""
PEELED = 20_000
"""Nodes times edges of networks in which peeling takes much less than a second."""
PEELED_EDGES = 600
"""Likewise in seconds, for capacities without a useful common unit."""
PEELED_AT_ALL = 200_000
"""Nodes times edges above which K trees are not peeled: other methods take much less time."""
ATTEMPTS = 12
"""Numbers of trees, up to K, that the search starts from."""
MTREE_TIME = 0.4
"""Largest fraction of the time limit that the trees of [000][] may take."""
SMALL = 64
"""Edges of networks where a second search and an integer program take only seconds."""
CHOICE_TREES = 120
"""Size of the integer program's pool: the trees that the searches kept last."""
ROUNDING = 1 + 1e-6
"""Approximate accuracy of HiGHS's proofs, which use floating point."""

Rates = Mapping[Tree, Fraction]


def plan_multi_tree(graph: PlanningGraph, options: ForestOptions) -> Forest:
    """Return trees with rates within `options.gap` of the bound, or the best found.

    The same seed gives the same trees, unless the verdict is TIME_LIMIT. PlanError if no tree can
    meet the options; it names the cut or the node that prevents it.
    """
    started = perf_counter()
    planning = _MultiTreePlanner(graph, options, monotonic() + options.time_limit)
    rates, certificate = planning.plan()
    if not rates:
        raise PlanError(
            f"{graph.name}: no tree within both limits was found; relax max_height or max_delay"
        )
    trees = []
    for tree, rate in sorted(rates.items(), key=lambda item: (-item[1], item[0])):
        root = planning.numbered.best_root(tree, planning.limits)
        assert root is not None
        trees.append(planning.numbered.rated(tree, root, rate))
    throughput = sum(rates.values(), Fraction(0))
    verdict = Verdict.FEASIBLE
    if throughput >= certificate.bound * (1 - planning.gap):
        verdict = Verdict.OPTIMAL
    elif planning.late():
        verdict = Verdict.TIME_LIMIT
    return Forest("multi-tree", tuple(trees), certificate, verdict, perf_counter() - started)


class _MultiTreePlanner:
    """The state of planning one request."""

    def __init__(self, graph: PlanningGraph, options: ForestOptions, deadline: float) -> None:
        self.numbered = NumberedGraph(graph)
        self.options = options
        self.deadline = deadline
        self.gap = Fraction(options.gap)
        self.usable = [capacity >= options.min_rate for capacity in self.numbered.capacity]
        self.limits = limits_of(options)
        self.roots = check_possible(self.numbered, options)
        self.certificate = strength(graph)
        self.strength = self.certificate.bound
        self.groups = self.certificate.parts
        if self.most is not None:
            self.certificate = bound_of_few(graph, self.most, self.certificate)
        self.best: Rates = {}
        self.size = self.numbered.size * len(self.numbered.ends)

    def late(self) -> bool:
        """Return whether the time is up."""
        return monotonic() > self.deadline

    @property
    def most(self) -> int | None:
        """Return how many trees are allowed: K, or as many as fit at the minimum rate."""
        options = self.options
        if not options.min_rate:
            return options.max_trees
        fit = max(1, int(self.strength / options.min_rate))
        return fit if options.max_trees is None else min(fit, options.max_trees)

    def good(self) -> bool:
        """Return whether the best plan is within the requested gap of the strength."""
        enough = self.certificate.bound * (1 - self.gap)
        return sum(self.best.values(), Fraction(0)) >= enough

    def offer(self, rates: Rates | None) -> None:
        """Keep rates if they are faster than the best so far, or as fast with fewer trees."""
        if not rates:
            return
        fresh, now = (sum(r.values(), Fraction(0)) for r in (rates, self.best))
        if fresh > now or (fresh == now and len(rates) < len(self.best)):
            self.best = rates

    def plan(self) -> tuple[Rates, Certificate]:
        """Return the trees with rates, and the certificate of the bound."""
        free = self.limits.none and self.most is None
        if free:
            self._offer_many()
        # In large networks without limits, document 000's trees gain less than the gap.
        if sum(self.best.values(), Fraction(0)) < self.certificate.bound and not (
            free and self.good() and self.size > PEELED
        ):
            self._offer_mtree([None])
        self._improve()
        short = sum(self.best.values(), Fraction(0)) < self.certificate.bound
        if short and len(self.numbered.ends) <= SMALL:
            self._offer_mtree(tree_bandwidths(self.numbered, self.options)[1:])
        return self.best, self.certificate

    def _improve(self) -> None:
        """Offer faster trees than the present ones, by the methods that suit the options."""
        if count_trees(self.numbered) < FEW_TREES + 0.5:
            self._enumerate()
            return
        if not self.good():
            if not self.limits.none:
                self._offer_low_trees()
            elif self.most is not None:
                self._offer_equal_rates()
        if not self.good() and self.most is not None:
            self._search()

    def _offer_mtree(self, bandwidths: Sequence[Fraction | None]) -> None:
        """Offer the trees of [000][], so that no plan of a small network is slower than mtree's."""
        deadline = monotonic() + MTREE_TIME * self.options.time_limit
        enough = self.certificate.bound * (1 - self.gap)
        try:
            choice = mtree_choice(self.numbered, self.options, deadline, bandwidths, enough)
        except PlanError:
            return  # it found no tree, or does not support these limits
        if all(self._fits(tree) for tree in choice.rates):
            self.offer(choice.rates)

    def _fits(self, tree: Tree) -> bool:
        return (
            self.limits.none or self.numbered.best_root(tree, self.limits) is not None
        ) and self._wide(tree)

    def _wide(self, tree: Tree) -> bool:
        least = self.options.min_rate
        return not least or min(self.numbered.capacity[edge] for edge in tree) >= least

    def _offer_best_of(self, rates: Rates) -> None:
        """Offer as many of some trees as are allowed, those with the largest rates."""
        most = self.most
        if most is None:
            self.offer(rates)
            return
        widest = sorted(rates, key=lambda tree: -rates[tree])
        for count in range(min(most, len(rates)), 0, -1):
            found = exact_rates(self.numbered, widest[:count], self.options.min_rate)
            if found is not None:
                self.offer(found)
                return

    def _offer_many(self) -> None:
        """Offer any number of trees of any height, few where that takes little time."""
        numbered, bound, gap = self.numbered, self.strength, self.gap
        seed, deadline, edges = self.options.seed, self.deadline, len(self.numbered.ends)
        if self.size > PEELED:
            self.offer(unit_rates(numbered, bound, gap, seed=seed, deadline=deadline))
        if not self.good() and (self.size <= PEELED or edges <= PEELED_EDGES):
            none = Fraction(0)
            peeling = Peeling(numbered, most=None, least=none, grow=self._shortest, seed=seed)
            self.offer(peeling.trees(bound, deadline))
        if not self.good():
            self.offer(halved_rates(numbered, bound, gap, seed=seed, deadline=deadline))

    def _offer_equal_rates(self) -> None:
        """Offer few trees of one rate, without limits on their height."""
        assert self.most is not None
        numbered, seed, deadline = self.numbered, self.options.seed, self.deadline
        bound = self.certificate.bound
        equal = unit_rates(numbered, bound, self.gap, seed=seed, deadline=deadline)
        self._offer_best_of(equal or {})
        # From few trees upwards, so that the smallest good number is kept.
        for count in range(self.most, 0, -math.ceil(self.most / ATTEMPTS))[::-1]:
            if self.good() or self.late():
                return
            rate = largest_rate(numbered, count, self.strength)
            rates = trees_of_rate(numbered, rate, count, seed=seed, deadline=deadline)
            self._offer_best_of(rates or {})

    def _offer_peeled(self, grow: Grow) -> None:
        """Offer trees peeled off the network one after another, for several total rates."""
        assert self.most is not None
        options = self.options
        peeling = Peeling(
            self.numbered, most=self.most, least=options.min_rate, grow=grow, seed=options.seed
        )
        left = peelings_for(self.numbered)
        while left:
            for rate in self._rates_to_peel():
                if self.good() or self.late() or not left:
                    return
                left -= 1
                rates = peeling.trees(rate, self.deadline)
                self.offer(rates)
                self.offer(exact_rates(self.numbered, list(rates), options.min_rate))

    def _rates_to_peel(self) -> Iterator[Fraction]:
        """Return the total rates to try with few trees, largest first; then the midpoint."""
        assert self.most is not None
        unit = self.numbered.unit
        bound = self.certificate.bound
        for part in fractions_below(self.strength / unit, largest_determinant(self.most)):
            if sum(self.best.values(), Fraction(0)) < part * unit <= bound:
                yield part * unit
        yield (sum(self.best.values(), Fraction(0)) + bound) / 2

    def _grow_within(self) -> Grow | None:
        """Return the function that makes short trees within the limits; None if there are none."""
        if self.limits.none:
            return self._shortest
        low = self._low_trees()
        turns = itertools.cycle(low.roots)
        return (lambda lengths: low.short_tree(lengths, next(turns))) if low.roots else None

    def _shortest(self, lengths: Lengths) -> Tree:
        blocked = float(lengths.sum()) + 1.0
        return tuple(self.numbered.minimum_tree(np.where(self.usable, lengths, blocked)).tolist())

    def _low_trees(self) -> LowTrees:
        return LowTrees(self.numbered, self.limits, self.roots, self.usable)

    def _offer_low_trees(self) -> None:
        """Offer trees within the limits on their height, if there are any."""
        packing = LowPacking(self.numbered, self._low_trees())
        if not packing.low.roots:
            return
        for tree in self.best:
            packing.add(tree)
        packing.add_light_trees(self.deadline)
        packing.generate(self.certificate.bound * (1 - self.gap), self.deadline)
        self._offer_best_of(packing.rates())

    def _search(self) -> None:
        """Improve the best by peeling and local search, then choose among all trees come across."""
        assert self.most is not None
        small = len(self.numbered.ends) <= SMALL
        grow = self._grow_within()
        if grow is None:
            return
        self._offer_peeled(grow)
        if not self.good():
            self._choose_between_blocks()
        if self.good():
            return
        search = TreeSearch(
            self.numbered,
            most=self.most,
            least=float(self.options.min_rate / max(self.numbered.capacity)),
            grow=grow,
            fits=self._fits,
            seed=self.options.seed,
        )
        starts = [tuple(self.best) or (grow(1.0 / self.numbered.shares),)]
        if small:
            # Few good trees are often a local optimum: random ones lead out of it.
            draw = np.random.default_rng(self.options.seed)
            lengths = draw.random((self.most, len(self.numbered.ends)))
            starts.append(tuple(dict.fromkeys(grow(row) for row in lengths)))
        for start in starts:
            trees = search.improve(
                start,
                enough=float(self.certificate.bound * (1 - self.gap) / max(self.numbered.capacity)),
                moves=moves_for(self.numbered),
                deadline=self.deadline,
            )
            self.offer(exact_rates(self.numbered, trees, self.options.min_rate))
        if self.good() or not small or self.late():
            return
        pool = dict.fromkeys([*self.best, *list(search.visited)[-CHOICE_TREES:]])
        self._choose(list(pool))

    def _choose_between_blocks(self) -> None:
        """Offer the best trees between the groups that prove the strength: they bound all plans."""
        assert self.most is not None
        blocks = BlockTrees(self.numbered, self.groups)
        if not 1 < blocks.count <= FEW_CHOICES:
            return
        options = self.options
        choice = blocks.choose(
            max_trees=self.most,
            min_rate=options.min_rate,
            gap=options.gap,
            seed=options.seed,
            deadline=self.deadline,
        )
        self._tighten(
            "blocks",
            choice.bound * ROUNDING,
            f"by branch and bound over the {blocks.count} trees between {len(self.groups)} groups "
            "of nodes, of which every tree holds one",
        )
        trees = [tree for tree in blocks.continued(choice.rates) if self._fits(tree)]
        self.offer(exact_rates(self.numbered, trees, options.min_rate))

    def _choose(self, pool: list[Tree], nodes: int = NODES) -> Choice:
        choice = choose_trees(
            self.numbered,
            pool,
            max_trees=self.options.max_trees,
            min_rate=self.options.min_rate,
            gap=self.options.gap,
            seed=self.options.seed,
            deadline=self.deadline,
            start=self.best,
            nodes=nodes,
        )
        self.offer(choice.rates)
        return choice

    def _enumerate(self) -> None:
        """Offer the optimum over all spanning trees, and its certificate if that is tighter."""
        trees = [tree for tree in all_trees(self.numbered) if self._fits(tree)]
        if not trees:
            raise PlanError(
                f"{self.numbered.graph.name}: no spanning tree is within max_height and max_delay "
                "at once (all were tried); ask for more of one"
            )
        if not self.limits.none:
            bound = fractional_bound(self.numbered, trees)
            self._tighten(
                "enumeration", bound, f"by the duals of the rates of all {len(trees)} trees so low"
            )
        if self.most is None:
            self.offer(exact_rates(self.numbered, trees))
            return
        if self.limits.none:
            self._offer_equal_rates()
        if not self.good() and len(trees) > FEW_CHOICES:
            self._search()
        elif not self.good():
            choice = self._choose(trees, nodes=2**31 - 1)
            self._tighten(
                "enumeration",
                choice.bound * ROUNDING,
                f"by branch and bound over all {len(trees)} trees within the limits",
            )

    def _tighten(self, kind: str, bound: Fraction | float, why: str) -> None:
        """Adopt a tighter bound; a search that had no time knows only an infinite one."""
        if bound < self.certificate.bound:
            text = f"no plan is faster than {format_si(Fraction(bound))}: {why}"
            self.certificate = Certificate(kind, Fraction(bound), (), text)


def peelings_for(numbered: NumberedGraph) -> int:
    """Return how often to peel a network: each peeling takes nodes times edges, or more."""
    size = numbered.size * len(numbered.ends)
    return 0 if size > PEELED_AT_ALL else max(1, min(40, PEELED // size))
