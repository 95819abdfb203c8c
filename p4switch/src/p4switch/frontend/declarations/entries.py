"""Entries of tables written in the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import constants, convert
from p4switch.frontend.declarations import parsers, table_actions
from p4switch.frontend.expressions import evaluation, resolve
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p4switch.frontend.names.compilation import Body

_EXACT_ONLY = ("exact",)


def entries(
    body: Body,
    node: ast.TableDeclaration,
    keys: Sequence[ir.Key],
    listed: Sequence[table_actions.Listed],
    properties: table_actions.Properties,
) -> tuple[ir.Entry, ...]:
    """Lower the entries of a table, with the priorities the specification gives them."""
    if not node.entries:
        return ()
    if not keys:
        raise body.error(node.entries[0].position, "a table without a key cannot have entries")
    kinds = [_key_type(body, element) for element in node.keys or []]
    made: list[ir.Entry] = []
    seen: set[tuple[tuple[int, int], ...]] = set()
    priorities = _priorities(body, node, keys, properties)
    for item, priority in zip(node.entries, priorities, strict=True):
        action = item.action
        if item.constant and node.entries_constant:
            raise body.error(item.position, "all entries are const already")
        choice = table_actions.choose(
            body, listed, action.name, action.arguments or (), table_actions.ENTRY, action.position
        )
        made.append(
            ir.Entry(
                _keys(body, item, keys, kinds),
                choice,
                item.constant or node.entries_constant,
                priority,
                resolve.folded_annotations(body.compiler, item.annotations, body.scope),
                item.position,
            )
        )
        if all(key.match_kind == "exact" for key in keys):
            found = tuple((key.value, key.mask) for key in made[-1].keys)
            if found in seen:
                raise body.error(item.position, "an entry with these keys is listed already")
            seen.add(found)
    return tuple(made)


def _key_type(body: Body, element: ast.KeyElement) -> types.Type:
    with body.capture():
        return convert.plain(body, evaluation.evaluate(body, element.expression)).type


def _priorities(
    body: Body,
    node: ast.TableDeclaration,
    keys: Sequence[ir.Key],
    properties: table_actions.Properties,
) -> list[int | None]:
    """Work out priorities (specification 1.2.5, section 14.2.1.4)."""
    written = [
        None if item.priority is None else constants.integer(body, item.priority, "a priority")
        for item in node.entries
    ]
    if all(key.match_kind in ("exact", "lpm") for key in keys):
        for item in node.entries:
            if item.priority is not None:
                raise body.error(
                    item.priority.position,
                    "entries of a table with exact and lpm keys only have no priority",
                )
        return list(written)
    annotated = [_annotated_priority(body, item) for item in node.entries]
    if any(p is not None for p in annotated):
        # Not in the specification; on BMv2 the smallest number wins and an entry without the
        # annotation has its place in the list.
        properties.largest_priority_wins = False
        return [index + 1 if p is None else p for index, p in enumerate(annotated)]
    if node.entries_constant and not any(p is not None for p in written):
        return list(written)
    step = properties.priority_delta
    result: list[int | None] = []
    if properties.largest_priority_wins:
        step = -step
    previous: int | None = None
    for item, priority in zip(node.entries, written, strict=True):
        if priority is None:
            if previous is not None:
                priority = previous + step
            elif any(p is not None for p in written):
                raise body.error(
                    item.position,
                    "the first entry needs a priority, since others have one",
                )
            else:
                priority = 1 if step > 0 else (len(written) - 1) * -step + 1
        if priority < 0:
            raise body.error(item.position, f"the priority of this entry would be {priority}")
        result.append(priority)
        previous = priority
    return result


def _annotated_priority(body: Body, item: ast.TableEntry) -> int | None:
    for annotation in resolve.folded_annotations(body.compiler, item.annotations, body.scope):
        if annotation.name == "priority" and annotation.arguments:
            return int(annotation.arguments[0])
    return None


def _keys(
    body: Body,
    item: ast.TableEntry,
    keys: Sequence[ir.Key],
    kinds: Sequence[types.Type],
) -> tuple[ir.ConstKey, ...]:
    given = item.keys
    if len(given) == 1 and isinstance(given[0], (ast.DontCare, ast.DefaultKeyset)):
        given = [given[0]] * len(keys)
    if len(given) != len(keys):
        raise body.error(
            item.position,
            f"the table has {len(keys)} key{'s' * (len(keys) != 1)}, this entry has {len(given)}",
        )
    return tuple(
        _key(body, expression, key, kind)
        for expression, key, kind in zip(given, keys, kinds, strict=True)
    )


def _key(body: Body, expression: ast.Expression, key: ir.Key, kind: types.Type) -> ir.ConstKey:
    (keyset,) = parsers.keyset(body, expression, kind)
    full = (1 << key.width) - 1
    match_kind = key.match_kind
    if isinstance(keyset, ir.Anything):
        if match_kind in _EXACT_ONLY:
            raise body.error(expression.position, "an exact key needs a value, not '_'")
        return ir.ConstKey(0, 0, full if match_kind == "range" else None, any=True)
    if isinstance(keyset, ir.Exactly):
        value = _number(body, keyset.value, expression) & full
        return ir.ConstKey(value, full, value if match_kind == "range" else None)
    if isinstance(keyset, ir.Masked):
        value = _number(body, keyset.value, expression) & full
        mask = _number(body, keyset.mask, expression) & full
        _check_mask(body, expression, match_kind, mask, full)
        return ir.ConstKey(value & mask, mask)
    assert isinstance(keyset, ir.Between)
    if match_kind != "range":
        raise body.error(
            expression.position, f"a range cannot be used here: the key is {match_kind}"
        )
    low = _number(body, keyset.low, expression)
    high = _number(body, keyset.high, expression)
    if low > high:
        raise body.error(expression.position, f"the range {low}..{high} is empty")
    return ir.ConstKey(low & full, full, high & full)


def _check_mask(
    body: Body, expression: ast.Expression, match_kind: str, mask: int, full: int
) -> None:
    if match_kind in ("exact", "range", "optional") and mask != full:
        raise body.error(
            expression.position, f"a mask cannot be used here: the key is {match_kind}"
        )
    inverted = mask ^ full
    if match_kind == "lpm" and inverted & (inverted + 1):
        raise body.error(
            expression.position, f"the mask of an lpm key must be a prefix; {mask:#x} is none"
        )


def _number(body: Body, value: ir.Expression, expression: ast.Expression) -> int:
    if not isinstance(value, ir.Const) or isinstance(value.value, str):
        raise body.error(expression.position, "a key of an entry must be known when compiling")
    return int(value.value)
