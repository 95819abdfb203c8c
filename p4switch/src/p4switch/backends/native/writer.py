"""Builds the text of one C function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from p4switch.backends.native.unit import Unit
from p4switch.position import NOWHERE, Position, UnsupportedError


class Writer:
    """Lines of C with indentation and names for temporaries."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.lines: list[str] = []
        self.position: Position = NOWHERE
        """Position of the statement being translated, for errors."""
        self.register_groups: set[int] = set()
        """Register groups that the function uses."""
        self._depth = 1
        self._temporaries = 0

    def line(self, text: str) -> None:
        """Append a line."""
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str, tail: str = "") -> Iterator[None]:
        """`head { ... } tail`."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line(f"}}{tail}")

    @contextmanager
    def captured(self) -> Iterator[list[str]]:
        """Collect the lines written in the block instead of appending them."""
        kept, self.lines = self.lines, []
        mine = self.lines
        try:
            yield mine
        finally:
            self.lines = kept

    def name(self, stem: str = "t") -> str:
        """Return a new C identifier."""
        self._temporaries += 1
        return f"{stem}{self._temporaries}"

    def temporary(self, kind: str, value: str, stem: str = "t") -> str:
        """Declare a constant with a value."""
        name = self.name(stem)
        self.line(f"const {kind} {name} = {value};")
        return name

    def reject(self, condition: str, error: str) -> None:
        """Write code that leaves the parser with an error if the condition holds."""
        code = self.unit.error(error)
        self.line(f"if (UNLIKELY({condition})) {{ p->parser_error = {code}; return 1; }}")

    def unsupported(self, what: str) -> UnsupportedError:
        """Return an error at the current statement."""
        return UnsupportedError(self.position, f"{what} (native engine)")
