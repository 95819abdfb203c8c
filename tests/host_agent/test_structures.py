"""Structures that C and Python share have the same fields, in the same order."""

from __future__ import annotations

import ctypes
import re
from importlib import resources
from typing import Any

import numpy as np
import pytest

from hopsum.host_agent import ordinary, sure_calls
from hopsum.host_agent.io import port
from hopsum.host_agent.process_calls import CALL, CallPacket

SIMPLE = {
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "uint32_t": ctypes.c_uint32,
    "uint8_t": ctypes.c_uint8,
    "double": ctypes.c_double,
}


def declared(text: str, name: str) -> list[tuple[str, Any]]:
    """Fields of a structure in C: names, and what Python has for their types."""
    found = re.search(rf"^struct {name} \{{$(.*?)^\}};$", text, re.DOTALL | re.MULTILINE)
    assert found is not None, name
    fields: list[tuple[str, Any]] = []
    for declaration in re.sub(r"/\*.*?\*/", "", found[1], flags=re.DOTALL).split(";"):
        words = " ".join(declaration.replace("const ", "").split())
        if function := re.search(r"\(\*(\w+)\)", words):
            fields.append((function[1], ctypes.c_void_p))
        elif nested := re.fullmatch(r"struct (\w+) (\w+)", words):
            is_flow = nested[2] == "flow"
            fields += [("flow", ordinary.Flow)] if is_flow else declared(text, nested[1])
        elif words:
            kind, names = re.fullmatch(r"((?:struct )?\w+) (.*)", words).groups()  # type: ignore[union-attr]
            for each in names.split(", "):
                pointer = each.startswith("*")
                fields.append((each.lstrip("*"), ctypes.c_void_p if pointer else SIMPLE[kind]))
    return fields


def text_of(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text()


@pytest.mark.parametrize(
    ("package", "file", "name", "structure"),
    [
        ("hopsum.host_agent", "flow.h", "flow", ordinary.Flow),
        ("hopsum.host_agent", "ordinary_results.c", "stream", ordinary._Stream),  # noqa: SLF001
        ("hopsum.host_agent", "ordinary_sums.c", "server", ordinary._Server),  # noqa: SLF001
        ("hopsum.host_agent", "ordinary_roots.c", "root", ordinary._Root),  # noqa: SLF001
        ("hopsum.host_agent", "sure_calls.c", "calls", sure_calls._Calls),  # noqa: SLF001
        ("hopsum.host_agent.io", "mmsg.c", "run", port._Run),  # noqa: SLF001
    ],
)
def test_structures_are_those_of_c(
    package: str, file: str, name: str, structure: type[ctypes.Structure]
) -> None:
    assert [*structure._fields_] == declared(text_of(package, file), name)


def test_packets_and_expected_calls_are_those_of_c() -> None:
    text = text_of("hopsum.host_agent", "sure_calls.c")
    packet = declared(text, "packet")
    assert [name for name, _ in packet] == [*CallPacket._fields]
    assert CALL.size == ctypes.sizeof(type("Packet", (ctypes.Structure,), {"_fields_": packet}))
    expected = [(name, np.dtype(kind)) for name, kind in declared(text, "expected")]
    rows = sure_calls._EXPECTED  # noqa: SLF001
    assert rows.fields is not None
    assert [(name, rows[name]) for name in rows.names or ()] == expected
