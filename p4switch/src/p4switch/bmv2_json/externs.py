"""Counters, meters, registers and action profiles; the calculations of hashes and checksums."""

from __future__ import annotations

from collections.abc import Sequence

from p4switch import ir
from p4switch.bmv2_json.control_plane import ControlPlane
from p4switch.bmv2_json.document import Document, Identifiers, Part, number_of
from p4switch.bmv2_json.expressions import Expressions, bits_for
from p4switch.bmv2_json.headers import Headers
from p4switch.midend.architecture import V1MODEL_HASHES
from p4switch.position import NOWHERE, Position

ENUMS: dict[str, tuple[tuple[str, int], ...]] = {
    name: tuple((member, index) for index, member in enumerate(members))
    for name, members in {
        "CounterType": ("packets", "bytes", "packets_and_bytes"),
        "MeterType": ("packets", "bytes"),
        "HashAlgorithm": V1MODEL_HASHES,
        "CloneType": ("I2E", "E2E"),
    }.items()
}
"""Enums of v1model.p4, whose members' values the executors know."""

SELECTOR_WIDTH = 32

_CHECKSUM = ("condition", "data", "checksum", "algo")
PARAMETERS: dict[str, tuple[str, ...]] = {
    "assert": ("check",),
    "assume": ("check",),
    "clone_preserving_field_list": ("type", "session", "index"),
    "counter.count": ("index",),
    "digest": ("receiver", "data"),
    "direct_meter.read": ("result",),
    "hash": ("result", "algo", "base", "data", "max"),
    "log_msg": ("msg", "data"),
    "mark_to_drop": ("standard_metadata",),
    "meter.execute_meter": ("index", "result"),
    "random": ("result", "lo", "hi"),
    "recirculate_preserving_field_list": ("index",),
    "register.read": ("result", "index"),
    "register.write": ("index", "value"),
    "resubmit_preserving_field_list": ("index",),
    "truncate": ("length",),
    "update_checksum": _CHECKSUM,
    "update_checksum_with_payload": _CHECKSUM,
    "verify_checksum": _CHECKSUM,
    "verify_checksum_with_payload": _CHECKSUM,
}
"""Parameters of the externs in v1model.p4, for traces."""


class Arrays:
    """The instances of v1model's externs."""

    def __init__(self, document: Document, headers: Headers, control_plane: ControlPlane) -> None:
        self._document = document
        self._headers = headers
        self._control_plane = control_plane
        self.instances: dict[str, ir.ExternInstance] = {}
        self.of_table: dict[str, list[ir.ExternInstance]] = {}
        """Direct counters and meters."""
        self.results: dict[str, ir.Expression] = {}
        """Destination of the colour of each table's direct meter."""
        for part in document.parts("counter_arrays"):
            self._counter(part)
        for part in document.parts("meter_arrays"):
            self._meter(part)
        for part in document.parts("register_arrays"):
            kind = ir.Bits(document.width(part["bitwidth"], part))
            self._add("registers", part, "register", (part["size"],), (kind,))
        for pipeline in document.parts("pipelines"):
            for part in pipeline.get("action_profiles") or []:
                self._profile(part)

    def find(self, value: Part, extern: str) -> ir.ExternInstance:
        """Return the instance named by a parameter."""
        found = self.instances.get(value["value"])
        if found is None or found.extern != extern:
            raise self._document.error(f"there is no {extern} {value['value']!r}", value)
        return found

    def _add(
        self,
        kind: str,
        part: Part,
        extern: str,
        arguments: Sequence[ir.Folded],
        types: tuple[ir.Type, ...] = (),
    ) -> ir.ExternInstance:
        name = part["name"]
        made = self.instances[name] = ir.ExternInstance(
            name,
            extern,
            types,
            tuple(arguments),
            self._control_plane.annotations(kind, name),
            position=self._document.position(part),
        )
        return made

    def _counter(self, part: Part) -> None:
        if not part.get("is_direct"):
            unit = self._control_plane.counter_unit("counters", part["name"])
            self._add("counters", part, "counter", (part["size"], unit))
            return
        part = self._renamed("direct_counters", part)
        unit = self._control_plane.counter_unit("direct_counters", part["name"])
        made = self._add("direct_counters", part, "direct_counter", (unit,))
        self.of_table.setdefault(part["binding"], []).append(made)

    def _renamed(self, kind: str, part: Part) -> Part:
        name = self._control_plane.direct_name(kind, part["binding"])
        return part if name is None else {**part, "name": name}

    def _meter(self, part: Part) -> None:
        unit = dict(ENUMS["MeterType"])[part["type"]]
        if not part.get("is_direct"):
            self._add("meters", part, "meter", (part["size"], unit))
            return
        target = self._headers.field(*part["result_target"])
        part = self._renamed("direct_meters", part)
        made = self._add("direct_meters", part, "direct_meter", (unit,), (target.type,))
        self.of_table.setdefault(part["binding"], []).append(made)
        self.results[part["binding"]] = target

    def _profile(self, part: Part) -> None:
        size = int(part["max_size"])
        selector = part.get("selector")
        if not selector:
            self._add("action_profiles", part, "action_profile", (size,))
            return
        algorithm = algorithm_of(self._document, selector["algo"], part)
        arguments = (algorithm, size, SELECTOR_WIDTH)
        self._add("action_profiles", part, "action_selector", arguments)


