"""Messages between processes. A frame carries at most one message over one edge."""

from __future__ import annotations

from dataclasses import dataclass

from hopsum.coordination.operators import BitVector, Operator


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a child, or of the predecessor on the ring, on a link.

    `digest`: of the tree that it was started for.
    """

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The parent has accepted the child."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The sender of a Hello is rejected."""

    reason: str


@dataclass(frozen=True, slots=True)
class Variant:
    """An operator as `count` processes have requested it; `first` is the lowest of their ranks."""

    operator: Operator
    count: int
    first: int


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """A request by all processes of a subtree; one variant if they agree on the details."""

    iteration: int
    name: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """Up: start requests; `version`: of the newest order table that the child has."""

    version: int
    wanted: tuple[OperatorRequest, ...]


@dataclass(frozen=True, slots=True)
class Response:
    """Down: operators (iteration, name) to start, in order; operators that failed, with reasons."""

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
class AmendmentReceipt:
    """Up: the whole subtree has this version of the order table."""

    version: int


@dataclass(frozen=True, slots=True)
class Contest:
    """Up: an operator must be negotiated again; `late`: because it does not start."""

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
class MissingRanks:
    """Up: the ranks of the subtree that have not requested it; down: those of all processes."""

    probe: Probe
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Up: progress of a subtree; down: progress of all processes.

    Iterations below `over` are over at all of them: no request is or will be pending. Process
    `rank` requests nothing more in iterations `since` to `first` - 1: it has requested `names` in
    the first of these, and nothing in the others. `first` is 0 if no process has advanced further.
    """

    over: int
    since: int
    first: int
    rank: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnmatchedOperator:
    """Up: an operator can never start: a process has ended the iteration without requesting it.

    `count`: the requests of the sender, more than 1 if a rejected operator was requested again.
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
    """Down: coordination ends at all processes after vectors 0 to `cycle` - 1.

    `ranks`: the processes at fault.
    """

    cycle: int
    iteration: int
    name: str
    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Vector:
    """Up the tree or along the ring: the combined vectors of a cycle so far."""

    cycle: int
    vector: BitVector


@dataclass(frozen=True, slots=True)
class Result:
    """Down the tree or along the ring: the combined vectors of all processes."""

    cycle: int
    vector: BitVector


@dataclass(frozen=True, slots=True)
class LossReport:
    """Both ways: a process is dead."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Up: the whole subtree has left."""


@dataclass(frozen=True, slots=True)
class Closure:
    """Down: all processes have left."""


Message = (
    Hello
    | Welcome
    | Refusal
    | Request
    | Response
    | Amendment
    | AmendmentReceipt
    | Contest
    | Probe
    | MissingRanks
    | Vector
    | Result
    | LossReport
    | Leave
    | Closure
    | Progress
    | UnmatchedOperator
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
