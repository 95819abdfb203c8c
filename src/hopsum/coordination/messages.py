"""Messages between processes. A frame carries at most one message over one edge."""

from __future__ import annotations

from dataclasses import dataclass

from hopsum.coordination.operators import BitVector, Operator


@dataclass(frozen=True, slots=True)
class Hello:
    """A child or the ring's predecessor opens; `digest`: of the tree it was started for."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The parent has accepted the child."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The sender of a Hello is rejected."""

    reason: str


@dataclass(frozen=True, slots=True)
class Variant:
    """`count` processes want this operator; `first` is the lowest of their ranks."""

    operator: Operator
    count: int
    first: int


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """All processes of a subtree have requested an operator, with equal details if all is well."""

    iteration: int
    name: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """Up: start requests, under the newest order table that the child has."""

    version: int
    wanted: tuple[OperatorRequest, ...]


@dataclass(frozen=True, slots=True)
class Response:
    """Down: start these (iteration, name), in this order, and give up these, with reasons."""

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
    """Down: which processes have not requested this operator?

    `count`, unless 0: which processes have ended the iteration with fewer requests for it?
    """

    iteration: int
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Missing:
    """Up: these ranks of the subtree have not; down: these of all."""

    probe: Probe
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Up: progress of a subtree; down: progress of all processes.

    Iterations below `over` are over at all of them: nothing is pending, and nothing will be. `rank`
    requests nothing more in iterations from `since` to `first` - 1: it has requested `names` in the
    first of these, and nothing in the others. `first` is 0 if no process has advanced further.
    """

    over: int
    since: int
    first: int
    rank: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Up: an operator can never start, since a process has ended the iteration without it.

    `count`: or with fewer requests for it, if an operator that was given up is requested again.
    """

    iteration: int
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Misuse:
    """Up: a process is ready for an operator that it cannot request in this iteration."""

    rank: int
    iteration: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Down: coordination ends everywhere after vectors 0 to `cycle` - 1 due to these ranks."""

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
    """Down: all processes are done."""


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

    `incarnation` distinguishes two processes of one rank; `to` is the incarnation meant, 0 if not
    yet known. `sequence` counts messages from 1 (0: no message, or a refusal); `acknowledged`: all
    up to here have arrived.
    """

    source: int
    target: int
    incarnation: int
    to: int
    sequence: int
    acknowledged: int
    message: Message | None = None
