"""Tables and action profiles of an engine: entries, defaults, members and groups, with checks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from p4switch.ir import ActionChoice, ExternInstance, Program, Table, TableAction
from p4switch.position import UnsupportedError
from p4switch.targets.v1model.engine import ControlError, EngineOptions, KeyMatch, TableEntry
from p4switch.targets.v1model.matches import (
    canonical_entry,
    check_choice,
    program_entries,
    table_size,
)
from p4switch.targets.v1model.replication_state import ReplicationState

EntryKey = tuple[tuple[KeyMatch, ...], int]
"""Key of an entry: canonical matches and priority."""

PROFILE_EXTERNS = ("action_profile", "action_selector")


@dataclass(slots=True)
class StoredEntry:
    """An entry and its handle: a number below the table's size + the program's entries, which

    is unique among the table's current entries; counters and meters are indexed by it.
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
    where: str = field(init=False)
    """In messages of errors."""

    def __post_init__(self) -> None:
        self.where = f"table {self.table.name!r}"

    def key(self, entry: TableEntry) -> EntryKey:
        """Return the identity of an entry given by the control plane.

        INVALID_ARGUMENT if not legal.
        """
        canonical = canonical_entry(self.table, entry)
        return canonical.matches, canonical.priority

    def stored(self, entry: TableEntry) -> StoredEntry:
        """Return the installed entry with these matches and priority.

        NOT_FOUND if there is none.
        """
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


class TablesState(ReplicationState):
    """The tables' part of `state.ControlState`."""

    def __init__(self, program: Program, options: EngineOptions | None = None) -> None:
        super().__init__(program, options)
        self.now_us = 0
        """The latest clock passed to `process`; the derived class sets it."""
        self.table_states = [TableState(t, t.default_action) for t in program.tables]
        self.profile_states = [
            self._make_profile(instance)
            for instance in program.externs
            if instance.extern in PROFILE_EXTERNS
        ]
        self._table_index = {table.name: i for i, table in enumerate(program.tables)}
        self._profile_index = {p.instance.name: i for i, p in enumerate(self.profile_states)}

    # --- hooks of the derived class for changes of state

    @abstractmethod
    def _on_insert(self, table: int, handle: int, entry: TableEntry) -> None:
        """React to a new entry; its counters and meters are reset."""

    @abstractmethod
    def _on_modify(self, table: int, handle: int, entry: TableEntry) -> None:
        """React to a changed action of an entry; counters and meters stay."""

    @abstractmethod
    def _on_delete(self, table: int, handle: int, entry: TableEntry) -> None:
        """React to a removed entry."""

    @abstractmethod
    def _on_default(self, table: int, choice: ActionChoice) -> None:
        """React to a new default action of a table."""

    @abstractmethod
    def _on_member(self, profile: int, member: int, choice: ActionChoice | None) -> None:
        """React to a new, changed or (None) removed member of `profile_states[profile]`."""

    @abstractmethod
    def _on_group(self, profile: int, group: int, members: tuple[int, ...] | None) -> None:
        """React to a new, changed or (None) removed group."""

    @abstractmethod
    def _last_hit_us(self, table: int, handle: int) -> int:
        """Return the clock when the entry last matched, or was inserted (`now_us` then)."""

    def _on_forget(self, table: int, handle: int) -> None:
        """Drop state that is indexed by the handle of a removed entry."""

    # --- tables

    def _load_program(self) -> None:
        """Install the source's default actions and entries, through the hooks."""
        with self.lock:
            for index, state in enumerate(self.table_states):
                self._on_default(index, state.default)
                for entry in program_entries(state.table):
                    key = (entry.matches, entry.priority)
                    if key not in state.entries:  # Of two equal ones the first wins.
                        self._store(index, state, key, entry)

    def _store(self, index: int, state: TableState, key: EntryKey, entry: TableEntry) -> None:
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
            key = (entry.matches, entry.priority)
            if key in state.entries:
                raise ControlError("ALREADY_EXISTS", f"table {table!r} has this entry already")
            size = table_size(state.table)
            if len(state.entries) >= size:
                raise ControlError(
                    "RESOURCE_EXHAUSTED", f"table {table!r} is full: it holds {size} entries"
                )
            self._store(index, state, key, entry)

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
            self._on_forget(index, stored.handle)

    def entries(self, table: str) -> list[TableEntry]:
        """See `Engine`."""
        with self.lock:
            _, state = self._table_state(table)
            return [stored.entry for stored in state.entries.values()]

    def installed(
        self, table: str, matches: tuple[KeyMatch, ...], priority: int
    ) -> TableEntry | None:
        """See `Engine`."""
        with self.lock:
            stored = self._table_state(table)[1].entries.get((matches, priority))
            return None if stored is None else stored.entry

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

    def last_hit_us(self, table: str, entry: TableEntry) -> int:
        """See `Engine`."""
        with self.lock:
            index, state = self._table_state(table)
            return self._last_hit_us(index, state.stored(entry).handle)

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
        """Return the canonical entry after checking its action, member or group.

        It is never a const one.
        """
        table, owner = state.table, state.where
        if entry.idle_timeout_ns and not table.support_timeout:
            raise ControlError(
                "INVALID_ARGUMENT", f"{owner} has no support_timeout, the entry a timeout"
            )
        if (entry.action, entry.member, entry.group).count(None) != 2:
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
        canonical = canonical_entry(table, entry)
        return canonical._replace(constant=False) if canonical.constant else canonical

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
        _check_actions(instance, [self.program.tables[i] for i in users])
        actions = self.program.tables[users[0]].actions if users else ()
        size = instance.number(1 if instance.extern == "action_selector" else 0)
        return ProfileState(instance, users, actions, size)

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
            if state.actions[action.index].default_only:
                name = state.actions[action.index].action.name
                raise ControlError(
                    "INVALID_ARGUMENT", f"action {name!r} of profile {profile!r} is @defaultonly"
                )
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


def _check_actions(instance: ExternInstance, users: Sequence[Table]) -> None:
    """Raise UnsupportedError unless an index stands for one action in all tables of a profile.

    Members hold indices. (P4Runtime 1.5, section 9.2: the tables' actions must be the same.)
    """
    for table in users[1:]:
        if _member_actions(table) != _member_actions(users[0]):
            raise UnsupportedError(
                table.position,
                f"tables that share {instance.name!r} must list the same actions in one order",
            )


def _member_actions(table: Table) -> list[tuple[int, str]]:
    """Return the actions that members may have, which are those of entries."""
    return [(i, a.action.name) for i, a in enumerate(table.actions) if not a.default_only]
