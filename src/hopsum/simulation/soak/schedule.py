"""A fault schedule as data: a network, its jobs and its faults; to JSON and back.

Times are seconds of virtual time after the cluster is up, rates are bit/s. A schedule and the code
determine a run to the byte.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from hopsum.collectives.choices import (
    DEFAULT_PLANNER,
    Algorithm,
    Collective,
    Coordination,
    DataType,
    Results,
)
from hopsum.collectives.workload import PROCESS, RANDOM
from hopsum.files.json_text import parse_json
from hopsum.protocol.errors import InputError
from hopsum.simulation.faults import CHANCES, Outage

EVERYWHERE = ""
"""Stands for all links."""


class ScheduleFileError(InputError):
    """An invalid fault schedule; the message names the field and what was expected."""


class Forgery(StrEnum):
    """What an attacker sends."""

    REPLAY = "replay"
    """Replayed frames of a job as they crossed some link."""
    FIELDS = "fields"
    """Such frames with changed values in hopsum's header, stack or lanes."""
    RESULT = "result"
    """Results with forged sums, to one worker and to all."""
    REQUEST = "request"
    """Requests for frames that neighbours have sent."""
    FRAGMENT = "fragment"
    """Such frames as IPv4 fragments, with options, or without Don't Fragment."""
    TAGGED = "tagged"
    """Such frames behind VLAN tags."""
    INSPECT = "inspect"
    """Slot inspections, which only the controller may request."""
    NOISE = "noise"
    """Random bytes to hopsum's port."""


class DiskFaultKind(StrEnum):
    """Faults of the disk of the controller's journal."""

    FULL = "full"
    """Writes fail after some bytes of the first."""
    TORN = "torn"
    """A crash of the controller cuts the next record short; it restarts at the end of the fault."""


class RankFaultKind(StrEnum):
    """What goes wrong at a rank of a job of processes, where its call allows it."""

    DIES = "dies"
    """It ends before the call, without a word."""
    LEAVES = "leaves"
    """It leaves before the call."""
    DIFFERS = "differs"
    """It calls for more elements."""
    NAN = "nan"
    """A value is NaN, which must not be summed or compared."""
    INFINITY = "infinity"
    """A value is infinite, which must not be summed."""
    PASSES = "passes"
    """A value is not finite, and goes into the sum."""
    OVERFLOWS = "overflows"
    """An int32 value is as great as possible."""


@dataclass(frozen=True, slots=True)
class RankFault:
    """A rank has a mishap at a call."""

    rank: int
    call: int
    what: RankFaultKind


@dataclass(frozen=True, slots=True)
class LinkEntry:
    """A link of a network given by its links. None: no limit."""

    a: str
    b: str
    rate: float | None
    latency: float


@dataclass(frozen=True, slots=True)
class NetworkEntry:
    """A network by name, with equal links, or by its links; nodes that are not hosts are switches.

    Names of hosts begin with `h` or `p`. `plain`: switches that do not aggregate. `uplink_rate`: of
    the links between switches of a named network, None: as of the others.
    """

    topology: str = ""
    rate: float | None = None
    uplink_rate: float | None = None
    latency: float = 0.0
    links: tuple[LinkEntry, ...] = ()
    plain: tuple[str, ...] = ()
    slots: int = 256


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job that is submitted at `start`; `cancel`: time at which its owner cancels it, 0: never.

    `window` 0 and `trees` 0: the cluster's choice. `integrity`: with check lanes.
    `wire_bits`: of a value in packets, 0: as the type has it. `first_fragment`: of each tree, 0 or
    near the wrap of fragment numbers. `collective`: all but an all-reduce take the workers as
    servers. Of kind `process`: `ranks` has the host of each, empty: one a worker; each makes
    `rounds` calls of up to about `elements`, at most `outstanding` at a time
    (`hopsum.simulation.soak.rank_calls`). Without `servers` each worker is one, twice.
    `overflow`: number of the tensor of int32, from 1, whose sum wraps around, 0: none.
    """

    name: str
    start: float
    workers: tuple[str, ...]
    servers: tuple[str, ...]
    algorithm: Algorithm = Algorithm.IN_NETWORK
    planner: str = DEFAULT_PLANNER
    kind: str = RANDOM
    dtype: DataType = DataType.INT32
    elements: int = 64
    rounds: int = 4
    window: int = 0
    trees: int = 0
    results: Results | None = None
    coordinate: bool = False
    coordination: Coordination = Coordination.AUTO
    first_fragment: int = 0
    seed: int = 1
    cancel: float = 0.0
    integrity: bool = False
    collective: Collective = Collective.ALL_REDUCE
    ranks: tuple[str, ...] = ()
    outstanding: int = 1
    mishaps: tuple[RankFault, ...] = ()
    wire_bits: int = 0
    overflow: int = 0

    @property
    def rooted(self) -> bool:
        """Whether its workers are its servers."""
        return self.servers == self.workers

    @property
    def overflows(self) -> bool:
        """Whether a sum of it wraps around, so that it must fail."""
        return 0 < self.overflow <= self.rounds and len(self.workers) > 1

    @property
    def all_ranks(self) -> tuple[str, ...]:
        """The host of each rank; empty: its tensors do not come from processes."""
        return (self.ranks or self.workers) if self.kind == PROCESS else ()


@dataclass(frozen=True, slots=True)
class Noise:
    """Random faults of the frames of link `a-b`, or of all, as in `simulation.faults.Faults`."""

    link: str
    start: float
    stop: float
    loss: float = 0.0
    burst: float = 1.0
    corrupt: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    hold: float = 0.005
    flip: float = 0.0


@dataclass(frozen=True, slots=True)
class DiskFault:
    """The journal's disk is faulty from `start` to `stop`; `room`: bytes that are still written."""

    trouble: DiskFaultKind
    start: float
    stop: float
    room: int = 0


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The wall clock of the controller's machine jumps by `by` seconds, forward or back."""

    start: float
    by: float


