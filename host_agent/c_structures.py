"""Fields of C structures for ctypes and numpy, read from their declarations.

So the C text is the one place that says how the structures lie in memory.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

_TYPES = {
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "uint32_t": ctypes.c_uint32,
    "uint8_t": ctypes.c_uint8,
    "double": ctypes.c_double,
}
_STRUCTURE = r"^struct {} \{{$(.*?)^\}};$"
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_FUNCTION = re.compile(r"\(\*(\w+)\)")
_NESTED = re.compile(r"struct (\w+) (\w+)")
_NAMES = re.compile(r"((?:struct )?\w+) (.*)")

Fields = list[tuple[str, Any]]


def c_fields(
    file: str,
    name: str,
    nested: Mapping[str, type[ctypes.Structure]] | None = None,
    package: str = "hopsum.host_agent",
) -> Fields:
    """Return names and ctypes of the fields of `struct name`, in order, for `_fields_`.

    `file`: below `package`. `nested`: structures by name that are fields as a whole; of
    others the fields stand in place of the structure. Pointers are addresses (`c_void_p`). Raises
    ValueError for a structure or type that is not known.
    """
    text = _text(package, file)
    found = re.search(_STRUCTURE.format(name), text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"{file} has no struct {name}")
    fields: Fields = []
    for declaration in _COMMENT.sub("", found[1]).split(";"):
        words = " ".join(declaration.replace("const ", "").split())
        if not words:
            continue
        if function := _FUNCTION.search(words):
            fields.append((function[1], ctypes.c_void_p))
            continue
        if whole := _NESTED.fullmatch(words):
            known = (nested or {}).get(whole[1])
            inside = [(whole[2], known)] if known else c_fields(file, whole[1], nested, package)
            fields += inside
            continue
        declared = _NAMES.fullmatch(words)
        if declared is None:
            raise ValueError(f"{file}: struct {name}: cannot read {words!r}")
        for each in declared[2].split(", "):
            pointer = each.startswith("*")
            if not pointer and declared[1] not in _TYPES:
                raise ValueError(f"{file}: struct {name}: unknown type in {words!r}")
            kind = ctypes.c_void_p if pointer else _TYPES[declared[1]]
            fields.append((each.lstrip("*"), kind))
    return fields


@cache
def _text(package: str, file: str) -> str:
    return resources.files(package).joinpath(file).read_text()
