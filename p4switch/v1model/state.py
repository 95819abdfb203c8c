"""The control-plane half of an engine: what is installed, checked once for every executor.

`ControlState` keeps tables, action profiles, multicast groups, clone sessions and value sets, and
refuses what is not legal. An executor derives from it, implements the data plane and the
`_on_...` hooks (called with the lock held, after the check and before the change is
recorded; a hook that raises leaves the state as it was), and calls `_load_program` when it is
ready to take the program's own entries.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from p4switch.ir import ActionChoice, ExternInstance, Program, Table, TableAction, ValueSet
from p4switch.v1model.engine import (
    CloneSession,
    ControlError,
    CounterValue,
    Engine,
    EngineOptions,
    KeyMatch,
    MeterConfig,
    Replica,
    TableEntry,
)
from p4switch.v1model.matches import (
    canonical_entry,
    canonical_match,
    check_choice,
    program_entries,
    scalar_width,
    table_size,
)

EntryKey = tuple[tuple[KeyMatch, ...], int]
"""What makes an entry the same entry: canonical matches and priority."""

PROFILE_EXTERNS = ("action_profile", "action_selector")
LARGEST_PORT = 511
LARGEST_GROUP = 0xFFFF
LARGEST_CLONE_SESSION = 0x7FFF
"""BMv2's RegisterAccess::MAX_MIRROR_SESSION_ID."""


@dataclass(slots=True)
class StoredEntry:
    """An entry and its handle: a number below the table's size + the program's entries, which

    no other entry of the table has at the same time; counters and meters hang on it.
    """

    handle: int
    entry: TableEntry


@dataclass(slots=True)
class TableState:
    """A table's entries in order of insertion, and its default action."""

    table: Table
    default: ActionChoice
    entries: dict[EntryKey, StoredEntry] = field(default_factory=dict)
    free_handles: list[int] = field(default_factory=list)

    def key(self, entry: TableEntry) -> EntryKey:
        """The identity of an entry given by the control plane; INVALID_ARGUMENT if not legal."""
        canonical = canonical_entry(self.table, entry)
        return canonical.matches, canonical.priority

    def stored(self, entry: TableEntry) -> StoredEntry:
        """The installed entry with these matches and priority; NOT_FOUND if there is none."""
        found = self.entries.get(self.key(entry))
        if found is None:
            raise ControlError("NOT_FOUND", f"table {self.table.name!r} has no such entry")
        return found


@dataclass(slots=True)
class ProfileState:
    """An action profile's or selector's members and groups."""

    instance: ExternInstance
    tables: tuple[int, ...]
    actions: tuple[TableAction, ...]
    size: int
    members: dict[int, ActionChoice] = field(default_factory=dict)
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)


