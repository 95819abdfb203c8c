"""The parser of P4_16: programs and their declarations, from source text to syntax tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from p4switch.frontend.source.lexer import END, IDENTIFIER
from p4switch.frontend.source.preprocessor import Preprocessed, preprocess, preprocess_text
from p4switch.frontend.syntax import ast
from p4switch.frontend.syntax.cursor import NAME_KINDS
from p4switch.frontend.syntax.parser_tables import TableParser
from p4switch.position import Position

_NOT_IN_STATES = frozenset(["return", "exit", "break", "continue", "switch", "for"])


def parse_program(
    path: Path,
    include_paths: Sequence[Path] = (),
    defines: Mapping[str, str] | None = None,
) -> ast.SourceProgram:
    """Preprocess and parse the program in file `path`; raises P4Error."""
    return _parse(preprocess(path, include_paths=include_paths, defines=defines))


def parse_text(
    text: str,
    file: str = "<text>",
    *,
    include_paths: Sequence[Path] = (),
    defines: Mapping[str, str] | None = None,
) -> ast.SourceProgram:
    """Preprocess and parse a program given as text; raises P4Error."""
    return _parse(preprocess_text(text, file, include_paths=include_paths, defines=defines))


def _parse(source: Preprocessed) -> ast.SourceProgram:
    parser = _Parser(source)
    try:
        declarations = parser.program()
    except RecursionError:
        raise parser.error("the program is nested too deeply here") from None
    return ast.SourceProgram(declarations, source.sources.lines(), source.warnings)


class _Head(NamedTuple):
    position: Position
    name: str
    scope: int
    type_parameters: list[str]
    parameters: list[ast.Parameter]


class _Parser(TableParser):
    """Parses the declarations of a program."""

    def program(self) -> list[ast.Declaration]:
        """Parse up to the end of the source."""
        declarations: list[ast.Declaration] = []
        while self.kinds[self.index] != END:
            if not self.take(";"):
                declarations += self._declaration()
        return declarations

    def _declaration(self) -> list[ast.Declaration]:
        annotations = self.annotations()
        kind = self.kinds[self.index]
        match kind:
            case "const":
                return [self.constant(annotations)]
            case "extern":
                return self._extern(annotations)
            case "action":
                return [self.action(annotations)]
            case "parser":
                return [self._parser(annotations)]
            case "control":
                return [self._control(annotations)]
            case "package":
                return [self._package(annotations)]
            case "header" | "struct" | "header_union":
                return [self._struct(annotations)]
            case "enum":
                return [self._enum(annotations)]
            case "typedef" | "type":
                return self._typedef(annotations)
            case "error" | "match_kind" if self.kinds[self.index + 1] == "{":
                return [self._symbols(annotations)]
        if self.at_type() or (kind == IDENTIFIER and self.kinds[self.index + 1] in NAME_KINDS):
            # The type that a function returns may be its own type parameter.
            return [self._function_or_instance(annotations)]
        if kind == IDENTIFIER and self.kinds[self.index + 1] in ("(", "<"):
            raise self.error(f"'{self.texts[self.index]}' is not a type that is declared here")
        raise self.unexpected("a declaration")

    def _function_or_instance(self, annotations: list[ast.Annotation]) -> ast.Declaration:
        position = self.position()
        type_ref = self.type()
        if self.kinds[self.index] == "(":
            return self.instance(position, annotations, type_ref)
        if self.kinds[self.index] in NAME_KINDS and self.kinds[self.index + 1] in (";", "="):
            raise self.error("a variable cannot be declared at the top level of a program")
        return self.function(position, annotations, type_ref)

    # --- Types -------------------------------------------------------------------------------

    def _struct(self, annotations: list[ast.Annotation]) -> ast.StructLike:
        position = self.position()
        kind = self.kinds[self.index]
        self.index += 1
        name = self.name(f"the name of a {kind}")
        self.declare(name, is_type=True)
        scope = self.begin_scope()
        type_parameters = self.type_parameters()
        self.expect("{", f" before the fields of {kind} '{name}'")
        fields: list[ast.FieldDeclaration] = []
        while not self.take("}"):
            inner = self.annotations()
            start = self.position()
            type_ref = self.type(f"a field of {kind} '{name}' or '}}'")
            field, type_ref = self.declarator("the name of a field", type_ref)
            self.expect(";", f" after field '{field}'")
            fields.append(ast.FieldDeclaration(start, inner, field, type_ref))
        self.end_scope(scope)
        return ast.StructLike(position, annotations, name, kind, type_parameters, fields)

    def _enum(self, annotations: list[ast.Annotation]) -> ast.EnumDeclaration:
        position = self.position()
        self.index += 1
        type_ref = None
        if self.kinds[self.index] not in NAME_KINDS or self.kinds[self.index + 1] != "{":
            type_ref = self.type("the name or the type of an enum")
        name = self.name("the name of an enum")
        self.declare(name, is_type=True)
        self.expect("{", f" before the members of enum '{name}'")
        members: list[tuple[str, ast.Expression | None]] = []
        while True:
            member = self.name(f"a member of enum '{name}'")
            value = None
            if type_ref is not None:
                self.expect("=", f" after '{member}': enum '{name}' has a type")
                value = self.expression()
            members.append((member, value))
            if self._ends_list("a member of an enum"):
                return ast.EnumDeclaration(position, annotations, name, type_ref, members)

    def _ends_list(self, what: str) -> bool:
        """Consume `,`, `}` or both after an element; return whether the list ends."""
        if self.take("}"):
            return True
        if not self.take(","):
            raise self.unexpected(f"',' or '}}' after {what}")
        # Alone among these lists that of errors cannot end in a comma.
        return what != "a member of error" and self.take("}")

    def _symbols(
        self, annotations: list[ast.Annotation]
    ) -> ast.ErrorDeclaration | ast.MatchKindDeclaration:
        position = self.position()
        kind = self.kinds[self.index]
        self.index += 2
        members = [self.name(f"a member of {kind}")]
        while not self._ends_list(f"a member of {kind}"):
            members.append(self.name(f"a member of {kind}"))
        if kind == "error":
            return ast.ErrorDeclaration(position, annotations, kind, members)
        return ast.MatchKindDeclaration(position, annotations, kind, members)

    def _typedef(self, annotations: list[ast.Annotation]) -> list[ast.Declaration]:
        position = self.position()
        fresh = self.kinds[self.index] == "type"
        self.index += 1
        declarations: list[ast.Declaration] = []
        inner = self.annotations() if not fresh else []
        kind = self.kinds[self.index]
        if not fresh and kind in ("struct", "header", "header_union", "enum"):
            derived = self._enum(inner) if kind == "enum" else self._struct(inner)
            declarations.append(derived)
            type_ref: ast.TypeRef = ast.NamedType(derived.position, derived.name)
        else:
            type_ref = self.type("a type")
        name, type_ref = self.declarator("the new name of a type", type_ref)
        self.expect(";", f" after the definition of '{name}'")
        self.declare(name, is_type=True)
        declarations.append(ast.TypedefDeclaration(position, annotations, name, type_ref, fresh))
        return declarations

    # --- Externs and packages ----------------------------------------------------------------

    def _extern(self, annotations: list[ast.Annotation]) -> list[ast.Declaration]:
        position = self.position()
        self.index += 1
        if self.kinds[self.index] in NAME_KINDS:
            after = self.index + 1
            if self.kinds[after] == "<":
                after = self.after_angles(after)
            if self.kinds[after] == "{":
                return [self._extern_object(position, annotations)]
            if self.kinds[after] == ";":
                # A forward declaration, which p4c takes: only the name matters.
                self.declare(self.texts[self.index], is_type=True)
                self.index = after + 1
                return []
        method = self._method(annotations, None)
        return [ast.ExternFunctionDeclaration(position, annotations, method.name, method)]

    def _extern_object(
        self, position: Position, annotations: list[ast.Annotation]
    ) -> ast.ExternDeclaration:
        name = self.name()
        self.declare(name, is_type=True)
        scope = self.begin_scope()
        type_parameters = self.type_parameters()
        self.expect("{")
        methods: list[ast.MethodDeclaration] = []
        while not self.take("}"):
            methods.append(self._method(self.annotations(), name))
        self.end_scope(scope)
        return ast.ExternDeclaration(position, annotations, name, type_parameters, methods)

    def _method(
        self, annotations: list[ast.Annotation], owner: str | None
    ) -> ast.MethodDeclaration:
        """Parse a method of extern `owner`, or an extern function if that is None."""
        position = self.position()
        what = "an extern" if owner is None else f"a method of extern '{owner}' or '}}'"
        abstract = owner is not None and self.take("abstract")
        returns: ast.TypeRef | None = None
        name = owner
        if self.texts[self.index] == owner and self.kinds[self.index + 1] == "(":
            self.index += 1
        else:
            start = self.index
            returns = self.type(what)
            if owner is not None and self.kinds[self.index] == "(":
                if self.texts[start] == owner:
                    raise self.error("a constructor cannot have type parameters", start)
                raise self.error(
                    f"'{self.texts[start]}' lacks the type it returns, or 'void'; only a"
                    f" constructor, named '{owner}', has none",
                    start,
                )
            name = self.name("the name of a function")
        assert name is not None
        if owner is None:
            self.declare(name, is_type=False)
        scope = self.begin_scope()
        type_parameters = [] if returns is None else self.type_parameters()
        parameters = self.parameters()
        self.end_scope(scope)
        self.expect(";", f" after the declaration of '{name}'")
        return ast.MethodDeclaration(
            position, annotations, name, returns, type_parameters, parameters, abstract
        )

    def _package(self, annotations: list[ast.Annotation]) -> ast.PackageDeclaration:
        position, name, scope, type_parameters, parameters = self._head("package")
        self.end_scope(scope)
        self.expect(";", f" after package '{name}'")
        return ast.PackageDeclaration(position, annotations, name, type_parameters, parameters)

    def _head(self, what: str) -> _Head:
        """Parse what packages, controls and parsers begin with; the caller ends its scope."""
        position = self.position()
        self.index += 1
        name = self.name(f"the name of a {what}")
        self.declare(name, is_type=True)
        scope = self.begin_scope()
        return _Head(position, name, scope, self.type_parameters(), self.parameters())

    def _constructor(self, what: str, name: str) -> list[ast.Parameter]:
        """Parse the parameters of a control's or parser's constructor, up to its body."""
        constructor = self.parameters() if self.kinds[self.index] == "(" else []
        self.expect("{", f" before the body of {what} '{name}'")
        return constructor

    # --- Controls ----------------------------------------------------------------------------

    def _control(self, annotations: list[ast.Annotation]) -> ast.ControlDeclaration:
        position, name, scope, type_parameters, parameters = self._head("control")
        constructor: list[ast.Parameter] = []
        declared: list[ast.Declaration] = []
        body = None
        if not self.take(";"):
            constructor = self._constructor("control", name)
            while self.kinds[self.index] != "apply":
                declared.append(self._control_local(name))
            self.index += 1
            body = self.block()
            self.expect("}", f" after the apply block of control '{name}'")
        self.end_scope(scope)
        return ast.ControlDeclaration(
            position, annotations, name, type_parameters, parameters, constructor, declared, body
        )

    def _control_local(self, control: str) -> ast.Declaration:
        annotations = self.annotations()
        kind = self.kinds[self.index]
        if kind == "action":
            return self.action(annotations)
        if kind == "table":
            return self.table(annotations)
        if kind == "const":
            return self.constant(annotations)
        if self.at_type():
            return self.variable_or_instance(annotations)
        if kind == IDENTIFIER and self.kinds[self.index + 1] in (*NAME_KINDS, "(", "<"):
            raise self.error(f"'{self.texts[self.index]}' is not a type that is declared here")
        raise self.unexpected(f"a declaration or the apply block of control '{control}'")

    def action(self, annotations: list[ast.Annotation]) -> ast.ActionDeclaration:
        """Parse `action name(parameters) { body }`."""
        position = self.position()
        self.index += 1
        name = self.name("the name of an action")
        scope = self.begin_scope()
        parameters = self.parameters()
        body = self.block()
        self.end_scope(scope)
        self.declare(name, is_type=False)
        return ast.ActionDeclaration(position, annotations, name, parameters, body)

    # --- Parsers -----------------------------------------------------------------------------

    def _parser(self, annotations: list[ast.Annotation]) -> ast.ParserDeclaration:
        position, name, scope, type_parameters, parameters = self._head("parser")
        constructor: list[ast.Parameter] = []
        declared: list[ast.Declaration] = []
        states: list[ast.ParserState] | None = None
        if not self.take(";"):
            constructor = self._constructor("parser", name)
            states = []
            while not self.take("}"):
                inner = self.annotations()
                if self.kinds[self.index] == "state":
                    states.append(self._state(inner))
                elif states:
                    raise self.unexpected(f"a state of parser '{name}' or '}}'")
                else:
                    declared.append(self._parser_local(inner, name))
            if not states:
                raise self.error(f"expected a state in parser '{name}', found none", self.index - 1)
        self.end_scope(scope)
        return ast.ParserDeclaration(
            position, annotations, name, type_parameters, parameters, constructor, declared, states
        )

    def _parser_local(self, annotations: list[ast.Annotation], parser: str) -> ast.Declaration:
        kind = self.kinds[self.index]
        if kind == "const":
            return self.constant(annotations)
        if kind == "value_set":
            return self._value_set(annotations)
        if self.at_type():
            return self.variable_or_instance(annotations)
        if kind == IDENTIFIER and self.kinds[self.index + 1] in (*NAME_KINDS, "(", "<"):
            raise self.error(f"'{self.texts[self.index]}' is not a type that is declared here")
        raise self.unexpected(f"a declaration or a state of parser '{parser}'")

    def _value_set(self, annotations: list[ast.Annotation]) -> ast.ValueSetDeclaration:
        position = self.position()
        self.index += 1
        self.expect("<", " after 'value_set'")
        type_ref = self.type("the type of a value_set")
        self.close_angle("the type of a value_set")
        self.expect("(", " before the size of a value_set")
        size = self.expression()
        self.expect(")", " after the size of a value_set")
        name = self.name("the name of a value_set")
        self.expect(";", f" after value_set '{name}'")
        self.declare(name, is_type=False)
        return ast.ValueSetDeclaration(position, annotations, name, type_ref, size)

    def _state(self, annotations: list[ast.Annotation]) -> ast.ParserState:
        position = self.position()
        self.index += 1
        name = self.name("the name of a state")
        self.expect("{", f" before the body of state '{name}'")
        scope = self.begin_scope()
        body: list[ast.Statement | ast.Declaration] = []
        transition: str | ast.Select | None = None
        while not self.take("}"):
            if self.take("transition"):
                transition = self._transition(name)
                self.expect("}", f" after the transition of state '{name}'")
                break
            kind = self.kinds[self.index]
            if kind == END or kind in _NOT_IN_STATES:
                raise self.unexpected(f"a statement of a parser or 'transition' in state '{name}'")
            body.append(self.statement_or_declaration())
        self.end_scope(scope)
        return ast.ParserState(position, annotations, name, body, transition)

    def _transition(self, state: str) -> str | ast.Select:
        if self.kinds[self.index] != "select":
            target = self.name("the name of a state or 'select' after 'transition'")
            self.expect(";", f" after the transition of state '{state}'")
            return target
        position = self.position()
        self.index += 1
        self.expect("(", " after 'select'")
        subjects: list[ast.Expression] = []
        while self.kinds[self.index] != ")":
            subjects.append(self.expression())
            if not self.take(","):
                break
        self.expect(")", " after the expressions of 'select'")
        self.expect("{", " before the cases of 'select'")
        cases: list[ast.SelectCase] = []
        while not self.take("}"):
            start = self.position()
            keys = self.keyset()
            self.expect(":", " after the keys of a case of 'select'")
            target = self.name("the name of a state")
            self.expect(";", " after a case of 'select'")
            cases.append(ast.SelectCase(start, keys, target))
        return ast.Select(position, subjects, cases)
