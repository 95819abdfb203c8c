"""Look-up structures against a linear search by the book."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4switch.backends.reference.tables import (
    ExactLookup,
    InstalledEntry,
    Lookup,
    PrefixLookup,
    PriorityLookup,
)
from p4switch.ir import ActionChoice
from p4switch.targets.v1model.engine import KeyMatch, TableEntry
from p4switch.targets.v1model.matches import prefix_mask
from p4switch.targets.v1model.meters import Meter
from tests.support.search import examples

WIDTH = 4
VALUES = st.integers(0, 15)
KEYS = st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=20)


def item(matches: tuple[KeyMatch, ...], priority: int = 0) -> InstalledEntry:
    return InstalledEntry(TableEntry(matches, ActionChoice(0), priority), None, Meter())


def lpm(value: int, length: int) -> KeyMatch:
    if length == 0:
        return KeyMatch(any=True)
    return KeyMatch(value & prefix_mask(length, WIDTH), prefix_length=length)


def fits(match: KeyMatch, kind: str, value: int) -> bool:
    if match.any:
        return True
    if kind == "lpm":
        return value >> (WIDTH - match.prefix_length) == match.value >> (
            WIDTH - match.prefix_length
        )
    if kind == "ternary":
        return value & match.mask == match.value
    if kind == "range":
        return value in range(match.value, match.high + 1)
    return value == match.value


def install(lookup: Lookup, items: list[InstalledEntry]) -> list[InstalledEntry]:
    """Insert all of different identity, then remove every third."""
    kept: dict[tuple[object, int], InstalledEntry] = {}
    for one in items:
        identity = (one.entry.matches, one.entry.priority)
        if identity not in kept:
            kept[identity] = one
            lookup.insert(one)
    for identity in list(kept)[::3]:
        lookup.delete(kept.pop(identity).entry)
    return list(kept.values())


@pytest.mark.slow
@given(st.lists(st.tuples(VALUES, VALUES), max_size=20), KEYS)
def test_exact(entries: list[tuple[int, int]], keys: list[tuple[int, int]]) -> None:
    lookup = ExactLookup()
    kept = install(lookup, [item((KeyMatch(a), KeyMatch(b))) for a, b in entries])
    by_key = {tuple(m.value for m in one.entry.matches): one for one in kept}
    for key in keys:
        assert lookup.find(key) is by_key.get(key)


@pytest.mark.slow
@given(st.lists(st.tuples(VALUES, VALUES, st.integers(0, WIDTH)), max_size=30), KEYS)
def test_longest_prefix(entries: list[tuple[int, int, int]], keys: list[tuple[int, int]]) -> None:
    lookup = PrefixLookup(1, WIDTH)
    items = [item((KeyMatch(a), lpm(value, length))) for a, value, length in entries]
    kept = install(lookup, items)
    for key in keys:
        candidates = [
            one
            for one in kept
            if one.entry.matches[0].value == key[0] and fits(one.entry.matches[1], "lpm", key[1])
        ]
        best = max(candidates, key=lambda one: one.entry.matches[1].prefix_length, default=None)
        assert lookup.find(key) is best


@st.composite
def wild_items(draw: st.DrawFn) -> InstalledEntry:
    mask, low, high = draw(VALUES), *sorted((draw(VALUES), draw(VALUES)))
    ternary = KeyMatch(draw(VALUES) & mask, mask=mask) if mask else KeyMatch(any=True)
    ranged = KeyMatch(any=True) if (low, high) == (0, 15) else KeyMatch(low, high=high)
    return item((ternary, ranged), draw(st.integers(1, 5)))


@pytest.mark.slow
@settings(max_examples=examples(40, of=200))
@given(st.lists(wild_items(), max_size=30), KEYS)
def test_priority(items: list[InstalledEntry], keys: list[tuple[int, int]]) -> None:
    kinds = ("ternary", "range")
    lookup = PriorityLookup(kinds, (WIDTH, WIDTH))
    kept = install(lookup, items)
    for key in keys:
        candidates = [
            one
            for one in kept
            if all(fits(m, k, v) for m, k, v in zip(one.entry.matches, kinds, key, strict=True))
        ]
        # max returns the first of equals, the one that came first
        best = max(candidates, key=lambda one: one.entry.priority, default=None)
        assert lookup.find(key) is best
