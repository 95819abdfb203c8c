"""Macros: definitions by `#define`, and expansion as by GCC's preprocessor.

A macro is disabled while the tokens of its expansion are being read; a name met while its
macro is disabled is *painted* and never expands again, wherever it ends up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from p4switch.frontend.source.lexer import IDENTIFIER, OTHER, STRING, Token, describe, scan
from p4switch.position import P4Error

LARGEST_EXPANSION = 1 << 20
"""Tokens that one use of a macro may come to, with what it expands to on the way."""

PAINTED = "PAINTED"
"""Kind of an identifier that must not expand any more."""

# What stands at a place of a macro's body: a token, an argument (expanded, as written, made
# a string), or GCC's `, ## __VA_ARGS__`, which loses its comma when nothing was passed.
_TOKEN, _ARGUMENT, _RAW, _STRING, _COMMA = range(5)

# Kind, token of the body, index of the parameter, whether `##` joins it to what precedes.
_Part = tuple[int, Token, int, bool]
# An argument's tokens; None if the macro was called without it.
_Arguments = list[list[Token] | None]

ErrorAt = Callable[[Token, str], P4Error]
Special = Callable[[Token, "list[Stream]"], Token]


class Source(Protocol):
    """Source of the arguments of a macro whose name was the last token."""

    def opens(self) -> bool:
        """Consume a `(` if it is the next token, and say whether it was."""

    def next(self) -> Token | None:
        """Return the next token, None at the end."""


class Stream:
    """Tokens being read, and the macro they are the expansion of."""

    __slots__ = ("index", "macro", "tokens")

    def __init__(self, tokens: list[Token], macro: Macro | None) -> None:
        self.tokens = tokens
        self.index = 0
        self.macro = macro


class Macro:
    """A macro; `parameters` is None for an object-like one."""

    __slots__ = ("body", "disabled", "name", "parameters", "parts", "special", "variadic")

    def __init__(
        self,
        name: str,
        parameters: list[str] | None,
        variadic: bool,
        body: list[Token],
        special: Special | None = None,
    ) -> None:
        self.name = name
        self.parameters = parameters
        self.variadic = variadic
        self.body = body
        self.disabled = False
        self.parts: list[_Part] | None = None
        # Makes the token that a built-in name stands for.
        self.special = special

    def same_as(self, other: Macro) -> bool:
        """Return whether two definitions are equal except for the amount of white space."""
        # White space before the body's first token is not part of the definition.
        mine, theirs = (
            [(kind, text, spaced and index > 0) for index, (kind, text, spaced, _) in enumerate(m)]
            for m in (self.body, other.body)
        )
        return (
            self.parameters == other.parameters
            and self.variadic == other.variadic
            and mine == theirs
        )


def parse_macro(tokens: list[Token], error: ErrorAt) -> Macro:
    """Make a macro of the tokens after `#define`; the first is its name."""
    name = tokens[0]
    parameters: list[str] | None = None
    variadic = False
    index = 1
    if len(tokens) > 1 and tokens[1][0] == "(" and not tokens[1][2]:
        parameters, variadic, index = _parse_parameters(tokens, error)
    macro = Macro(name[1], parameters, variadic, tokens[index:])
    for token in macro.body:
        if token[1].startswith("/*"):
            raise error(token, "unterminated comment")
    for end in (0, -1):
        if macro.body and macro.body[end][0] == "##":
            raise error(macro.body[end], "'##' cannot be at either end of a macro's text")
    if parameters is not None or any(token[0] == "##" for token in macro.body):
        macro.parts = _parse_body(macro)
    return macro


def _parse_parameters(tokens: list[Token], error: ErrorAt) -> tuple[list[str], bool, int]:
    parameters: list[str] = []
    index = 2
    last = tokens[1]

    def take() -> Token:
        nonlocal index, last
        if index == len(tokens):
            raise error(last, f"expected ')' after the parameters of macro {tokens[0][1]}")
        last = tokens[index]
        index += 1
        return last

    token = take()
    if token[0] == ")":
        return parameters, False, index
    while True:
        if token[0] == "...":
            parameters.append("__VA_ARGS__")
            variadic = True
        elif token[0] == IDENTIFIER:
            if token[1] in parameters:
                raise error(token, f"macro {tokens[0][1]} has two parameters named '{token[1]}'")
            parameters.append(token[1])
            variadic = index < len(tokens) and tokens[index][0] == "..."
            if variadic:
                take()
        else:
            found = describe(token[0], token[1])
            raise error(token, f"expected a parameter of macro {tokens[0][1]}, found {found}")
        token = take()
        if token[0] == ")":
            return parameters, variadic, index
        if token[0] != "," or variadic:
            expected = "')'" if variadic else "',' or ')'"
            raise error(token, f"expected {expected}, found {describe(token[0], token[1])}")
        token = take()


def _parse_body(macro: Macro) -> list[_Part]:
    parameters = macro.parameters or []
    places = {name: index for index, name in enumerate(parameters)}
    body = macro.body
    parts: list[_Part] = []
    pasted = False
    index = 0
    while index < len(body):
        token = body[index]
        index += 1
        if token[0] == "##" and parts:
            pasted = True
            continue
        followed = index < len(body) and body[index][0] == "##"
        place = places.get(token[1], -1) if token[0] == IDENTIFIER else -1
        if (
            token[0] == "#"
            and macro.parameters is not None
            and index < len(body)
            and body[index][1] in places
        ):
            parts.append((_STRING, token, places[body[index][1]], pasted))
            index += 1
        elif place < 0:
            parts.append((_TOKEN, token, -1, pasted))
        elif pasted and macro.variadic and place == len(parameters) - 1 and parts[-1][1][0] == ",":
            parts[-1] = (_COMMA, parts[-1][1], place, parts[-1][3])
            parts.append((_RAW, token, place, False))
        else:
            parts.append((_RAW if pasted or followed else _ARGUMENT, token, place, pasted))
        pasted = False
    return parts


def quote(tokens: list[Token]) -> str:
    """Return the string literal that `#parameter` makes of an argument."""
    text = ""
    for kind, word, spaced, _ in tokens:
        if spaced and text:
            text += " "
        if kind == STRING:
            word = word.replace("\\", "\\\\").replace('"', '\\"')
        text += word
    return f'"{text}"'


def _paste(left: Token, right: Token) -> list[Token]:
    """Join two tokens; two tokens come back if they do not make one, as with `hdr.##f`."""
    tokens = scan(left[1] + right[1])
    if len(tokens) != 2 or tokens[0][0] == OTHER:
        return [left, (right[0], right[1], False, right[3])]
    return [(tokens[0][0], tokens[0][1], left[2], left[3])]


class MacroTable:
    """The macros defined at a point of a translation unit; expands their uses."""

    def __init__(self, error: Callable[[str], P4Error]) -> None:
        """`error` makes an error at the use being expanded."""
        self.macros: dict[str, Macro] = {}
        self._error = error
        self._work = 0

    def expand_use(self, name: Token, source: Source) -> list[Token]:
        """Expand the use that starts with `name` and continues in `source`.

        P4Error beyond LARGEST_EXPANSION.
        """
        self._work = 0
        return self._expand([Stream([name], None)], source)

    def expand_list(self, tokens: list[Token]) -> list[Token]:
        """Expand all uses within `tokens`."""
        return self._expand([Stream(tokens, None)], None)

    def _expand(self, streams: list[Stream], source: Source | None) -> list[Token]:
        macros = self.macros
        result: list[Token] = []
        # White space before a use that came to nothing belongs to the token that follows.
        spaced = False
        while streams:
            stream = streams[-1]
            index = stream.index
            if index == len(stream.tokens):
                leave(streams)
                continue
            token = stream.tokens[index]
            stream.index = index + 1
            if token[0] == IDENTIFIER and token[1] in macros:
                macro = macros[token[1]]
                self._work += 1 + len(macro.body)
                if self._work > LARGEST_EXPANSION:
                    raise self._error(f"the macro expands to more than {LARGEST_EXPANSION} tokens")
                if macro.disabled:
                    token = (PAINTED, token[1], token[2], token[3])
                elif macro.special is not None:
                    token = macro.special(token, streams)
                elif self._enter(macro, streams, source):
                    spaced = spaced or token[2]
                    continue
            if spaced:
                token = (token[0], token[1], True, token[3])
                spaced = False
            result.append(token)
        return result

    def _enter(self, macro: Macro, streams: list[Stream], source: Source | None) -> bool:
        """Push the expansion of a use; return False if the name is not called."""
        if macro.parameters is None:
            tokens = macro.body if macro.parts is None else self._substitute(macro.parts, [])
        else:
            if not _opens(streams, source):
                return False
            arguments = self._collect(macro, streams, source)
            assert macro.parts is not None
            tokens = self._substitute(macro.parts, arguments)
        if tokens and tokens[0][2]:
            # White space before the first token is the use's own.
            tokens = [(tokens[0][0], tokens[0][1], False, tokens[0][3]), *tokens[1:]]
        streams.append(Stream(tokens, macro))
        macro.disabled = True
        return True

    def _collect(self, macro: Macro, streams: list[Stream], source: Source | None) -> _Arguments:
        """Return the arguments of a call whose `(` has been read."""
        assert macro.parameters is not None
        macros = self.macros
        count = len(macro.parameters)
        arguments: _Arguments = []
        current: list[Token] = []
        depth = 0
        while True:
            token = next_token(streams, source)
            if token is None:
                raise self._error(f"unterminated call of macro {macro.name}; expected ')'")
            kind = token[0]
            if kind == IDENTIFIER:
                known = macros.get(token[1])
                if known is not None and known.disabled:
                    token = (PAINTED, token[1], token[2], token[3])
            elif kind == "(":
                depth += 1
            elif kind == ")":
                if depth == 0:
                    break
                depth -= 1
            elif (
                kind == "," and depth == 0 and not (macro.variadic and len(arguments) == count - 1)
            ):
                arguments.append(current)
                current = []
                continue
            current.append(token)
        arguments.append(current)
        given = len(arguments)
        if given == 1 and not current:
            if count == 0:
                return []
            if count == 1 and macro.variadic:
                return [None]
        if macro.variadic and given == count - 1:
            arguments.append(None)
        elif given != count:
            noun = "argument" if count == 1 else "arguments"
            least = "at least " if macro.variadic else ""
            wanted = count - 1 if macro.variadic else count
            raise self._error(f"macro {macro.name} takes {least}{wanted} {noun}, found {given}")
        return arguments

    def _substitute(self, parts: list[_Part], arguments: _Arguments) -> list[Token]:
        result: list[Token] = []
        expanded: dict[int, list[Token]] = {}
        # Whether what a `##` would join to on its left is empty.
        empty = False
        for kind, token, place, pasted in parts:
            if kind == _TOKEN:
                if not pasted:
                    result.append(token)
                    empty = False
                    continue
                new = [token]
            elif kind == _COMMA:
                if arguments[place] is not None:
                    result.append(token)
                empty = False
                continue
            else:
                argument = arguments[place] or []
                if kind == _STRING:
                    new = [(STRING, quote(argument), token[2], token[3])]
                elif kind == _RAW:
                    new = argument
                else:
                    self._work += len(argument)
                    known = expanded.get(place)
                    if known is None:
                        known = self.expand_list(argument)
                        expanded[place] = known
                    new = known
                if new and new[0][2] != token[2]:
                    new = [(new[0][0], new[0][1], token[2], new[0][3]), *new[1:]]
            if not pasted or empty:
                result += new
                empty = not new
            elif new:
                result[-1:] = _paste(result[-1], new[0])
                result += new[1:]
        return result


def leave(streams: list[Stream]) -> None:
    """Drop the last stream, which has been read to its end."""
    macro = streams.pop().macro
    if macro is not None:
        macro.disabled = False


def next_token(streams: list[Stream], source: Source | None) -> Token | None:
    """Return the next token, unexpanded; None at the end."""
    while streams:
        stream = streams[-1]
        if stream.index < len(stream.tokens):
            stream.index += 1
            return stream.tokens[stream.index - 1]
        leave(streams)
    return source.next() if source is not None else None


def _opens(streams: list[Stream], source: Source | None) -> bool:
    """Consume a `(` if it is the next token, and say whether it was."""
    while streams:
        stream = streams[-1]
        if stream.index < len(stream.tokens):
            if stream.tokens[stream.index][0] != "(":
                return False
            stream.index += 1
            return True
        leave(streams)
    return source is not None and source.opens()
