"""The whole program: top-level declarations, `main`, and what is reachable from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from p4switch import ir
from p4switch.frontend import reach
from p4switch.frontend.constants import constants
from p4switch.frontend.declarations import instantiate, parameters, unreached, warnings
from p4switch.frontend.expressions import expressions, resolve
from p4switch.frontend.names import scope
from p4switch.frontend.names.compilation import Body, Compiler, Symbols, declare
from p4switch.frontend.statements import callables, statements
from p4switch.frontend.syntax import ast
from p4switch.frontend.syntax.parser import parse_program
from p4switch.frontend.types import types
from p4switch.nesting import collector_paused, deep_recursion
from p4switch.position import NOWHERE, P4Error, Position


def compile_file(
    path: Path, *, include_paths: Sequence[Path] = (), defines: Mapping[str, str] | None = None
) -> ir.Program:
    """Compile a P4 file. Raises P4Error with the position of an error."""
    return compile_program(parse_program(path, include_paths, dict(defines or {})))


def compile_program(source: ast.SourceProgram, *, by_reference: bool = True) -> ir.Program:
    """Check a program and lower it. Raises P4Error with the position of an error.

    Without `by_reference` every parameter is copied in and out (see `references`): the same
    results, slower, and nearer to the source.
    """
    return analyse(source, by_reference=by_reference).checked()


@dataclass(slots=True)
class Analysis:
    """What the front end finds out about a program."""

    program: ir.Program | None
    """None if it has errors."""
    error: P4Error | None
    """The errors: a P4Errors if there are several."""
    warnings: list[tuple[Position, str]]
    """What is legal, but probably not meant; of a program with errors, those found so far."""
    symbols: Symbols

    def checked(self) -> ir.Program:
        """Return the program. Raises P4Error."""
        if self.error is not None:
            raise self.error
        assert self.program is not None
        return self.program


def analyse(source: ast.SourceProgram, *, by_reference: bool = True) -> Analysis:
    """Check a program and lower it as far as possible; `by_reference`: as of `compile_program`."""
    made = _Program(source)
    program, error = None, None
    try:
        with deep_recursion(), collector_paused():
            program = made.compile(by_reference)
    except P4Error as problem:
        error = problem
    warnings.unused(made.compiler, source)
    return Analysis(program, error, made.compiler.warnings, made.compiler.symbols)


class _Rules:
    """The rules of all layers, through which each uses those above it."""

    expression = staticmethod(expressions.evaluate)
    statement = staticmethod(statements.one)
    function = staticmethod(callables.function)
    block = staticmethod(instantiate.block)
    anonymous = staticmethod(instantiate.anonymous)
    construct = staticmethod(instantiate.construct_here)
    instantiation = staticmethod(instantiate.instantiation)


class _Program:
    """One compilation."""

    def __init__(self, source: ast.SourceProgram) -> None:
        self.source = source
        self.compiler = Compiler(source.lines, _Rules())
        self.body = Body(self.compiler, self.compiler.top, self.compiler.globals, "constant")

    def compile(self, by_reference: bool) -> ir.Program:
        compiler = self.compiler
        for item in self.source.declarations:
            named = not isinstance(item, (ast.ErrorDeclaration, ast.MatchKindDeclaration))
            with compiler.recovering(compiler.globals if named else None, item.name):
                self._declare(item)
        main = compiler.globals.names.get("main")
        blocks: dict[str, ir.Block] = {}
        units: list[scope.BlockUnit] = []
        if isinstance(main, scope.PackageEntity):
            main.used = True
            with compiler.recovering():
                self._blocks(main, "", blocks, units)
        program = None
        if isinstance(main, scope.PackageEntity) and not compiler.errors_noted:
            with compiler.recovering():
                program = reach.program(compiler, main, blocks, units, by_reference)
        unreached.check(compiler)
        compiler.check()
        if program is None:
            raise self._no_package(main)
        return program

    def _no_package(self, main: scope.Entity | None) -> P4Error:
        if main is not None:
            return self.compiler.error(main.position, "'main' must be a package")
        last = self.source.declarations[-1].position if self.source.declarations else NOWHERE
        return self.compiler.error(last, "the program makes no package called 'main'")

    def _blocks(
        self,
        package: scope.PackageEntity,
        prefix: str,
        blocks: dict[str, ir.Block],
        units: list[scope.BlockUnit],
    ) -> None:
        for name, entity in package.arguments.items():
            if isinstance(entity, scope.BlockEntity):
                made = instantiate.block(self.compiler, entity, {}, entity.position)
                blocks[prefix + name] = made.block
                if made not in units:
                    units.append(made)
            elif isinstance(entity, scope.PackageEntity):
                self._blocks(entity, f"{prefix}{name}.", blocks, units)

    def _declare(self, item: ast.Declaration) -> None:
        compiler, names = self.compiler, self.compiler.globals
        parameters.check_declaration(compiler, item)
        if isinstance(item, ast.Instantiation):
            entity = instantiate.instantiation(self.body, item)
            entity.position = item.position
        elif isinstance(item, ast.ConstDeclaration):
            statements.constant(self.body, item)
        elif isinstance(item, ast.ActionDeclaration):
            declare(compiler, names, item.name, callables.action(self.body, item))
        elif isinstance(item, ast.FunctionDeclaration):
            callables.enter_function(compiler, compiler.top, names, item)
        elif isinstance(item, ast.ExternFunctionDeclaration):
            callables.enter_function(compiler, compiler.top, names, item.method)
        elif isinstance(item, ast.ErrorDeclaration):
            self._errors(item)
        elif isinstance(item, ast.MatchKindDeclaration):
            for name in item.members:
                if name in compiler.match_kinds:
                    raise compiler.error(item.position, f"match kind '{name}' is declared twice")
                compiler.match_kinds.add(name)
        elif isinstance(
            item,
            (
                ast.StructLike,
                ast.ExternDeclaration,
                ast.ParserDeclaration,
                ast.ControlDeclaration,
                ast.PackageDeclaration,
            ),
        ):
            self._generic(item)
        elif isinstance(item, ast.EnumDeclaration):
            self._type(item, self._enum(item))
        elif isinstance(item, ast.TypedefDeclaration):
            self._type(item, self._typedef(item))
        else:
            raise compiler.error(
                item.position, f"'{item.name}' cannot be declared at the top level"
            )

    def _type(self, item: ast.Declaration, kind: types.Type) -> None:
        entity = scope.TypeEntity(kind)
        entity.position = item.position
        declare(self.compiler, self.compiler.globals, item.name, entity)

    def _generic(
        self,
        item: (
            ast.StructLike
            | ast.ExternDeclaration
            | ast.ParserDeclaration
            | ast.ControlDeclaration
            | ast.PackageDeclaration
        ),
    ) -> None:
        names = self.compiler.globals
        entity = scope.GenericEntity(item, names)
        entity.position = item.position
        self.compiler.generics[item] = entity
        if isinstance(item, ast.StructLike) and not item.type_parameters:
            kind = resolve.specialise(self.compiler, entity, (), item.position)
            self._type(item, kind)
            if item.annotations and any(a.name == "controller_header" for a in item.annotations):
                self.compiler.lower(kind, item.position)
        else:
            declare(self.compiler, names, item.name, entity)

    def _errors(self, item: ast.ErrorDeclaration) -> None:
        for name in item.members:
            if name in self.compiler.errors:
                raise self.compiler.error(item.position, f"error '{name}' is declared twice")
            self.compiler.errors[name] = len(self.compiler.errors)

    def _enum(self, item: ast.EnumDeclaration) -> types.Enum:
        compiler = self.compiler
        underlying: types.Bits | None = None
        if item.type is not None:
            base = resolve.type_of(compiler, item.type, compiler.globals)
            if not isinstance(base, types.Bits):
                raise compiler.error(
                    item.type.position, f"an enum is made of bit<> or int<>, not '{base}'"
                )
            underlying = base
        members: dict[str, int] = {}
        made = types.Enum(item.name, members, underlying)
        for index, (name, expression) in enumerate(item.members):
            if name in members:
                raise compiler.error(item.position, f"enum member '{name}' is declared twice")
            if underlying is None:
                members[name] = index
                continue
            if expression is None:
                raise compiler.error(item.position, f"enum member '{name}' needs a value")
            value = constants.integer(self.body, expression, f"the value of '{name}'")
            members[name] = constants.wrap(value, underlying)
            if members[name] != value:
                raise compiler.error(
                    expression.position,
                    f"the value {value} of '{name}' does not fit '{underlying}'",
                )
        compiler.enums[item.name] = made
        return made

    def _typedef(self, item: ast.TypedefDeclaration) -> types.Type:
        kind = resolve.type_of(self.compiler, item.type, self.compiler.globals)
        annotations = resolve.folded_annotations(
            self.compiler, item.annotations, self.compiler.globals
        )
        if not item.fresh:
            return kind
        bare = types.underlying(kind)
        if not isinstance(bare, types.Bits) and bare is not types.BOOL:
            raise self.compiler.error(
                item.position, f"a new type is made of bit<>, int<> or bool, not '{kind}'"
            )
        return types.NewType(item.name, kind, annotations)
