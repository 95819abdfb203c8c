"""Reachability of switches and links, with damping of those that flap.

What is unreachable for `away` seconds is planned around; what is back for `stable` seconds is
planned in again. Every failure adds one to a penalty that decays exponentially, as in route flap
damping (RFC 2439): above `suppress`, the element stays planned around until the penalty has fallen
to `reuse`, so that jobs do not follow a switch or link that comes and goes.

No input or output, no clock of its own: times are seconds of one monotonic clock, the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

Element = str | tuple[str, str]
"""A switch by its name, or a link by its ends in alphabetical order (`link_element`)."""


def link_element(u: str, v: str) -> Element:
    """Return the link between two nodes as an element."""
    return (u, v) if u <= v else (v, u)


@dataclass(frozen=True, slots=True)
class DampingPolicy:
    """When an element is avoided, and when it is used again. Times in seconds."""

    away: float = 1.5
    """Grace period: a switch that only restarts is back earlier, and costs a job less than a new
    plan."""
    startup: float = 10.0
    """The same for an element that has not been reachable yet."""
    stable: float = 1.0
    """Seconds of reachability before it is used again."""
    half_life: float = 30.0
    """Half-life of the penalty, which is the number of recent failures."""
    suppress: float = 2.5
    """An element with a higher penalty is held down: it stays planned around for a while."""
    reuse: float = 1.0
    """Penalty at which a hold-down ends."""
    ceiling: float = 4.0
    """The highest penalty; so no hold-down is longer than half_life * log2(ceiling / reuse)."""

    def __post_init__(self) -> None:
        for name in ("away", "startup", "stable", "half_life"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)}: expected 0 s or more")
        if not 0 < self.reuse <= self.suppress <= self.ceiling:
            raise ValueError(
                f"reuse {self.reuse}, suppress {self.suppress}, ceiling {self.ceiling}: expected "
                "them to rise, the first above 0"
            )


@dataclass(slots=True)
class _Record:
    """One element. `since`: of its last change between reachable and unreachable."""

    reachable: bool
    since: float
    seen: bool
    out: bool = False
    held: bool = False
    penalty: float = 0.0
    penalized: float = 0.0


class Health:
    """The elements of a network: which are reachable, and which to plan around (`out`)."""

    def __init__(self, policy: DampingPolicy | None = None) -> None:
        self.policy = policy or DampingPolicy()
        self._records: dict[Element, _Record] = {}

    @property
    def out(self) -> frozenset[Element]:
        """The elements to plan around."""
        return frozenset(element for element, record in self._records.items() if record.out)

    def update(
        self,
        reachable: Mapping[Element, bool],
        now: float,
        awaited: Collection[Element] = frozenset(),
    ) -> None:
        """Update which elements are reachable; others stay as they were.

        `awaited`: those that something waits for, which return as soon as they are reachable.
        """
        for element, state in reachable.items():
            record = self._records.setdefault(element, _Record(state, now, state))
            record.seen |= state
            if state is not record.reachable:
                record.reachable, record.since = state, now
                if record.out and not state:
                    # It comes and goes before it is stable, or while it is held down.
                    self._penalize(record, now)
        for element, record in self._records.items():
            if record.out and record.reachable and element in awaited:
                record.out = record.held = False
            elif record.out:
                self._consider_return(record, now)
            elif not record.reachable:
                patience = self.policy.away if record.seen else self.policy.startup
                if now - record.since >= patience:
                    self._fail(record, now)

    def _fail(self, record: _Record, now: float) -> None:
        record.out = True
        if record.seen:
            self._penalize(record, now)

    def _penalize(self, record: _Record, now: float) -> None:
        record.penalty = min(self.policy.ceiling, self._penalty(record, now) + 1)
        record.penalized = now
        record.held = record.held or record.penalty > self.policy.suppress

    def _consider_return(self, record: _Record, now: float) -> None:
        if not record.reachable or now - record.since < self.policy.stable:
            return
        if record.held and self._penalty(record, now) > self.policy.reuse:
            return
        record.out = record.held = False

    def _penalty(self, record: _Record, now: float) -> float:
        if not record.penalty or not self.policy.half_life:
            return 0.0
        return record.penalty * 2 ** ((record.penalized - now) / self.policy.half_life)

    def next_change(self) -> float:
        """Return the time at which `update` is due if no element changes meanwhile; inf: never."""
        return min(map(self._due, self._records.values()), default=math.inf)

    def _due(self, record: _Record) -> float:
        policy = self.policy
        if not record.reachable:
            patience = policy.away if record.seen else policy.startup
            return math.inf if record.out else record.since + patience
        if not record.out:
            return math.inf
        if not record.held:
            return record.since + policy.stable
        decay = policy.half_life * math.log2(max(1.0, record.penalty / policy.reuse))
        return max(record.since + policy.stable, record.penalized + decay)

    def unreachable_for(self, element: Element, now: float) -> float | None:
        """Return for how many seconds an element has been unreachable; None if it is reachable."""
        record = self._records.get(element)
        return None if record is None or record.reachable else now - record.since

    def held_for(self, element: Element, now: float) -> float:
        """Return the remaining hold-down of a reachable element in seconds; 0: none."""
        record = self._records.get(element)
        if record is None or not (record.held and record.reachable):
            return 0.0
        left = self.policy.half_life * math.log2(record.penalty / self.policy.reuse)
        return max(0.0, left - (now - record.penalized))

    def changed_for(self, element: Element, now: float) -> float | None:
        """Return the seconds since an element became reachable or unreachable; None if unknown."""
        record = self._records.get(element)
        return None if record is None else now - record.since

    def release(self, elements: Iterable[Element]) -> None:
        """End the hold-down of elements: they return as soon as they are stable."""
        for element in elements:
            if element in self._records:
                self._records[element].held = False

    def held(self) -> frozenset[Element]:
        """Return the elements that are reachable and held down."""
        return frozenset(
            element for element, record in self._records.items() if record.held and record.reachable
        )

    def unreachable(self) -> frozenset[Element]:
        """Return the elements that are unreachable, planned around or not."""
        return frozenset(
            element for element, record in self._records.items() if not record.reachable
        )
