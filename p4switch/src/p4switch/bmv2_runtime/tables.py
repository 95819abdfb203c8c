"""Tables and action profiles in BMv2's terms: entries have handles, actions and data are named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from p4switch.bmv2_runtime.records import (
    TABLE,
    ActionEntryType,
    Fault,
    MatchParamType,
    Record,
    TableCode,
    table_fault,
)
from p4switch.ir import ActionChoice, ExternInstance, Key, Table, TableAction
from p4switch.targets.v1model.engine import (
    ControlError,
    CounterValue,
    Engine,
    KeyMatch,
    MeterConfig,
    TableEntry,
)
from p4switch.targets.v1model.matches import (
    action_data,
    canonical_entry,
    match_keys,
    needs_priority,
    prefix_mask,
)
from p4switch.targets.v1model.table_state import EntryKey

LARGEST_PRIORITY = (1 << 31) - 1
MICROSECONDS = 1_000_000


@contextmanager
def table_faults() -> Iterator[None]:
    """Turn what an engine refuses into BMv2's exception."""
    try:
        yield
    except ControlError as error:
        raise table_fault(error) from error


def flipped(priority: int) -> int:
    """Convert a priority between BMv2 (smaller wins) and engines (larger wins)."""
    if not 0 <= priority < LARGEST_PRIORITY:
        raise Fault(TABLE, TableCode.ERROR, f"priority {priority} is out of range")
    return LARGEST_PRIORITY - priority


class Handles:
    """Handles of a table's entries, which an entry keeps as long as it exists."""

    def __init__(self) -> None:
        self._numbers = count()
        self._by_key: dict[EntryKey, int] = {}
        self._keys: dict[int, EntryKey] = {}

    def of(self, key: EntryKey) -> int:
        """Return the handle of an entry; a new one if it has none."""
        if key not in self._by_key:
            handle = next(self._numbers)
            self._by_key[key], self._keys[handle] = handle, key
        return self._by_key[key]

    def key(self, handle: int) -> EntryKey:
        """Return what identifies an entry; INVALID_HANDLE if there is none."""
        if handle not in self._keys:
            raise Fault(TABLE, TableCode.INVALID_HANDLE, f"no entry has the handle {handle}")
        return self._keys[handle]

    def forget(self, key: EntryKey) -> None:
        """Remove an entry's handle."""
        self._keys.pop(self._by_key.pop(key, -1), None)

    def adopt(self, keys: Sequence[EntryKey]) -> None:
        """Follow the entries that exist, which P4Runtime may have changed."""
        known = set(keys)
        for key in [key for key in self._by_key if key not in known]:
            self.forget(key)
        for key in keys:
            self.of(key)


