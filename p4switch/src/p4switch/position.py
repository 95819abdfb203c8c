"""Positions in P4 source, and errors that display them."""

from __future__ import annotations

from dataclasses import dataclass

SHOWN_COLUMNS = 160
"""Maximum characters of a source line shown around an error."""


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


class UnsupportedError(P4Error):
    """The program uses a construct that p4switch does not support."""

    def __init__(self, position: Position, message: str, *, source_line: str | None = None) -> None:
        super().__init__(position, message, source_line=source_line, kind="unsupported")
