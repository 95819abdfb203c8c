"""The integer expressions of `#if` and `#elif` (C11, section 6.10.1).

Values are 64 bits wide, signed unless a literal's suffix or size makes them unsigned, as in
every current C preprocessor.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from p4switch.frontend.source import lexer, macros
from p4switch.frontend.source.lexer import END, Token, describe
from p4switch.position import P4Error

_LITERAL = re.compile(
    r"(?:0[xX](?P<hex>[0-9A-Fa-f]+)|0[bB](?P<binary>[01]+)|(?P<octal>0[0-7]*)|(?P<decimal>[0-9]+))"
    r"(?P<suffix>[uU]?[lL]{0,2}|[lL]{1,2}[uU])\Z"
)
_BASES = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}

_PRECEDENCE = {
    "||": 1,
    "&&": 2,
    "|": 3,
    "^": 4,
    "&": 5,
    "==": 6,
    "!=": 6,
    "<": 7,
    ">": 7,
    "<=": 7,
    ">=": 7,
    "<<": 8,
    ">>": 8,
    "+": 9,
    "-": 9,
    "*": 10,
    "/": 10,
    "%": 10,
}

_Value = tuple[int, bool]
"""A number and whether it is unsigned."""


def _wrap(number: int, unsigned: bool) -> _Value:
    number &= (1 << 64) - 1
    if not unsigned and number >> 63:
        number -= 1 << 64
    return number, unsigned


class Condition:
    """Evaluates the tokens of one directive, macros already expanded."""

    def __init__(self, tokens: list[Token], error: Callable[[Token, str], P4Error]) -> None:
        """`tokens` ends with one of kind `END`; `error` makes the error for a token."""
        self._tokens = tokens
        self._index = 0
        self._error = error

    def holds(self) -> bool:
        """Return whether the expression is not zero."""
        number, _ = self._ternary(True)
        token = self._tokens[self._index]
        if token[0] != END:
            raise self._error(token, f"expected an operator, found {describe(token[0], token[1])}")
        return number != 0

    def _take(self, kind: str) -> bool:
        if self._tokens[self._index][0] == kind:
            self._index += 1
            return True
        return False

    def _expect(self, kind: str) -> None:
        if not self._take(kind):
            token = self._tokens[self._index]
            raise self._error(token, f"expected '{kind}', found {self._describe(token)}")

    def _describe(self, token: Token) -> str:
        return "end of line" if token[0] == END else describe(token[0], token[1])

    def _ternary(self, evaluate: bool) -> _Value:
        condition, _ = self._binary(1, evaluate)
        if not self._take("?"):
            return condition, _
        then = self._ternary(evaluate and condition != 0)
        self._expect(":")
        other = self._ternary(evaluate and condition == 0)
        chosen = then if condition else other
        return _wrap(chosen[0], then[1] or other[1])

    def _binary(self, minimum: int, evaluate: bool) -> _Value:
        left = self._unary(evaluate)
        while True:
            operator = self._tokens[self._index]
            precedence = _PRECEDENCE.get(operator[0], 0)
            if precedence < minimum:
                return left
            self._index += 1
            if operator[0] == "&&":
                right = self._binary(precedence + 1, evaluate and left[0] != 0)
                left = int(left[0] != 0 and right[0] != 0), False
            elif operator[0] == "||":
                right = self._binary(precedence + 1, evaluate and left[0] == 0)
                left = int(left[0] != 0 or right[0] != 0), False
            else:
                right = self._binary(precedence + 1, evaluate)
                left = self._compute(operator, left, right, evaluate)

    def _compute(self, operator: Token, left: _Value, right: _Value, evaluate: bool) -> _Value:
        name = operator[0]
        if name in ("<<", ">>"):
            number, unsigned = left
            by = right[0] if name == "<<" else -right[0]
            by = max(-64, min(64, by))
            return _wrap(number << by if by >= 0 else number >> -by, unsigned)
        unsigned = left[1] or right[1]
        a, b = _wrap(left[0], unsigned)[0], _wrap(right[0], unsigned)[0]
        match name:
            case "==":
                return int(a == b), False
            case "!=":
                return int(a != b), False
            case "<":
                return int(a < b), False
            case ">":
                return int(a > b), False
            case "<=":
                return int(a <= b), False
            case ">=":
                return int(a >= b), False
            case "+":
                return _wrap(a + b, unsigned)
            case "-":
                return _wrap(a - b, unsigned)
            case "*":
                return _wrap(a * b, unsigned)
            case "&":
                return _wrap(a & b, unsigned)
            case "|":
                return _wrap(a | b, unsigned)
            case "^":
                return _wrap(a ^ b, unsigned)
        if b == 0:
            if evaluate:
                raise self._error(operator, "division by zero in #if")
            return 0, unsigned
        quotient = abs(a) // abs(b)
        if (a < 0) != (b < 0):
            quotient = -quotient
        return _wrap(quotient if name == "/" else a - quotient * b, unsigned)

    def _unary(self, evaluate: bool) -> _Value:
        token = self._tokens[self._index]
        kind = token[0]
        self._index += 1
        match kind:
            case "+":
                return self._unary(evaluate)
            case "-":
                number, unsigned = self._unary(evaluate)
                return _wrap(-number, unsigned)
            case "~":
                number, unsigned = self._unary(evaluate)
                return _wrap(~number, unsigned)
            case "!":
                number, _ = self._unary(evaluate)
                return int(number == 0), False
            case "(":
                value = self._ternary(evaluate)
                self._expect(")")
                return value
            case lexer.INTEGER:
                return self._literal(token)
            case lexer.IDENTIFIER | macros.PAINTED:
                # Names that are not macros count as 0, as in C.
                return 0, False
            case _:
                raise self._error(token, f"expected a number or '(', found {self._describe(token)}")

    def _literal(self, token: Token) -> _Value:
        match = _LITERAL.match(token[1])
        if match is None:
            raise self._error(token, f"'{token[1]}' is not an integer of the preprocessor")
        name, base = next((name, base) for name, base in _BASES.items() if match[name] is not None)
        digits = match[name]
        number = int(digits, base) if len(digits) <= 64 else 1 << 64
        if number >> 64:
            raise self._error(token, f"integer {token[1]} does not fit 64 bits")
        return number, "u" in match["suffix"].lower() or bool(number >> 63)
