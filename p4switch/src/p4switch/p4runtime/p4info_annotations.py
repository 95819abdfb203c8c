"""Annotations in P4Info."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from p4switch.ir import Annotation

CONSUMED = frozenset({"name", "id", "brief", "description"})


def annotation_text(item: Annotation) -> str:
    """Return an annotation in P4Info's form: `@name(text)`."""
    if item.tokens:
        return f"@{item.name}({' '.join(item.tokens)})"
    if item.arguments:
        return f"@{item.name}({', '.join(_literal(a) for a in item.arguments)})"
    return f"@{item.name}"


def _literal(value: int | str | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def annotate(
    message: Any, annotations: Iterable[Annotation], skip: frozenset[str] = frozenset()
) -> None:
    """Write annotations into a message, and documentation if it has a field for it."""
    for item in annotations:
        if item.structured:
            _structured(message.structured_annotations.add(), item)
        elif item.name in ("brief", "description") and hasattr(message, "doc"):
            setattr(message.doc, item.name, str(item.arguments[0]))
        elif item.name not in CONSUMED and item.name not in skip:
            message.annotations.append(annotation_text(item))


def _structured(message: Any, item: Annotation) -> None:
    message.name = item.name
    for value in item.arguments:
        _expression(message.expression_list.expressions.add(), value)
    for key, value in item.pairs:
        pair = message.kv_pair_list.kv_pairs.add(key=key)
        _expression(pair.value, value)
    if not item.arguments and not item.pairs:
        message.expression_list.SetInParent()


def _expression(message: Any, value: int | str | bool) -> None:
    if isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int):
        message.int64_value = value
    else:
        message.string_value = value
