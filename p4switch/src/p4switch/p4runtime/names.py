"""A program's objects for the control plane, with ids and aliases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from p4switch.ir import (
    Annotation,
    Callable,
    ExternInstance,
    FieldType,
    Header,
    Program,
    Struct,
    ValueSet,
)
from p4switch.midend.walk import extern_calls
from p4switch.p4runtime.ids import IdKind, aliases, assign_ids
from p4switch.p4runtime.p4info_types import flat, is_tuple

EXTERN_KINDS = {
    "action_profile": IdKind.ACTION_PROFILE,
    "action_selector": IdKind.ACTION_PROFILE,
    "counter": IdKind.COUNTER,
    "direct_counter": IdKind.DIRECT_COUNTER,
    "meter": IdKind.METER,
    "direct_meter": IdKind.DIRECT_METER,
    "register": IdKind.REGISTER,
}


class Annotated(Protocol):
    """An object with annotations."""

    @property
    def name(self) -> str:
        """Return its name in the source."""

    @property
    def annotations(self) -> tuple[Annotation, ...]:
        """Return all annotations."""


def annotation(item: Annotated, name: str) -> Annotation | None:
    """Return the annotation of that name; None if there is none."""
    return next((a for a in item.annotations if a.name == name), None)


def hidden(item: Annotated) -> bool:
    """Return whether it is hidden from the control plane."""
    return annotation(item, "hidden") is not None


def shown_name(item: Annotated) -> str:
    """Return the control plane's name of a parameter or field: that of `@name`, else its own."""
    found = annotation(item, "name")
    return str(found.arguments[0]) if found is not None else item.name


def field_ids(items: Sequence[Annotated]) -> list[int]:
    """Return ids of keys, parameters or fields: 1, 2, ..., or those of `@id`."""
    given: list[int | None] = []
    for item in items:
        found = annotation(item, "id")
        given.append(int(found.arguments[0]) if found is not None else None)
    taken = {value for value in given if value is not None}
    ids = []
    number = 1
    for value in given:
        if value is not None:
            number += 1
            ids.append(value)
            continue
        while number in taken:
            number += 1
        taken.add(number)
        ids.append(number)
    return ids


def value_set_ids(value_set: ValueSet) -> list[int]:
    """Return the ids of the match fields of a value set."""
    if isinstance(value_set.type, Struct):
        return field_ids(value_set.type.fields)
    return [1]


# --- Controller headers ------------------------------------------------------------------------


def controller_headers(program: Program) -> list[Header]:
    """Return the types of packet_in and packet_out headers."""
    return [
        kind
        for kind in program.types.values()
        if isinstance(kind, Header)
        and annotation(kind, "controller_header") is not None
        and not hidden(kind)
    ]


def controller_name(header: Header) -> str:
    """Return `packet_in` or `packet_out`, by `@controller_header`."""
    found = annotation(header, "controller_header")
    return str(found.arguments[0]) if found and found.arguments else header.name


@dataclass(frozen=True, slots=True)
class HeaderField:
    """A field of a controller header; `id` is None where P4Info does not show it."""

    field: FieldType
    id: int | None


def header_fields(header: Header) -> list[HeaderField]:
    """Return the fields of a controller header, those of structs inside it as `outer.inner`."""
    fields = list(flat(header.fields))
    return [
        HeaderField(field, None if hidden(field) else number)
        for field, number in zip(fields, field_ids(fields), strict=True)
    ]


# --- Digests -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DigestType:
    """A type that the program sends as a digest; nameless ones are called `digest_N`.

    Digests of PSA go by the names of their objects.
    """

    name: str
    type: Struct
    source: str
    """What the engine calls it."""
    annotations: tuple[Annotation, ...] = ()
    """Of the object; annotations of the type are not the digest's."""


def digest_types(program: Program) -> list[DigestType]:
    """Return the types of digests, in order of first use."""
    found: dict[str, DigestType] = {}
    tuples = 0
    for call in extern_calls(program):
        sender = call.instance
        if sender is not None and sender.extern == "Digest" and not hidden(sender):
            [kind] = sender.type_arguments
            if isinstance(kind, Struct):
                found[sender.name] = DigestType(sender.name, kind, sender.name, sender.annotations)
            continue
        if sender is not None or call.method != "digest":
            continue
        kind = call.type_arguments[0]
        if not isinstance(kind, Struct) or kind.name in found:
            continue
        name = kind.name
        if is_tuple(kind):
            name = f"digest_{tuples}"
            tuples += 1
        found[kind.name] = DigestType(name, kind, kind.name)
    return list(found.values())


# --- Names -------------------------------------------------------------------------------------


class Names:
    """Ids and aliases of everything in a program, by kind and fully qualified name."""

    def __init__(self, program: Program) -> None:
        self.tables = [t for t in program.tables if not hidden(t)]
        self.actions = [a for a in _unique(program.actions) if not hidden(a)]
        self.externs = [e for e in program.externs if e.extern in EXTERN_KINDS and not hidden(e)]
        self.value_sets = [v for v in program.value_sets if not hidden(v)]
        self.headers = controller_headers(program)
        self.digests = digest_types(program)
        by_kind: dict[IdKind, dict[str, tuple[Annotation, ...]]] = {kind: {} for kind in IdKind}
        for table in self.tables:
            by_kind[IdKind.TABLE][table.name] = table.annotations
        for action in self.actions:
            by_kind[IdKind.ACTION][action.name] = action.annotations
        for extern in self.externs:
            by_kind[EXTERN_KINDS[extern.extern]][extern.name] = extern.annotations
        for value_set in self.value_sets:
            by_kind[IdKind.VALUE_SET][value_set.name] = value_set.annotations
        for header in self.headers:
            by_kind[IdKind.CONTROLLER_HEADER][header.name] = header.annotations
        for digest in self.digests:
            by_kind[IdKind.DIGEST][digest.name] = digest.annotations
        self._ids = {kind: assign_ids(kind, names) for kind, names in by_kind.items()}
        self._aliases = aliases(dict.fromkeys(chain.from_iterable(by_kind.values())))

    def id(self, kind: IdKind, name: str) -> int:
        """Return the id of an object."""
        return self._ids[kind][name]

    def alias(self, name: str) -> str:
        """Return the shortest unique suffix of a name."""
        return self._aliases[name]

    def extern_id(self, instance: ExternInstance) -> int:
        """Return the id of an extern instance."""
        return self.id(EXTERN_KINDS[instance.extern], instance.name)


def _unique(actions: Iterable[Callable]) -> list[Callable]:
    """Yield actions by name, each once (an action has an instance for each control instance)."""
    return list({action.name: action for action in actions}.values())
