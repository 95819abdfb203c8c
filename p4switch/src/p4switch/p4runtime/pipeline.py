"""A pipeline: a running program, and P4Runtime's state in addition to the engine's."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from functools import lru_cache

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from p4switch.ir import Program, Table
from p4switch.p4runtime.digests import Digests
from p4switch.p4runtime.entities import Entities
from p4switch.p4runtime.idle import IdleEntries
from p4switch.p4runtime.p4info import p4info
from p4switch.p4runtime.packets import PacketHeaders
from p4switch.programs import is_bmv2_json, is_bundle
from p4switch.proto import p4i, p4r
from p4switch.targets.v1model.engine import Engine, TableEntry
from p4switch.targets.v1model.matches import canonical_entry
from p4switch.targets.v1model.state import EntryKey


def device_config(config: p4r.ForwardingPipelineConfig) -> bytes:
    """Return the program of a client's configuration, BMv2 JSON with its P4Info.

    Raises P4Error.
    """
    data = unwrapped(config.p4_device_config)
    if not is_bmv2_json(data):
        return data
    from p4switch.bmv2_json.reader import bundle

    text = text_format.MessageToString(config.p4info)
    return bundle(data, "<device config>", text)


def unwrapped(data: bytes) -> bytes:
    """Return the program in a p4.tmp.P4DeviceConfig, which older controllers of BMv2 push.

    Data of other kinds are returned unchanged.
    """
    if is_bmv2_json(data) or is_bundle(data):
        return data
    from p4switch.proto.definitions import shared

    try:
        envelope = shared().module("p4config").P4DeviceConfig.FromString(data)
    except DecodeError:
        return data
    return bytes(envelope.device_data) or data


@dataclass(slots=True)
class OneShot:
    """A one-shot entry: its message, group and members."""

    message: p4r.ActionProfileActionSet
    profile: str
    group: int
    members: tuple[int, ...]


@dataclass(slots=True)
class EntryNote:
    """Data of a table entry written by a client that the engine does not keep."""

    metadata: bytes = b""
    controller_metadata: int = 0
    one_shot: OneShot | None = None


@dataclass(slots=True)
class Notes:
    """Messages as written by clients, where the engine's form has less information."""

    entries: dict[tuple[str, EntryKey], EntryNote] = field(default_factory=dict)
    defaults: dict[str, EntryNote] = field(default_factory=dict)
    groups: dict[tuple[str, int], p4r.ActionProfileGroup] = field(default_factory=dict)
    multicast: dict[int, p4r.MulticastGroupEntry] = field(default_factory=dict)
    clones: dict[int, p4r.CloneSessionEntry] = field(default_factory=dict)
    value_sets: dict[int, p4r.ValueSetEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Share:
    """A member of a group: its weight, and the watched port without which it gets no packets."""

    member: int
    weight: int
    port: int | None = None


_p4info = lru_cache(maxsize=4)(p4info)
"""The switches of one process share it; none changes it."""


class Pipeline:
    """A forwarding pipeline: engine, P4Info, conversions."""

    def __init__(
        self,
        engine: Engine,
        config: p4r.ForwardingPipelineConfig | None = None,
        down: Set[int] = frozenset(),
    ) -> None:
        """`config`: as given by a client, for GetForwardingPipelineConfig.

        `down`: ports without a link, kept up to date by the owner. Raises P4Error.
        """
        self.down = down
        self.watched: dict[tuple[str, int], tuple[Share, ...]] = {}
        """Groups, by profile and number, with a member that watches a port."""
        self.engine = engine
        program: Program = engine.program
        self.program = program
        self.entities = Entities(program)
        self.headers = PacketHeaders(program, self.entities.strings)
        self.digests = Digests(self.entities.digests)
        self.p4info: p4i.P4Info = _p4info(program)
        if config is None:
            config = p4r.ForwardingPipelineConfig(p4info=self.p4info)
        self.config = config
        self.notes = Notes()
        self.idle = IdleEntries(engine, self.entry_message)
        self.has_timeouts = any(table.support_timeout for table in program.tables)

    def entry_key(self, table: Table, entry: TableEntry) -> tuple[str, EntryKey]:
        """Return the key of an entry in `notes`."""
        canonical = canonical_entry(table, entry)
        return table.name, (canonical.matches, canonical.priority)

    def entry_message(self, table: Table, entry: TableEntry) -> p4r.TableEntry:
        """Return the message of an installed entry, without its direct resources."""
        message = self.entities.entry_message(table, entry)
        note = self.notes.entries.get(self.entry_key(table, entry))
        if note is not None:
            message.metadata = note.metadata
            message.controller_metadata = note.controller_metadata
            if note.one_shot is not None:
                message.action.action_profile_action_set.CopyFrom(note.one_shot.message)
        return message

    def find(self, table: Table, entry: TableEntry) -> TableEntry | None:
        """Return the installed entry with the matches and priority of `entry`."""
        canonical = canonical_entry(table, entry)
        return self.engine.installed(table.name, canonical.matches, canonical.priority)
