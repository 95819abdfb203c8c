"""Step-by-step traces of packets: events of the interpreter, as text and JSON.

While tracing, the pipeline processes one packet at a time, so all events between its arrival and
the next one's belong to it or its copies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from p4switch.backends.reference.packet import CloneRequest, PacketState
from p4switch.backends.reference.pipeline import Pipeline
from p4switch.backends.reference.psa import PsaPipeline
from p4switch.backends.reference.tables import (
    InstalledEntry,
    KeyValues,
    ProfileRuntime,
    SelectorBits,
    TableRuntime,
)
from p4switch.backends.reference.v1model import V1modelPipeline
from p4switch.ir import ActionChoice, Table
from p4switch.position import NOWHERE, Position
from p4switch.targets.v1model.engine import KeyMatch, Packet, Replica, TableEntry
from p4switch.targets.v1model.matches import match_keys

FORMS = ("text", "json")

SHOWN_BYTES = 64
"""Maximum bytes of a frame in text."""


@dataclass(frozen=True, slots=True)
class Event:
    """A step: kind, name of the object, details by name, and place in the source.

    Kinds: `stage`, `state`, `extract`, `parser_error`, `table`, `action`, `assign`,
    `set_valid`, `set_invalid`, `register_write`, `clone`, `resubmit`, `recirculate`, `digest`,
    `extern` and `drop`.
    """

    kind: str
    name: str
    details: dict[str, Any]
    position: Position = NOWHERE

    def as_json(self) -> dict[str, Any]:
        """Return the event as JSON values; integers stay integers."""
        found: dict[str, Any] = {"kind": self.kind, "name": self.name, **self.details}
        if self.position != NOWHERE:
            found["at"] = place(self.position)
        return found


BranchPath = tuple[tuple[str, int], ...]
"""The place of a branch in a tree: from the root on, the number of a copy, or the member chosen."""


@dataclass(slots=True)
class Branch:
    """What happens to a packet or a copy of it, until it ends or divides (`trace_tree`).

    `reason`: `packet` (the root), `unicast`, `replica`, `multicast`, `clone`, `resubmit`,
    `recirculate` or `selector`. `members`: those that a selector can choose here, the chosen one
    first.
    """

    reason: str
    details: dict[str, Any] = field(default_factory=dict)
    path: BranchPath = ()
    events: list[Event] = field(default_factory=list)
    out: list[Packet] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    members: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """Return reason and details as text."""
        return f"{self.reason} ({_pairs(self.details)})" if self.details else self.reason

    @property
    def ends_unsent(self) -> bool:
        """Return whether nothing of the packet is left here."""
        return not self.out and not self.branches

    def fork(self, reason: str, **details: Any) -> Branch:
        """Add a branch."""
        selects = reason == "selector"
        step = ("member", details["member"]) if selects else ("copy", len(self.branches))
        child = Branch(reason, details, (*self.path, step))
        self.branches.append(child)
        return child

    def at(self, path: BranchPath) -> Branch:
        """Return the branch below this one at a path."""
        if self.path == path:
            return self
        step = path[: len(self.path) + 1]
        return next(child for child in self.branches if child.path == step).at(path)


@dataclass(slots=True)
class PacketTrace:
    """A received packet, the events of it and its copies, and the packets sent.

    `tree` has the same events by branches.
    """

    number: int
    port: int
    frame: bytes
    now_us: int
    events: list[Event] = field(default_factory=list)
    out: Sequence[Packet] = ()
    tree: Branch = field(default_factory=lambda: Branch("packet"))

    def json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(
            {
                "packet": self.number,
                "port": self.port,
                "time_us": self.now_us,
                "frame": self.frame.hex(),
                "events": [event.as_json() for event in self.events],
                "out": [{"port": port, "frame": frame.hex()} for port, frame in self.out],
            }
        )

    def text(self) -> str:
        """Return lines of text."""
        lines = [f"packet {self.number}: port {self.port}, {frame_text(self.frame)}"]
        lines += [f"  {line}" for event in self.events for line in event_lines(event)]
        lines += [f"  sent: port {port}, {frame_text(frame)}" for port, frame in self.out]
        if not self.out:
            lines.append("  nothing sent")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """Selection of packets: those that meet every non-empty condition.

    Tables and headers are given by full names or suffixes after a dot. `fields`: (header, field,
    extracted value), all of which must match.
    """

    ports: frozenset[int] = frozenset()
    tables: frozenset[str] = frozenset()
    headers: frozenset[str] = frozenset()
    fields: frozenset[tuple[str, str, int]] = frozenset()

    def wants(self, trace: PacketTrace) -> bool:
        """Return whether a packet meets the conditions on port, table and header."""
        return (
            (not self.ports or trace.port in self.ports)
            and (not self.tables or _any(trace, "table", self.tables))
            and (not self.headers or _any(trace, "extract", self.headers))
            and all(_had(trace, *field) for field in self.fields)
        )


def _any(trace: PacketTrace, kind: str, wanted: frozenset[str]) -> bool:
    return any(
        event.kind == kind and any(_is_named(event, name) for name in wanted)
        for event in trace.events
    )


def _had(trace: PacketTrace, header: str, field: str, value: int) -> bool:
    """Return whether a header was extracted with this value of a field."""
    return any(
        event.kind == "extract"
        and _is_named(event, header)
        and event.details["fields"].get(field) == value
        for event in trace.events
    )


def _is_named(event: Event, name: str) -> bool:
    return event.name == name or event.name.endswith(f".{name}")


def sink_of(form: str, write: Callable[[str], None]) -> Callable[[PacketTrace], None]:
    """Return a function that writes traces in one of FORMS; ValueError for another form."""
    if form == "text":
        return lambda trace: write(trace.text())
    if form == "json":
        return lambda trace: write(trace.json())
    raise ValueError(f"{form!r} is not a form of a trace: expected one of {', '.join(FORMS)}")


class Tracer:
    """Collects events and passes each packet's trace to `sink` if it meets the filter.

    `choices`: members that selectors choose instead of the hash's, by place in the tree.
    """

    def __init__(
        self,
        sink: Callable[[PacketTrace], None],
        chosen: TraceFilter | None = None,
        choices: Mapping[BranchPath, int] | None = None,
    ) -> None:
        self._sink = sink
        self._choices = choices or {}
        self.branch = Branch("packet")
        """Of the packet that is being processed."""
        self._chosen = chosen or TraceFilter()
        self._current: PacketTrace | None = None
        self._count = 0
        self.port_set = NOWHERE
        """Position where the program last set the port or the multicast group."""

    def begin(self, port: int, frame: bytes, now_us: int) -> None:
        """Start the trace of a received packet."""
        self._count += 1
        self.port_set = NOWHERE
        self._current = PacketTrace(self._count, port, frame, now_us)
        self.branch = self._current.tree

    def note(self, kind: str, name: str, position: Position = NOWHERE, **details: object) -> None:
        """Record an event of the packet."""
        if self._current is not None:
            event = Event(kind, name, details, position)
            self._current.events.append(event)
            self.branch.events.append(event)

    def select(self, table: str, group: int, members: Sequence[int], hashed: int) -> int:
        """Return the member of a group to choose, and go on in a branch of it."""
        here = self.branch
        member = self._choices.get(here.path, hashed)
        here.members = tuple(dict.fromkeys((member, *members)))
        self.branch = here.fork(
            "selector",
            table=table,
            group=group,
            member=member,
            weight=members.count(member),
            hashed=member == hashed,
        )
        return member

    def end(self, out: Sequence[Packet]) -> None:
        """Finish the trace: the packet and its copies are gone."""
        trace, self._current = self._current, None
        if trace is not None:
            trace.out = list(out)
            if self._chosen.wants(trace):
                self._sink(trace)


class TracedTable(TableRuntime):
    """A table that reports its keys, the entry they hit, and the action with its data."""

    def __init__(self, tracer: Tracer, table: Table, *arguments: Any) -> None:
        super().__init__(table, *arguments)
        self._tracer = tracer
        self._table = table
        self._keys = match_keys(table)

    def _chosen(self, key: KeyValues, item: InstalledEntry | None, choice: ActionChoice) -> None:
        """See `TableRuntime`."""
        action = self._table.actions[choice.index].action
        self._tracer.note(
            "table",
            self._table.name,
            self._table.position,
            keys={k.name: value for k, value in zip(self._keys, key, strict=True)},
            hit=item is not None,
            entry=None if item is None else self._entry(item.entry),
            action=action.name,
            arguments={p.name: v for p, v in zip(action.data, choice.arguments, strict=True)},
        )

    def _member(
        self, profile: ProfileRuntime, entry: TableEntry, selector: SelectorBits
    ) -> int | None:
        """See `TableRuntime`."""
        member = super()._member(profile, entry, selector)
        if member is None or entry.group is None:
            return member
        members = profile.groups[entry.group]
        return self._tracer.select(self._table.name, entry.group, members, member)

    def _entry(self, entry: TableEntry) -> str:
        parts = [
            f"{key.name}={match_text(match, key.match_kind)}"
            for key, match in zip(self._keys, entry.matches, strict=True)
        ]
        for what, number in (("member", entry.member), ("group", entry.group)):
            if number is not None:
                parts.append(f"{what} {number}")
        if entry.priority:
            parts.append(f"priority {entry.priority}")
        return ", ".join(parts)


def match_text(match: KeyMatch, match_kind: str) -> str:
    """Return a match as P4 writes key sets, prefixes with a slash."""
    if match.any:
        return "_"
    value = f"{match.value:#x}"
    if match_kind == "lpm":
        return f"{value}/{match.prefix_length}"
    if match_kind == "ternary":
        return f"{value} &&& {match.mask:#x}"
    if match_kind == "range":
        return f"{value}..{match.high:#x}"
    return value


class TracedPipeline(Pipeline):
    """A pipeline that reports a packet's stages, and why it is dropped."""

    tracer: Tracer
    errors: tuple[str, ...]
    _replicates = False

    def _ingress(self, packet: PacketState) -> PacketState | None:
        self.tracer.branch = packet.branch or self.tracer.branch
        port = self._get(packet, "ingress_port")
        self.tracer.note("stage", "ingress", port=port, length=len(packet.data))
        again = super()._ingress(packet)
        if again is not None:
            again.branch = self.tracer.branch.fork("resubmit")
        return again

    def _enqueue(self, port: int, packet: PacketState) -> None:
        reason, details = "unicast", {"port": port}
        if self._replicates:
            reason, details["instance"] = "replica", self._get(packet, "egress_rid")
            if self._get(packet, "instance_type") == self.multicast_type:
                reason, details = "multicast", {"group": self._get(packet, "mcast_grp"), **details}
        here = self.tracer.branch
        packet.branch = self.tracer.branch = here.fork(reason, **details)
        super()._enqueue(port, packet)
        self.tracer.branch = here

    def _replicate(self, packet: PacketState, replicas: Sequence[Replica]) -> None:
        self._replicates = True
        super()._replicate(packet, replicas)
        self._replicates = False

    def _egress(self, port: int, packet: PacketState, depth: int, out: list[Packet]) -> None:
        self.tracer.branch = packet.branch
        self.tracer.note("stage", "egress", **self._egress_details(port, packet))
        self.tracer.port_set = NOWHERE
        sent, again = len(out), len(self._recirculated)
        super()._egress(port, packet, depth, out)
        self.tracer.branch.out += out[sent:]
        for each in self._recirculated[again:]:
            each.branch = self.tracer.branch.fork("recirculate")

    def _clone_ingress(self, packet: PacketState, request: CloneRequest) -> None:
        here = self.tracer.branch
        self.tracer.branch = here.fork("clone", session=request.session)
        self.tracer.note("stage", self.clone_stage, session=request.session)
        super()._clone_ingress(packet, request)
        self.tracer.branch = here

    def _clone_egress(self, packet: PacketState, request: CloneRequest) -> None:
        here = self.tracer.branch
        self.tracer.branch = here.fork("clone", session=request.session)
        super()._clone_egress(packet, request)
        self.tracer.branch = here

    def _rejected(self, error: int) -> None:
        self.tracer.note("parser_error", self.errors[error])

    def _dropped(self, reason: str) -> None:
        self.tracer.note("drop", reason, self.tracer.port_set)


