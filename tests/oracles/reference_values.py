"""How lanes are combined, value by value, with numbers of any size."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence

from hopsum.protocol.wire import VALUE_REDUCTIONS, Reduction, Width

Lanes = tuple[int, ...]

_COMBINED_BY: dict[Reduction, Callable[[int, int], int]] = {
    Reduction.SUM: operator.add,
    Reduction.AND: operator.and_,
    Reduction.MAX: max,
    Reduction.XOR: operator.xor,
}
_COMBINED_BY |= {each.to_root: combine for each, combine in _COMBINED_BY.items()}
# Of lanes that are all 0 but the root's.
_COMBINED_BY |= dict.fromkeys((Reduction.NONE, Reduction.BROADCAST), operator.or_)


def is_known(byte: int) -> bool:
    """Whether a reduction and width of a header are possible."""
    if byte >> 4 not in list(Reduction) or byte & 15 not in list(Width):
        return False
    return byte & 15 == Width.WIDTH_32 or byte >> 4 in VALUE_REDUCTIONS


def wrapped(value: int, bits: int = 32) -> int:
    """A number as `bits` bits in two's complement."""
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def unpacked(lanes: Iterable[int], width: Width) -> Lanes:
    """The values in lanes, the first in a lane's upper bits."""
    if width is Width.WIDTH_32:
        return tuple(lanes)
    shifts = range(32 - width.bits, -1, -width.bits)
    return tuple(wrapped(lane >> shift, width.bits) for lane in lanes for shift in shifts)


def packed(values: Sequence[int], width: Width) -> Lanes:
    """The lanes that hold values."""
    size, count = width.bits // 8, width.per_lane
    raw = b"".join(value.to_bytes(size, "big", signed=True) for value in values)
    assert len(values) % count == 0
    starts = range(0, len(raw), 4)
    return tuple(int.from_bytes(raw[at : at + 4], "big", signed=True) for at in starts)


def combine(
    a: Lanes, b: Lanes, reduction: Reduction, width: Width = Width.WIDTH_32
) -> tuple[Lanes, bool]:
    """Combine lanes; also return whether a value wrapped around."""
    by = _COMBINED_BY[reduction]
    pairs = zip(unpacked(a, width), unpacked(b, width), strict=True)
    exact = [by(x, y) for x, y in pairs]
    values = [wrapped(value, width.bits) for value in exact]
    return packed(values, width) if width else tuple(values), exact != values
