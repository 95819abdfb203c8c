"""Maximum nesting of programs, and the recursion limit for walking them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

MOST_TERMS = 2000
"""Maximum operators in a chain such as `a + b + ...`: each is a level of the tree."""

MOST_BRANCHES = 2000
"""Maximum chain of `else if`."""

RECURSION = 20_000
"""Python's recursion limit for walking programs within these bounds."""


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Raise Python's recursion limit to the nesting of programs while the block runs."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
