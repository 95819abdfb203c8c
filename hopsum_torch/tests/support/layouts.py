"""Run as a rank: calls of tensors of any layout give what calls of contiguous ones give.

All ranks draw the same examples, and all fail where one does, as they must make the same calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Make = Callable[[torch.Tensor], torch.Tensor]
"""Returns a tensor of the same values with another layout."""


def spread(values: torch.Tensor) -> torch.Tensor:
    """Every second row of a tensor."""
    rows, *shape = values.shape
    tensor = values.new_zeros(2 * rows, *shape)[::2]
    return tensor.copy_(values)


def column(values: torch.Tensor) -> torch.Tensor:
    return values.new_zeros(*values.shape, 3)[..., 1].copy_(values)


def turned(values: torch.Tensor) -> torch.Tensor:
    return values.transpose(0, -1).contiguous().transpose(0, -1)


def moved(values: torch.Tensor) -> torch.Tensor:
    return values.new_zeros(values.numel() + 3)[3:].view(values.shape).copy_(values)


def channels_last(values: torch.Tensor) -> torch.Tensor:
    return values.clone(memory_format=torch.channels_last)


def conjugate(values: torch.Tensor) -> torch.Tensor:
    return values.conj().resolve_conj().conj()


def negative(values: torch.Tensor) -> torch.Tensor:
    return torch.complex(values, -values).conj().imag


def expanded(values: torch.Tensor) -> torch.Tensor:
    return values[:1].expand(values.shape)


SHAPES = ((4, 3, 2, 5), (1, 1, 1, 1), (2, 3, 40, 50), (3, 0, 2, 2), (1, 4, 1, 3), (2, 2, 60, 90))
TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "int16", "uint8")
TYPES += ("bool", "complex64")
rank = size = 0


Source = Callable[[int], torch.Tensor]
"""Makes the tensor of this number, the same values each time."""


def reduces(op: Any, *, whole: bool) -> Callable[[Source, Source], Any]:
    def call(read: Source, written: Source) -> Any:
        tensor = written(0)
        if whole:
            dist.all_reduce(tensor, op)
            return tensor
        dist.reduce(tensor, 1, op)
        return tensor if rank == 1 else None

    return call


def broadcast(read: Source, written: Source) -> Any:
    tensor = read(0) if rank == 2 else written(0)
    dist.broadcast(tensor, 2)
    return tensor


def all_gather(read: Source, written: Source) -> Any:
    tensors = [written(number) for number in range(size)]
    dist.all_gather(tensors, read(9))
    return tensors


def gather(read: Source, written: Source) -> Any:
    tensors = [written(number) for number in range(size)] if rank == 1 else None
    dist.gather(read(9), tensors, 1)
    return tensors


def scatter(read: Source, written: Source) -> Any:
    tensor = written(0)
    dist.scatter(tensor, [read(number) for number in range(size)] if rank == 1 else None, 1)
    return tensor


def reduce_scatter(read: Source, written: Source) -> Any:
    tensor = written(8)
    dist.reduce_scatter(tensor, [read(number) for number in range(size)])
    return tensor


def all_to_all(read: Source, written: Source) -> Any:
    tensors = [written(number) for number in range(size)]
    dist.all_to_all(tensors, [read(number + 9) for number in range(size)])
    return tensors


def send(read: Source, written: Source) -> Any:
    if rank == 0:
        dist.send(read(0), 1)
        return None
    if rank == 1:
        tensor = written(9)
        dist.recv(tensor, 0)
        return tensor
    return None


def future(read: Source, written: Source) -> Any:
    tensor = written(0)
    [ended] = dist.all_reduce(tensor, async_op=True).get_future().wait()
    return [tensor, ended]


def polled(read: Source, written: Source) -> Any:
    tensor = written(0)
    work = dist.broadcast(tensor, 0, async_op=True)
    while not work.is_completed():
        pass
    return tensor


def direct(read: Source, written: Source) -> Any:
    """By the group's own methods: PyTorch's functions refuse conjugate bits."""
    tensors, options = [written(number) for number in range(size)], dist.BroadcastOptions()
    dist.group.WORLD.allgather([tensors], [read(9)]).wait()
    options.rootRank, options.rootTensor = 1, 0
    dist.group.WORLD.broadcast(tensors[:1], options).wait()
    return tensors


OPERATIONS: dict[str, Callable[[Source, Source], Any]] = {
    "all_reduce": reduces(dist.ReduceOp.SUM, whole=True),
    "all_reduce_max": reduces(dist.ReduceOp.MAX, whole=True),
    "reduce": reduces(dist.ReduceOp.SUM, whole=False),
    **{
        act.__name__: act
        for act in (broadcast, all_gather, gather, scatter, reduce_scatter, all_to_all, send)
    },
    "future": future,
    "polled": polled,
    "direct": direct,
}


def outcome(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, made: list[Make], *, alike: bool
) -> Any:
    """What a call gives, as contiguous tensors, or the text of its error.

    `alike`: all rows of its tensors are.
    """

    def of(makes: list[Make]) -> Source:
        def tensor(place: int) -> torch.Tensor:
            generator = torch.Generator().manual_seed(20 * rank + place)
            values = torch.randint(0, 40, shape, generator=generator).to(dtype)
            if alike:
                values = expanded(values).clone()
            return makes[(rank + place) % len(makes)](values)

        return tensor

    written = [make for make in made if make is not expanded] or [torch.clone]
    try:
        result = OPERATIONS[name](of(made), of(written))
    except RuntimeError as error:
        return str(error).splitlines()[0]
    results = result if isinstance(result, list) else [] if result is None else [result]
    return [each.resolve_conj().resolve_neg().contiguous() for each in results]


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, tuple[int, ...], torch.dtype, list[Make]]:
    name = draw(st.sampled_from(sorted(OPERATIONS)))
    dtype = getattr(torch, draw(st.sampled_from(TYPES)))
    makes = [torch.clone, spread, column, turned, moved, channels_last, expanded]
    if dtype.is_complex and name == "direct":
        makes.append(conjugate)
    if dtype in (torch.float32, torch.float64):
        makes.append(negative)
    made = draw(st.lists(st.sampled_from(makes), min_size=1, max_size=4))
    return name, draw(st.sampled_from(SHAPES)), dtype, made


def same(found: Any, expected: Any) -> bool:
    if isinstance(found, str) or isinstance(expected, str):
        return bool(found == expected)
    return all(map(torch.equal, found, expected))


@settings(
    max_examples=int(sys.argv[1]),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(calls())
def check(call: tuple[str, tuple[int, ...], torch.dtype, list[Make]]) -> None:
    *what, made = call
    alike = expanded in made
    expected = outcome(*what, [torch.clone], alike=alike)
    found = outcome(*what, made, alike=alike)
    wrong = torch.tensor([float(not same(found, expected))], dtype=torch.float64)
    dist.all_reduce(wrong)
    assert not wrong, f"{found} instead of {expected}"


dist.init_process_group("hopsum", timeout=timedelta(seconds=30))
rank, size = dist.get_rank(), dist.get_world_size()
check()
print("checked")
dist.destroy_process_group()
