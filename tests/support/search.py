"""Number of examples of random searches: a few, or all."""

from __future__ import annotations

_long = False


def search_all() -> None:
    """Let `examples` be all of them; before the tests are collected."""
    global _long
    _long = True


def examples(few: int, of: int) -> int:
    """The number of examples of a property: `few`, or all `of` them in `make search`."""
    return of if _long else few