class ControlState(Engine):
    """State and checks of the control plane; see the module's docstring for how to derive."""

    def __init__(self, program: Program, options: EngineOptions | None = None) -> None:
        self.program = program
        self.options = options or EngineOptions()
        self.lock = threading.RLock()
        self.now_us = 0
        """The latest clock that `process` was given; the derived class sets it."""
        self.table_states = [TableState(t, t.default_action) for t in program.tables]
        self.profile_states = [
            self._make_profile(instance)
            for instance in program.externs
            if instance.extern in PROFILE_EXTERNS
        ]
        self.multicast: dict[int, tuple[Replica, ...]] = {}
        self.sessions: dict[int, CloneSession] = {}
        self.value_set_members: list[tuple[tuple[KeyMatch, ...], ...]] = [
            () for _ in program.value_sets
        ]
        self._table_index = {table.name: i for i, table in enumerate(program.tables)}
        self._profile_index = {p.instance.name: i for i, p in enumerate(self.profile_states)}
        self._extern_by_name = {instance.name: instance for instance in program.externs}
        self._meter_configs: dict[tuple[str, int], MeterConfig] = {}
        self._direct_meter_configs: dict[tuple[int, int], MeterConfig] = {}

    # --- hooks: what the derived class does when the state changes

    @abstractmethod
    def _on_insert(self, table: int, handle: int, entry: TableEntry) -> None:
        """An entry comes; its counters and meters start anew."""

    @abstractmethod
    def _on_modify(self, table: int, handle: int, entry: TableEntry) -> None:
        """An entry's action changes; counters and meters stay."""

    @abstractmethod
    def _on_delete(self, table: int, handle: int, entry: TableEntry) -> None:
        """An entry goes."""

    @abstractmethod
    def _on_default(self, table: int, choice: ActionChoice) -> None:
        """A table has a new default action."""

    @abstractmethod
    def _on_member(self, profile: int, member: int, choice: ActionChoice | None) -> None:
        """A member of `profile_states[profile]` comes, changes or (None) goes."""

    @abstractmethod
    def _on_group(self, profile: int, group: int, members: tuple[int, ...] | None) -> None:
        """A group comes, changes or (None) goes."""

    @abstractmethod
    def _on_multicast_group(self, group: int, replicas: tuple[Replica, ...] | None) -> None:
        """A multicast group comes, changes or (None) goes."""

    @abstractmethod
    def _on_clone_session(self, session: int, value: CloneSession | None) -> None:
        """A clone session comes, changes or (None) goes."""

    @abstractmethod
    def _on_value_set(self, index: int, members: tuple[tuple[KeyMatch, ...], ...]) -> None:
        """A parser value set has new members."""

    # --- hooks: cells that live in the derived class. Names and indices are checked.

    @abstractmethod
    def _read_register(self, instance: ExternInstance, index: int) -> int: ...

    @abstractmethod
    def _write_register(self, instance: ExternInstance, index: int, value: int) -> None: ...

    @abstractmethod
    def _read_counter(self, instance: ExternInstance, index: int) -> CounterValue: ...

    @abstractmethod
    def _write_counter(self, instance: ExternInstance, index: int, value: CounterValue) -> None: ...

    @abstractmethod
    def _read_direct_counter(self, table: int, handle: int) -> CounterValue: ...

    @abstractmethod
    def _write_direct_counter(self, table: int, handle: int, value: CounterValue) -> None: ...

    @abstractmethod
    def _set_meter(
        self, instance: ExternInstance, index: int, config: MeterConfig | None
    ) -> None: ...

    @abstractmethod
    def _set_direct_meter(self, table: int, handle: int, config: MeterConfig | None) -> None: ...

    @abstractmethod
    def _last_hit_us(self, table: int, handle: int) -> int:
        """The clock when the entry last matched, or else was inserted (`now_us` then)."""

    # --- tables

    def _load_program(self) -> None:
        """Install the source's default actions and entries, through the hooks."""
        with self.lock:
            for index, state in enumerate(self.table_states):
                self._on_default(index, state.default)
                for entry in program_entries(state.table):
                    self._store(index, state, entry)

    def _store(self, index: int, state: TableState, entry: TableEntry) -> None:
        key = (entry.matches, entry.priority)
        if key in state.entries:
            return  # of two equal entries in the source the first wins
        handle = state.free_handles[-1] if state.free_handles else len(state.entries)
        self._on_insert(index, handle, entry)
        if state.free_handles:
            state.free_handles.pop()
        state.entries[key] = StoredEntry(handle, entry)

    def insert_entry(self, table: str, entry: TableEntry) -> None:
        """See `Engine`."""
        with self.lock:
            index, state = self._writable_table(table)
            entry = self._checked_entry(state, entry)
            if (entry.matches, entry.priority) in state.entries:
                raise ControlError("ALREADY_EXISTS", f"table {table!r} has this entry already")
            size = table_size(state.table)
            if len(state.entries) >= size:
                raise ControlError(
                    "RESOURCE_EXHAUSTED", f"table {table!r} is full: it holds {size} entries"
                )
            self._store(index, state, entry)

    def modify_entry(self, table: str, entry: TableEntry) -> None:
        """See `Engine`."""
        with self.lock:
            index, state = self._writable_table(table)
            stored = self._writable_entry(state, entry)
            entry = self._checked_entry(state, entry)
            self._on_modify(index, stored.handle, entry)
            stored.entry = entry

    def delete_entry(self, table: str, entry: TableEntry) -> None:
        """See `Engine`."""
        with self.lock:
            index, state = self._writable_table(table)
            stored = self._writable_entry(state, entry)
            self._on_delete(index, stored.handle, stored.entry)
            del state.entries[stored.entry.matches, stored.entry.priority]
            state.free_handles.append(stored.handle)
            self._direct_meter_configs.pop((index, stored.handle), None)

    def entries(self, table: str) -> list[TableEntry]:
        """See `Engine`."""
        with self.lock:
            _, state = self._table_state(table)
            return [stored.entry for stored in state.entries.values()]

    def set_default(self, table: str, action: ActionChoice | None) -> None:
        """See `Engine`."""
        with self.lock:
            index, state = self._table_state(table)
            if state.table.default_constant:
                raise ControlError(
                    "PERMISSION_DENIED", f"the default action of table {table!r} is constant"
                )
            if action is None:
                action = state.table.default_action
            else:
                check_choice(f"table {table!r}", state.table.actions, action)
                if state.table.actions[action.index].table_only:
                    name = state.table.actions[action.index].action.name
                    raise ControlError(
                        "INVALID_ARGUMENT",
                        f"action {name!r} of table {table!r} is @tableonly: not for the default",
                    )
            self._on_default(index, action)
            state.default = action

    def default(self, table: str) -> ActionChoice:
        """See `Engine`."""
        with self.lock:
            return self._table_state(table)[1].default

    def idle_entries(self, now_us: int) -> Iterator[tuple[str, TableEntry]]:
        """See `Engine`."""
        with self.lock:
            found = [
                (state.table.name, stored.entry)
                for index, state in enumerate(self.table_states)
                if state.table.support_timeout
                for stored in state.entries.values()
                if stored.entry.idle_timeout_ns
                and (now_us - self._last_hit_us(index, stored.handle)) * 1000
                >= stored.entry.idle_timeout_ns
            ]
        return iter(found)

    def _table_state(self, name: str) -> tuple[int, TableState]:
        index = self._table_index.get(name)
        if index is None:
            raise ControlError("NOT_FOUND", f"no table {name!r} in the program")
        return index, self.table_states[index]

    def _writable_table(self, name: str) -> tuple[int, TableState]:
        index, state = self._table_state(name)
        if state.table.entries_constant:
            raise ControlError("PERMISSION_DENIED", f"table {name!r} has const entries")
        return index, state

    def _writable_entry(self, state: TableState, entry: TableEntry) -> StoredEntry:
        stored = state.stored(entry)
        if stored.entry.constant:
            raise ControlError(
                "PERMISSION_DENIED", f"this entry of table {state.table.name!r} is const"
            )
        return stored

    def _checked_entry(self, state: TableState, entry: TableEntry) -> TableEntry:
        """The canonical entry, its action or member or group checked; never a constant one."""
        table = state.table
        owner = f"table {table.name!r}"
        if entry.idle_timeout_ns and not table.support_timeout:
            raise ControlError(
                "INVALID_ARGUMENT", f"{owner} has no support_timeout, the entry a timeout"
            )
        given = [x for x in (entry.action, entry.member, entry.group) if x is not None]
        if len(given) != 1:
            raise ControlError(
                "INVALID_ARGUMENT", f"{owner}: an entry takes one of action, member and group"
            )
        if entry.action is not None:
            if table.implementation is not None:
                raise ControlError(
                    "INVALID_ARGUMENT",
                    f"{owner} has an action profile: an entry takes a member or a group",
                )
            check_choice(owner, table.actions, entry.action)
            if table.actions[entry.action.index].default_only:
                name = table.actions[entry.action.index].action.name
                raise ControlError(
                    "INVALID_ARGUMENT", f"action {name!r} of {owner} is @defaultonly"
                )
        else:
            self._check_indirect(table, entry)
        return replace(canonical_entry(table, entry), constant=False)

    def _check_indirect(self, table: Table, entry: TableEntry) -> None:
        if table.implementation is None:
            raise ControlError(
                "INVALID_ARGUMENT",
                f"table {table.name!r} has no action profile: an entry takes an action",
            )
        profile = self._profile(table.implementation.name)[1]
        if entry.member is not None and entry.member not in profile.members:
            raise ControlError(
                "NOT_FOUND", f"profile {profile.instance.name!r} has no member {entry.member}"
            )
        if entry.group is not None and entry.group not in profile.groups:
            raise ControlError(
                "NOT_FOUND", f"profile {profile.instance.name!r} has no group {entry.group}"
            )

    # --- action profiles

    def _make_profile(self, instance: ExternInstance) -> ProfileState:
        users = tuple(
            i for i, table in enumerate(self.program.tables) if table.implementation is instance
        )
        actions = self.program.tables[users[0]].actions if users else ()
        size = instance.arguments[1 if instance.extern == "action_selector" else 0]
        return ProfileState(instance, users, actions, int(size))

    def _profile(self, name: str) -> tuple[int, ProfileState]:
        index = self._profile_index.get(name)
        if index is None:
            raise ControlError("NOT_FOUND", f"no action profile {name!r} in the program")
        return index, self.profile_states[index]

    def _profile_users(self, profile: ProfileState) -> Iterator[TableEntry]:
        for index in profile.tables:
            for stored in self.table_states[index].entries.values():
                yield stored.entry

    def set_member(self, profile: str, member: int, action: ActionChoice | None) -> None:
        """See `Engine`. Removing one that is in use: FAILED_PRECONDITION."""
        with self.lock:
            index, state = self._profile(profile)
            if action is None:
                if member not in state.members:
                    raise ControlError("NOT_FOUND", f"profile {profile!r} has no member {member}")
                used = any(member in members for members in state.groups.values()) or any(
                    entry.member == member for entry in self._profile_users(state)
                )
                if used:
                    raise ControlError(
                        "FAILED_PRECONDITION",
                        f"member {member} of profile {profile!r} is in a group or a table entry",
                    )
                self._on_member(index, member, None)
                del state.members[member]
                return
            check_choice(f"profile {profile!r}", state.actions, action)
            if member not in state.members and 0 < state.size <= len(state.members):
                raise ControlError(
                    "RESOURCE_EXHAUSTED",
                    f"profile {profile!r} is full: it holds {state.size} members",
                )
            self._on_member(index, member, action)
            state.members[member] = action

    def members(self, profile: str) -> dict[int, ActionChoice]:
        """See `Engine`."""
        with self.lock:
            return dict(self._profile(profile)[1].members)

    def set_group(self, profile: str, group: int, members: Sequence[int] | None) -> None:
        """See `Engine`. Removing one that is in use: FAILED_PRECONDITION."""
        with self.lock:
            index, state = self._profile(profile)
            if state.instance.extern != "action_selector":
                raise ControlError(
                    "INVALID_ARGUMENT", f"profile {profile!r} has no selector: no groups"
                )
            if members is None:
                if group not in state.groups:
                    raise ControlError("NOT_FOUND", f"profile {profile!r} has no group {group}")
                if any(entry.group == group for entry in self._profile_users(state)):
                    raise ControlError(
                        "FAILED_PRECONDITION",
                        f"group {group} of profile {profile!r} is in a table entry",
                    )
                self._on_group(index, group, None)
                del state.groups[group]
                return
            for member in members:
                if member not in state.members:
                    raise ControlError("NOT_FOUND", f"profile {profile!r} has no member {member}")
            self._on_group(index, group, tuple(members))
            state.groups[group] = tuple(members)

    def groups(self, profile: str) -> dict[int, tuple[int, ...]]:
        """See `Engine`."""
        with self.lock:
            return dict(self._profile(profile)[1].groups)

    # --- replication

    def set_multicast_group(self, group: int, replicas: Sequence[Replica] | None) -> None:
        """See `Engine`."""
        with self.lock:
            if not 1 <= group <= LARGEST_GROUP:
                raise ControlError(
                    "INVALID_ARGUMENT", f"multicast group {group} is not in 1..{LARGEST_GROUP}"
                )
            if replicas is None:
                if group not in self.multicast:
                    raise ControlError("NOT_FOUND", f"no multicast group {group}")
                self._on_multicast_group(group, None)
                del self.multicast[group]
                return
            checked = _checked_replicas(f"multicast group {group}", replicas)
            self._on_multicast_group(group, checked)
            self.multicast[group] = checked

    def multicast_groups(self) -> dict[int, tuple[Replica, ...]]:
        """See `Engine`."""
        with self.lock:
            return dict(self.multicast)

    def set_clone_session(self, session: int, value: CloneSession | None) -> None:
        """See `Engine`."""
        with self.lock:
            if not 0 <= session <= LARGEST_CLONE_SESSION:
                raise ControlError(
                    "INVALID_ARGUMENT",
                    f"clone session {session} is not in 0..{LARGEST_CLONE_SESSION}",
                )
            if value is None:
                if session not in self.sessions:
                    raise ControlError("NOT_FOUND", f"no clone session {session}")
                self._on_clone_session(session, None)
                del self.sessions[session]
                return
            if value.length < 0:
                raise ControlError(
                    "INVALID_ARGUMENT", f"clone session {session}: negative length {value.length}"
                )
            replicas = _checked_replicas(f"clone session {session}", value.replicas)
            checked = CloneSession(replicas, value.length)
            self._on_clone_session(session, checked)
            self.sessions[session] = checked

    def clone_sessions(self) -> dict[int, CloneSession]:
        """See `Engine`."""
        with self.lock:
            return dict(self.sessions)

    # --- cells

    def _cell(self, name: str, extern: str, index: int) -> ExternInstance:
        """The instance, of the wanted extern, with `index` inside it."""
        instance = self._extern_by_name.get(name)
        if instance is None or instance.extern != extern:
            raise ControlError("NOT_FOUND", f"no {extern} {name!r} in the program")
        size = int(instance.arguments[0])
        if not 0 <= index < size:
            raise ControlError(
                "OUT_OF_RANGE", f"{extern} {name!r} has {size} cells, there is no cell {index}"
            )
        return instance

    def read_register(self, name: str, index: int) -> int:
        """See `Engine`."""
        with self.lock:
            return self._read_register(self._cell(name, "register", index), index)

    def write_register(self, name: str, index: int, value: int) -> None:
        """See `Engine`."""
        with self.lock:
            instance = self._cell(name, "register", index)
            width = scalar_width(instance.type_arguments[0])
            if not 0 <= value < 1 << width:
                raise ControlError(
                    "INVALID_ARGUMENT",
                    f"register {name!r}: {value:#x} does not fit in {width} bits",
                )
            self._write_register(instance, index, value)

    def read_counter(self, name: str, index: int) -> CounterValue:
        """See `Engine`."""
        with self.lock:
            return self._read_counter(self._cell(name, "counter", index), index)

    def write_counter(self, name: str, index: int, value: CounterValue) -> None:
        """See `Engine`."""
        with self.lock:
            self._write_counter(self._cell(name, "counter", index), index, value)

    def read_direct_counter(self, table: str, entry: TableEntry) -> CounterValue:
        """See `Engine`."""
        with self.lock:
            index, handle = self._direct(table, entry, "counter")
            return self._read_direct_counter(index, handle)

    def write_direct_counter(self, table: str, entry: TableEntry, value: CounterValue) -> None:
        """See `Engine`."""
        with self.lock:
            index, handle = self._direct(table, entry, "counter")
            self._write_direct_counter(index, handle, value)

    def set_meter(self, name: str, index: int, config: MeterConfig | None) -> None:
        """See `Engine`."""
        with self.lock:
            instance = self._cell(name, "meter", index)
            _check_meter(f"meter {name!r}", config)
            self._set_meter(instance, index, config)
            if config is None:
                self._meter_configs.pop((name, index), None)
            else:
                self._meter_configs[name, index] = config

    def meter(self, name: str, index: int) -> MeterConfig | None:
        """See `Engine`."""
        with self.lock:
            self._cell(name, "meter", index)
            return self._meter_configs.get((name, index))

    def set_direct_meter(self, table: str, entry: TableEntry, config: MeterConfig | None) -> None:
        """See `Engine`."""
        with self.lock:
            place = self._direct(table, entry, "meter")
            _check_meter(f"meter of table {table!r}", config)
            self._set_direct_meter(*place, config)
            if config is None:
                self._direct_meter_configs.pop(place, None)
            else:
                self._direct_meter_configs[place] = config

    def direct_meter(self, table: str, entry: TableEntry) -> MeterConfig | None:
        """See `Engine`."""
        with self.lock:
            return self._direct_meter_configs.get(self._direct(table, entry, "meter"))

    def _direct(self, table: str, entry: TableEntry, what: str) -> tuple[int, int]:
        """Table index and entry handle, for a table with a direct `what`."""
        index, state = self._table_state(table)
        if not (state.table.counters if what == "counter" else state.table.meters):
            raise ControlError("INVALID_ARGUMENT", f"table {table!r} has no direct {what}")
        return index, state.stored(entry).handle

    def set_value_set(self, name: str, members: Sequence[tuple[KeyMatch, ...]]) -> None:
        """See `Engine`. More members than its size: RESOURCE_EXHAUSTED."""
        with self.lock:
            index = next(
                (i for i, v in enumerate(self.program.value_sets) if v.name == name), None
            )
            if index is None:
                raise ControlError("NOT_FOUND", f"no parser value set {name!r} in the program")
            value_set = self.program.value_sets[index]
            if len(members) > value_set.size:
                raise ControlError(
                    "RESOURCE_EXHAUSTED",
                    f"value set {name!r} holds {value_set.size} members, not {len(members)}",
                )
            widths = value_set_widths(value_set)
            checked = tuple(_checked_member(value_set, widths, member) for member in members)
            self._on_value_set(index, checked)
            self.value_set_members[index] = checked


