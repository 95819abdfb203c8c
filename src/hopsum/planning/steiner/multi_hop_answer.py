"""The answer of the multi-hop planner: routes, and a bound on all routes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hopsum.planning.model.forest import Certificate, Verdict
from hopsum.planning.model.routes import Route


@dataclass(frozen=True)
class MultiHopAnswer:
    """Routes, one per server, with their rate and bound.

    `rate`: at which every worker may send, in units of the links' bandwidths (frames of the job
    over the time of the busiest link; with all links unlimited, 1 / the frames on the busiest).
    `certificate`: proves that no routes are faster than its bound.
    """

    routes: tuple[Route, ...]
    rate: Fraction
    certificate: Certificate
    verdict: Verdict
    seconds: float

    @property
    def bound(self) -> Fraction:
        """Return the rate that no routes exceed."""
        return self.certificate.bound

    @property
    def gap(self) -> float:
        """Return the relative gap to the bound: 0 is proved optimal."""
        return float(1 - self.rate / self.bound)
