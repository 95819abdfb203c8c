"""Translates a BMv2 JSON file to the intermediate representation."""

from __future__ import annotations

import json
from typing import Any

from p4switch import ir
from p4switch.bmv2_json.control_flow import ControlFlow
from p4switch.bmv2_json.control_plane import ControlPlane
from p4switch.bmv2_json.document import Document, Identifiers, Part
from p4switch.bmv2_json.expressions import Expressions
from p4switch.bmv2_json.externs import ENUMS, Arrays, Calculations
from p4switch.bmv2_json.headers import Headers
from p4switch.bmv2_json.parsers import Parser
from p4switch.bmv2_json.primitives import Primitives
from p4switch.bmv2_json.tables import NO_ACTION, OWN_TABLES, Tables
from p4switch.nesting import deep_recursion
from p4switch.position import P4Error, Position

NOTES = "p4switch"
"""The member of a file in which `bundle` stores its name and its P4Info."""
SOURCE = "source"
"""The part of `NOTES` with a bundle of P4 source, in what p4switch writes as BMv2 JSON."""
MAJOR_VERSION = 2
MOST_ERRORS = 1 << 16
_MALFORMED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""Exceptions caused by parts that are missing or of another kind than p4c writes."""
CORE_ERRORS = (
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
)


def bundle(data: bytes, file: str, p4info: str = "") -> bytes:
    """Return a BMv2 JSON with an embedded P4Info (text form) and its name. Raises P4Error.

    Of a JSON that p4switch has written the bundle in it is returned.
    """
    root = _parsed(data, file)
    notes = root.setdefault(NOTES, {})
    if isinstance(notes.get(SOURCE), str):
        return str(notes[SOURCE]).encode()
    notes.setdefault("file", file)
    if p4info:
        notes["p4info"] = p4info
    return json.dumps(root).encode()


def read(data: bytes, file: str = "<BMv2 JSON>") -> ir.Program:
    """Return the program of a BMv2 JSON or of a result of `bundle`. Raises P4Error."""
    root = _parsed(data, file)
    notes = root.get(NOTES, {})
    document = Document(root, str(notes.get("file", file)))
    try:
        with deep_recursion():
            return _Reader(document, ControlPlane(str(notes.get("p4info", "")))).program()
    except _MALFORMED as error:
        raise document.error(f"not as expected: {type(error).__name__}: {error}") from error


def _parsed(data: bytes, file: str) -> dict[str, Any]:
    start = Position(file, 1, 1)
    try:
        root = json.loads(data)
    except RecursionError:
        raise P4Error(start, "BMv2 JSON: nested too deeply") from None
    except ValueError as error:
        raise P4Error(start, f"BMv2 JSON: {error}") from error
    if not isinstance(root, dict) or "header_types" not in root or "pipelines" not in root:
        raise P4Error(start, "BMv2 JSON: expected header_types, pipelines, ... as p4c writes them")
    match root.get("__meta__"):
        case {"version": [major, *_]} if major != MAJOR_VERSION:
            raise P4Error(start, f"BMv2 JSON: version {major}: expected {MAJOR_VERSION}")
    if not isinstance(root.get(NOTES, {}), dict):
        raise P4Error(start, f"BMv2 JSON: {NOTES}: expected what `p4switch compile -o` writes")
    return root


class _Reader:
    """One reading."""

    def __init__(self, document: Document, control_plane: ControlPlane) -> None:
        self._document = document
        self._control_plane = control_plane
        self._names = Identifiers()
        self._variables: list[ir.Variable] = []
        if document.parts("extern_instances"):
            name = document.parts("extern_instances")[0].get("type")
            raise document.unsupported(f"an extern of type {name!r}")
        self._headers = headers = Headers(document)
        self._variables += [headers.headers, headers.metadata, headers.standard]
        self._arrays = Arrays(document, headers, control_plane)
        self._expressions = Expressions(document, headers)
        self._calculations = Calculations(document, self._expressions)
        self._primitives = primitives = Primitives(
            document, self._arrays, self._calculations, self._variable
        )
        tables = Tables(document, headers, self._arrays, primitives, control_plane, self._variable)
        self._tables = tables
        self._parser = Parser(
            document,
            self._expressions,
            primitives,
            control_plane,
            self._variable,
            self._error_value,
        )
        self._flow = ControlFlow(document, self._expressions, tables, self._variable)

    def program(self) -> ir.Program:
        """Return the program."""
        document, headers = self._document, self._headers
        everything = (headers.headers, headers.metadata, headers.standard)
        parameters = tuple(ir.Parameter(v.name, "inout", v) for v in everything)
        pipelines = {part["name"]: part for part in document.parts("pipelines")}

        def control(name: str, body: list[ir.Statement]) -> ir.Block:
            return ir.Block(name, "control", name, parameters, body)

        def flow(name: str) -> ir.Block:
            return control(name, self._flow.code(pipelines[name]) if name in pipelines else [])

        parsers = document.parts("parsers")
        if len(parsers) != 1:
            raise document.unsupported(f"{len(parsers)} parsers: expected one")
        verify = self._no_error() + self._calculations.checksums(update=False)
        blocks = {
            "p": self._parser.block(parsers[0], parameters),
            "vr": control("verify_checksum", verify),
            "ig": flow("ingress"),
            "eg": flow("egress"),
            "ck": control("compute_checksum", self._calculations.checksums(update=True)),
            "dep": control("deparser", self._deparser()),
        }
        tables = tuple(self._tables.tables.values())
        self._check_p4info()
        actions = {item.action: None for table in tables for item in table.actions}
        enums = {
            part["name"]: tuple((name, int(value)) for name, value in part["entries"])
            for part in document.parts("enums")
        }
        types = dict(headers.types)
        return ir.Program(
            ir.Package("V1Switch", blocks),
            self._errors(),
            {**enums, **ENUMS},
            tables,
            tuple(actions),
            tuple(self._arrays.instances.values()),
            tuple(self._parser.value_sets.values()),
            tuple(blocks.values()),
            tuple(a for a in self._tables.actions.values() if a not in actions),
            tuple(self._variables),
            {**types, **self._control_plane.controller_headers()},
            field_lists=headers.field_lists(),
            p4info=self._control_plane.text,
        )

    def _check_p4info(self) -> None:
        """Refuse a P4Info whose tables have other names or actions than the program's.

        It may name more than the program has: p4c writes it before it removes unreachable objects.
        """
        names = list(self._control_plane.names("tables"))
        missing = [name for name in names if name not in self._tables.tables]
        unknown = [
            name
            for name in self._tables.tables
            if name not in names and not OWN_TABLES.fullmatch(name)
        ]
        if missing and unknown:
            raise self._document.error(
                f"the P4Info is of another program: its table {missing[0]!r} is missing, and it "
                f"has no table {unknown[0]!r}"
            )
        for table in self._tables.tables.values():
            allowed = self._control_plane.actions(table.name)
            for choice in table.actions:
                if allowed is not None and choice.action.name not in {*allowed, NO_ACTION}:
                    raise self._document.error(
                        f"the P4Info is of another program: its table {table.name!r} has no action "
                        f"{choice.action.name!r}"
                    )

    def _variable(self, name: str, kind: ir.Type) -> ir.Variable:
        made = ir.Variable(self._names.of(f"{name} {len(self._variables)}"), kind)
        self._variables.append(made)
        return made

    def _deparser(self) -> list[ir.Statement]:
        parts = self._document.parts("deparsers")
        if len(parts) != 1:
            raise self._document.unsupported(f"{len(parts)} deparsers: expected one")
        code: list[ir.Statement] = []
        # One by one: a jump to the end would skip the headers.
        for part in parts[0].get("primitives") or []:
            code += self._primitives.statements(part, self._expressions)
        code += [ir.Emit(self._headers.header(name)) for name in parts[0]["order"]]
        return code

    # --- errors

    def _error_numbers(self) -> dict[str, int]:
        return {name: int(number) for name, number in self._document.root.get("errors") or []}

    def _errors(self) -> tuple[str, ...]:
        """Return the errors by the file's numbers, with NoError at 0 and missing ones at the end.

        Here no error is always 0; see `_no_error`.
        """
        numbers = self._error_numbers()
        if any(number == 0 and name != "NoError" for name, number in numbers.items()):
            raise self._document.unsupported("an error other than NoError that is 0")
        if any(not 0 <= number < MOST_ERRORS for number in numbers.values()):
            raise self._document.error(f"an error's number: expected 0 to {MOST_ERRORS - 1}")
        names = [f"error {index}" for index in range(max(numbers.values(), default=0) + 1)]
        for name, number in numbers.items():
            if name != "NoError":
                names[number] = name
        names[0] = "NoError"
        return (*names, *(name for name in CORE_ERRORS if name not in names))

    def _error_value(self, number: int) -> int:
        return 0 if number == self._error_numbers().get("NoError", 0) else number

    def _no_error(self) -> list[ir.Statement]:
        """Return code that sets parser_error to the file's number of NoError, if that is not 0."""
        number = self._error_numbers().get("NoError", 0)
        standard: Part = {"type": "field", "value": ["standard_metadata", "parser_error"]}
        known = self._headers.standard.type
        assert isinstance(known, ir.Struct)
        if number == 0 or "parser_error" not in {field.name for field in known.fields}:
            return []
        field = self._expressions.place(standard)
        none = ir.Binary(ir.BOOL, "==", field, ir.Const(field.type, 0))
        return [ir.If(none, [ir.Assign(field, ir.Const(field.type, number))], [])]
