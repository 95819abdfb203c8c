"""Literals: strings of P4, and values as people write them (a running switch has no front end)."""

from __future__ import annotations

import ipaddress
import re

_MAC = re.compile(r"[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}


def decode_string(text: str) -> str:
    r"""Return the value of a string literal (with its quotes).

    The specification leaves escapes to the tools: `\n`, `\t`, `\r`, `\"` and `\\` are
    resolved here, any other stays as written.
    """
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text[1:-1])


def parse_number(text: str) -> int:
    """Parse a number in decimal, also with zeros before it, 0x, 0o or 0b. Raises ValueError."""
    try:
        return int(text, 0)
    except ValueError:
        return int(text)


def parse_value(text: str) -> int:
    """Parse a number, or an IPv4, IPv6 or MAC address. Raises ValueError."""
    if _MAC.fullmatch(text):
        return int(text.replace(":", ""), 16)
    if "." in text or ":" in text:
        return int(ipaddress.ip_address(text))
    return parse_number(text)
