"""Types that the controller knows as strings: `@p4runtime_translation("", string)`.

P4Runtime leaves it to the server which number of the data plane a string is ("User-defined types").
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping

from p4switch.ir import TypeName
from p4switch.literals import decode_string
from p4switch.targets.v1model.engine import ControlError

_MAPPINGS = "p4runtime_translation_mappings"
_PAIR = re.compile(r'(".*?(?<!\\)") , (0[xX][0-9a-fA-F]+|[0-9]+) }')


class StringType:
    """The numbers of one type's strings, both ways, until the next program.

    A string has the number that `@p4runtime_translation_mappings` (of PINS) gives it; a decimal
    number that fits and is free stands for itself; any other string gets the least free number from
    1: programs use 0 for "none".
    """

    def __init__(self, name: str, width: int, mappings: Mapping[bytes, int]) -> None:
        self._name = name
        self._width = width
        self._numbers = dict(mappings)
        self._strings = {number: string for string, number in mappings.items()}
        self._next = 1
        self._lock = threading.Lock()  # Packet-ins and writes come from different threads.

    def number(self, string: bytes) -> int:
        """Return the number of a string; RESOURCE_EXHAUSTED if a new one finds none."""
        found = self._numbers.get(string)
        if found is not None:
            return found
        with self._lock:
            number = self._own_number(string)
            if number is None or number in self._strings:
                while self._next in self._strings:
                    self._next += 1
                number = self._next
            if number >> self._width:
                raise ControlError(
                    "RESOURCE_EXHAUSTED",
                    f"type {self._name!r}: all numbers of {self._width} bits stand for other "
                    f"strings than {shown(string)}",
                )
            return self._enter(string, number)

    def string(self, number: int) -> bytes:
        """Return the string of a number: of one without a string, the decimal number."""
        found = self._strings.get(number)
        if found is None:
            with self._lock:
                self._enter(str(number).encode(), number)
            found = self._strings[number]
        return found

    def _own_number(self, string: bytes) -> int | None:
        if not string.isdigit() or len(string) > self._width:
            return None
        number = int(string)
        return number if str(number).encode() == string and not number >> self._width else None

    def _enter(self, string: bytes, number: int) -> int:
        self._strings.setdefault(number, string)
        return self._numbers.setdefault(string, number)


class StringTypes:
    """The types of one program, each made at its first use."""

    def __init__(self) -> None:
        self._types: dict[str, StringType] = {}

    def of(self, type_name: TypeName, width: int) -> StringType | None:
        """Return the strings of a type, None for a type that has none."""
        if type_name.translation is None or type_name.translation[1] is not None:
            return None
        known = self._types.get(type_name.name)
        if known is None:
            known = StringType(type_name.name, width, _mappings(type_name))
            self._types[type_name.name] = known
        return known


def shown(string: bytes) -> str:
    """Return a string as messages of errors show it."""
    return repr(string.decode(errors="backslashreplace"))


def _mappings(type_name: TypeName) -> dict[bytes, int]:
    for annotation in type_name.annotations:
        if annotation.name == _MAPPINGS:
            pairs = _PAIR.findall(" ".join(annotation.tokens))
            return {decode_string(text).encode(): int(number, 0) for text, number in pairs}
    return {}
