"""Constraints on entries and actions: `@entry_restriction` and `@action_restriction`.

The language is p4-constraints' (github.com/p4lang/p4-constraints, docs/language-specification.md).
Keys and parameters are the data plane's numbers, also those that a controller knows as strings.
"""

from __future__ import annotations

import ipaddress
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Form = int | tuple[int, ...]
"""A number, or a match: (value) exact, (value, mask) ternary and optional, (value, length) lpm,
(low, high) range."""

Values = Mapping[str, Form]
"""Matches or parameters by name; the priority of an entry is called `::priority`."""


class ConstraintError(Exception):
    """A constraint that is no sentence of the language, or has wrong types."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A type: `bool`, `int` (of any size), `bit`, or a match kind of P4 with a width."""

    name: str
    width: int = 0

    def __str__(self) -> str:
        return f"{self.name}<{self.width}>" if self.width else self.name


BOOL, INT = Kind("bool"), Kind("int")
PRIORITY = "::priority"

_PARTS = {
    "exact": ("value",),
    "ternary": ("value", "mask"),
    "optional": ("value", "mask"),
    "lpm": ("value", "prefix_length"),
    "range": ("low", "high"),
}
_COMPARISONS: Mapping[str, Callable[[Form, Form], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PRECEDENCE = {";": 1, "->": 2, "||": 3, "&&": 4, **dict.fromkeys(_COMPARISONS, 5), "::": 7}
_UNARY = 6
_NOT_ASSOCIATIVE = {"->", *_COMPARISONS}

_TOKEN = re.compile(
    r"(?P<skip>\s+|//[^\r\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<sign>&&|\|\||->|::|==|!=|>=|<=|[!()><.;-])"
    r"|(?P<id>[A-Za-z_]\w*)"
    r"|(?P<number>0[bB][01]+|0[oO][0-7]+|0[xX][0-9a-fA-F]+|(?:0[dD])?[0-9]+)"
    r"|'(?P<string>[^']*)'",
    re.DOTALL,
)
_END = "the end"


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


@dataclass(slots=True)
class _Node:
    """An expression: its type, its value, and which part of the text it is."""

    kind: Kind
    value: Callable[[Values], Form]
    start: int
    end: int
    names: frozenset[str] = frozenset()
    parts: tuple[_Node, ...] = ()
    """The operands of `&&` and `;`."""


class Constraint:
    """A constraint that has been checked; `text` is all of it."""

    def __init__(self, text: str, kinds: Mapping[str, Kind]) -> None:
        """Check a constraint; `kinds`: the types of keys or parameters. Raises ConstraintError."""
        self.text = text
        parser = _Parser(text, kinds)
        self._root = parser.expression(0)
        parser.expect("", _END)
        parser.require(self._root, BOOL)

    def violated(self, values: Values) -> tuple[str, frozenset[str]] | None:
        """Return the first part that does not hold, with the names in it; None if all hold."""
        node = self._root
        if node.value(values):
            return None
        while node.parts:
            node = next(part for part in node.parts if not part.value(values))
        text = "".join(
            " " if found["skip"] else found[0]
            for found in _TOKEN.finditer(self.text[node.start : node.end])
        )
        return " ".join(text.split()), node.names


class _Parser:
    """Parses by precedence, and checks types as it goes."""

    def __init__(self, text: str, kinds: Mapping[str, Kind]) -> None:
        self._text = text
        self._kinds = kinds
        self._tokens = list(self._tokenised())
        self._at = 0

    def _tokenised(self) -> Sequence[_Token]:
        tokens = []
        at = 0
        while at < len(self._text):
            found = _TOKEN.match(self._text, at)
            if found is None:
                raise self._error(at, f"unexpected {self._text[at]!r}")
            kind = str(found.lastgroup)
            if kind != "skip":
                tokens.append(_Token(kind, found[kind], at, found.end()))
            at = found.end()
        return [*tokens, _Token("", _END, at, at)]

    def _error(self, at: int, message: str) -> ConstraintError:
        line = self._text.count("\n", 0, at) + 1
        return ConstraintError(f"line {line} of the constraint: {message}")

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        self._at += token.kind != ""
        return token

    def expect(self, kind: str, text: str = "") -> _Token:
        """Take a token of a kind, or a certain one."""
        token = self._next()
        if token.kind != kind or (text and token.text != text):
            raise self._error(token.start, f"expected {text or kind}, found {token.text!r}")
        return token

    def require(self, node: _Node, kind: Kind) -> None:
        """Raise an error unless an expression is of a type."""
        if node.kind != kind:
            raise self._error(node.start, f"expected a value of type {kind}, not {node.kind}")

    def expression(self, above: int) -> _Node:
        """Parse an expression of operators that bind more strongly than `above`."""
        left = self._operand()
        while True:
            token = self._tokens[self._at]
            precedence = _PRECEDENCE.get(token.text, 0) if token.kind == "sign" else 0
            if token.text in _NOT_ASSOCIATIVE and precedence == above:
                raise self._error(
                    token.start, f"'{token.text}' follows '{token.text}' or the like: use brackets"
                )
            if precedence <= above:
                return left
            self._next()
            if token.text == ";" and self._tokens[self._at].text in (_END, ")"):
                return left
            if token.text == "::":
                left = self._part(left, self.expect("id"))
            else:
                left = self._binary(token, left, self.expression(precedence))

    def _operand(self) -> _Node:
        token = self._next()
        if token.kind == "number":
            digits = token.text[2:] if token.text[:2] in ("0d", "0D") else token.text
            number = int(digits, 10 if digits.isdigit() else 0)
            return _Node(INT, lambda _: number, token.start, token.end)
        if token.kind == "id":
            return self._name(token)
        if token.text == "(":
            inner = self.expression(0)
            inner.start, inner.end = token.start, self.expect("sign", ")").end
            return inner
        if token.text in ("!", "-"):
            operand = self.expression(_UNARY)
            value = operand.value
            self.require(operand, BOOL if token.text == "!" else INT)
            negated = (lambda v: not value(v)) if token.text == "!" else (lambda v: -_int(value(v)))
            return _Node(operand.kind, negated, token.start, operand.end, operand.names)
        if token.text == "::":
            attribute = self.expect("id")
            if attribute.text != "priority":
                raise self._error(attribute.start, f"entries have no attribute {attribute.text!r}")
            return self._variable(PRIORITY, INT, token.start, attribute.end)
        raise self._error(token.start, f"expected a value, found {token.text!r}")

    def _name(self, token: _Token) -> _Node:
        if token.text in ("true", "false"):
            truth = token.text == "true"
            return _Node(BOOL, lambda _: truth, token.start, token.end)
        if token.text in _ADDRESSES and self._tokens[self._at].text == "(":
            self._next()
            string = self.expect("string")
            try:
                number = _ADDRESSES[token.text](string.text)
            except ValueError as error:
                raise self._error(string.start, f"no address: {error}") from None
            return _Node(INT, lambda _: number, token.start, self.expect("sign", ")").end)
        name, end = token.text, token.end
        while self._tokens[self._at].text == ".":
            self._next()
            part = self.expect("id")
            name, end = f"{name}.{part.text}", part.end
        kind = self._kinds.get(name)
        if kind is None:
            known = ", ".join(self._kinds) or "none"
            raise self._error(token.start, f"nothing is called {name!r}; there are {known}")
        return self._variable(name, kind, token.start, end)

    def _variable(self, name: str, kind: Kind, start: int, end: int) -> _Node:
        return _Node(kind, operator.itemgetter(name), start, end, frozenset({name}))

    def _part(self, base: _Node, name: _Token) -> _Node:
        parts = _PARTS.get(base.kind.name, ())
        if name.text not in parts:
            raise self._error(name.start, f"a value of type {base.kind} has no {name.text!r}")
        index, value = parts.index(name.text), base.value
        kind = INT if name.text == "prefix_length" else Kind("bit", base.kind.width)
        return _Node(kind, lambda v: _tuple(value(v))[index], base.start, name.end, base.names)

    def _binary(self, sign: _Token, left: _Node, right: _Node) -> _Node:
        made = _Node(BOOL, left.value, left.start, right.end, left.names | right.names)
        if sign.text in _COMPARISONS:
            kind = self._common(sign, left, right)
            if sign.text not in ("==", "!=") and kind.name not in ("int", "bit", "exact"):
                raise self._error(sign.start, f"values of type {kind} have no order")
            compare, one, other = _COMPARISONS[sign.text], _cast(left, kind), _cast(right, kind)
            made.value = lambda v: compare(one(v), other(v))
            return made
        self.require(left, BOOL)
        self.require(right, BOOL)
        first, second = left.value, right.value
        if sign.text == "||":
            made.value = lambda v: first(v) or second(v)
        elif sign.text == "->":
            made.value = lambda v: not first(v) or second(v)
        else:
            made.value = lambda v: first(v) and second(v)
            made.parts = (left, right)
        return made

    def _common(self, sign: _Token, left: _Node, right: _Node) -> Kind:
        """Return the type to which both are cast: int to bit<W>, and bit<W> to a match."""
        for high, low in ((left.kind, right.kind), (right.kind, left.kind)):
            if high == low:
                return high
            if low == INT and high.width:
                return high
            if low.name == "bit" and high.name in _PARTS and low.width == high.width:
                return high
        raise self._error(sign.start, f"cannot compare {left.kind} and {right.kind}")


def _cast(node: _Node, kind: Kind) -> Callable[[Values], Form]:
    """Return the value of an expression in a type; a number in a match is an exact one."""
    value = node.value
    if node.kind == kind:
        return value
    full = (1 << kind.width) - 1
    if kind.name == "bit":
        return lambda v: _int(value(v)) & full
    if kind.name == "exact":
        return lambda v: (_int(value(v)) & full,)
    if kind.name == "range":
        return lambda v: (_int(value(v)) & full,) * 2
    rest = kind.width if kind.name == "lpm" else full
    return lambda v: (_int(value(v)) & full, rest)


def _int(value: Form) -> int:
    assert isinstance(value, int)
    return value


def _tuple(value: Form) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return value


def _mac(text: str) -> int:
    if re.fullmatch(r"(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", text) is None:
        raise ValueError(f"{text!r} is no MAC address")
    return int(text.replace(":", ""), 16)


_ADDRESSES: Mapping[str, Callable[[str], int]] = {
    "ipv4": lambda text: int(ipaddress.IPv4Address(text)),
    "ipv6": lambda text: int(ipaddress.IPv6Address(text)),
    "mac": _mac,
}
