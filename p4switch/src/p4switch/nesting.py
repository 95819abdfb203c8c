"""Maximum nesting of programs, and what walking them needs of Python."""

from __future__ import annotations

import gc
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


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's search for garbage while the block builds a tree, all of which is kept.

    Full searches, of which each finds nothing, would take longer than building.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
