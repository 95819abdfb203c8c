"""Rounding of a solver's numbers to exact weights of cuts."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from hopsum.planning.bounds.cut_proof import CutDirections, CutWeights
from hopsum.planning.bounds.proportion import whole_proportion
from hopsum.planning.model.graph import PlanningGraph

_DENOMINATORS = (12, 120, 2520, 10**5, 10**9)
_NOTHING = 1e-9


def rounded_weights(
    graph: PlanningGraph,
    cuts: Mapping[frozenset[int], float],
    potentials: Mapping[str, float],
    roots: tuple[str, ...],
    ways: CutDirections,
) -> list[CutWeights]:
    """Yield exact weights near the given ones, in several roundings.

    Only the ratios of weights count: they are whole numbers here.
    """
    some = (cut for cut, weight in cuts.items() if weight > _NOTHING)
    kept = {cut: cuts[cut] for cut in sorted(some, key=lambda cut: (len(cut), sorted(cut)))}
    parts = tuple(tuple(graph.nodes[node] for node in sorted(cut)) for cut in kept)
    found = []
    for unit in (1.0, max(kept.values(), default=1.0)):
        for denominator in _DENOMINATORS:
            whole = whole_proportion((*kept.values(), *potentials.values()), unit, denominator)
            z, p = whole[: len(kept)], whole[len(kept) :]
            found.append(
                CutWeights(
                    tuple(part for part, value in zip(parts, z, strict=True) if value),
                    tuple(Fraction(value) for value in z if value),
                    {n: Fraction(value) for n, value in zip(potentials, p, strict=True) if value},
                    roots,
                    ways,
                )
            )
    return found
