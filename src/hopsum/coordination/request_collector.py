"""A controller at an inner node of the tree: passes up requests of its process and all children."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hopsum.coordination.messages import OperatorRequest, Variant
from hopsum.coordination.operators import OrderTable


@dataclass(slots=True)
class _Collection:
    """Requests for an operator: the requesters and details."""

    asked: set[int] = field(default_factory=set)
    variants: list[Variant] = field(default_factory=list)


class RequestCollector:
    """Collects start requests at one node; `members`: its own rank and those of its children."""

    def __init__(self, members: Sequence[int]) -> None:
        self._members = frozenset(members)
        self._open: dict[tuple[int, str], _Collection] = {}
        self._table = OrderTable()

    def request(
        self, member: int, version: int, wanted: Iterable[OperatorRequest]
    ) -> list[OperatorRequest]:
        """Process a member's requests; return those all have made, merged ([004 claim 1][004]).

        Requests of different iterations are for different operators, even of the same name. A
        request for an operator in our order table that the member made before it had that table is
        dropped: when the member gets the table it sets its bit instead.
        """
        complete: list[OperatorRequest] = []
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
                complete.append(OperatorRequest(*key, tuple(collection.variants)))
        return complete

    def adopt(self, table: OrderTable) -> None:
        """Process a newer order table: its operators are no longer negotiated."""
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