class Tables:
    """The tables and action profiles of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tables = {table.name: table for table in engine.program.tables}
        self._handles = {name: Handles() for name in self._tables}
        for name in self._tables:
            self.entries(name)  # The program's own come first.

    def table(self, name: str) -> Table:
        """Return a table; INVALID_TABLE_NAME if there is none."""
        if name not in self._tables:
            raise Fault(TABLE, TableCode.INVALID_TABLE_NAME, f"no table {name!r}")
        return self._tables[name]

    # --- entries

    def entries(self, name: str) -> list[tuple[int, TableEntry]]:
        """Return all entries with their handles."""
        self.table(name)
        entries = self._engine.entries(name)
        handles = self._handles[name]
        handles.adopt([(entry.matches, entry.priority) for entry in entries])
        return [(handles.of((entry.matches, entry.priority)), entry) for entry in entries]

    def entry(self, name: str, handle: int) -> TableEntry:
        """Return an entry; INVALID_HANDLE if there is none."""
        for number, entry in self.entries(name):
            if number == handle:
                return entry
        raise Fault(TABLE, TableCode.INVALID_HANDLE, f"table {name!r} has no entry {handle}")

    def add(
        self,
        name: str,
        match: Sequence[Any],
        options: Any,
        action: ActionChoice | None = None,
        member: int | None = None,
        group: int | None = None,
    ) -> int:
        """Add an entry and return its handle."""
        table = self.table(name)
        priority = 0
        if needs_priority(table):
            priority = flipped(getattr(options, "priority", None) or 0)
        entry = TableEntry(matches_of(table, match), action, priority, member, group)
        try:
            entry = canonical_entry(table, entry)
        except ControlError as error:
            raise Fault(TABLE, TableCode.BAD_MATCH_KEY, str(error)) from error
        with table_faults():
            self._engine.insert_entry(name, entry)
        return self._handles[name].of((entry.matches, entry.priority))

    def bare(self, name: str, handle: int) -> TableEntry:
        """Return what identifies an entry."""
        self.table(name)
        matches, priority = self._handles[name].key(handle)
        return TableEntry(matches, None, priority)

    def modify(self, name: str, handle: int, **change: Any) -> None:
        """Change the action, member or group of an entry."""
        with table_faults():
            self._engine.modify_entry(name, self.bare(name, handle)._replace(**change))

    def delete(self, name: str, handle: int) -> None:
        """Remove an entry."""
        with table_faults():
            self._engine.delete_entry(name, self.bare(name, handle))
        self._handles[name].forget(self._handles[name].key(handle))

    def clear(self, name: str) -> None:
        """Remove all entries that are not const."""
        for handle, entry in self.entries(name):
            if not entry.constant and not self.table(name).entries_constant:
                self.delete(name, handle)

    def set_timeout(self, name: str, handle: int, milliseconds: int) -> None:
        """Set after how long without a match an entry is reported."""
        if not self.table(name).support_timeout:
            raise Fault(TABLE, TableCode.AGEING_DISABLED, f"{name!r} has no support_timeout")
        entry = self.entry(name, handle)
        with table_faults():
            self._engine.modify_entry(
                name, entry._replace(idle_timeout_ns=milliseconds * MICROSECONDS)
            )

    def find(self, name: str, match: Sequence[Any], options: Any) -> int:
        """Return the handle of the entry with a key; BAD_MATCH_KEY if there is none."""
        table = self.table(name)
        priority = 0
        if needs_priority(table):
            priority = flipped(getattr(options, "priority", None) or 0)
        wanted = canonical_entry(table, TableEntry(matches_of(table, match), None, priority))
        for handle, entry in self.entries(name):
            if (entry.matches, entry.priority) == (wanted.matches, wanted.priority):
                return handle
        raise Fault(TABLE, TableCode.BAD_MATCH_KEY, f"table {name!r} has no such entry")

    def record(self, name: str, handle: int, entry: TableEntry, now_us: int) -> Record:
        """Return an entry as BmMtEntry."""
        table = self.table(name)
        life = None
        if table.support_timeout:
            since = now_us - self._engine.last_hit_us(name, entry)
            timeout = entry.idle_timeout_ns // MICROSECONDS
            life = Record("BmMtEntryLife", timeout_ms=timeout, time_since_hit_ms=since // 1000)
        priority = LARGEST_PRIORITY - entry.priority if needs_priority(table) else -1
        return Record(
            "BmMtEntry",
            match_key=[
                parameter_of(key, match)
                for key, match in zip(match_keys(table), entry.matches, strict=True)
            ],
            options=Record("BmAddEntryOptions", priority=priority),
            entry_handle=handle,
            action_entry=self.action_record(table.actions, entry.action, entry.member, entry.group),
            life=life,
        )

    # --- actions

    def choice(
        self, owner: str, actions: Sequence[TableAction], name: str, data: Sequence[bytes]
    ) -> ActionChoice:
        """Return an action with its data."""
        for index, each in enumerate(actions):
            if each.action.name == name:
                if len(data) != len(action_data(each.action)):
                    raise Fault(TABLE, TableCode.BAD_ACTION_DATA, f"{name}: wrong number of data")
                return ActionChoice(index, tuple(int.from_bytes(each, "big") for each in data))
        raise Fault(TABLE, TableCode.INVALID_ACTION_NAME, f"{owner} has no action {name!r}")

    def action_record(
        self,
        actions: Sequence[TableAction],
        choice: ActionChoice | None,
        member: int | None = None,
        group: int | None = None,
    ) -> Record:
        """Return an action, member or group as BmActionEntry."""
        name = data = None
        kind = ActionEntryType.MBR_HANDLE if member is not None else ActionEntryType.GRP_HANDLE
        if choice is not None:
            kind = ActionEntryType.ACTION_DATA
            name, data = named(actions, choice)
        return Record(
            "BmActionEntry",
            action_type=kind,
            action_name=name,
            action_data=data,
            mbr_handle=member,
            grp_handle=group,
        )

    # --- action profiles

    def profile(self, name: str) -> tuple[ExternInstance, tuple[TableAction, ...]]:
        """Return an action profile or selector, and its actions."""
        for table in self._tables.values():
            found = table.implementation
            if found is not None and found.name == name:
                return found, table.actions
        raise Fault(TABLE, TableCode.INVALID_ACTION_PROFILE_NAME, f"no action profile {name!r}")

    def selector(self, name: str) -> None:
        """Raise NO_ACTION_PROFILE_SELECTION unless a profile has groups."""
        if self.profile(name)[0].extern != "action_selector":
            raise Fault(TABLE, TableCode.NO_ACTION_PROFILE_SELECTION, f"{name!r} has no selector")

    # --- direct counters and meters

    def counter(self, name: str, handle: int) -> CounterValue:
        """Return an entry's direct counter."""
        self._check_direct(name, "counter")
        with table_faults():
            return self._engine.read_direct_counter(name, self.bare(name, handle))

    def set_counter(self, name: str, handle: int, value: CounterValue) -> None:
        """Set an entry's direct counter."""
        self._check_direct(name, "counter")
        with table_faults():
            self._engine.write_direct_counter(name, self.bare(name, handle), value)

    def reset_counters(self, name: str) -> None:
        """Set the direct counters of all entries to 0."""
        self._check_direct(name, "counter")
        for handle, _ in self.entries(name):
            self.set_counter(name, handle, CounterValue())

    def meter(self, name: str, handle: int) -> MeterConfig | None:
        """Return the rates of an entry's direct meter."""
        self._check_direct(name, "meter")
        with table_faults():
            return self._engine.direct_meter(name, self.bare(name, handle))

    def set_meter(self, name: str, handle: int, config: MeterConfig) -> None:
        """Set the rates of an entry's direct meter."""
        self._check_direct(name, "meter")
        with table_faults():
            self._engine.set_direct_meter(name, self.bare(name, handle), config)

    def _check_direct(self, name: str, what: str) -> None:
        table = self.table(name)
        if what == "counter" and not table.counters:
            raise Fault(TABLE, TableCode.COUNTERS_DISABLED, f"{name!r} has no direct counter")
        if what == "meter" and not table.meters:
            raise Fault(TABLE, TableCode.METERS_DISABLED, f"{name!r} has no direct meter")


