"""Walks over syntax trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from p4switch.frontend.syntax import ast


def nodes(node: object) -> Iterator[ast.Node]:
    """Yield a node and all nodes inside it, outer ones first."""
    waiting = [node]
    while waiting:
        item = waiting.pop()
        if isinstance(item, ast.Node):
            yield item
            waiting += [getattr(item, field.name) for field in reversed(fields(item))]
        elif isinstance(item, (list, tuple)):
            waiting += reversed(item)
        elif isinstance(item, dict):
            waiting += reversed(item.values())


def same(left: object, right: object) -> bool:
    """Return whether two trees are equal, regardless of their positions."""
    if isinstance(left, ast.Node):
        return type(left) is type(right) and all(
            same(getattr(left, field.name), getattr(right, field.name))
            for field in fields(left)
            if field.name not in ("position", "at")
        )
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return left == right
