"""Types, expressions, arguments and key sets of P4_16 (appendix G of the specification)."""

from __future__ import annotations

from p4switch.frontend.source.lexer import (
    IDENTIFIER,
    INTEGER,
    STRING,
    decode_integer,
)
from p4switch.frontend.syntax import ast
from p4switch.frontend.syntax.cursor import NAME_KINDS, Cursor
from p4switch.literals import decode_string
from p4switch.nesting import MOST_TERMS

# The grammar's precedences. Unlike in C, bitwise operators bind more tightly than comparisons.
_PRECEDENCE = {
    "||": 1,
    "&&": 2,
    "==": 3,
    "!=": 3,
    "<": 4,
    ">": 4,
    "<=": 4,
    ">=": 4,
    "|": 5,
    "^": 6,
    "&": 7,
    "<<": 8,
    ">>": 8,
    "++": 9,
    "+": 9,
    "-": 9,
    "|+|": 9,
    "|-|": 9,
    "*": 10,
    "/": 10,
    "%": 10,
}
# Operators with a `>` in them do not stand in a width (`bit<N>`) outside brackets.
_WIDTH_PRECEDENCE = {
    operator: level for operator, level in _PRECEDENCE.items() if not operator.startswith(">")
}

_PREFIX = frozenset(["-", "+", "!", "~"])
_SIMPLE_TYPES = frozenset(["bool", "error", "string", "void", "match_kind"])
_TYPE_KEYWORDS = frozenset(["bit", "int", "varbit", "tuple", *_SIMPLE_TYPES])


