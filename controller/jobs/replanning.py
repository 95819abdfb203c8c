"""When jobs are re-planned: every few iterations, and on changes of the network's state ([002][]).

Replacing a plan is expensive: everything in flight is sent again in the new epoch. So three
conditions apply. A change counts only if some link differs from the last look by more than a band
for some time (a burst does not); looks are separated by a pause; and a new plan is adopted only if
it is faster by a margin. A load that oscillates inside the band, or faster than `hold`, never
causes a look; a slower one causes at most one look per `pause`, and an epoch only for a real gain.
An epoch in which no iteration completes doubles the pause: what a job sends again at its start may
look like the load of others, and must not keep it from ever getting further.

Failed links and switches are planned around at once, independently of this module.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hopsum.planning.model.demand import DirectedLink


class Cause(StrEnum):
    """Reason for reconsidering a job's plan."""

    ITERATIONS = "regular look at the links"
    """Enough iterations have passed since the last look."""
    CHANGE = "change of what is free on links"
    """The free share of some link has differed from that at the last look for long enough."""
    SLOTS = "return of slots"
    """Switches where the job was preempted have slots for it again."""
    RECOVERY = "recovery"
    """Switches or links that were unreachable when its plan was made are back."""


@dataclass(frozen=True, slots=True)
class ReplanningPolicy:
    """Options: when to look, and when a plan is worth an epoch. Times in seconds."""

    live: bool = True
    """Whether plans are made for what is free of the links at the time; if not, a job is planned
    once, as if it were alone, unless something fails."""
    every: int = 50
    """Iterations between two looks; 0: only on a change."""
    band: float = 0.2
    """Minimum change, as a fraction of a link's bandwidth."""
    hold: float = 3.0
    """Minimum duration of a change."""
    pause: float = 10.0
    """Minimum time between two looks."""
    gain: float = 0.1
    """Minimum fraction of an iteration's time that a new plan must save."""

    @property
    def period(self) -> int:
        """Iterations between two boundaries of an embedding (`JobPlan.period`); 0: it has none."""
        return max(2, self.every) if self.live and self.every else 0

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ValueError(f"every {self.every}: expected 0 iterations or more")
        for name in ("band", "gain"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected 0 to below 1")
        for name in ("hold", "pause"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)}: expected 0 s or more")

    def worth(self, kept: float, new: float) -> bool:
        """Whether a new plan is worth an epoch.

        `kept`, `new`: seconds that an iteration takes by the present plan and by the new one, both
        in the present state (infinite: not at all). ValueError if one is negative or NaN.
        """
        for seconds in (kept, new):
            if not seconds >= 0:
                raise ValueError(f"an iteration of {seconds} s: expected 0 s or more")
        if math.isinf(kept):
            return not math.isinf(new)
        return new < (1 - self.gain) * kept


Shares = Mapping[DirectedLink, float]
"""Free part of each directed link's bandwidth, 0 to 1."""


class Replanner:
    """One job's. `iteration`, `shares`, `now`: as its present plan was made.

    Call `due` on every change. If it gives a cause, make a plan for the present state, ask
    `ReplanningPolicy.worth` whether it is worth an epoch, call `looked` either way, and `replaced`
    if it was.
    """

    def __init__(
        self,
        policy: ReplanningPolicy,
        iteration: int,
        shares: Shares,
        now: float,
    ) -> None:
        self.policy = policy
        self._iteration = iteration
        self._shares = dict(shares)
        self._at = now
        self._since: float | None = None
        """Time since which some link has been out of its band."""
        self._replaced_at: int | None = None
        """Iteration in which the plan was replaced last."""
        self._fruitless = 0
        """Epochs in a row, the present one included, that began in that iteration."""
        self.measured = now
        """Time of the last measurement."""
        self.sent = 0
        """Bytes that the job's hosts had sent by then."""
        self.rate = 0.0
        """Rounds per second by what they send, smoothed as the load of links is."""
        self.recut_at = now
        """Time when a boundary was considered last."""

    def smooth(self, rate: float, now: float, smoothing: float) -> None:
        """Process a measured rate, in rounds per second."""
        weight = -math.expm1((self.measured - now) / smoothing) if self.rate else 1.0
        self.rate += weight * (rate - self.rate)

    def recut_due(self, now: float) -> bool:
        """Whether the next boundary should be considered: the pause since the last one is over."""
        return now - self.recut_at >= self.policy.pause

    def due(
        self,
        iteration: int,
        shares: Shares,
        now: float,
        slots: bool = False,
        recovered: bool = False,
    ) -> Cause | None:
        """Return the reason to evaluate the plan now; None: there is none.

        `slots`: there are some again at switches that the job had left. `recovered`: switches or
        links that its plan had to avoid are back.
        """
        policy = self.policy
        if not self.changed(shares):
            self._since = None
        elif self._since is None:
            self._since = now
        pauses = 1 if iteration != self._replaced_at else 2**self._fruitless
        if now - self._at < policy.pause * pauses:
            return None
        if slots:
            return Cause.SLOTS
        if recovered:
            return Cause.RECOVERY
        if self._since is not None and now - self._since >= policy.hold:
            return Cause.CHANGE
        if policy.every and iteration - self._iteration >= policy.every:
            return Cause.ITERATIONS
        return None

    def changed(self, shares: Shares) -> list[DirectedLink]:
        """Return the links that are out of their bands, the furthest first."""
        apart = {link: abs(share - self._shares.get(link, 1.0)) for link, share in shares.items()}
        # A link missing from the network is a failure, not a change.
        out = [link for link, distance in apart.items() if distance > self.policy.band]
        return sorted(out, key=lambda link: -apart[link])

    def looked(self, iteration: int, shares: Shares, now: float) -> None:
        """Note that the plan has been looked at in this state, and replaced or kept."""
        self._iteration = iteration
        self._shares = dict(shares)
        self._at = now
        self._since = None

    def replaced(self, iteration: int) -> None:
        """Note that a new epoch has begun."""
        self._fruitless = self._fruitless + 1 if iteration == self._replaced_at else 1
        self._replaced_at = iteration
