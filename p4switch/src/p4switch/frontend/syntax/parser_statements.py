"""Statements of P4_16, and the declarations that may occur among them."""

from __future__ import annotations

from p4switch.frontend.source.lexer import END
from p4switch.frontend.syntax import ast
from p4switch.frontend.syntax.cursor import NAME_KINDS
from p4switch.frontend.syntax.parser_annotations import AnnotationParser
from p4switch.nesting import MOST_BRANCHES
from p4switch.position import Position

_ASSIGNMENTS = frozenset(
    ["=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^=", "|+|=", "|-|="]
)
_LVALUES = (ast.Name, ast.This, ast.Member, ast.Index, ast.Slice, ast.PlusSlice)


class StatementParser(AnnotationParser):
    """Parses statements, constants, variables and instantiations."""

    def block(self, annotations: list[ast.Annotation] | None = None) -> ast.Block:
        """Parse `{ statements }`."""
        if annotations is None:
            annotations = self.annotations()
        position = self.position()
        opening = self.index
        self.expect("{")
        scope = self.begin_scope()
        body: list[ast.Statement | ast.Declaration] = []
        while not self.take("}"):
            self._in_block(opening)
            body.append(self.statement_or_declaration())
        self.end_scope(scope)
        return ast.Block(position, annotations, body)

    def _in_block(self, opening: int) -> None:
        if self.kinds[self.index] == END:
            raise self.error("expected '}' to close this '{', found end of file", opening)

    def statement_or_declaration(self) -> ast.Statement | ast.Declaration:
        """Parse a statement, or the declaration of a constant, variable or instance."""
        annotations = self.annotations()
        kind = self.kinds[self.index]
        if kind == "const":
            return self.constant(annotations)
        if self._at_declaration():
            return self.variable_or_instance(annotations)
        return self._statement(annotations)

    def _at_declaration(self) -> bool:
        """Return whether a type begins here that is not applied directly (`T.apply()`)."""
        if not self.at_type():
            return False
        after = self.index + (2 if self.kinds[self.index] == "." else 1)
        if self.kinds[after] != "<":
            return self.kinds[after] != "."
        return self.kinds[self.after_angles(after)] != "."

    def after_angles(self, index: int) -> int:
        """Return the index after the type arguments that begin with the `<` at `index`."""
        depth = 0
        while True:
            kind = self.kinds[index]
            if kind == "<":
                depth += 1
            elif kind == ">" or kind == ">>":
                depth -= len(kind)
            elif kind in (END, ";", "{", "}"):
                return index
            index += 1
            if depth <= 0:
                return index

    def statement(self) -> ast.Statement:
        """Parse a statement."""
        return self._statement(self.annotations())

    def _statement(self, annotations: list[ast.Annotation]) -> ast.Statement:
        kind = self.kinds[self.index]
        if kind == "{":
            return self.block(annotations)
        if kind == "for":
            return self._for(annotations)
        if annotations:
            raise self.unexpected("a block, a loop or a declaration after annotations")
        position = self.position()
        match kind:
            case "if":
                return self._if()
            case "switch":
                return self._switch()
            case ";":
                self.index += 1
                return ast.Empty(position)
            case "return":
                self.index += 1
                value = None if self.kinds[self.index] == ";" else self.expression()
                self.expect(";", " after 'return'")
                return ast.Return(position, value)
            case "exit" | "break" | "continue":
                self.index += 1
                self.expect(";", f" after '{kind}'")
                if kind == "exit":
                    return ast.Exit(position)
                return ast.Break(position) if kind == "break" else ast.Continue(position)
        statement = self.assignment_or_call()
        what = "an assignment" if isinstance(statement, ast.Assignment) else "a call"
        self.expect(";", f" after {what}")
        return statement

    def assignment_or_call(self) -> ast.Statement:
        """Parse an assignment or a call, without the semicolon."""
        start = self.index
        kind = self.kinds[start]
        if kind not in NAME_KINDS and kind not in ("(", ".", "this") and not self.at_type():
            raise self.unexpected("a statement")
        if kind == "(":
            # Brackets around an l-value.
            self.index += 1
            target = self.postfix(self.primary(), True)
            self.expect(")", " to close '('")
            target = self.postfix(target, True)
        else:
            target = self.postfix(self.primary(), True)
        operator = self.kinds[self.index]
        if operator in _ASSIGNMENTS:
            if not self._is_lvalue(target):
                raise self.error(f"expected an l-value before '{operator}'", start)
            self.index += 1
            return ast.Assignment(target.position, target, operator, self.expression())
        if isinstance(target, ast.Call) and self._is_lvalue(target.function):
            return ast.CallStatement(target.position, target)
        if isinstance(target, ast.Name) and self.kinds[self.index] in NAME_KINDS:
            raise self.error(f"'{target.name}' is not a type that is declared here", start)
        if isinstance(target, ast.Call):
            raise self.error("the result of a call cannot be called, nor its methods", start)
        raise self.unexpected("an assignment or a call: '=' or '('")

    def _is_lvalue(self, target: ast.Expression) -> bool:
        while isinstance(target, _LVALUES):
            if isinstance(target, (ast.Name, ast.This)):
                return True
            target = target.base
        # As in `Control.apply()`.
        return isinstance(target, ast.TypeExpression)

    def _condition(self, keyword: str) -> ast.Expression:
        self.index += 1
        self.expect("(", f" after '{keyword}'")
        condition = self.expression()
        self.expect(")", f" after the expression of '{keyword}'")
        return condition

    def _if(self) -> ast.If:
        # A chain of `else if` can be hundreds long (unrolled by macros): no recursion.
        chain: list[tuple[Position, ast.Expression, ast.Statement]] = []
        other: ast.Statement | None = None
        while True:
            position = self.position()
            chain.append((position, self._condition("if"), self.statement()))
            if len(chain) > MOST_BRANCHES:
                raise self.error(f"more than {MOST_BRANCHES} 'else if' in a row: use a table")
            if not self.take("else"):
                break
            if self.kinds[self.index] != "if":
                other = self.statement()
                break
        for position, condition, then in reversed(chain):
            other = ast.If(position, condition, then, other)
        assert isinstance(other, ast.If)
        return other

    def _switch(self) -> ast.Switch:
        position = self.position()
        subject = self._condition("switch")
        opening = self.index
        self.expect("{", " before the cases of 'switch'")
        cases: list[ast.SwitchCase] = []
        while not self.take("}"):
            self._in_block(opening)
            start = self.position()
            labels: list[ast.Expression] = []
            if not self.take("default"):
                if self.kinds[self.index] == "{":
                    raise self.unexpected("a label of 'switch'")
                labels.append(self.expression())
            self.expect(":", " after a label of 'switch'")
            body = self.block() if self.kinds[self.index] in ("{", "@") else None
            cases.append(ast.SwitchCase(start, labels, body))
        return ast.Switch(position, subject, cases)

    def _for(self, annotations: list[ast.Annotation]) -> ast.Statement:
        position = self.position()
        self.index += 1
        self.expect("(", " after 'for'")
        scope = self.begin_scope()
        inner = self.annotations()
        if self._at_declaration():
            start = self.position()
            type_ref = self.type()
            name, type_ref = self.declarator("the name of a variable", type_ref)
            self.declare(name, is_type=False)
            if self.take("in"):
                collection = self.mask_or_range(self.expression())
                self.expect(")", " after what 'for' runs over")
                body = self.statement()
                self.end_scope(scope)
                return ast.ForIn(position, type_ref, name, collection, body, annotations + inner)
            init: list[ast.Statement | ast.Declaration] = [
                self._variable_value(start, inner, type_ref, name)
            ]
        elif inner or (self.kinds[self.index] in NAME_KINDS and self.kinds[self.index + 1] == "in"):
            raise self.unexpected("the type of the loop's variable")
        else:
            init = []
            if self.kinds[self.index] != ";":
                init.append(self.assignment_or_call())
        if init:
            while self.take(","):
                init.append(self._for_initializer())
        self.expect(";", " after the initialisation of 'for'")
        condition = self.expression()
        self.expect(";", " after the condition of 'for'")
        update: list[ast.Statement] = []
        if self.kinds[self.index] != ")":
            update.append(self.assignment_or_call())
            while self.take(","):
                update.append(self.assignment_or_call())
        self.expect(")", " after the updates of 'for'")
        body = self.statement()
        self.end_scope(scope)
        return ast.For(position, init, condition, update, body, annotations)

    def _for_initializer(self) -> ast.Statement | ast.Declaration:
        annotations = self.annotations()
        if annotations or self._at_declaration():
            start = self.position()
            type_ref = self.type("the type of a variable")
            name, type_ref = self.declarator("the name of a variable", type_ref)
            self.declare(name, is_type=False)
            return self._variable_value(start, annotations, type_ref, name)
        return self.assignment_or_call()

    # --- Declarations among statements -------------------------------------------------------

    def constant(self, annotations: list[ast.Annotation]) -> ast.ConstDeclaration:
        """Parse `const type name = value;`."""
        position = self.position()
        self.expect("const")
        type_ref = self.type("the type of a constant")
        name, type_ref = self.declarator("the name of a constant", type_ref)
        self.expect("=", f" after constant '{name}'")
        value = self.expression()
        self.expect(";", f" after the value of constant '{name}'")
        self.declare(name, is_type=False)
        return ast.ConstDeclaration(position, annotations, name, type_ref, value)

    def variable_or_instance(
        self, annotations: list[ast.Annotation]
    ) -> ast.VariableDeclaration | ast.Instantiation:
        """Parse `type name = value;` or `type(arguments) name;`."""
        position = self.position()
        type_ref = self.type()
        if self.kinds[self.index] == "(":
            return self.instance(position, annotations, type_ref)
        name, type_ref = self.declarator("the name of a variable or '('", type_ref)
        self.declare(name, is_type=False)
        variable = self._variable_value(position, annotations, type_ref, name)
        self.expect(";", f" after the declaration of '{name}'")
        return variable

    def _variable_value(
        self,
        position: Position,
        annotations: list[ast.Annotation],
        type_ref: ast.TypeRef,
        name: str,
    ) -> ast.VariableDeclaration:
        value = self.expression() if self.take("=") else None
        return ast.VariableDeclaration(position, annotations, name, type_ref, value)

    def instance(
        self, position: Position, annotations: list[ast.Annotation], type_ref: ast.TypeRef
    ) -> ast.Instantiation:
        """Parse `(arguments) name;` or `(arguments) name = { methods };` after a type."""
        arguments = self.arguments()
        name, type_ref = self.declarator("the name of an instance", type_ref)
        body: list[ast.Declaration] | None = None
        if self.take("="):
            opening = self.index
            self.expect("{", f" before the methods of '{name}'")
            scope = self.begin_scope()
            body = []
            while not self.take("}"):
                self._in_block(opening)
                inner = self.annotations()
                start = self.position()
                inner_type = self.type("a method or an instantiation")
                if self.kinds[self.index] == "(":
                    body.append(self.instance(start, inner, inner_type))
                else:
                    body.append(self.function(start, inner, inner_type))
            self.end_scope(scope)
        self.expect(";", f" after the instantiation of '{name}'")
        self.declare(name, is_type=False)
        return ast.Instantiation(position, annotations, name, type_ref, arguments, body)

    def function(
        self, position: Position, annotations: list[ast.Annotation], returns: ast.TypeRef
    ) -> ast.FunctionDeclaration:
        """Parse `name<T>(parameters) { body }` after the type it returns."""
        name = self.name("the name of a function")
        self.declare(name, is_type=False)
        scope = self.begin_scope()
        type_parameters = self.type_parameters()
        parameters = self.parameters()
        body = self.block([])
        self.end_scope(scope)
        return ast.FunctionDeclaration(
            position, annotations, name, returns, type_parameters, parameters, body
        )