def named(actions: Sequence[TableAction], choice: ActionChoice) -> tuple[str, list[bytes]]:
    """Return name and data of an action."""
    action = actions[choice.index].action
    data = zip(choice.arguments, action_data(action), strict=True)
    return action.name, [padded(value, width) for value, (_, width) in data]


def padded(value: int, width: int) -> bytes:
    """Return a number in as many bytes as its width needs."""
    return value.to_bytes((width + 7) // 8, "big")


def matches_of(table: Table, parameters: Sequence[Any]) -> tuple[KeyMatch, ...]:
    """Return matches from BmMatchParams; BAD_MATCH_KEY if they do not fit the table."""
    keys = match_keys(table)
    if len(parameters) != len(keys):
        raise Fault(
            TABLE,
            TableCode.BAD_MATCH_KEY,
            f"table {table.name!r} has {len(keys)} keys, not {len(parameters)}",
        )
    try:
        return tuple(_match(key, each) for key, each in zip(keys, parameters, strict=True))
    except (AttributeError, TypeError) as error:
        raise Fault(
            TABLE, TableCode.BAD_MATCH_KEY, f"table {table.name!r}: a match of another kind"
        ) from error


def _match(key: Key, given: Any) -> KeyMatch:
    if given.type == MatchParamType.VALID:
        return KeyMatch(int(given.valid.key))
    if given.type == MatchParamType.LPM and key.match_kind == "lpm":
        mask = prefix_mask(given.lpm.prefix_length, key.width)
        return KeyMatch(_number(given.lpm.key) & mask, prefix_length=given.lpm.prefix_length)
    if given.type == MatchParamType.RANGE and key.match_kind == "range":
        return KeyMatch(_number(given.range.start), high=_number(given.range.end_))
    if given.type == MatchParamType.TERNARY and key.match_kind in ("ternary", "optional"):
        mask = _number(given.ternary.mask)
        if mask == 0:
            return KeyMatch(any=True)
        value = _number(given.ternary.key) & mask
        return KeyMatch(value, mask=mask if key.match_kind == "ternary" else 0)
    if given.type == MatchParamType.EXACT and key.match_kind in ("exact", "optional"):
        return KeyMatch(_number(given.exact.key))
    raise TypeError(key.name)


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def parameter_of(key: Key, match: KeyMatch) -> Record:
    """Return a match as BmMatchParam, in the kind that BMv2's JSON has for the key."""
    width, full = key.width, (1 << key.width) - 1
    parts: dict[str, Record | None] = dict.fromkeys(("exact", "lpm", "ternary", "valid", "range"))
    if key.match_kind == "exact":
        kind = MatchParamType.EXACT
        parts["exact"] = Record("BmMatchParamExact", key=padded(match.value, width))
    elif key.match_kind == "lpm":
        kind = MatchParamType.LPM
        length = 0 if match.any else match.prefix_length
        parts["lpm"] = Record(
            "BmMatchParamLPM", key=padded(match.value, width), prefix_length=length
        )
    elif key.match_kind == "range":
        kind = MatchParamType.RANGE
        high = full if match.any else match.high
        parts["range"] = Record(
            "BmMatchParamRange", start=padded(match.value, width), end_=padded(high, width)
        )
    else:
        kind = MatchParamType.TERNARY
        mask = 0 if match.any else match.mask if key.match_kind == "ternary" else full
        parts["ternary"] = Record(
            "BmMatchParamTernary", key=padded(match.value, width), mask=padded(mask, width)
        )
    return Record("BmMatchParam", type=kind, **parts)
