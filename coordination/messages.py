"""What processes say to each other. A frame carries at most one message over one edge."""

from __future__ import annotations

from dataclasses import dataclass

from coordination.operators import BitVector, Operator


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

    iteration: int
    name: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """Up: start requests, under the newest order table that the child has."""

    version: int
    wanted: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True)
class Response:
    """Down: start these (iteration, name), in this order; and give these up, each for a reason."""

    start: tuple[tuple[int, str], ...]
    failed: tuple[tuple[int, str, str], ...] = ()


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

    iteration: int
    name: str
    version: int
    late: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """Down: at whom does this operator not wait?

    `count`, unless 0: who has ended the iteration with fewer calls for it?
    """

    iteration: int
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Missing:
    """Up: at these ranks of the subtree; down: at these of all."""

    probe: Probe
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Up: how far a subtree is; down: how far all processes are.

    Iterations below `over` are over at all of them: nothing waits, and nothing will. `rank` calls
    for nothing more in iterations from `since` to `first` - 1: for `names` in the first of these,
    for nothing in the others. `first` is 0 if nobody has gone further than is known.
    """

    over: int
    since: int
    first: int
    rank: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Up: an operator can never start, since a process has ended the iteration without it.

    `count`: or with fewer calls for it, where an operator that was given up is called for anew.
    """

    iteration: int
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Misuse:
    """Up: a process is ready for an operator that it cannot ask for in this iteration."""

    rank: int
    iteration: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Down: coordination ends everywhere, after vectors 0 to `cycle` - 1; these ranks are why."""

    cycle: int
    iteration: int
    name: str
    ranks: tuple[int, ...]
    reason: str


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
    | Progress
    | Unmatched
    | Misuse
    | Mismatch
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
