"""The parts of a BMv2 JSON file, with errors that name the place."""

from __future__ import annotations

import re
from typing import Any

from p4switch.position import P4Error, Position, UnsupportedError

Part = dict[str, Any]
"""An object of the file."""
MOST_BITS = 1 << 16
"""Maximum width of a field: large numbers take memory and time."""


class Document:
    """A BMv2 JSON file. `file`: its name, for errors about parts that name no P4 source."""

    def __init__(self, root: Part, file: str) -> None:
        self.root = root
        self._start = Position(file, 1, 1)

    def parts(self, name: str) -> list[Part]:
        """Return the objects of a top-level list; none if it is missing."""
        found: list[Part] = self.root.get(name) or []
        return found

    def width(self, value: Any, part: Part | None = None) -> int:
        """Return the number of bits that a part of the file gives. Raises P4Error."""
        width = int(value)
        if not 0 <= width <= MOST_BITS:
            raise self.error(f"{width} bits: expected 0 to {MOST_BITS}", part)
        return width

    def position(self, part: Part | None = None) -> Position:
        """Return a part's position: in its P4 source if that is given, else in the JSON file."""
        source = (part or {}).get("source_info")
        if not isinstance(source, dict):
            return self._start
        return Position(
            str(source.get("filename", self._start.file)),
            int(source.get("line", 1)),
            int(source.get("column", 0)) + 1,
        )

    def error(self, message: str, part: Part | None = None) -> P4Error:
        """Return an error for an invalid part of the file."""
        return P4Error(self.position(part), f"BMv2 JSON: {message}")

    def unsupported(self, message: str, part: Part | None = None) -> UnsupportedError:
        """Return an error for an unsupported part of the file."""
        return UnsupportedError(self.position(part), f"BMv2 JSON: {message}")


class Identifiers:
    """Unique C identifiers for the names of one scope."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, name: str) -> str:
        """Return the identifier of a name, the same each time."""
        if name not in self._made:
            base = identifier = re.sub(r"\W", "_", name) or "_"
            count = 1
            while identifier in self._taken:
                count += 1
                identifier = f"{base}_{count}"
            self._taken.add(identifier)
            self._made[name] = identifier
        return self._made[name]


def number_of(text: str | int) -> int:
    """Parse a `hexstr`: hexadecimal, with or without `0x`, signed."""
    return text if isinstance(text, int) else int(text, 16)


def unwrapped(value: Part) -> Part:
    """Return a value without `expression` objects that only wrap another one."""
    while value.get("type") == "expression" and "op" not in value["value"]:
        value = value["value"]
    return value
