"""Layouts of C structures, as Python reads them and as a compiler has them."""

from __future__ import annotations

import ctypes
import re
from importlib import resources
from typing import Any

import pytest

from hopsum.host_agent import c_structures
from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.counters import ServerStatistics
from hopsum.host_agent.datapath.library import NESTED, OutputRows, compiled, program
from hopsum.host_agent.process_calls import CALL, CallPacket
from p4switch.packet_io.compile import NoCompilerError, compile_shared

STRUCTURE = re.compile(r"^struct \w+ \{$.*?^\};$", re.DOTALL | re.MULTILINE)
TEXT = """
struct inner {
    uint8_t a, b; /* Not: double c; */
    double when;
};

struct outer {
    uint32_t (*act)(struct outer *, uint8_t *data,
                    double now);
    const struct inner *first, **all;
    struct inner inner;
    /* Two
     * lines; of them. */
    int64_t number;
};
"""


class Inner(ctypes.Structure):
    _fields_ = [("a", ctypes.c_uint8), ("b", ctypes.c_uint8), ("when", ctypes.c_double)]


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_structures, "_text", lambda *_: TEXT)


@pytest.mark.usefixtures("text")
def test_fields_of_a_structure() -> None:
    address = ctypes.c_void_p
    head: list[tuple[str, Any]] = [("act", address), ("first", address), ("all", address)]
    last = ("number", ctypes.c_int64)
    assert c_fields("", "outer") == [*head, *Inner._fields_, last]
    assert c_fields("", "outer", {"inner": Inner}) == [*head, ("inner", Inner), last]


@pytest.mark.usefixtures("text")
def test_what_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="has no struct other"):
        c_fields("x.c", "other")
    for line in ("long number;", "struct inner other[3];"):
        monkeypatch.setattr(
            c_structures, "_text", lambda *_, said=line: f"struct a {{\n{said}\n}};\n"
        )
        with pytest.raises(ValueError, match="struct a: unknown type in"):
            c_fields("x.c", "a")


STRUCTURES = {
    "flow.h": ("output", "flow"),
    "frames.h": ("matcher",),
    "links.h": ("sent_log", "arrivals"),
    "check_lanes.h": ("check_lanes",),
    "numbers.h": ("factors",),
    "round_trip.h": ("round_trip",),
    "congestion.h": ("congestion",),
    "server.h": ("server_counters", "server_form", "finished", "server"),
    "stream.h": ("worker_counters", "segment", "slot", "stream"),
    "calls.c": ("packet", "expected", "calls"),
    "root.c": ("root",),
}


def test_a_compiler_lays_structures_of_the_data_path_out_alike() -> None:
    nested = {**NESTED, "server_counters": ServerStatistics}
    made: dict[str, type[ctypes.Structure]] = {}
    for file, names in STRUCTURES.items():
        for name in names:
            fields = c_fields(f"datapath/{file}", name, nested)
            made[name] = nested[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    text = program() + "#include <stddef.h>\n"
    for name, each in made.items():
        text += f"unsigned long size_of_{name} = sizeof(struct {name});\n"
        for field, *_ in each._fields_:
            text += f"unsigned long at_{name}_{field} = offsetof(struct {name}, {field});\n"
    library = compiled(text)
    for name, each in made.items():
        assert ctypes.sizeof(each) == ctypes.c_ulong.in_dll(library, f"size_of_{name}").value
        for field, *_ in each._fields_:
            at = ctypes.c_ulong.in_dll(library, f"at_{name}_{field}").value
            assert getattr(each, field).offset == at, f"{name}.{field}"


@pytest.mark.parametrize("name", ["links", "run"])
def test_a_compiler_gives_structures_of_ports_the_same_size(name: str) -> None:
    fields = c_fields("io/mmsg.c", name, NESTED | {"output": OutputRows})
    made = type("Made", (ctypes.Structure,), {"_fields_": fields})
    here = resources.files("hopsum.host_agent")
    declarations = "\n".join(
        declaration
        for each in ("datapath/flow.h", "io/mmsg.c")
        for declaration in STRUCTURE.findall(here.joinpath(each).read_text())
    )
    size = f"unsigned long size = sizeof(struct {name});\n"
    text = f"#include <stdint.h>\n{declarations}\n{size}"
    try:
        library = ctypes.CDLL(str(compile_shared(f"size-{name}", text)))
    except NoCompilerError:
        pytest.skip("no C compiler")
    assert ctypes.sizeof(made) == ctypes.c_ulong.in_dll(library, "size").value


def test_packets_of_processes_are_those_of_c() -> None:
    """Python has them as a tuple, whose types mypy knows."""
    packet = c_fields("datapath/calls.c", "packet")
    assert [name for name, _ in packet] == [*CallPacket._fields]
    assert CALL.size == ctypes.sizeof(type("Packet", (ctypes.Structure,), {"_fields_": packet}))
