"""Choice of trees from a pool, with exact rates ([000 step 3][000]): at most K, none slower than r.

The program: maximise the sum of x_T such that, for each edge, the x_T of its trees sum to at most
its capacity; r z_T <= x_T <= c_T z_T with c_T the slowest edge of T; the z_T, 0 or 1, sum to at
most K (Luo, Wang and Xing, TNSE 2024, equation 1). HiGHS answers in floating point; the rates are
made exact afterwards: replaced by nearby fractions of small denominators where these fit, else
rounded down, then raised by what the edges have left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from time import monotonic

from hopsum.planning.model.column_generation import Packing
from hopsum.planning.model.linear_program import LinearProgram, Status
from hopsum.planning.spanning.spanning_trees import NumberedEdges, Tree

GRAIN = 10**12
"""Rates that are not small fractions are integer multiples of the largest capacity / GRAIN."""
SMALL_DENOMINATORS = (60, 2520)
NODES = 100
"""Limit of branch and bound in steps, since a time limit would make results machine-dependent."""
_NEAR = 1e-9


@dataclass(frozen=True)
class Choice:
    """Trees with rates. `bound`: by the program, no choice from the same pool is faster.

    `in_time`: the time limit did not affect it.
    """

    rates: Mapping[Tree, Fraction]
    bound: float = float("inf")
    in_time: bool = True

    @property
    def throughput(self) -> Fraction:
        """Return the sum of the rates."""
        return sum(self.rates.values(), Fraction(0))


def exact_rates(
    numbered: NumberedEdges, trees: Sequence[Tree], minimum: Fraction = Fraction(0)
) -> dict[Tree, Fraction] | None:
    """Return rates of at least `minimum` with the largest sum; None if the trees do not fit.

    Trees of rate 0 are omitted. Optimal up to the program's rounding; the rates are exact.
    """
    if not trees:
        return {}
    left = residual(numbered, dict.fromkeys(trees, minimum))
    if min(left) < 0:
        return None
    largest = max(numbered.capacity)
    packed = Packing((float(capacity / largest) for capacity in left), trees).solve()
    found = [0.0] * len(trees) if packed is None else [max(0.0, float(x)) for x in packed.rates]
    extra = _exact(numbered, found, trees, left)
    rates = {tree: minimum + more for tree, more in zip(trees, extra, strict=True)}
    return {tree: rate for tree, rate in raise_rates(numbered, rates).items() if rate}


def _exact(
    numbered: NumberedEdges,
    values: Sequence[float],
    trees: Sequence[Tree],
    left: Sequence[Fraction],
) -> list[Fraction]:
    """Return exact rates near approximate ones (in largest capacities) that fit the residuals."""
    largest = max(numbered.capacity)
    for unit, denominator in product((largest, numbered.unit), SMALL_DENOMINATORS):
        scale = float(largest / unit)
        near = [Fraction(value * scale).limit_denominator(denominator) for value in values]
        if all(abs(float(a) / scale - b) < _NEAR for a, b in zip(near, values, strict=True)):
            rates = [unit * value for value in near]
            if min(_left_by(rates, trees, left)) >= 0:
                return rates
    rates = [largest * Fraction(int(value * GRAIN), GRAIN) for value in values]
    over = _left_by(rates, trees, left)
    for number, tree in enumerate(trees):
        # The program may exceed capacities slightly; the excess is removed.
        back = min(rates[number], max(Fraction(0), -min(over[edge] for edge in tree)))
        rates[number] -= back
        for edge in tree if back else ():
            over[edge] += back
    return rates


def _left_by(
    rates: Iterable[Fraction], trees: Iterable[Tree], capacity: Iterable[Fraction]
) -> list[Fraction]:
    left = list(capacity)
    for tree, rate in zip(trees, rates, strict=True):
        for edge in tree if rate else ():
            left[edge] -= rate
    return left


def residual(numbered: NumberedEdges, rates: Mapping[Tree, Fraction]) -> list[Fraction]:
    """Return the residual capacity of every edge under trees; negative where they do not fit."""
    return _left_by(rates.values(), rates, numbered.capacity)


def raise_rates(numbered: NumberedEdges, rates: Mapping[Tree, Fraction]) -> dict[Tree, Fraction]:
    """Return the rates of fitting trees, each raised in turn by its edges' residual capacity."""
    left = residual(numbered, rates)
    result = {}
    for tree, rate in rates.items():
        more = min(left[edge] for edge in tree)
        result[tree] = rate + more
        for edge in tree if more else ():
            left[edge] -= more
    return result