def algorithm_of(document: Document, name: str, part: Part) -> int:
    """Return the number of a hash algorithm."""
    known = dict(ENUMS["HashAlgorithm"])
    if name not in known:
        raise document.unsupported(f"hash algorithm {name!r}", part)
    return known[name]


class Calculations:
    """Named calculations and the checksums that use them."""

    def __init__(self, document: Document, expressions: Expressions) -> None:
        self._document = document
        self._expressions = expressions
        self._parts = {part["name"]: part for part in document.parts("calculations")}
        self._types: dict[str, ir.Struct] = {}

    def algorithm(self, name: str) -> ir.Const:
        """Return the algorithm of a calculation."""
        return ir.Const(ir.BIT32, algorithm_of(self._document, self._part(name)["algo"], {}))

    def _part(self, name: str) -> Part:
        if name not in self._parts:
            raise self._document.error(f"there is no calculation {name!r}")
        return self._parts[name]

    def with_payload(self, name: str) -> bool:
        """Return whether a calculation includes the payload."""
        return any(item["type"] == "payload" for item in self._part(name)["input"])

    def data(self, name: str) -> ir.Build:
        """Return the input of a calculation as a tuple."""
        values: list[ir.Expression] = []
        for item in self._part(name)["input"]:
            if item["type"] == "hexstr":
                number, kind = (
                    number_of(item["value"]),
                    ir.Bits(self._document.width(item["bitwidth"])),
                )
                values.append(ir.Const(kind, number))
            elif item["type"] != "payload":
                values.append(self._expressions.place(item))
        return tuple_of(values, f"tuple_{name}", self._types)

    def checksums(self, update: bool) -> list[ir.Statement]:
        """Return the statements that update, or verify, the checksums."""
        made: list[ir.Statement] = []
        for part in self._document.parts("checksums"):
            if not part.get("update" if update else "verify", True):
                continue
            if part["type"] != "generic":
                raise self._document.unsupported(f"a checksum of type {part['type']!r}", part)
            name = part["calculation"]
            condition = part.get("if_cond")
            target = self._expressions.headers.field(*part["target"])
            data = self.data(name)
            method = "update_checksum" if update else "verify_checksum"
            if self.with_payload(name):
                method += "_with_payload"
            made.append(
                call(
                    method,
                    ("in", self._condition(condition)),
                    ("in", data),
                    ("inout" if update else "in", target),
                    ("in", self.algorithm(name)),
                    types=(data.type, target.type),
                    position=self._document.position(part),
                )
            )
        return made

    def _condition(self, condition: Part | None) -> ir.Expression:
        if condition is None:
            return ir.Const(ir.BOOL, True)
        return self._expressions.boolean(condition)


def tuple_of(values: Sequence[ir.Expression], name: str, types: dict[str, ir.Struct]) -> ir.Build:
    """Return a tuple of values; `types` holds one type per name."""
    identifiers = Identifiers()
    if name not in types:
        fields = tuple(
            ir.FieldType(identifiers.of(f"f{index}"), value.type)
            for index, value in enumerate(values)
        )
        types[name] = ir.Struct(name, fields)
    return ir.Build(types[name], tuple(values))


def call(
    method: str,
    *arguments: tuple[str, ir.Expression],
    instance: ir.ExternInstance | None = None,
    types: tuple[ir.Type, ...] = (),
    position: Position = NOWHERE,
) -> ir.CallExtern:
    """Return a call of an extern with (direction, value) arguments."""
    names = PARAMETERS[method if instance is None else f"{instance.extern}.{method}"]
    named = tuple(
        ir.Argument(name, direction, value)
        for name, (direction, value) in zip(names, arguments, strict=False)
    )
    return ir.CallExtern(instance, method, types, named, position=position)


def constant(value: int) -> ir.Const:
    """Return a number as a constant of as many bits as it needs."""
    return ir.Const(bits_for(value, value), value)
