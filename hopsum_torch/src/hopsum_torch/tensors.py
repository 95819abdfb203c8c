"""Reductions in switches, and copies of tensors and results to and from shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hopsum_torch.agent import Agent
from hopsum_torch.errors import HopsumError
from hopsum_torch.names import DEVICES

SUMMED_AS = {
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int32: torch.int32,
    torch.int8: torch.int32,
    torch.uint8: torch.int32,
}
"""The types that switches sum, and the type that each is converted to."""
MOST_ELEMENTS = (1 << 31) - 1
"""Maximum size of a tensor through the switches; a longer one goes over gloo."""
LEAST_RANKS = 3
"""For whom reduce, reduce-scatter and broadcast cost the busiest link fewer bytes than over gloo,
though the switches make an all-reduce of them (decision 0013)."""
LEAST_BROADCAST_WORDS = 1024
"""Smallest tensor to broadcast through the switches: gloo needs fewer bytes for smaller ones."""


def reduction_of(op: Any, dtype: torch.dtype) -> str | None:
    """Return the agent's name of a reduction of this type; None if it goes over gloo."""
    operations = dist.ReduceOp
    reductions = {
        "sum": [operations.SUM, *([operations.AVG] if dtype.is_floating_point else [])],
        "max": [operations.MAX],
        "min": [operations.MIN],
    }
    if not dtype.is_floating_point:
        reductions |= {
            "and": [operations.BAND],
            "or": [operations.BOR],
            "xor": [operations.BXOR],
        }
    return next((name for name, ops in reductions.items() if any(op == each for each in ops)), None)


@dataclass(frozen=True)
class Part:
    """Tensors of one type that are reduced as one. `take` receives the flat result at the end.

    It is in the type that is summed, and overwritten afterwards. None: it is left out.
    """

    sources: Sequence[torch.Tensor]
    take: Callable[[torch.Tensor], object] | None = None

    @property
    def elements(self) -> int:
        """Of all tensors."""
        return sum(tensor.numel() for tensor in self.sources)

    def __str__(self) -> str:
        first = self.sources[0]
        shape = list(first.shape) if len(self.sources) == 1 else [self.elements]
        return f"{str(first.dtype).removeprefix('torch.')}, shape {shape}"


def into(tensor: torch.Tensor, start: int = 0) -> Callable[[torch.Tensor], object]:
    """Return a function that copies a result, from an element on, into a tensor."""
    target = tensor.detach()

    def take(result: torch.Tensor) -> None:
        target.copy_(result[start : start + target.numel()].view(target.shape))

    return take


def in_switches(part: Part, op: Any) -> bool:
    """Return whether a reduction of this tensor can go through the switches."""
    dtype = part.sources[0].dtype
    return (
        reduction_of(op, dtype) is not None
        and dtype in SUMMED_AS
        and part.elements <= MOST_ELEMENTS
        and all(_dense(tensor) for tensor in part.sources)
    )


def broadcasts(tensor: torch.Tensor, ranks: int) -> bool:
    """Return whether to broadcast this tensor, of any type, through the switches.

    gloo's root sends it ceil(log2 ranks) times over its link. Here a packet for the check, and the
    server's way, come on top of sending it once.
    """
    fits = LEAST_BROADCAST_WORDS <= _words(tensor) <= MOST_ELEMENTS
    return ranks >= LEAST_RANKS and fits and _dense(tensor)


def reduce(
    agent: Agent,
    what: str,
    part: Part,
    op: Any,
    divisor: int | None,
    then: Callable[[HopsumError | None], None],
) -> None:
    """Start to reduce a part; its result is divided by `divisor`, if given.

    `then` is called in the end. Raises GroupLost.
    """
    dtype = part.sources[0].dtype
    summed, reduction = SUMMED_AS[dtype], reduction_of(op, dtype)
    assert reduction is not None
    sources = [source.detach() for source in part.sources]

    def fill(values: NDArray[Any]) -> tuple[int, tuple[str, int] | None]:
        shared = torch.from_numpy(values)
        places = shared.split([source.numel() for source in sources])
        for place, source in zip(places, sources, strict=True):
            place.view(source.shape).copy_(source)
        if not len(values):
            return 0, None
        if summed == torch.int32 and reduction != "sum":
            return 0, None
        least, most = (each.item() for each in torch.aminmax(shared))
        if summed == torch.int32:
            return max(most, -least), None
        fault = _fault(shared, least, most, finite=reduction == "sum")
        return exponent_byte(max(most, -least)) if fault is None else 0, fault

    def drain(values: NDArray[Any]) -> None:
        if part.take is None:
            return
        shared = torch.from_numpy(values)
        if divisor is not None:
            shared /= divisor
        part.take(shared)

    words = np.dtype(np.float32 if summed == torch.float32 else np.int32)
    agent.sum(what, part.elements, words, reduction, fill, drain, then)


def broadcast(
    agent: Agent,
    what: str,
    tensor: torch.Tensor,
    root: bool,
    then: Callable[[HopsumError | None], None],
) -> None:
    """Start to broadcast the root's tensor: the XOR of its bits and the others' zeros.

    `then` is called in the end. Raises GroupLost.
    """
    target = tensor.detach()
    size = target.numel() * target.element_size()

    def fill(values: NDArray[Any]) -> tuple[int, tuple[str, int] | None]:
        values[:] = 0
        if root:
            whole = target.resolve_conj().resolve_neg().reshape(-1)
            _bytes(values)[:size].copy_(whole.view(torch.uint8))
        return 0, None

    def drain(values: NDArray[Any]) -> None:
        if not root:
            target.copy_(_bytes(values)[:size].view(target.dtype).view(target.shape))

    agent.sum(what, _words(tensor), np.dtype(np.int32), "xor", fill, drain, then)


def _dense(tensor: torch.Tensor) -> bool:
    strided = tensor.layout == torch.strided and not tensor.is_quantized
    return strided and tensor.device.type in DEVICES


def _words(tensor: torch.Tensor) -> int:
    words: int = (tensor.numel() * tensor.element_size() + 3) // 4
    return words


def _bytes(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(values.view(np.uint8))


def exponent_byte(magnitude: float) -> int:
    """Return e + 127, for the least e from -127 to 128 with a magnitude below 2^e; 0 for zero.

    As messages tell the magnitude of float32 values; of an infinity it does not matter.
    """
    if not magnitude or math.isinf(magnitude):
        return 0
    return max(-127, math.frexp(magnitude)[1]) + 127


def _fault(
    values: torch.Tensor, least: float, most: float, *, finite: bool = True
) -> tuple[str, int] | None:
    """Return the first value that is not finite, and its index; unless `finite`, the first NaN.

    `least`, `most`: of the values, which are NaN where any value is.
    """
    if math.isfinite(least) and math.isfinite(most):
        return None
    wrong = ~torch.isfinite(values) if finite else torch.isnan(values)
    if not wrong.any():
        return None
    index = int(torch.nonzero(wrong)[0])
    found = float(values[index])
    return ("nan" if found != found else "inf" if found > 0 else "-inf"), index
