"""A P4 file in an editor: its errors, and the meaning of names at a place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from p4switch.frontend.names import scope
from p4switch.frontend.names.compilation import FieldUse, Symbols
from p4switch.frontend.names.values import type_of
from p4switch.frontend.program import analyse
from p4switch.frontend.syntax import ast, walk
from p4switch.frontend.syntax.parser import parse_text
from p4switch.frontend.types import types
from p4switch.position import P4Error, Position

_WORD = re.compile(r"[A-Za-z_]\w*")
_CHAIN = re.compile(r"((?:[A-Za-z_]\w*(?:\[[^\]]*\])?\s*\.\s*)+)\w*\Z")
_NO_MAIN = "the program makes no package called 'main'"
_HEADER_METHODS = ("isValid", "setValid", "setInvalid")
_STACK_MEMBERS = ("next", "last", "lastIndex", "size", "push_front", "pop_front")

Meaning = scope.Entity | FieldUse


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """An error or warning; `end` is the column after the word that begins at the position."""

    position: Position
    end: int
    message: str
    is_error: bool


class Name(NamedTuple):
    """A name that can be written at a place: what it is, and its type or form."""

    name: str
    kind: str
    detail: str


class Document:
    """A file as the editor has it. Meanings are those of the last text that could be parsed."""

    def __init__(
        self,
        path: Path,
        include_paths: Sequence[Path] = (),
        defines: Mapping[str, str] | None = None,
    ) -> None:
        self._file = str(path)
        self._include_paths = include_paths
        self._defines = defines
        self._symbols: Symbols | None = None
        self._source = ast.SourceProgram([])
        self._lines: list[str] = []

    def update(self, text: str) -> list[Diagnostic]:
        """Take a new text; return its errors and warnings."""
        self._lines = text.split("\n")
        try:
            source = parse_text(
                text, self._file, include_paths=self._include_paths, defines=self._defines
            )
        except P4Error as error:
            return self._diagnostics(error.errors, [])
        found = analyse(source)
        self._source, self._symbols = source, found.symbols
        errors = found.error.errors if found.error is not None else ()
        # A file that others include has no package.
        errors = tuple(error for error in errors if error.message != _NO_MAIN)
        return self._diagnostics(errors, [*source.warnings, *found.warnings])

    def _diagnostics(
        self, errors: Sequence[P4Error], warnings: Sequence[tuple[Position, str]]
    ) -> list[Diagnostic]:
        both = [
            *((error.position, error.message, True) for error in errors),
            *((position, message, False) for position, message in warnings),
        ]
        return [
            Diagnostic(place, self._end(place), message, is_error)
            for place, message, is_error in both
            if place.file == self._file
        ]

    def _end(self, place: Position) -> int:
        word = _WORD.match(self._line(place.line), place.column - 1)
        return word.end() + 1 if word is not None else place.column + 1

    def _line(self, number: int) -> str:
        return self._lines[number - 1] if 0 < number <= len(self._lines) else ""

    # --- meanings

    def meaning(self, line: int, column: int) -> tuple[str, Meaning] | None:
        """Return the name at a place, both from 1, and what it means."""
        if self._symbols is None:
            return None
        for word in _WORD.finditer(self._line(line)):
            if word.start() < column <= word.end() + 1:
                place = Position(self._file, line, word.start() + 1)
                return self._symbols.uses.get(place) or self._declared(word[0], place)
        return None

    def _declared(self, name: str, place: Position) -> tuple[str, Meaning] | None:
        """Return what a name means where it is declared."""
        assert self._symbols is not None
        for known, entity in self._symbols.declared:
            if known == name and self._place(name, entity.position) == place:
                return name, entity
        return None

    def hover(self, line: int, column: int) -> str | None:
        """Return the declaration of the name at a place, in short."""
        found = self.meaning(line, column)
        return None if found is None else self._described(*found)

    def definition(self, line: int, column: int) -> Position | None:
        """Return where the name at a place is declared."""
        found = self.meaning(line, column)
        if found is None:
            return self._state(line, column)
        name, meaning = found
        if not isinstance(meaning, FieldUse):
            return self._place(name, meaning.position)
        declaration = meaning.owner.declaration
        fields = declaration.fields if declaration is not None else ()
        return next((self._place(name, f.position) for f in fields if f.name == name), None)

    def _state(self, line: int, column: int) -> Position | None:
        """Return the parser state of the name at a place: of the last parser before."""
        words = _WORD.finditer(self._line(line))
        name = next((w[0] for w in words if w.start() < column <= w.end() + 1), None)
        before = [
            parser
            for parser in walk.nodes(self._source.declarations)
            if isinstance(parser, ast.ParserDeclaration)
            and parser.position.file == self._file
            and parser.position.line <= line
        ]
        states = before[-1].states or () if before else ()
        return next((self._place(s.name, s.position) for s in states if s.name == name), None)

    def _place(self, name: str, start: Position) -> Position | None:
        """Return the place of a declaration's name, which follows its first token."""
        if not start.line:
            return None
        lines = self._lines if start.file == self._file else self._source.lines.get(start.file, [])
        word = re.compile(rf"\b{re.escape(name)}\b")
        for number in range(start.line, min(start.line + 5, len(lines) + 1)):
            begin = start.column - 1 if number == start.line else 0
            found = word.search(lines[number - 1], begin)
            if found is not None:
                return Position(start.file, number, found.start() + 1)
        return start

    def _described(self, name: str, meaning: Meaning) -> str:
        match meaning:
            case FieldUse(type=kind):
                return f"{kind} {name}{_fields(kind)}"
            case scope.VariableEntity(type=kind):
                return f"{kind} {name}{_fields(kind)}"
            case scope.ConstantEntity(value=value):
                constant = getattr(value, "constant", None)
                shown = "" if constant is None else f" = {constant}"
                return f"const {type_of(value)} {name}{shown}"
            case scope.ActionEntity(declaration=declaration, parameter_types=kinds):
                pairs = zip(declaration.parameters, kinds, strict=True)
                shown = ", ".join(f"{p.direction.value} {k} {p.name}".strip() for p, k in pairs)
                return f"action {name}({shown})"
            case scope.TableEntity(table=table):
                keys = "".join(f"\n    {key.name} : {key.match_kind};" for key in table.keys)
                return f"table {name} {{{keys}\n}}"
            case scope.TypeEntity(type=kind):
                return f"{_word_of(kind)}{kind}{_fields(kind)}"
            case scope.ExternEntity(type=kind) | scope.BlockEntity(type=kind):
                return f"{kind} {name}"
            case _:
                lines = self._source.lines.get(meaning.position.file, [])
                at = meaning.position.line - 1
                return lines[at].strip() if 0 <= at < len(lines) else name

    # --- completion

    def names(self, line: int, column: int) -> list[Name]:
        """Return the names that may stand at a place, both numbers from 1."""
        if self._symbols is None:
            return []
        visible = self._scope(line, column)
        chain = _CHAIN.search(self._line(line)[: column - 1])
        if chain is not None:
            return list(self._members(visible, chain[1]))
        found: dict[str, scope.Entity] = {}
        for each in visible.outwards():
            for name, entity in each.names.items():
                found.setdefault(name, entity)
        return [self._name(name, entity) for name, entity in found.items()]

    def _scope(self, line: int, column: int) -> scope.Scope:
        assert self._symbols is not None
        best, visible = (0, 0), self._symbols.top
        for start, names in self._symbols.scopes:
            place = start.line, start.column
            if start.file == self._file and best <= place <= (line, column):
                best, visible = place, names
        return visible

    def _name(self, name: str, entity: scope.Entity) -> Name:
        kind = type(entity).__name__.removesuffix("Entity").lower()
        return Name(name, kind, self._described(name, entity).split("\n")[0].rstrip(" {"))

    def _members(self, visible: scope.Scope, chain: str) -> Iterator[Name]:
        first, *rest = (part.strip() for part in chain.split(".")[:-1])
        entity = visible.known(first.partition("[")[0])
        if isinstance(entity, scope.TableEntity | scope.BlockEntity):
            yield Name("apply", "method", "apply()")
            return
        if isinstance(entity, scope.ExternEntity):
            for method in entity.type.declaration.methods:
                if method.returns is not None:
                    shown = ", ".join(p.name for p in method.parameters)
                    yield Name(method.name, "method", f"{method.name}({shown})")
            return
        if not isinstance(entity, scope.VariableEntity | scope.TypeEntity):
            return
        kind: types.Type | None = _element(entity.type, first)
        for part in rest:
            fields = kind.fields if isinstance(kind, types.StructLike) else {}
            item = fields.get(part.partition("[")[0])
            kind = None if item is None else _element(item.type, part)
        if isinstance(kind, types.StructLike):
            for field in kind.fields.values():
                yield Name(field.name, "field", f"{field.type} {field.name}")
            if kind.kind != "struct":
                yield from (Name(each, "method", f"{each}()") for each in _HEADER_METHODS)
        elif isinstance(kind, types.Stack):
            yield from (Name(each, "field", str(kind)) for each in _STACK_MEMBERS)
        elif isinstance(kind, types.Enum):
            yield from (Name(each, "member", f"{kind}.{each}") for each in kind.members)


def _element(kind: types.Type, written: str) -> types.Type:
    """Return the type of an element if a part of a chain has an index."""
    return kind.element if isinstance(kind, types.Stack) and "[" in written else kind


def _word_of(kind: types.Type) -> str:
    if isinstance(kind, types.StructLike):
        return f"{kind.kind} "
    return "enum " if isinstance(kind, types.Enum) else "type "


def _fields(kind: types.Type) -> str:
    """Return the fields of a type in braces; empty for one that has none."""
    if isinstance(kind, types.Enum):
        return f" {{ {', '.join(kind.members)} }}"
    if not isinstance(kind, types.StructLike):
        return ""
    lines = "".join(f"\n    {field.type} {field.name};" for field in kind.fields.values())
    return f" {{{lines}\n}}"
