"""String literals of P4, in source and in annotations (a running switch loads no front end)."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}


def decode_string(text: str) -> str:
    r"""Return the value of a string literal (with its quotes).

    The specification leaves escapes to the tools: `\n`, `\t`, `\r`, `\"` and `\\` are
    resolved here, any other stays as written.
    """
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text[1:-1])
