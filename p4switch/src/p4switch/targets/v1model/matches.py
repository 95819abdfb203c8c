"""Table keys and entries from the control plane: checks and canonical form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from p4switch import ir
from p4switch.ir import ActionChoice, Bits, Key, Table
from p4switch.targets.v1model.engine import ControlError, KeyMatch, TableEntry

DEFAULT_TABLE_SIZE = 1024
"""Size of tables without one, as in p4c's P4Info."""

PRIORITY_KINDS = frozenset({"ternary", "range", "optional"})

ANY = KeyMatch(any=True)


@lru_cache(maxsize=256)
def match_keys(table: Table) -> tuple[Key, ...]:
    """Return the keys that entries match on: all but `selector` ones, which only feed the hash."""
    return tuple(key for key in table.keys if key.match_kind != "selector")


@lru_cache(maxsize=256)
def needs_priority(table: Table) -> bool:
    """Return whether entries of the table have a priority: several may match one key."""
    return any(key.match_kind in PRIORITY_KINDS for key in table.keys)


def table_size(table: Table) -> int:
    """Return the maximum number of entries of a table."""
    return table.size or DEFAULT_TABLE_SIZE


def prefix_mask(prefix_length: int, width: int) -> int:
    """Return the mask of a prefix in a key of `width` bits."""
    return ((1 << prefix_length) - 1) << (width - prefix_length)


def ternary_form(match: KeyMatch, match_kind: str, width: int) -> tuple[int, int]:
    """Return value and mask of any match but a range."""
    if match.any:
        return 0, 0
    if match_kind == "ternary":
        return match.value, match.mask
    if match_kind == "lpm":
        return match.value, prefix_mask(match.prefix_length, width)
    return match.value, (1 << width) - 1


def canonical_match(
    match: KeyMatch, match_kind: str, width: int, where: str, key_mask: int | None = None
) -> KeyMatch:
    """Return the canonical form of a match, unused parts zero; INVALID_ARGUMENT if not legal.

    `key_mask`: `Key.mask`.
    """
    if key_mask is not None:
        legal = canonical_match(match, match_kind, width, where)
        match = legal._replace(value=legal.value & key_mask)
    value, mask, prefix_length, high, any_value = match
    full = (1 << width) - 1
    if not (0 <= value <= full and 0 <= mask <= full and 0 <= high <= full):
        label, number = next(
            (label, number)
            for label, number in (("value", value), ("mask", mask), ("high", high))
            if not 0 <= number <= full
        )
        raise _illegal(where, f"{label} {number:#x} does not fit in {width} bits")
    if match_kind == "exact":
        if any_value:
            raise _illegal(where, "an exact key cannot be don't-care")
        return KeyMatch(value)
    if any_value:
        return ANY
    if match_kind == "lpm":
        if not 0 <= prefix_length <= width:
            raise _illegal(where, f"prefix length {prefix_length} is not in 0..{width}")
        if prefix_length == 0:
            return ANY
        if value & ~prefix_mask(prefix_length, width):
            raise _illegal(where, f"value {value:#x} has bits beyond the prefix /{prefix_length}")
        return KeyMatch(value, 0, prefix_length)
    if match_kind == "ternary":
        if mask == 0:
            return ANY
        if value & ~mask:
            raise _illegal(where, f"value {value:#x} has bits outside the mask {mask:#x}")
        return KeyMatch(value, mask)
    if match_kind == "range":
        if value > high:
            raise _illegal(where, f"range {value:#x}..{high:#x} is empty: low must not exceed high")
        if value == 0 and high == full:
            return ANY
        return KeyMatch(value, high=high)
    if match_kind == "optional":
        return KeyMatch(value)
    raise _illegal(where, f"unknown match kind {match_kind!r}")


def _illegal(where: str, problem: str) -> ControlError:
    return ControlError("INVALID_ARGUMENT", f"{where}: {problem}")


class _KeyForm(NamedTuple):
    """What a match on a key is checked against."""

    match_kind: str
    width: int
    where: str
    mask: int | None


@lru_cache(maxsize=256)
def _key_forms(table: Table) -> tuple[_KeyForm, ...]:
    return tuple(
        _KeyForm(key.match_kind, key.width, f"table {table.name!r} key {key.name!r}", key.mask)
        for key in match_keys(table)
    )


def canonical_matches(table: Table, matches: Sequence[KeyMatch]) -> tuple[KeyMatch, ...]:
    """Return an entry's matches in canonical form.

    INVALID_ARGUMENT if they do not fit the table.
    """
    keys = _key_forms(table)
    if len(matches) != len(keys):
        raise ControlError(
            "INVALID_ARGUMENT",
            f"table {table.name!r} has {len(keys)} keys, the entry gives {len(matches)}",
        )
    return tuple([canonical_match(match, *key) for match, key in zip(matches, keys, strict=True)])


