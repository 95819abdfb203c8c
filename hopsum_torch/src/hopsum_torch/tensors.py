"""Which calls go through the switches; copies of tensors into shared memory and of results back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hopsum_torch.agent import ALL, PARTS, AgentClient
from hopsum_torch.layouts import write
from hopsum_torch.names import DEVICES
from hopsum_torch.packets import PASSED
from hopsum_torch.pinned import pinning

SUMMED_AS = {
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int32: torch.int32,
    torch.int8: torch.int32,
    torch.uint8: torch.int32,
}
"""The types that switches sum, and the type that each is converted to."""
_WORDS: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.int32: np.dtype(np.int32),
    torch.int16: np.dtype(np.int16),
    torch.int8: np.dtype(np.int8),
    torch.uint8: np.dtype(np.int8),
}
"""How the agents know them, and those that they sum modulo 256."""
_SUM = (dist.ReduceOp.SUM, "sum")
_EXTREMES = ((dist.ReduceOp.MAX, "max"), (dist.ReduceOp.MIN, "min"))
_OF_FLOATS = (_SUM, (dist.ReduceOp.AVG, "sum"), *_EXTREMES)
_OF_INTEGERS = (
    _SUM,
    *_EXTREMES,
    (dist.ReduceOp.BAND, "and"),
    (dist.ReduceOp.BOR, "or"),
    (dist.ReduceOp.BXOR, "xor"),
)
"""Reductions by type, with the agent's names of them."""
_NANS = {"max": 0x7FC00000, "min": 0xFFC00000 - (1 << 32)}
"""The bits of a NaN that is in every maximum, or minimum: the agent compares bits
(docs/agent-socket.md)."""
_INFINITIES = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
"""Bits of infinity: those of NaNs are greater."""
NARROW_ELEMENTS = 1 << 13
"""Sums of more elements than this may take fewer bits in packets: the agents let smaller ones share
packets, as integers of 32 bits."""
MOST_ELEMENTS = (1 << 31) - 1
"""Maximum size of a tensor through the switches; a longer one goes over gloo."""
LEAST_RANKS = 3
"""Ranks from which on reduce, reduce-scatter and broadcast cost fewer bytes than over gloo where
the switches make all-reduces of them (docs/concepts/pytorch-calls.md)."""
LEAST_BROADCAST_WORDS = 1024
"""Smallest tensor to broadcast through the switches: gloo needs fewer bytes for smaller ones."""
FRAME_WORDS, FRAME_BYTES, BARE_BYTES = 256, 1090, 66
"""Words in a frame, and the length of frames with and without them."""
GLOO_BYTES = 4.28
"""Bytes of a word over TCP: its share of the packets, acknowledgements included."""


def reduction_of(op: Any, dtype: torch.dtype) -> str | None:
    """Return the agent's name of a reduction of this type; None if it goes over gloo."""
    for each, name in _OF_FLOATS if dtype.is_floating_point else _OF_INTEGERS:
        if op == each:
            return name
    return None


@dataclass(slots=True)
class Part:
    """Tensors of one type that are reduced as one. `take` receives the flat result at the end.

    The result has the type that is summed, and is overwritten afterwards; without `take` this rank
    discards it. `to`: the ranks that get it; with PARTS there is a source of equal length for each
    rank, and `take` receives this rank's sum.
    """

    sources: Sequence[torch.Tensor]
    take: Callable[[torch.Tensor], object] | None = None
    to: str | int = ALL
    elements: int = field(init=False)
    """Of all tensors."""

    def __post_init__(self) -> None:
        self.elements = sum([tensor.numel() for tensor in self.sources])

    def __str__(self) -> str:
        first = self.sources[0]
        shape = list(first.shape) if len(self.sources) == 1 else [self.elements]
        return f"{str(first.dtype).removeprefix('torch.')}, shape {shape}"


class PartOfCall(NamedTuple):
    """Name of a part in messages, as text; `place`: among several parts of a call."""

    call: str
    place: int | None
    part: Part

    def __str__(self) -> str:
        which = "" if self.place is None else f", tensor {self.place}"
        return f"{self.call}{which} ({self.part})"


def into(tensor: torch.Tensor, start: int = 0) -> Callable[[torch.Tensor], object]:
    """Return a function that copies a result, from an element on, into a tensor."""
    target, elements = tensor.detach(), tensor.numel()

    def take(result: torch.Tensor) -> None:
        if result.numel() != elements:
            result = result[start : start + elements]
        write(target, result if target.dim() == 1 else result.view(target.shape))

    return take