def fractional_bound(numbered: NumberedEdges, trees: Sequence[Tree]) -> Fraction:
    """Return an upper bound on the sum of rates of these trees: exact, by the program's duals.

    For lengths l >= 0 of the edges, a tree of rate x uses x l(T) of the sum of c_e l_e, so all
    rates together are at most this sum / the shortest tree's length. The duals are nearly the best
    lengths.
    """
    packed = Packing(numbered.shares, trees).solve()
    assert packed is not None
    lengths = [round(GRAIN * float(price)) for price in packed.prices]
    shortest = min(sum(lengths[edge] for edge in tree) for tree in trees)
    offered = sum(
        (capacity * length for capacity, length in zip(numbered.capacity, lengths, strict=True)),
        Fraction(0),
    )
    return offered / shortest


def choose_trees(
    numbered: NumberedEdges,
    pool: Sequence[Tree],
    *,
    max_trees: int | None,
    min_rate: Fraction,
    gap: float,
    seed: int,
    deadline: float,
    start: Mapping[Tree, Fraction] | None = None,
    nodes: int = NODES,
) -> Choice:
    """Choose at most `max_trees` trees of a pool, each of at least `min_rate`, for throughput.

    `start`: an initial choice of trees in the pool. `deadline` as of `time.monotonic`; `nodes`:
    HiGHS's limit of branch-and-bound nodes.
    """
    largest = max(numbered.capacity)
    floor = float(min_rate / largest)
    program = LinearProgram(
        maximise=True,
        time_limit=max(0.01, deadline - monotonic()),
        gap=gap,
        seed=seed,
        nodes=nodes,
    )
    for share in numbered.shares:
        program.add_constraint({}, upper=float(share))
    rate_of = [program.add_variable(1.0, rows=dict.fromkeys(tree, 1.0)) for tree in pool]
    chosen_of = [program.add_variable(upper=1.0, integer=True) for _ in pool]
    for tree, rate, chosen in zip(pool, rate_of, chosen_of, strict=True):
        slowest = float(min(numbered.shares[edge] for edge in tree))
        program.add_constraint({rate: 1.0, chosen: -slowest}, upper=0.0)
        if floor > 0:
            program.add_constraint({rate: 1.0, chosen: -floor}, lower=0.0)
    if max_trees is not None:
        program.add_constraint(dict.fromkeys(chosen_of, 1.0), upper=float(max_trees))
    if start:
        program.suggest(
            {
                column: value
                for tree, rate, chosen in zip(pool, rate_of, chosen_of, strict=True)
                if tree in start
                for column, value in ((rate, float(start[tree] / largest)), (chosen, 1.0))
            }
        )
    solution = program.solve()
    in_time = solution.status is not Status.TIME_LIMIT
    bound = solution.bound * float(largest)
    chosen_trees = (
        []
        if solution.values is None
        else [
            tree
            for tree, rate, chosen in zip(pool, rate_of, chosen_of, strict=True)
            if solution.values[chosen] > 0.5 and solution.values[rate] > _NEAR
        ]
    )
    rates = exact_rates(numbered, chosen_trees, min_rate) if chosen_trees else None
    best = Choice(rates or {}, bound, in_time)
    if start and sum(start.values(), Fraction(0)) > best.throughput:
        best = Choice(dict(start), bound, in_time)
    return best