class TracedV1modelPipeline(TracedPipeline, V1modelPipeline):
    """v1model's."""


class TracedPsaPipeline(TracedPipeline, PsaPipeline):
    """PSA's."""


# --- Text ------------------------------------------------------------------------------------


def place(position: Position) -> str:
    """Return file and line."""
    return f"{position.file}:{position.line}"


def frame_text(frame: bytes) -> str:
    """Return length and first bytes of a frame as text."""
    shown = frame[:SHOWN_BYTES].hex()
    return f"{len(frame)} bytes {shown}{'...' if len(frame) > SHOWN_BYTES else ''}".rstrip()


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:#x}" if isinstance(value, int) and value > 9 else str(value)


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in values.items())


def event_lines(event: Event, *, places: bool = True) -> Iterator[str]:
    """Yield an event's lines, indented below its stage; `places`: with file and line."""
    at = f"  [{place(event.position)}]" if places and event.position != NOWHERE else ""
    details = event.details
    match event.kind:
        case "stage":
            yield f"{event.name} ({_pairs(details)})"
        case "state":
            yield f"  state {event.name}"
        case "extract":
            yield f"  extract {event.name}: {_pairs(details['fields'])}{at}"
        case "parser_error":
            yield f"  parser error {event.name}"
        case "table":
            yield f"  table {event.name}: {_pairs(details['keys'])}{at}"
            found = f"hit {details['entry']}" if details["hit"] else "miss"
            yield f"    {found} -> {details['action']}({_pairs(details['arguments'])})"
        case "action":
            yield f"  action {event.name}({_pairs(details['arguments'])}){at}"
        case "assign":
            yield f"  {event.name} = {_value(details['value'])}{at}"
        case "drop":
            yield f"  DROP: {event.name}{at}"
        case _:
            what = event.kind.replace("_", " ")
            yield f"  {what} {event.name}({_pairs(details.get('arguments', {}))}){at}"