def in_switches(part: Part, op: Any) -> str | None:
    """Return the agent's name of a reduction of this tensor; None if it goes over gloo."""
    dtype = part.sources[0].dtype
    if dtype not in SUMMED_AS or part.elements > MOST_ELEMENTS:
        return None
    return reduction_of(op, dtype) if all(map(_dense, part.sources)) else None


def broadcasts(tensor: torch.Tensor, ranks: int) -> bool:
    """Return whether to broadcast this tensor, of any type, through the switches.

    gloo's root sends it ceil(log2 ranks) times over its link. Here a packet for the check, and
    where trees have no roots at the ranks the server's way, come on top of sending it once.
    """
    fits = LEAST_BROADCAST_WORDS <= _words(tensor) <= MOST_ELEMENTS
    return ranks >= LEAST_RANKS and fits and _dense(tensor)


def gathers(source: torch.Tensor, ranks: int) -> bool:
    """Return whether to gather such tensors, of any type, through switches with rooted trees.

    That is if a rank's link takes fewer bytes than gloo's, both ways: of each part one frame with
    values and one without for every fragment, once each, and of the check one frame up and down;
    in gloo's ring all parts but one in either direction.
    """
    words = _words(source)
    fragments = ranks * -(-words // FRAME_WORDS)
    switches = fragments * (FRAME_BYTES + BARE_BYTES) + 2 * FRAME_BYTES
    gloo = 2 * (ranks - 1) * words * GLOO_BYTES
    return switches < gloo and ranks * words <= MOST_ELEMENTS and _dense(source)


def matches(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Return whether a tensor can receive the values of such a source."""
    same = target.dtype == source.dtype and target.numel() == source.numel()
    return same and _dense(target)


def reduce(
    agent: AgentClient,
    what: object,
    part: Part,
    reduction: str,
    divisor: int | None,
    then: Callable[[Exception | None], None],
    *,
    passes: bool = False,
    wire_bits: int | None = None,
) -> None:
    """Start to reduce a part; its result is divided by `divisor`, if given.

    `reduction`: as `in_switches` returns it. `passes`: values that are not finite are in the
    result. `wire_bits`: see `is_narrow`. `then` is called in the end. Raises GroupLost.
    """
    dtype = part.sources[0].dtype
    narrow = is_narrow(dtype, part.elements, wire_bits)
    ordered = narrow and reduction in _NANS and dtype in _INFINITIES
    modulo = narrow and not dtype.is_floating_point and reduction == "sum"
    summed = torch.int16 if ordered else dtype if modulo else SUMMED_AS[dtype]
    sources = [source.detach() for source in part.sources]
    if part.to == PARTS:
        sources = [sources[rank] for rank in agent.order]

    def fill(values: NDArray[Any]) -> tuple[int, tuple[str, int] | None]:
        if not len(values):
            return 0, None
        shared, start = _tensor(values, summed), 0
        for source in sources:
            elements = source.numel()
            place = shared if elements == len(values) else shared[start : start + elements]
            given = _in_order(source) if ordered else source
            (place if source.dim() == 1 else place.view(source.shape)).copy_(given)
            start += elements
        if ordered:
            return 0, _without_nans(shared, dtype, reduction if passes else "")
        if modulo or (summed == torch.int32 and reduction != "sum"):
            return 0, None
        return _magnitude(shared, reduction, passes=passes)

    def drain(values: NDArray[Any]) -> None:
        if part.take is None:
            return
        if part.to == PARTS:
            values = values.reshape(len(sources), -1)[agent.place]
        if divisor is not None:
            values /= divisor
        shared = _tensor(values, summed)
        part.take(_in_order(shared).view(dtype) if ordered else shared)

    narrow = narrow and dtype.is_floating_point and reduction == "sum"
    prepare = pinning(sources)
    words = _WORDS[summed]
    agent.sum(
        what, part.elements, words, reduction, part.to, fill, drain, then, prepare, narrow=narrow
    )


def _tensor(values: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """Return shared memory as a tensor of this type, of the same width."""
    shared = torch.from_numpy(values)
    return shared if shared.dtype == dtype else shared.view(dtype)


def _magnitude(
    shared: torch.Tensor, reduction: str, *, passes: bool
) -> tuple[int, tuple[str, int] | None]:
    """Return the magnitude and the fault of int32 or float32 values, as calls have them.

    `passes`: values that are not finite are no fault; NaNs become one that is in every extreme.
    """
    least, most = [each.item() for each in torch.aminmax(shared)]
    if shared.dtype == torch.int32:
        return max(most, -least), None
    fault = _fault(shared, least, most, finite=reduction == "sum")
    if fault is None:
        return exponent_byte(max(most, -least)), None
    if not passes:
        return 0, fault
    if reduction == "sum":
        finite = shared.nan_to_num(0.0, 0.0, 0.0)
        return exponent_byte(finite.abs().max().item()), (PASSED, 0)
    shared.view(torch.int32)[torch.isnan(shared)] = _NANS[reduction]
    return 0, None


def is_narrow(dtype: torch.dtype, elements: int, wire_bits: int | None) -> bool:
    """Return whether values of a sum, or an extreme of 16-bit floats, take fewer than 32 bits.

    `wire_bits`: 32: those of 8 bits alone do; 16: those of float32 do, too; None: those of the
    types of 16 and 8 bits.
    """
    if elements <= NARROW_ELEMENTS or dtype == torch.int32:
        return False
    if dtype in (torch.int8, torch.uint8):
        return True
    return wire_bits == 16 or (wire_bits is None and dtype != torch.float32)


def _in_order(values: torch.Tensor) -> torch.Tensor:
    """Return floats of 16 bits as integers in the same order, -0 before 0; and such integers back.

    All bits but the sign are turned over where it is negative.
    """
    bits = values.view(torch.int16)
    return bits ^ (bits >> 15 & 0x7FFF)


def _without_nans(
    integers: torch.Tensor, dtype: torch.dtype, reduction: str
) -> tuple[str, int] | None:
    """Return the fault of integers that `_in_order` made of floats: the first NaN, and its index.

    `reduction`: NaNs pass; they are replaced by one that is in every maximum, or minimum.
    """
    infinity = _INFINITIES[dtype]
    least, most = (each.item() for each in torch.aminmax(integers))
    if most <= infinity and least >= ~infinity:
        return None
    wrong = (integers > infinity) | (integers < ~infinity)
    if not reduction:
        return "nan", int(torch.nonzero(wrong)[0])
    nan = int(torch.tensor(math.nan, dtype=dtype).view(torch.int16))
    integers[wrong] = nan if reduction == "max" else ~nan
    return None


def broadcast(
    agent: AgentClient,
    what: object,
    tensor: torch.Tensor,
    root: int,
    then: Callable[[Exception | None], None],
) -> None:
    """Start to broadcast the root's tensor.

    `then` is called in the end. Raises GroupLost.
    """
    target = tensor.detach()

    def fill(values: NDArray[Any]) -> None:
        if agent.rank == root:
            _put(target, values)

    def drain(values: NDArray[Any]) -> None:
        if agent.rank != root:
            _get(target, values)

    agent.copy(what, _words(tensor), root, fill, drain, then, pinning([target]))


def gather(
    agent: AgentClient,
    what: object,
    source: torch.Tensor,
    targets: Sequence[torch.Tensor],
    then: Callable[[Exception | None], None],
) -> None:
    """Start to copy each rank's source to all; `targets`: of each rank, of its size and type.

    `then` is called in the end. Raises GroupLost.
    """
    words, source = _words(source), source.detach()
    in_order = [targets[rank].detach() for rank in agent.order]

    def fill(values: NDArray[Any]) -> None:
        _put(source, values[agent.place * words :][:words])

    def drain(values: NDArray[Any]) -> None:
        for place, target in enumerate(in_order):
            _get(target, values[place * words :][:words])

    prepare = pinning([source, *in_order])
    agent.copy(what, words * len(targets), PARTS, fill, drain, then, prepare)


def _put(tensor: torch.Tensor, values: NDArray[Any]) -> None:
    """Copy the bits of a tensor into words."""
    whole = tensor.view(-1).view(torch.uint8)
    torch.from_numpy(values.view(np.uint8))[: len(whole)].copy_(whole)


def _get(tensor: torch.Tensor, values: NDArray[Any]) -> None:
    """Copy the bits of a tensor out of words."""
    size = tensor.numel() * tensor.element_size()
    found = torch.from_numpy(values.view(np.uint8))[:size].view(tensor.dtype)
    write(tensor, found.view(tensor.shape))


def _dense(tensor: torch.Tensor) -> bool:
    strided = tensor.layout == torch.strided and not tensor.is_quantized
    return strided and tensor.device.type in DEVICES


def _words(tensor: torch.Tensor) -> int:
    words: int = (tensor.numel() * tensor.element_size() + 3) // 4
    return words


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
