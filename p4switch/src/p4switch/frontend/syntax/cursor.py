"""Base of all parts of the parser: the current token, errors, names and scopes.

P4's grammar asks whether a name is a type (`(T) x` is a cast, `(v) - x` is not). Types are
declared before their use, so the parser knows: it keeps which visible names are types.
"""

from __future__ import annotations

from p4switch.frontend.source.lexer import END, IDENTIFIER, NAME_KEYWORDS, describe
from p4switch.frontend.source.preprocessor import Preprocessed
from p4switch.position import P4Error, Position

NAME_KINDS = frozenset([IDENTIFIER, *NAME_KEYWORDS])
"""Kinds of tokens that can be a name."""


class Cursor:
    """A place in the tokens of a program, and the names visible there."""

    def __init__(self, source: Preprocessed) -> None:
        self.source = source
        self.kinds = source.kinds
        self.texts = source.texts
        self.index = 0
        self._marks = source.marks
        self._sources = source.sources
        # Visible names: whether they are types. Leaving a scope takes back what `_shadowed`
        # recorded since it began.
        self._names: dict[str, bool] = {}
        self._shadowed: list[tuple[str, bool | None]] = []
        self._globals: dict[str, bool] = {}
        self._depth = 0

    # --- Tokens ------------------------------------------------------------------------------

    def position(self) -> Position:
        """Return the position of the current token."""
        return self._sources.position(self._marks[self.index])

    def take(self, kind: str) -> bool:
        """Consume the current token if it is of a kind, and say whether it was."""
        if self.kinds[self.index] == kind:
            self.index += 1
            return True
        return False

    def expect(self, kind: str, context: str = "") -> None:
        """Consume a token of a kind; `context` ends the sentence of the error."""
        if self.kinds[self.index] != kind:
            raise self.unexpected(f"'{kind}'{context}")
        self.index += 1

    def name(self, what: str = "a name") -> str:
        """Consume a name and return it; `what` says in an error whose."""
        index = self.index
        if self.kinds[index] not in NAME_KINDS:
            raise self.unexpected(what)
        self.index = index + 1
        return self.texts[index]

    def close_angle(self, what: str) -> None:
        """Consume the `>` that ends `what`, also the first half of a `>>`."""
        index = self.index
        kind = self.kinds[index]
        if kind == ">":
            self.index = index + 1
        elif kind.startswith(">"):
            # The lists belong to this parser; no token is read twice after a change.
            self.kinds[index] = self.texts[index] = kind[1:]
        else:
            raise self.unexpected(f"',' or '>' after {what}")

    # --- Errors ------------------------------------------------------------------------------

    def error(self, message: str, index: int | None = None) -> P4Error:
        """Return an error at the current token, or at that of `index`."""
        mark = self._marks[self.index if index is None else index]
        return P4Error(
            self._sources.position(mark), message, source_line=self._sources.line_text(mark)
        )

    def unexpected(self, expected: str) -> P4Error:
        """Return the error for a current token that does not fit."""
        message = f"expected {expected}, found {self.found()}"
        if expected.startswith("';'") and self.index > 0:
            # What lacks is at the end of the line before, not where the next one begins.
            last = self._marks[self.index - 1]
            position = self._sources.position(last)
            if position.line < self.position().line or self.kinds[self.index] == END:
                column = position.column + len(self.texts[self.index - 1])
                return P4Error(
                    Position(position.file, position.line, column),
                    message,
                    source_line=self._sources.line_text(last),
                )
        return self.error(message)

    def found(self) -> str:
        """Return how an error names the current token."""
        kind, text = self.kinds[self.index], self.texts[self.index]
        description = describe(kind, text)
        return f"type '{text}'" if kind == IDENTIFIER and self.is_type(text) else description

    # --- Scopes ------------------------------------------------------------------------------

    def is_type(self, name: str) -> bool:
        """Return whether a name is a type here."""
        return self._names.get(name, False)

    def is_global_type(self, name: str) -> bool:
        """Return whether `.name` is a type."""
        return self._globals.get(name, False)

    def declare(self, name: str, *, is_type: bool) -> None:
        """Make a name visible until the end of the current scope."""
        if self._depth == 0:
            self._globals[name] = is_type
        self._shadowed.append((name, self._names.get(name)))
        self._names[name] = is_type

    def begin_scope(self) -> int:
        """Begin a scope; pass what this returns to `end_scope`."""
        self._depth += 1
        return len(self._shadowed)

    def end_scope(self, beginning: int) -> None:
        """Forget the names declared since the scope began."""
        self._depth -= 1
        while len(self._shadowed) > beginning:
            name, before = self._shadowed.pop()
            if before is None:
                del self._names[name]
            else:
                self._names[name] = before
