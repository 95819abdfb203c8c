"""Parse JSON of files and other hosts: any input gives a value or one clear error."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError (JSONDecodeError for invalid syntax).

    Besides invalid syntax, it refuses NaN and infinity, which JSON does not have, keys that occur
    twice, and lists or objects nested deeper than Python's recursion limit.
    """
    try:
        return json.loads(text, parse_constant=_no_number, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant}: expected a finite number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r} occurs twice")
    return values
