"""P4Runtime ids and aliases, as p4c assigns them.

An id is an 8-bit kind and 24 bits of Bob Jenkins' one-at-a-time hash of the fully qualified name;
collisions probe upwards in order of name; `@id` overrides (P4Runtime specification 1.5, 6.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from p4switch.ir import Annotation
from p4switch.position import NOWHERE, P4Error


class IdKind(IntEnum):
    """First byte of an id."""

    ACTION = 0x01
    TABLE = 0x02
    VALUE_SET = 0x03
    CONTROLLER_HEADER = 0x04
    ACTION_PROFILE = 0x11
    COUNTER = 0x12
    DIRECT_COUNTER = 0x13
    METER = 0x14
    DIRECT_METER = 0x15
    REGISTER = 0x16
    DIGEST = 0x17


def one_at_a_time(name: str) -> int:
    """Return Bob Jenkins' one-at-a-time hash, 32 bits."""
    value = 0
    for byte in name.encode():
        value = (value + byte) & 0xFFFFFFFF
        value = (value + (value << 10)) & 0xFFFFFFFF
        value ^= value >> 6
    value = (value + (value << 3)) & 0xFFFFFFFF
    value ^= value >> 11
    return (value + (value << 15)) & 0xFFFFFFFF


def given_id(kind: IdKind, annotations: Iterable[Annotation]) -> int | None:
    """Return the id that `@id` gives, with the kind's prefix added if it is missing.

    None without `@id`.
    """
    for annotation in annotations:
        if annotation.name != "id" or not annotation.arguments:
            continue
        value = annotation.arguments[0]
        if not isinstance(value, int):
            raise P4Error(NOWHERE, f"@id({value!r}): expected a number")
        if value >> 24 == 0:
            return kind << 24 | value
        if value >> 24 != kind:
            raise P4Error(
                NOWHERE,
                f"@id({value:#x}): its first byte is of another kind of object than "
                f"{kind.name.lower()} ({kind:#04x})",
            )
        return value
    return None


def assign_ids(kind: IdKind, names: Mapping[str, Iterable[Annotation]]) -> dict[str, int]:
    """Return ids for the objects of one kind by name, given annotations by fully qualified name."""
    ids: dict[str, int] = {}
    for name, written in names.items():
        value = given_id(kind, written)
        if value is None:
            continue
        if value in ids.values():
            raise P4Error(NOWHERE, f"@id({value:#x}) is given to two objects; {name} is the second")
        ids[name] = value
    taken = set(ids.values())
    for name in sorted(names):
        if name in ids:
            continue
        value = one_at_a_time(name) & 0xFFFFFF
        while (kind << 24 | value) in taken:
            value = (value + 1) & 0xFFFFFF
        ids[name] = kind << 24 | value
        taken.add(ids[name])
    return ids


def aliases(names: Iterable[str]) -> dict[str, str]:
    """Return the shortest suffix of each dotted name that no other name has."""
    parts = {name: name.split(".") for name in names}
    counts: dict[tuple[str, ...], int] = {}
    for components in parts.values():
        for length in range(1, len(components) + 1):
            suffix = tuple(components[-length:])
            counts[suffix] = counts.get(suffix, 0) + 1
    result = {}
    for name, components in parts.items():
        for length in range(1, len(components) + 1):
            if counts[tuple(components[-length:])] == 1:
                break
        result[name] = ".".join(components[-length:])
    return result
