"""Types of the elements of tensors, as numpy has them, and how wide they are on the wire."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from hopsum.collectives.choices import DataType
from hopsum.protocol.wire import Width


class Element(IntEnum):
    """Type of a tensor's elements; numbers.h has the same numbers."""

    OF_INT32 = 0
    OF_FLOAT32 = 1
    OF_FLOAT16 = 2
    OF_BFLOAT16 = 3
    OF_INT16 = 4
    OF_INT8 = 5

    @property
    def scaled(self) -> bool:
        """Whether values are scaled to integers by exponents that travel ahead of them."""
        return self in (Element.OF_FLOAT32, Element.OF_FLOAT16, Element.OF_BFLOAT16)

    @property
    def precision(self) -> int:
        """Bits of a float's significand, with the leading one."""
        return {Element.OF_FLOAT32: 24, Element.OF_FLOAT16: 11, Element.OF_BFLOAT16: 8}[self]


_ELEMENTS: dict[np.dtype[Any], Element] = {
    np.dtype(np.int32): Element.OF_INT32,
    np.dtype(np.float32): Element.OF_FLOAT32,
    np.dtype(np.float16): Element.OF_FLOAT16,
    np.dtype(np.uint16): Element.OF_BFLOAT16,
    np.dtype(np.int16): Element.OF_INT16,
    np.dtype(np.int8): Element.OF_INT8,
    np.dtype(np.uint8): Element.OF_INT8,
}
"""By type of numpy, which has none for bfloat16: its bits stand for it."""
DTYPES: dict[DataType, np.dtype[Any]] = {
    DataType.FLOAT32: np.dtype(np.float32),
    DataType.INT32: np.dtype(np.int32),
    DataType.FLOAT16: np.dtype(np.float16),
    DataType.BFLOAT16: np.dtype(np.uint16),
    DataType.INT8: np.dtype(np.int8),
}
"""Types of numpy by those of workloads."""
TYPES = "float32, int32, float16, uint16 (the bits of bfloat16), int16, int8 or uint8"
"""Types of tensors, for messages."""


def element_of(dtype: np.dtype[Any]) -> Element | None:
    """Return the elements of tensors of a type, None if they cannot be summed."""
    return _ELEMENTS.get(dtype)


def widths_of(element: Element) -> tuple[Width, ...]:
    """Return the widths that elements can have on the wire, the usual one first."""
    match element:
        case Element.OF_FLOAT32:
            return (Width.WIDTH_32, Width.WIDTH_16)
        case Element.OF_FLOAT16 | Element.OF_BFLOAT16:
            return (Width.WIDTH_16, Width.WIDTH_32)
        case Element.OF_INT16:
            return (Width.WIDTH_16,)
        case Element.OF_INT8:
            return (Width.WIDTH_8, Width.WIDTH_32)
        case Element.OF_INT32:
            return (Width.WIDTH_32,)