class ExpressionParser(Cursor):
    """Parses types, expressions, arguments and key sets."""

    # --- Types -------------------------------------------------------------------------------

    def at_type(self, ahead: int = 0) -> bool:
        """Return whether a type begins at the current token, or `ahead` tokens later."""
        index = self.index + ahead
        kind = self.kinds[index]
        if kind == IDENTIFIER or kind in NAME_KINDS:
            if kind == "list" and self.kinds[index + 1] == "<":
                return True
            return self._names.get(self.texts[index], False)
        if kind == ".":
            return self.is_global_type(self.texts[index + 1])
        return kind in _TYPE_KEYWORDS

    def type(self, what: str = "a type") -> ast.TypeRef:
        """Parse a type; `what` says in an error which."""
        index = self.index
        kind = self.kinds[index]
        position = self.position()
        result: ast.TypeRef
        if kind in ("bit", "int"):
            self.index = index + 1
            signed = kind == "int"
            if self.take("<"):
                result = ast.BitType(position, signed, self._width(f"the width of {kind}<>"))
            elif signed:
                result = ast.BitType(position, True, None)
            else:
                result = ast.BitType(position, False, ast.IntLiteral(position, 1))
        elif kind == "varbit":
            self.index = index + 1
            self.expect("<", " after varbit")
            result = ast.VarbitType(position, self._width("the width of varbit<>"))
        elif kind in _SIMPLE_TYPES:
            self.index = index + 1
            result = ast.SimpleType(position, kind)
        elif kind == "tuple":
            self.index = index + 1
            self.expect("<", " after tuple")
            result = ast.TupleType(position, self._type_arguments())
        elif kind == "list" and self.kinds[index + 1] == "<":
            self.index = index + 2
            result = ast.ListType(position, self._type_argument())
            self.close_angle("the type of a list's elements")
        elif kind in NAME_KINDS or kind == ".":
            absolute = self.take(".")
            named = ast.NamedType(position, self.name("a type name after '.'"), absolute)
            result = named
            if self.take("<"):
                result = ast.SpecializedType(position, named, self._type_arguments())
        else:
            raise self.unexpected(what)
        while self.kinds[self.index] == "[":
            self.index += 1
            size = self.expression()
            self.expect("]", " after the size of a header stack")
            result = ast.StackType(position, result, size)
        return result

    def _width(self, what: str) -> ast.Expression:
        width = self._ternary(_WIDTH_PRECEDENCE)
        self.close_angle(what)
        return width

    def _type_argument(self) -> ast.TypeRef:
        if self.kinds[self.index] == "_":
            position = self.position()
            self.index += 1
            return ast.DontCareType(position)
        return self.type("a type argument")

    def _type_arguments(self) -> list[ast.TypeRef]:
        """Parse type arguments after `<`, and the `>`."""
        arguments: list[ast.TypeRef] = []
        if self.kinds[self.index].startswith(">"):
            self.close_angle("type arguments")
            return arguments
        arguments.append(self._type_argument())
        while self.take(","):
            arguments.append(self._type_argument())
        self.close_angle("a type argument")
        return arguments

    def type_parameters(self) -> list[str]:
        """Parse optional `<T, ...>` and declare the names as types in the current scope."""
        names: list[str] = []
        if not self.take("<"):
            return names
        while True:
            name = self.name("a type parameter")
            self.declare(name, is_type=True)
            names.append(name)
            if not self.take(","):
                break
        self.close_angle("a type parameter")
        return names

    # --- Expressions -------------------------------------------------------------------------

    def expression(self) -> ast.Expression:
        """Parse an expression."""
        return self._ternary(_PRECEDENCE)

    def continued(self, left: ast.Expression) -> ast.Expression:
        """Parse the rest of an expression that begins with the primary `left`."""
        left = self.postfix(left)
        return self._conditions(self._binary(left, 1, _PRECEDENCE), _PRECEDENCE)

    def _ternary(self, table: dict[str, int]) -> ast.Expression:
        expression = self._binary(self._unary(), 1, table)
        if self.kinds[self.index] == "?":
            return self._conditions(expression, table)
        return expression

    def _conditions(self, left: ast.Expression, table: dict[str, int]) -> ast.Expression:
        # `a ? b : c ? d : e` is `(a ? b : c) ? d : e` by the precedences of the grammar.
        while self.take("?"):
            then = self.expression()
            self.expect(":", " of '?'")
            other = self._binary(self._unary(), 1, table)
            left = ast.Ternary(left.position, left, then, other)
        return left

    def _binary(self, left: ast.Expression, minimum: int, table: dict[str, int]) -> ast.Expression:
        kinds = self.kinds
        for _ in range(MOST_TERMS):
            operator = kinds[self.index]
            level = table.get(operator, 0)
            if level < minimum:
                return left
            self.index += 1
            if operator == "+" and kinds[self.index] == ":":
                # The `+:` of a slice.
                self.index -= 1
                return left
            right = self._unary()
            if table.get(kinds[self.index], 0) > level:
                right = self._binary(right, level + 1, table)
            left = ast.Binary(left.position, operator, left, right)
        raise self.error(f"more than {MOST_TERMS} operators in a row: take the expression apart")

    def _unary(self) -> ast.Expression:
        kind = self.kinds[self.index]
        if kind in _PREFIX:
            position = self.position()
            self.index += 1
            return ast.Unary(position, kind, self._unary())
        if kind == "(":
            return self._parenthesised()
        return self.postfix(self.primary())

    def _parenthesised(self) -> ast.Expression:
        position = self.position()
        self.index += 1
        if self._at_type_in_brackets():
            type_ref = self.type()
            if self.take(")"):
                return ast.Cast(position, type_ref, self._unary())
            expression = self.continued(self._type_expression(type_ref))
        else:
            expression = self.expression()
        self.expect(")", " to close '('")
        return self.postfix(expression)

    def _at_type_in_brackets(self) -> bool:
        """Return whether a type, rather than an expression, begins after a `(`."""
        if not self.at_type():
            return False
        after = self.kinds[self.index + (2 if self.kinds[self.index] == "." else 1)]
        return after != "."

    def _type_expression(self, type_ref: ast.TypeRef) -> ast.Expression:
        """Return a type as the beginning of an expression."""
        if self.kinds[self.index] not in (".", "("):
            raise self.unexpected("'.' or '(' after a type in an expression")
        if not isinstance(type_ref, (ast.NamedType, ast.SpecializedType)) and not (
            isinstance(type_ref, ast.SimpleType) and type_ref.name == "error"
        ):
            raise self.error("this type cannot be used in an expression; a cast is (type) value")
        return ast.TypeExpression(type_ref.position, type_ref)

    def primary(self) -> ast.Expression:
        """Parse an expression without operators around it."""
        index = self.index
        kind = self.kinds[index]
        if kind == INTEGER:
            self.index = index + 1
            return self._integer(index)
        if kind in NAME_KINDS:
            text = self.texts[index]
            if self._names.get(text, False) or (kind == "list" and self.kinds[index + 1] == "<"):
                return self._type_expression(self.type())
            position = self.position()
            self.index = index + 1
            return ast.Name(position, text)
        position = self.position()
        if kind == "{":
            return self._braces()
        if kind == "true" or kind == "false":
            self.index = index + 1
            return ast.BoolLiteral(position, kind == "true")
        if kind == STRING:
            self.index = index + 1
            return ast.StringLiteral(position, decode_string(self.texts[index]))
        if kind == ".":
            if self.at_type():
                return self._type_expression(self.type())
            self.index = index + 1
            return ast.Name(position, self.name("a name after '.'"), True)
        if kind == "this":
            self.index = index + 1
            return ast.This(position)
        if kind == "{#}":
            self.index = index + 1
            return ast.InvalidHeader(position)
        if kind == "...":
            self.index = index + 1
            return ast.Dots(position)
        if kind == "error":
            return self._type_expression(self.type())
        raise self.unexpected("an expression")

    def _integer(self, index: int) -> ast.IntLiteral:
        position = self._sources.position(self._marks[index])
        try:
            value, width, signed = decode_integer(self.texts[index])
        except ValueError as error:
            raise self.error(str(error), index) from None
        return ast.IntLiteral(position, value, width, signed)

    def postfix(self, base: ast.Expression, statement: bool = False) -> ast.Expression:
        """Parse `.f`, `[i]`, `<T>` and `(...)` after `base`.

        In a statement a `<` can only begin type arguments.
        """
        kinds = self.kinds
        position = base.position
        while True:
            kind = kinds[self.index]
            if kind == ".":
                self.index += 1
                at = self.position()
                base = ast.Member(position, base, self.name("a member's name after '.'"), at)
            elif kind == "(":
                base = ast.Call(position, base, [], self.arguments())
            elif kind == "[":
                base = self._brackets(base)
            elif kind == "<" and (statement or self._at_type_arguments()):
                self.index += 1
                types = self._type_arguments()
                if kinds[self.index] != "(":
                    raise self.unexpected("'(' after type arguments")
                base = ast.Call(position, base, types, self.arguments())
            else:
                return base

    def _at_type_arguments(self) -> bool:
        """Return whether the current `<` begins type arguments: a type follows it."""
        if self.kinds[self.index + 1] == "_":
            return True
        if not self.at_type(1):
            return False
        # `a < E.b` compares, and so does `a < T(...)`.
        after = self.index + (3 if self.kinds[self.index + 1] == "." else 2)
        return self.kinds[after] not in (".", "(")

    def _brackets(self, base: ast.Expression) -> ast.Expression:
        self.index += 1
        first = self.expression()
        if self.take(":"):
            expression: ast.Expression = ast.Slice(base.position, base, first, self.expression())
        elif self.take("+"):
            self.expect(":", " of '+:'")
            expression = ast.PlusSlice(base.position, base, first, self.expression())
        else:
            expression = ast.Index(base.position, base, first)
        self.expect("]", " to close '['")
        return expression

    def _braces(self) -> ast.Expression:
        """Parse `{ a, b, ... }` or `{ a = 1, b = 2, ... }`."""
        position = self.position()
        self.index += 1
        if self.kinds[self.index] in NAME_KINDS and self.kinds[self.index + 1] == "=":
            fields, defaults = self._named_fields()
            return ast.RecordExpression(position, fields, defaults)
        elements: list[ast.Expression] = []
        defaults = False
        while self.kinds[self.index] != "}":
            if self.take("..."):
                defaults = True
                self.take(",")
                break
            elements.append(self.expression())
            if not self.take(","):
                break
        self.expect("}", " to close '{'")
        return ast.ListExpression(position, elements, defaults)

    def _named_fields(self) -> tuple[dict[str, ast.Expression], bool]:
        fields: dict[str, ast.Expression] = {}
        defaults = False
        while self.kinds[self.index] != "}":
            if self.take("..."):
                defaults = True
                self.take(",")
                break
            self.named_field(fields)
            if not self.take(","):
                break
        self.expect("}", " to close '{'")
        return fields, defaults

    def named_field(self, fields: dict[str, ast.Expression]) -> None:
        """Parse `name = value` into `fields`."""
        index = self.index
        name = self.name("a field's name")
        if name in fields:
            raise self.error(f"'{name}' is given twice", index)
        self.expect("=", f" after '{name}'")
        fields[name] = self.expression()

    def arguments(self) -> list[ast.Argument]:
        """Parse `(arguments)`."""
        self.expect("(")
        arguments: list[ast.Argument] = []
        if self.take(")"):
            return arguments
        kinds = self.kinds
        while True:
            position = self.position()
            name = None
            if kinds[self.index] in NAME_KINDS and kinds[self.index + 1] == "=":
                name = self.texts[self.index]
                self.index += 2
            if kinds[self.index] == "_":
                value: ast.Expression = ast.DontCare(self.position())
                self.index += 1
            else:
                value = self.expression()
            arguments.append(ast.Argument(position, value, name))
            if self.take(")"):
                return arguments
            if not self.take(","):
                raise self.unexpected("',' or ')' after an argument")

    # --- Key sets ----------------------------------------------------------------------------

    def keyset(self) -> list[ast.Expression]:
        """Parse the keys before the `:` of a select case or a table entry."""
        if self.kinds[self.index] != "(":
            key = self._simple_keyset()
            # `{ a, b }` is the same as `(a, b)`.
            return key.elements if isinstance(key, ast.ListExpression) else [key]
        position = self.position()
        self.index += 1
        if self._at_type_in_brackets():
            type_ref = self.type()
            if self.take(")"):
                return [self._rest_of_keyset(ast.Cast(position, type_ref, self._unary()))]
            first = self.mask_or_range(self.continued(self._type_expression(type_ref)))
        else:
            first = self._simple_keyset()
        if self.kinds[self.index] == ",":
            keys = [first]
            while self.take(","):
                keys.append(self._simple_keyset())
            self.expect(")", " to close '('")
            return keys
        self.expect(")", " to close '('")
        if isinstance(first, (ast.MaskKeyset, ast.RangeKeyset, ast.DefaultKeyset, ast.DontCare)):
            return [first]
        # Brackets around a mere expression, as in `(a + b) &&& c`.
        return [self._rest_of_keyset(first)]

    def _rest_of_keyset(self, primary: ast.Expression) -> ast.Expression:
        return self.mask_or_range(self.continued(primary))

    def _simple_keyset(self) -> ast.Expression:
        kind = self.kinds[self.index]
        if kind == "default":
            position = self.position()
            self.index += 1
            return ast.DefaultKeyset(position)
        if kind == "_":
            position = self.position()
            self.index += 1
            return ast.DontCare(position)
        return self.mask_or_range(self.expression())

    def mask_or_range(self, left: ast.Expression) -> ast.Expression:
        """Parse the `&&& mask` or `.. high` that may follow `left`."""
        if self.take("&&&"):
            return ast.MaskKeyset(left.position, left, self.expression())
        if self.take(".."):
            return ast.RangeKeyset(left.position, left, self.expression())
        return left
