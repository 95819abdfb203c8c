"""Table look-up for the interpreter: exact by hash, lpm by prefix length, others by priority.

The kinds are BMv2's (docs/simple_switch.md, "Table match kinds supported").
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from p4switch.ir import ActionChoice, Table
from p4switch.targets.v1model.engine import KeyMatch, TableEntry
from p4switch.targets.v1model.hashes import Hash
from p4switch.targets.v1model.matches import PRIORITY_KINDS, match_keys, prefix_mask, ternary_form
from p4switch.targets.v1model.meters import Meter
from p4switch.targets.v1model.table_state import EntryKey

KeyValues = tuple[int, ...]
"""Unsigned key values, without those of selector keys."""

SelectorBits = tuple[tuple[int, int], ...]
"""(value, width) of each selector key."""


@dataclass(slots=True)
class InstalledEntry:
    """An entry in the data plane: `choice` is its action, None if a profile chooses it."""

    entry: TableEntry
    choice: ActionChoice | None
    meter: Meter
    packets: int = 0
    bytes: int = 0
    last_hit_us: int = 0


_Tested = tuple[Callable[[KeyValues], bool], InstalledEntry]
"""Whether an entry matches a key, and the entry."""


class Lookup(Protocol):
    """A structure that finds the winning entry."""

    def insert(self, item: InstalledEntry) -> None:
        """Add an entry."""

    def delete(self, entry: TableEntry) -> None:
        """Remove the entry with these matches and priority."""

    def find(self, key: KeyValues) -> InstalledEntry | None:
        """Return the entry that matches and wins, or None."""


class ExactLookup:
    """All keys exact: one hash table."""

    def __init__(self) -> None:
        self._items: dict[KeyValues, InstalledEntry] = {}
        self.find = self._items.get

    def insert(self, item: InstalledEntry) -> None:
        """Add an entry."""
        self._items[_values(item.entry)] = item

    def delete(self, entry: TableEntry) -> None:
        """Remove an entry."""
        del self._items[_values(entry)]


class PrefixLookup:
    """One lpm key among exact ones: a hash table for each prefix length, longest first."""

    def __init__(self, place: int, width: int) -> None:
        self._place = place
        self._width = width
        self._lengths: list[int] = []  # Negative, so that the longest is first.
        self._items: dict[int, dict[KeyValues, InstalledEntry]] = {}

    def insert(self, item: InstalledEntry) -> None:
        """Add an entry."""
        length = item.entry.matches[self._place].prefix_length
        if length not in self._items:
            self._items[length] = {}
            insort(self._lengths, -length)
        self._items[length][_values(item.entry)] = item

    def delete(self, entry: TableEntry) -> None:
        """Remove an entry."""
        length = entry.matches[self._place].prefix_length
        del self._items[length][_values(entry)]
        if not self._items[length]:
            del self._items[length]
            self._lengths.remove(-length)

    def find(self, key: KeyValues) -> InstalledEntry | None:
        """Return the entry with the longest prefix that matches."""
        place = self._place
        for negative in self._lengths:
            mask = prefix_mask(-negative, self._width)
            masked = (*key[:place], key[place] & mask, *key[place + 1 :])
            found = self._items[-negative].get(masked)
            if found is not None:
                return found
        return None


class PriorityLookup:
    """Any match kinds: entries by descending priority, among equals the oldest first."""

    def __init__(self, kinds: tuple[str, ...], widths: tuple[int, ...]) -> None:
        self._kinds = kinds
        self._widths = widths
        self._items: dict[EntryKey, _Tested] = {}
        self._order: list[_Tested] | None = []
        """The items as they are searched; None after a change: many may follow each other."""

    def insert(self, item: InstalledEntry) -> None:
        """Add an entry."""
        entry = item.entry
        self._items[entry.matches, entry.priority] = (self._test(entry.matches), item)
        self._order = None

    def delete(self, entry: TableEntry) -> None:
        """Remove an entry."""
        del self._items[entry.matches, entry.priority]
        self._order = None

    def find(self, key: KeyValues) -> InstalledEntry | None:
        """Return the matching entry of the largest priority."""
        if self._order is None:
            self._order = sorted(self._items.values(), key=lambda each: -each[1].entry.priority)
        for test, item in self._order:
            if test(key):
                return item
        return None

    def _test(self, matches: tuple[KeyMatch, ...]) -> Callable[[KeyValues], bool]:
        masked: list[tuple[int, int, int]] = []
        ranges: list[tuple[int, int, int]] = []
        for place, match in enumerate(matches):
            if match.any:
                continue
            if self._kinds[place] == "range":
                ranges.append((place, match.value, match.high))
            else:
                value, mask = ternary_form(match, self._kinds[place], self._widths[place])
                masked.append((place, value, mask))

        def test(key: KeyValues) -> bool:
            return all(key[place] & mask == value for place, value, mask in masked) and all(
                low <= key[place] <= high for place, low, high in ranges
            )

        return test


def make_lookup(table: Table) -> Lookup:
    """Return the structure for a table's match kinds."""
    keys = match_keys(table)
    kinds = tuple(key.match_kind for key in keys)
    if any(kind in PRIORITY_KINDS for kind in kinds) or kinds.count("lpm") > 1:
        return PriorityLookup(kinds, tuple(key.width for key in keys))
    if "lpm" in kinds:
        place = kinds.index("lpm")
        return PrefixLookup(place, keys[place].width)
    return ExactLookup()


