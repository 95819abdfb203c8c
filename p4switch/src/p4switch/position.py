"""Positions in P4 source, and errors that display them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHOWN_COLUMNS = 160
"""Maximum characters of a source line shown around an error."""


SHOWN_ERRORS = 20
"""Maximum number of errors of a program that are shown."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in P4 source: file as given, line and column from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


NOWHERE = Position("<none>", 0, 0)


class P4Error(Exception):
    """A P4 program is invalid, or uses an unsupported feature.

    `message` says what was found and what was expected; `source_line` is the source line at the
    position, if known; `kind` is `error` or `unsupported`.
    """

    exit_code = 2
    """Exit status of a command that it ends."""

    def __init__(
        self,
        position: Position,
        message: str,
        *,
        source_line: str | None = None,
        kind: str = "error",
    ) -> None:
        self.position = position
        self.message = message
        self.source_line = source_line
        self.kind = kind
        super().__init__(message)

    def __str__(self) -> str:
        text = f"{self.position}: {self.kind}: {self.message}"
        if self.source_line is not None:
            line, at = self.source_line.expandtabs(1), max(self.position.column, 1) - 1
            if len(line) > SHOWN_COLUMNS:
                first = max(0, at - SHOWN_COLUMNS // 2)
                line, at = line[first : first + SHOWN_COLUMNS], at - first
            text += f"\n    {line}\n    {' ' * at}^"
        return text

    @property
    def errors(self) -> tuple[P4Error, ...]:
        """Return the errors of the program: this one, or several."""
        return (self,)


class P4Errors(P4Error):
    """Several errors of one program, in the order of their places; the first one stands for all."""

    def __init__(self, errors: Sequence[P4Error]) -> None:
        first = errors[0]
        super().__init__(
            first.position, first.message, source_line=first.source_line, kind=first.kind
        )
        self._errors = tuple(errors)

    @property
    def errors(self) -> tuple[P4Error, ...]:
        """Return all errors."""
        return self._errors

    def __str__(self) -> str:
        shown = [str(error) for error in self._errors[:SHOWN_ERRORS]]
        left = len(self._errors) - len(shown)
        return "\n".join([*shown, f"and {left} more errors"] if left else shown)


class UnsupportedError(P4Error):
    """The program uses a construct that p4switch does not support."""

    def __init__(self, position: Position, message: str, *, source_line: str | None = None) -> None:
        super().__init__(position, message, source_line=source_line, kind="unsupported")