def value_set_widths(value_set: ValueSet) -> tuple[int, ...]:
    """Widths in bits of the values a member of the set has."""
    fields = getattr(value_set.type, "fields", None)
    if fields is None:
        return (scalar_width(value_set.type),)
    return tuple(scalar_width(f.type) for f in fields)


def _checked_member(
    value_set: ValueSet, widths: tuple[int, ...], member: Sequence[KeyMatch]
) -> tuple[KeyMatch, ...]:
    if len(member) != len(widths):
        raise ControlError(
            "INVALID_ARGUMENT",
            f"a member of value set {value_set.name!r} has {len(widths)} values, "
            f"not {len(member)}",
        )
    where = f"value set {value_set.name!r}"
    return tuple(
        canonical_match(match, kind, width, where)
        for match, kind, width in zip(member, value_set.match_kinds, widths, strict=True)
    )


def _checked_replicas(where: str, replicas: Sequence[Replica]) -> tuple[Replica, ...]:
    for replica in replicas:
        if not 0 <= replica.port <= LARGEST_PORT:
            raise ControlError(
                "INVALID_ARGUMENT", f"{where}: port {replica.port} is not in 0..{LARGEST_PORT}"
            )
        if not 0 <= replica.instance <= LARGEST_GROUP:
            raise ControlError(
                "INVALID_ARGUMENT",
                f"{where}: instance {replica.instance} is not in 0..{LARGEST_GROUP}",
            )
    if len(set(replicas)) != len(replicas):
        raise ControlError("INVALID_ARGUMENT", f"{where}: a port and instance stand there twice")
    return tuple(replicas)


def _check_meter(where: str, config: MeterConfig | None) -> None:
    if config is None:
        return
    if min(config.cir, config.cburst, config.pir, config.pburst) < 0:
        raise ControlError("INVALID_ARGUMENT", f"{where}: rates and bursts must not be negative")
    if config.cir > config.pir:
        raise ControlError(
            "INVALID_ARGUMENT",
            f"{where}: the committed rate {config.cir} exceeds the peak rate {config.pir}",
        )
