"""A controller at an inner node of the tree: passes up what its process and all children want."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coordination.messages import Variant, Wanted
from coordination.operators import OrderTable


@dataclass(slots=True)
class _Collection:
    """Who has asked for an operator, and for what exactly."""

    asked: set[int] = field(default_factory=set)
    variants: list[Variant] = field(default_factory=list)


class Gathering:
    """Start requests at one node; `members`: its own rank and those of its children."""

    def __init__(self, members: Sequence[int]) -> None:
        self._members = frozenset(members)
        self._open: dict[tuple[int, str], _Collection] = {}
        self._table = OrderTable()

    def request(self, member: int, version: int, wanted: Iterable[Wanted]) -> list[Wanted]:
        """Take in requests of a member; what all members want now (004 claim 1), merged.

        Requests of different iterations are for different operators, whatever their names.
        A request made before the member had our order table, for an operator that is in it, is
        dropped: when the member gets the table it will set its bit instead.
        """
        complete: list[Wanted] = []
        for want in wanted:
            if version < self._table.version and self._table.find(want.name) is not None:
                continue
            key = want.iteration, want.name
            collection = self._open.setdefault(key, _Collection())
            if member in collection.asked:
                continue
            collection.asked.add(member)
            collection.variants = _merged(collection.variants, want.variants)
            if collection.asked == self._members:
                del self._open[key]
                complete.append(Wanted(*key, tuple(collection.variants)))
        return complete

    def adopt(self, table: OrderTable) -> None:
        """Take in a newer order table: what it holds is no longer negotiated."""
        self._table = table
        for key in [key for key in self._open if table.find(key[1]) is not None]:
            del self._open[key]


def _merged(one: list[Variant], other: Iterable[Variant]) -> list[Variant]:
    merged = {variant.operator: variant for variant in one}
    for variant in other:
        same = merged.get(variant.operator)
        merged[variant.operator] = (
            variant
            if same is None
            else Variant(
                variant.operator, same.count + variant.count, min(same.first, variant.first)
            )
        )
    return sorted(merged.values(), key=lambda variant: variant.first)
