"""Comparison of a P4Info with a program's, except for parts without effect on requests."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from p4switch.proto import p4i
from p4switch.proto.definitions import is_repeated

# Documentation, and fields that older compilers omit.
COSMETIC = frozenset(
    {
        "alias",
        "annotations",
        "annotation_locations",
        "doc",
        "has_initial_entries",
        "initial_default_action",
        "pkg_info",
        "structured_annotations",
    }
)


def difference(given: p4i.P4Info, ours: p4i.P4Info) -> str | None:
    """Return the first difference of a P4Info from the program's own; None if they agree."""
    if given == ours:
        return None
    left, right = p4i.P4Info(), p4i.P4Info()
    left.CopyFrom(given)
    right.CopyFrom(ours)
    _normalise(left)
    _normalise(right)
    for field in p4i.P4Info.DESCRIPTOR.fields:
        if not is_repeated(field) or field.name in COSMETIC:
            continue
        theirs = {item.preamble.id: item for item in getattr(left, field.name)}
        known = {item.preamble.id: item for item in getattr(right, field.name)}
        for number, item in theirs.items():
            if number not in known:
                return f"the program has no {_name(field, item)}"
            if item != known[number]:
                return f"{_name(field, item)} differs in the program"
        for number, item in known.items():
            if number not in theirs:
                return f"{_name(field, item)} of the program is missing"
    return None


def _name(field: FieldDescriptor, item: Any) -> str:
    what = field.name.removesuffix("s").replace("_", " ")
    return f"{what} {item.preamble.name!r} (id {item.preamble.id:#010x})"


def _normalise(message: Any) -> None:
    """Clear cosmetic fields, sort lists."""
    for field, value in message.ListFields():
        if field.name in COSMETIC:
            message.ClearField(field.name)
        elif field.message_type is None:
            if is_repeated(field):
                value.sort()
        elif field.message_type.GetOptions().map_entry:
            continue
        elif is_repeated(field):
            for item in value:
                _normalise(item)
            value.sort(key=lambda item: item.SerializeToString(deterministic=True))
        else:
            _normalise(value)
