"""What processes say to each other. A frame carries at most one message over one edge."""

from __future__ import annotations

from dataclasses import dataclass

from collectives.coordination.operators import BitVector, Operator


@dataclass(frozen=True, slots=True)
class Hello:
    """A child or the ring's predecessor opens; `digest`: of the tree it was started for."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The parent has taken the child in."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The sender of a Hello cannot take part."""

    reason: str


@dataclass(frozen=True, slots=True)
class Variant:
    """`count` processes want this operator; `first` is the lowest of their ranks."""

    operator: Operator
    count: int
    first: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """All processes of a subtree have asked to start an operator; as one, if all is well."""

    name: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """Up: start requests, under the newest order table that the child has."""

    version: int
    wanted: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True)
class Response:
    """Down: start these, in this order; and give these up, for the reason that follows each."""

    start: tuple[str, ...]
    failed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Amendment:
    """Down: the next version of the order table, in force from vector number `cycle`."""

    version: int
    cycle: int
    removed: tuple[str, ...]
    added: tuple[Operator, ...]


@dataclass(frozen=True, slots=True)
class Amended:
    """Up: the whole subtree has this version."""

    version: int


@dataclass(frozen=True, slots=True)
class Contest:
    """Up: back to negotiation for this operator; `late`: because it does not start."""

    name: str
    version: int
    late: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """Down: who has not asked for this operator?"""

    name: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Up: these ranks of the subtree have not; down: these of all have not."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Vector:
    """Up the tree or along the ring: the vectors so far, combined, of one cycle."""

    cycle: int
    vector: BitVector


@dataclass(frozen=True, slots=True)
class Result:
    """Down the tree or along the ring: the vectors of all, combined."""

    cycle: int
    vector: BitVector


@dataclass(frozen=True, slots=True)
class Lost:
    """Both ways: a process is dead."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Up: the whole subtree is done."""


@dataclass(frozen=True, slots=True)
class Closed:
    """Down: everybody is done."""


Message = (
    Hello
    | Welcome
    | Refused
    | Request
    | Response
    | Amendment
    | Amended
    | Contest
    | Probe
    | Missing
    | Vector
    | Result
    | Lost
    | Leave
    | Closed
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One message, or none, from one process to another.

    `incarnation` tells two processes of one rank apart; `to` is the incarnation meant, 0 before it
    is known. `sequence` counts messages from 1 (0: no message, or a refusal); `acknowledged`: all
    up to here have arrived.
    """

    source: int
    target: int
    incarnation: int
    to: int
    sequence: int
    acknowledged: int
    message: Message | None = None