@dataclass(slots=True)
class ProfileRuntime:
    """An action profile's members and groups in the data plane; `hash` of a selector."""

    members: dict[int, ActionChoice] = field(default_factory=dict)
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)
    hash: Hash | None = None

    def choose(self, entry: TableEntry, selector: SelectorBits) -> int | None:
        """Return an entry's member, or the one chosen of its group; None for an empty group.

        BMv2 takes the selector's hash modulo the group's size (action_profile.cpp,
        get_from_hash).
        """
        if entry.member is not None:
            return entry.member
        members = self.groups[entry.group] if entry.group is not None else ()
        if not members:
            return None
        chosen = 0
        if self.hash is not None:
            value = width = 0
            for part, count in selector:
                value = value << count | part
                width += count
            chosen = self.hash(value, width) & 0xFFFFFFFF
        return members[chosen % len(members)]


class PacketClock(Protocol):
    """The current packet, for tables."""

    ingress_length: int
    now_us: int


class TableRuntime:
    """A table in the data plane: look-up, then counters and meters, then the action."""

    def __init__(
        self,
        table: Table,
        profile: ProfileRuntime | None,
        unit_bytes: bool,
        clock: Callable[[], PacketClock],
    ) -> None:
        self.lookup = make_lookup(table)
        self.profile = profile
        self.default = table.default_action
        self.actions: list[Callable[..., None]] = []
        self.items: dict[int, InstalledEntry] = {}
        self.color = 0
        """The direct meter's colour for the last packet; 0 (green) for a miss."""
        self._unit_bytes = unit_bytes
        self._clock = clock
        self._observed = bool(table.counters or table.meters or table.support_timeout)

    def insert(self, handle: int, entry: TableEntry, now_us: int) -> None:
        """Install an entry."""
        meter = Meter(self._unit_bytes)
        item = InstalledEntry(entry, entry.action, meter, last_hit_us=now_us)
        self.items[handle] = item
        self.lookup.insert(item)

    def modify(self, handle: int, entry: TableEntry) -> None:
        """Change what an entry does."""
        item = self.items[handle]
        item.entry = entry
        item.choice = entry.action

    def delete(self, handle: int) -> None:
        """Remove an entry."""
        self.lookup.delete(self.items.pop(handle).entry)

    def apply(self, key: KeyValues, selector: SelectorBits) -> tuple[bool, int]:
        """Run the action for a key; return whether it hit, and the action's index in the table.

        An entry with an empty group runs the default action, and is a hit.
        """
        item = self.lookup.find(key)
        if item is None:
            choice = self.default
            self.color = 0
        else:
            if self._observed:
                self._observe(item)
            choice = item.choice or self._indirect(item.entry, selector)
        self._chosen(key, item, choice)
        self.actions[choice.index](*choice.arguments)
        return item is not None, choice.index

    def _chosen(self, key: KeyValues, item: InstalledEntry | None, choice: ActionChoice) -> None:
        """Note the entry that a key hit (None: a miss) and the action that is about to run."""

    def _indirect(self, entry: TableEntry, selector: SelectorBits) -> ActionChoice:
        if self.profile is None:
            return self.default
        member = self._member(self.profile, entry, selector)
        return self.default if member is None else self.profile.members[member]

    def _member(
        self, profile: ProfileRuntime, entry: TableEntry, selector: SelectorBits
    ) -> int | None:
        """Return the member of a profile that an entry chooses, if any; hook for observers."""
        return profile.choose(entry, selector)

    def _observe(self, item: InstalledEntry) -> None:
        packet = self._clock()
        item.packets += 1
        item.bytes += packet.ingress_length
        item.last_hit_us = packet.now_us
        self.color = item.meter.execute(packet.ingress_length, packet.now_us)


def _values(entry: TableEntry) -> KeyValues:
    return tuple(match.value for match in entry.matches)
