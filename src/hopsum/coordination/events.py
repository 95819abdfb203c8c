"""Options of a process, and events for its caller."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsum.coordination.link import LinkOptions
from hopsum.coordination.operators import Operator


@dataclass(frozen=True, slots=True)
class CoordinationOptions:
    """Options of a process; times in seconds.

    `cycle`: pause after a vector that started no operator. `stall`: wait of an operator after which
    the processes that have not requested it are reported. `forget_after`:
    iterations without an operator after which it leaves the order table.
    """

    links: LinkOptions = field(default_factory=LinkOptions)
    cycle: float = 0.001
    stall: float = 60.0
    forget_after: int = 1


@dataclass(frozen=True, slots=True)
class Start:
    """A collective starts now; `waited`: seconds since this process was ready for it.

    The least `waited` of all processes is the time that the protocol took; the rest is waiting for
    other processes. `iteration`: in which all processes were ready for it.
    """

    operator: Operator
    waited: float
    iteration: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """A collective cannot start at any process; all others continue."""

    operator: Operator
    reason: str


@dataclass(frozen=True, slots=True)
class Stall:
    """A collective waits for the processes `missing`, by name."""

    operator: Operator
    missing: tuple[str, ...]


Event = Start | Rejection | Stall
