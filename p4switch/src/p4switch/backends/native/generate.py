"""Translates a program to the text of one C file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from p4switch import ir
from p4switch.backends.native.externs import NO_FIELD_LIST
from p4switch.backends.native.layout import Layout, TableLayout
from p4switch.backends.native.own_externs import CFile, OwnExterns
from p4switch.backends.native.statements import Statements
from p4switch.backends.native.types import mask_of, scalar_width, words
from p4switch.backends.native.unit import Unit
from p4switch.midend.architecture import V1MODEL
from p4switch.midend.cycles import multiplies
from p4switch.nesting import deep_recursion

TABLE_KINDS = {"exact": "TABLE_EXACT", "lpm": "TABLE_LPM", "scan": "TABLE_SCAN"}


@dataclass(frozen=True, slots=True)
class Generated:
    """The C text and its layout."""

    text: str
    layout: Layout


def generate(program: ir.Program, externs: CFile | None = None) -> Generated:
    """Translate a program; `externs`: its own externs.

    UnsupportedError for constructs that the native engine cannot run.
    """
    with deep_recursion():
        return _generate(program, None if externs is None else OwnExterns(externs))


def _generate(program: ir.Program, own: OwnExterns | None) -> Generated:
    unit = Unit(program, own)
    for kind in (unit.headers, unit.metadata, unit.standard):
        unit.types.name(kind)
    functions = [Statements(unit).function(function) for function in unit.functions]
    helpers = list(_field_lists(unit))
    rows = [
        f"typedef struct {{ {' '.join(_row_fields(unit, members))} }} row{group};"
        for group, members in enumerate(unit.register_groups.values())
    ]
    prototypes = [text[: text.index(" {")] + ";" for text in functions]
    parts = [
        '#include "base.h"',
        '#include "arith.h"',
        '#include "wide.h"',
        '#include "wire.h"',
        '#include "hashes.h"',
        *(own.head() if own is not None else ()),
        *unit.types.declarations,
        *(
            f"UNUSED static const u64 {name}[{len(value)}] = {{{_hex_list(value)}}};"
            for value, name in unit.constants.items()
        ),
        *_numbers(unit),
        f"typedef {unit.types.name(unit.headers)} headers_t;",
        f"typedef {unit.types.name(unit.metadata)} meta_t;",
        f"typedef {unit.types.name(unit.standard)} std_t;",
        _struct("frame", [f"{kind} {name};" for name, kind in unit.frame.items()]),
        *rows,
        _struct("registers", [f"row{g} *g{g};" for g in range(len(unit.register_groups))]),
        *unit.types.functions,
        *_standard_metadata(unit),
        '#include "switch.h"',
        '#include "actions.h"',
        *(own.declarations() if own is not None else ()),
        *prototypes,
        *functions,
        *helpers,
        *_specifications(unit),
        *(
            f"#define run_{role} {unit.function_name(block)}"
            for role, block in unit.packet.blocks.items()
        ),
        "UNUSED static void own_start(frame *f) {",
        "    (void)f;",
        *(f"    {line}" for line in (own.start() if own is not None else ())),
        "}",
        f'#define ARCHITECTURE "{unit.packet.architecture.name}.h"',
        '#include "process.h"',
        '#include "control.h"',
        '#include "loop.h"',
        "",
    ]
    return Generated("\n".join(parts), unit.layout)


def _struct(name: str, members: list[str]) -> str:
    lines = [f"    {member}" for member in members or ["u8 nothing;"]]
    return "\n".join(["typedef struct {", *lines, f"}} {name};"])


def _hex_list(values: tuple[int, ...]) -> str:
    return ", ".join(f"{value:#x}ull" for value in values)


def _row_fields(unit: Unit, members: list[ir.ExternInstance]) -> Iterator[str]:
    for number, instance in enumerate(members):
        yield f"{unit.types.name(instance.type_arguments[0])} r{number};"


def _numbers(unit: Unit) -> Iterator[str]:
    layout = unit.layout
    yield f"#define ALIGNED {int(unit.aligned)}"
    yield f"#define COUNTS_STEPS {int(multiplies(unit.program))}"
    yield f"#define TABLE_COUNT {len(layout.tables)}"
    yield f"#define PROFILE_COUNT {len(layout.profiles)}"
    yield f"#define COUNTER_COUNT {len(layout.counters)}"
    yield f"#define METER_COUNT {len(layout.meters)}"
    yield f"#define REGISTER_COUNT {len(layout.registers)}"
    yield f"#define REGISTER_GROUPS {len(unit.register_groups)}"
    yield f"#define VALUE_SET_COUNT {len(layout.value_sets)}"
    yield f"#define CRC_COUNT {len(unit.calculations)}"
    yield f"#define NO_FIELD_LIST {NO_FIELD_LIST}"


def _standard_metadata(unit: Unit) -> Iterator[str]:
    """Yield accessors of standard metadata, no-ops for fields that the program lacks."""
    fields = unit.packet.architecture.standard
    for name in V1MODEL.standard:
        kind: ir.Type | None = unit.standard
        path = fields[name].split(".") if name in fields else [name]
        for part in path:
            members = kind.fields if isinstance(kind, ir.Struct) else ()
            kind = next((member.type for member in members if member.name == part), None)
        if kind is None:
            yield f"#define std_get_{name}(p) 0"
            yield f"#define std_set_{name}(p, v) ((void)0)"
            continue
        place = ".".join(f"f_{part}" for part in path)
        width = scalar_width(kind)
        mask = f"{mask_of(width):#x}ull"
        c_type = unit.types.name(ir.Bits(width))
        yield f"#define std_get_{name}(p) ((p)->std.{place})"
        yield f"#define std_set_{name}(p, v) ((p)->std.{place} = ({c_type})((v) & {mask}))"


def _field_lists(unit: Unit) -> Iterator[str]:
    """Yield the lines of a function that copies the metadata of a field list."""
    roots = dict(zip(ir.FIELD_PATH_ROOTS, ("meta", "std"), strict=True))
    yield "UNUSED static void copy_field_list(u32 list, packet *to, const packet *from) {"
    yield "    (void)to; (void)from;"
    yield "    switch (list) {"
    for number, paths in unit.program.field_lists.items():
        yield f"    case {number}:"
        for root, *names in paths:
            place = ".".join((roots[root], *(f"f_{name}" for name in names)))
            yield f"        to->{place} = from->{place};"
        yield "        return;"
    yield "    }"
    yield "}"


def _specifications(unit: Unit) -> Iterator[str]:
    """Yield constant tables that describe the program's tables and arrays to the runtime."""
    layout = unit.layout
    for number, table in enumerate(layout.tables):
        yield from _table_parts(number, table)
    yield "static const table_spec table_specs[TABLE_COUNT + 1] = {"
    for number, table in enumerate(layout.tables):
        yield (
            f"    {{ {TABLE_KINDS[table.kind]}, {table.direct_bits}, "
            f"{table.key_words}, {table.range_word}, "
            f"table{number}_ranges, {len(_ranges(table))}, {table.argument_words}, "
            f"{len(table.fields) if table.direct_bits else 0}, table{number}_parts }},"
        )
    yield "};"
    yield "typedef struct { u64 size, stride; } group_spec;"
    yield "static const group_spec group_specs[REGISTER_GROUPS + 1] = {"
    for group, size in enumerate(unit.register_groups):
        yield f"    {{ {size}, sizeof(row{group}) }},"
    yield "};"
    yield "typedef struct { u32 group, offset, bytes; } register_spec;"
    yield "static const register_spec register_specs[REGISTER_COUNT + 1] = {"
    instances = {instance.name: instance for instance in unit.program.externs}
    for name in layout.registers:
        group, field = unit.register(instances[name])
        row = f"row{group}"
        yield f"    {{ {group}, offsetof({row}, {field}), sizeof((({row} *)0)->{field}) }},"
    yield "};"
    yield from _sizes("counter_sizes", layout.counters, instances)
    yield from _sizes("meter_sizes", layout.meters, instances)
    yield "static const u32 profile_words[PROFILE_COUNT + 1] = {"
    for name in layout.profiles:
        users = [
            table.argument_words
            for table, declared in zip(layout.tables, unit.program.tables, strict=True)
            if declared.implementation is instances[name]
        ]
        yield f"    {max(users, default=0)},"
    yield "};"
    numbers = ", ".join(str(count) for count in layout.value_set_words)
    yield f"static const u32 value_set_words[VALUE_SET_COUNT + 1] = {{{numbers or 0}}};"


def _sizes(name: str, wanted: list[str], instances: dict[str, ir.ExternInstance]) -> Iterator[str]:
    numbers = ", ".join(str(instances[i].number(0)) for i in wanted)
    yield f"static const u64 {name}[] = {{{numbers or 0}}};"


def _ranges(table: TableLayout) -> list[int]:
    return [words(f.width) for f in table.fields if f.match_kind == "range"]


def _table_parts(number: int, table: TableLayout) -> Iterator[str]:
    ranges = ", ".join(str(count) for count in _ranges(table)) or "0"
    yield f"static const u16 table{number}_ranges[] = {{{ranges}}};"
    parts = ", ".join(
        f"{{{f.width}, {f.word}, {f.shift}}}" for f in (table.fields if table.direct_bits else ())
    )
    yield f"static const key_part table{number}_parts[] = {{{parts or '{0, 0, 0}'}}};"
