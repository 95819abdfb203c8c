"""Lexical elements of P4_16 (specification 1.2.5, section 6.3).

The preprocessor and the parser share these tokens: text is split once, into P4's own tokens
(`|+|`, `&&&`, `{#}` and `..` are one token each also inside a macro's body).
"""

from __future__ import annotations

import re

Token = tuple[str, str, bool, int]
"""Kind, text, whether white space precedes it, offset in the file's text."""

# Kinds of tokens. The kind of a keyword or of punctuation is its own text; these are upper
# case so that they cannot be mistaken for a keyword (`string` is one).
IDENTIFIER = "IDENTIFIER"
INTEGER = "INTEGER"
STRING = "STRING"
OTHER = "OTHER"
NEWLINE = "NEWLINE"
PRAGMA = "@pragma"
END_PRAGMA = "END_PRAGMA"
END = "END"

KEYWORDS = frozenset(
    [
        "abstract", "action", "actions", "apply", "bit", "bool", "break", "const", "continue",
        "control", "default", "else", "entries", "enum", "error", "exit", "extern", "false",
        "for", "header", "header_union", "if", "in", "inout", "int", "key", "list",
        "match_kind", "out", "package", "parser", "priority", "return", "select", "state",
        "string", "struct", "switch", "table", "this", "transition", "true", "tuple", "type",
        "typedef", "value_set", "varbit", "void", "_",
    ]
)  # fmt: skip

# Keywords that may also be names (nonTypeName of the grammar, and `list`).
NAME_KEYWORDS = frozenset(
    ["actions", "apply", "entries", "key", "list", "priority", "state", "type"]
)

WORD_KIND = {word: word for word in KEYWORDS}
"""The kind of a word; `IDENTIFIER` for those that are absent."""

# `##` is the preprocessor's, and a `#` at the start of a line begins a directive.
_PUNCTUATION = [
    "|+|=", "|-|=", "<<=", ">>=", "&&&", "...", "|+|", "|-|", "{#}", "+=", "-=", "*=", "/=",
    "%=", "&=", "|=", "^=", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "++", "..", "##",
    "+", "-", "*", "/", "%", "&", "|", "^", "~", "!", "<", ">", "=", "(", ")", "[", "]", "{",
    "}", ":", ",", ";", "?", ".", "@", "#",
]  # fmt: skip

_TOKEN = re.compile(
    r"""
      (?P<SPACE> [ \t\f\v\r]+ | //[^\n]* | /\*.*?\*/ )
    | (?P<IDENTIFIER> [A-Za-z_][A-Za-z0-9_]* )
    | (?P<INTEGER> [0-9][A-Za-z0-9_]* )
    | (?P<NEWLINE> \n )
    | (?P<STRING> "(?:[^"\\\n]|\\[^\n])*" )
    | (?P<PRAGMA> @pragma\b )
    | (?P<UNCLOSED> /\*.* )
    | (?P<PUNCTUATION> """
    # Longest first: a regular expression takes the first alternative that fits.
    + "|".join(re.escape(text) for text in sorted(_PUNCTUATION, key=len, reverse=True))
    + r""" )
    | (?P<OTHER> . )
    """,
    re.VERBOSE | re.DOTALL,
)

_INTEGER = re.compile(
    r"(?:(?P<width>[0-9]+)(?P<sign>[ws]))?"
    r"(?:0(?P<base>[xXoObBdD])(?P<digits>[0-9A-Fa-f_]+)|(?P<decimal>[0-9][0-9_]*))\Z"
)
_BASES = {"x": 16, "o": 8, "d": 10, "b": 2}


def scan(text: str, start: int = 0) -> list[Token]:
    """Split `text` from offset `start` on into tokens, ending with one of kind `END`.

    White space and comments are left out, newlines outside comments are kept as tokens.
    Text that is no token (a stray character, an unclosed comment, a quote without its
    partner on the same line) becomes a token of kind `OTHER`: it is an error only where
    the preprocessor does not skip it.
    """
    tokens: list[Token] = []
    add = tokens.append
    spaced = False
    for match in _TOKEN.finditer(text, start):
        kind = match.lastgroup
        if kind == "SPACE":
            spaced = True
            continue
        word = match.group()
        if kind == "PUNCTUATION" or kind == "PRAGMA":
            add((word, word, spaced, match.start()))
        elif kind == "UNCLOSED":
            add((OTHER, word, spaced, match.start()))
        else:
            assert kind is not None
            add((kind, word, spaced, match.start()))
        spaced = False
    add((END, "", spaced, len(text)))
    return tokens


def decode_integer(text: str) -> tuple[int, int | None, bool]:
    """Return value, width in bits (None if unspecified) and signedness of a literal.

    The value is as written: whether it fits the width is for the type checker to say.
    Raises ValueError, with a message for the user, if `text` is no integer literal.
    """
    match = _INTEGER.match(text)
    if match is None:
        raise ValueError(
            f"malformed integer literal '{text}'; expected digits after an optional width"
            " (8w or 8s) and base (0x, 0o, 0d, 0b)"
        )
    base_letter = match["base"]
    base = _BASES[base_letter.lower()] if base_letter else 10
    digits = (match["digits"] if base_letter else match["decimal"]).replace("_", "")
    try:
        value = int(digits, base)
    except ValueError:
        if len(digits) > 4000:
            raise ValueError(f"integer literal of {len(digits)} digits is too long") from None
        raise ValueError(
            f"malformed integer literal '{text}'; expected digits of base {base}"
        ) from None
    width = match["width"]
    if width is None:
        return value, None, False
    if len(width) > 9:
        raise ValueError(f"width {width} of integer literal is too large")
    return value, int(width), match["sign"] == "s"


def describe(kind: str, text: str) -> str:
    """Return how an error message names a token, for example `identifier 'x'`."""
    if kind == END:
        return "end of file"
    if kind == END_PRAGMA:
        return "end of line"
    if kind == IDENTIFIER:
        return f"identifier '{text}'"
    if kind == INTEGER:
        return f"integer {text}"
    if kind == STRING:
        return f"string {text}"
    if kind in KEYWORDS and kind != "_":
        return f"keyword '{text}'"
    return f"'{text}'"
