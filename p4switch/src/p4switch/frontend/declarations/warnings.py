"""Warnings of names that nothing refers to, as p4c's `-Wunused`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from p4switch.frontend.names import scope
from p4switch.frontend.syntax import ast, walk

if TYPE_CHECKING:
    from p4switch.frontend.names.compilation import Compiler
    from p4switch.position import Position

_OWN_FILES = ("core.p4", "v1model.p4", "psa.p4")
_KINDS: dict[type[scope.Entity], str] = {
    scope.ActionEntity: "action",
    scope.TableEntity: "table",
    scope.ExternEntity: "object",
    scope.VariableEntity: "variable",
}


def unused(compiler: Compiler, source: ast.SourceProgram) -> None:
    """Warn of actions, tables, objects and variables that nothing refers to.

    What controls and parsers declare has a meaning in each instance: one use is enough. As for p4c,
    `@noWarn("unused")` allows it.
    """
    used = {entity.position for _, entity in compiler.symbols.declared if entity.used}
    allowed: set[Position] | None = None
    for name, entity in compiler.symbols.declared:
        kind = _KINDS.get(type(entity))
        place = entity.position
        if kind is None or entity.parameter or place in used or not place.line:
            continue
        if Path(place.file).name in _OWN_FILES:
            continue
        if allowed is None:
            allowed = _allowed(source)
        if place not in allowed:
            compiler.warn(place, f"{kind} '{name}' is not used")


def _allowed(source: ast.SourceProgram) -> set[Position]:
    return {
        node.position
        for node in walk.nodes(source.declarations)
        if isinstance(node, ast.Declaration)
        and any(a.name == "noWarn" and '"unused"' in a.tokens for a in node.annotations)
    }