def canonical_entry(table: Table, entry: TableEntry) -> TableEntry:
    """Return the entry with canonical matches.

    INVALID_ARGUMENT if these or the priority are wrong.
    """
    matches = canonical_matches(table, entry.matches)
    if needs_priority(table):
        if entry.priority <= 0:
            raise ControlError(
                "INVALID_ARGUMENT",
                f"table {table.name!r} has ternary, range or optional keys: "
                f"an entry needs a priority above 0, not {entry.priority}",
            )
    elif entry.priority != 0:
        raise ControlError(
            "INVALID_ARGUMENT",
            f"table {table.name!r} has only exact and lpm keys: "
            f"an entry's priority must be 0, not {entry.priority}",
        )
    if matches == entry.matches:
        return entry
    return TableEntry(
        matches,
        entry.action,
        entry.priority,
        entry.member,
        entry.group,
        entry.constant,
        entry.idle_timeout_ns,
    )


def check_choice(owner: str, actions: Sequence[ir.TableAction], choice: ActionChoice) -> None:
    """Raise INVALID_ARGUMENT unless `choice` names an action and gives all its data, in range."""
    if not 0 <= choice.index < len(actions):
        raise ControlError(
            "INVALID_ARGUMENT", f"{owner}: no action {choice.index}, it has {len(actions)}"
        )
    action = actions[choice.index].action
    data = action_data(action)
    if len(choice.arguments) != len(data):
        raise ControlError(
            "INVALID_ARGUMENT",
            f"{owner}: action {action.name!r} takes {len(data)} parameters, "
            f"not {len(choice.arguments)}",
        )
    for (name, width), argument in zip(data, choice.arguments, strict=True):
        if not 0 <= argument < 1 << width:
            raise ControlError(
                "INVALID_ARGUMENT",
                f"{owner}: parameter {name!r} of action {action.name!r}: "
                f"{argument:#x} does not fit in {width} bits",
            )


@lru_cache(maxsize=1024)
def action_data(action: ir.Callable) -> tuple[tuple[str, int], ...]:
    """Return names and widths of an action's parameters from the control plane."""
    return tuple((each.name, scalar_width(each.variable.type)) for each in action.data)


def scalar_width(kind: ir.Type) -> int:
    """Return the bits of a scalar type in the control plane; a bool has 1."""
    if isinstance(kind, Bits):
        return kind.width
    if isinstance(kind, ir.Varbit):
        return kind.max_width
    return 1


def program_entries(table: Table) -> list[TableEntry]:
    """Return the entries in the source, with priorities of which the larger wins."""
    priorities = _program_priorities(table)
    return [
        TableEntry(
            tuple(
                _from_constant(constant, key)
                for constant, key in zip(entry.keys, match_keys(table), strict=True)
            ),
            entry.action,
            priority,
            constant=entry.constant,
        )
        for entry, priority in zip(table.entries, priorities, strict=True)
    ]


def _program_priorities(table: Table) -> list[int]:
    """Return the priorities of the source's entries for P4Runtime: larger wins, at least 1.

    The checker gives all entries of a table a priority or none (P4_16 specification, "Entries");
    if none has one, the first entry wins, so the numbers decrease.
    """
    if not needs_priority(table):
        return [0] * len(table.entries)
    written = [entry.priority for entry in table.entries if entry.priority is not None]
    if not written:
        return list(range(len(table.entries), 0, -1))
    if table.largest_priority_wins:
        lift = max(0, 1 - min(written))
        return [number + lift for number in written]
    return [max(written) + 1 - number for number in written]


def _from_constant(constant: ir.ConstKey, key: Key) -> KeyMatch:
    """Return a constant key set as a canonical match."""
    full = (1 << key.width) - 1
    value = int(constant.value) & full
    where = f"entry key {key.name!r}"
    if constant.any:
        return canonical_match(ANY, key.match_kind, key.width, where)
    mask = constant.mask & full
    match = KeyMatch(
        value & mask if key.match_kind in ("ternary", "lpm") else value,
        mask=mask if key.match_kind == "ternary" else 0,
        prefix_length=mask.bit_count() if key.match_kind == "lpm" else 0,
        high=(value if constant.high is None else int(constant.high) & full)
        if key.match_kind == "range"
        else 0,
    )
    return canonical_match(match, key.match_kind, key.width, where, key.mask)