@dataclass(frozen=True, slots=True)
class ClockDrift:
    """The clock of a host's machine runs at `pace` seconds per second from `start` on."""

    host: str
    start: float
    pace: float


@dataclass(frozen=True, slots=True)
class Attack:
    """A host forges a frame of a job in which it has no part, every `every` seconds."""

    forgery: Forgery
    host: str
    start: float
    stop: float
    every: float
    seed: int = 0


Fault = Noise | Outage | DiskFault | ClockJump | ClockDrift | Attack
_KINDS: MappingProxyType[str, type[Fault]] = MappingProxyType(
    {
        "noise": Noise,
        "outage": Outage,
        "disk": DiskFault,
        "clock": ClockJump,
        "drift": ClockDrift,
        "attack": Attack,
    }
)


@dataclass(frozen=True, slots=True)
class FaultSchedule:
    """Description of a run. `seed`: of links, wires and processes. `quota`: fraction of a switch's
    slots that one job may hold. `every`: rounds between evaluations of a job's plan. `wire_loss`:
    probability of loss in the control network. `levels`: whether jobs have the usual priorities;
    otherwise all have the same. `fair`: hosts serve their TCP connections in turn.
    """

    seed: int
    network: NetworkEntry
    jobs: tuple[JobEntry, ...] = ()
    faults: tuple[Fault, ...] = ()
    lanes: int = 32
    quota: float = 0.5
    every: int = 50
    wire_loss: float = 0.0
    levels: bool = True
    fair: bool = False


def kind_of(fault: Fault) -> str:
    """Return the kind of a fault in a word or two, for display."""
    match fault:
        case Outage():
            return fault.trouble.value
        case DiskFault():
            return f"disk {fault.trouble.value}"
        case ClockJump():
            return "clock set"
        case ClockDrift():
            return "clock drift"
        case Attack():
            return f"forged {fault.forgery.value}"
        case Noise():
            named = [name for name in CHANCES if getattr(fault, name) > 0]
            return " and ".join(named) or "no noise"


def to_json(schedule: FaultSchedule) -> str:
    """Return a schedule as JSON, without fields that have their default."""
    return json.dumps(_shown(schedule), indent=1)


def _shown(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_shown(each) for each in value]
    if not is_dataclass(value):
        return value
    shown = {
        field.name: _shown(getattr(value, field.name))
        for field in fields(value)
        if getattr(value, field.name) != field.default
    }
    named = [kind for kind, of in _KINDS.items() if of is type(value)]
    return {"kind": named[0], **shown} if named else shown


def from_json(text: str) -> FaultSchedule:
    """Read a schedule. Raises ScheduleFileError."""
    try:
        values = parse_json(text)
    except ValueError as error:
        raise ScheduleFileError(f"fault schedule: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ScheduleFileError("fault schedule: expected a JSON object")
    faults = values.pop("faults", [])
    if not isinstance(faults, list):
        raise ScheduleFileError("fault schedule: faults: expected a list")
    read = _read("fault schedule", FaultSchedule, values)
    made = []
    for number, fault in enumerate(faults):
        where = f"fault schedule: faults[{number}]"
        kind = fault.pop("kind", None) if isinstance(fault, dict) else None
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ScheduleFileError(
                f"{where}: kind {kind!r:.40}: expected one of {', '.join(_KINDS)}"
            )
        made.append(_read(where, _KINDS[kind], fault))
    return replace(read, faults=tuple(made))


_T = TypeVar("_T")


def _read(where: str, kind: type[_T], values: Any) -> _T:
    if not isinstance(values, dict):
        raise ScheduleFileError(f"{where}: expected an object")
    hints = get_type_hints(kind)
    unknown = values.keys() - hints.keys()
    if unknown:
        raise ScheduleFileError(
            f"{where}: {min(unknown)!r:.40}: there is no such field; expected some of "
            f"{', '.join(hints)}"
        )
    given = {name: _value(f"{where}: {name}", hints[name], value) for name, value in values.items()}
    try:
        return kind(**given)
    except TypeError as error:
        raise ScheduleFileError(f"{where}: {error}") from None


def _value(where: str, kind: Any, value: Any) -> Any:
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ScheduleFileError(f"{where}: expected a list")
        item = get_args(kind)[0]
        return tuple(_value(f"{where}[{n}]", item, each) for n, each in enumerate(value))
    options = get_args(kind)
    if type(None) in options:
        if value is None:
            return None
        [kind] = [option for option in options if option is not type(None)]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value not in list(kind):
            raise ScheduleFileError(f"{where}: {value!r:.40}: expected one of {', '.join(kind)}")
        return kind(value)
    if kind is float and type(value) is int:
        value = float(value)
    if kind is float and isinstance(value, float) and not 0 <= abs(value) < math.inf:
        raise ScheduleFileError(f"{where}: {value!r}: expected a number")
    if kind in (str, bool, int, float):
        if type(value) is not kind:
            raise ScheduleFileError(f"{where}: {value!r:.40}: expected {kind.__name__}")
        return value
    return _read(where, kind, value)
