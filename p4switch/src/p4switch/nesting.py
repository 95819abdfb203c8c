"""Maximum nesting of programs, and stack for walking them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

MOST_TERMS = 2000
"""Operators in a row, as in `a + b + ...`: each is a level of the tree."""

MOST_BRANCHES = 2000
"""`else if` in a row."""

RECURSION = 20_000
"""Python's recursion limit while it walks programs within these bounds."""


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Let Python recurse as deeply as a program may nest."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
