"""Layouts of C structures, as Python reads them and as a compiler has them."""

from __future__ import annotations

import ctypes
import re
from importlib import resources
from typing import Any

import pytest

from hopsum.host_agent import c_structures
from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.datapath.library import NESTED, Flow, compiled, program
from hopsum.host_agent.process_calls import CALL, CallPacket
from hopsum.host_agent.server_statistics import ServerStatistics
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
    monkeypatch.setattr(c_structures, "_text", lambda _: TEXT)


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
            c_structures, "_text", lambda _, said=line: f"struct a {{\n{said}\n}};\n"
        )
        with pytest.raises(ValueError, match="struct a: unknown type in"):
            c_fields("x.c", "a")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("flow.h", "flow"),
        ("ordinary_results.c", "stream"),
        ("sure_calls.c", "calls"),
        ("sure_calls.c", "expected"),
        ("sure_calls.c", "packet"),
        ("io/mmsg.c", "links"),
        ("io/mmsg.c", "run"),
    ],
)
def test_a_compiler_gives_a_structure_the_same_size(file: str, name: str) -> None:
    fields = c_fields(file, name, {"flow": Flow})
    made = type("Made", (ctypes.Structure,), {"_fields_": fields})
    here = resources.files("hopsum.host_agent")
    declarations = "\n".join(
        declaration
        for each in dict.fromkeys(("flow.h", file))
        for declaration in STRUCTURE.findall(here.joinpath(each).read_text())
    )
    program = f"#include <stdint.h>\n{declarations}\nunsigned long size = sizeof(struct {name});\n"
    try:
        library = ctypes.CDLL(str(compile_shared(f"size-{name}", program)))
    except NoCompilerError:
        pytest.skip("no C compiler")
    assert ctypes.sizeof(made) == ctypes.c_ulong.in_dll(library, "size").value


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("frames.h", "matcher"),
        ("frames.h", "output"),
        ("links.h", "sent_log"),
        ("check_lanes.h", "check_lanes"),
        ("server.c", "server_counters"),
        ("server.c", "server_form"),
        ("server.c", "finished"),
        ("server.c", "server"),
    ],
)
def test_structures_of_the_data_path_are_as_the_compiler_lays_them_out(
    file: str, name: str
) -> None:
    nested = {**NESTED, "server_counters": ServerStatistics}
    fields = c_fields(f"datapath/{file}", name, nested)
    made = type("Made", (ctypes.Structure,), {"_fields_": fields})
    size = f"unsigned long size = sizeof(struct {name});\n"
    last = f"unsigned long last = offsetof(struct {name}, {fields[-1][0]});\n"
    library = compiled(program() + "#include <stddef.h>\n" + size + last)
    assert ctypes.sizeof(made) == ctypes.c_ulong.in_dll(library, "size").value
    assert getattr(made, fields[-1][0]).offset == ctypes.c_ulong.in_dll(library, "last").value


def test_packets_of_processes_are_those_of_c() -> None:
    """Python has them as a tuple, whose types mypy knows."""
    packet = c_fields("sure_calls.c", "packet")
    assert [name for name, _ in packet] == [*CallPacket._fields]
    assert CALL.size == ctypes.sizeof(type("Packet", (ctypes.Structure,), {"_fields_": packet}))
