"""Which sums take fewer than 32 bits a value, and the hook that lets gradients do so."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hopsum_torch
from hopsum_torch.agent import ALL
from hopsum_torch.compression import compressed_bits
from hopsum_torch.options import Options, wire_bits_of
from hopsum_torch.tensors import NARROW_ELEMENTS, Part, into, is_narrow, reduce


@pytest.mark.parametrize(
    ("dtype", "narrow"),
    [
        ("float32", {16}),
        ("float16", {None, 16}),
        ("bfloat16", {None, 16}),
        ("int8", {None, 16, 32}),
        ("uint8", {None, 16, 32}),
        ("int32", set()),
    ],
)
def test_narrow_sums_are_long_and_of_narrow_types_or_asked_for(
    dtype: str, narrow: set[int | None]
) -> None:
    for bits in (None, 16, 32):
        of = getattr(torch, dtype)
        assert is_narrow(of, NARROW_ELEMENTS + 1, bits) == (bits in narrow)
        assert not is_narrow(of, NARROW_ELEMENTS, bits)


class Extremes:
    """An agent that combines two ranks' integers of 16 bits, those filled in last."""

    rank = place = 0
    order = (0,)

    def __init__(self, reduction: str) -> None:
        self._combine = np.maximum if reduction == "max" else np.minimum
        self.given: list[Any] = []
        self.said: list[Any] = []

    def sum(self, what: Any, elements: int, dtype: Any, *rest: Any, narrow: bool) -> None:
        _, _, fill, drain, *_ = rest
        assert narrow == (dtype == np.int32)
        values = np.zeros(elements, dtype)
        self.said.append(fill(values))
        self.given.append(values)
        if narrow:
            np.testing.assert_array_equal(values.astype(np.int16), values)
        if len(self.given) == 2:
            drain(self._combine(*self.given))


def extremes(
    dtype: torch.dtype, bits: Any, reduction: str, **options: Any
) -> tuple[Any, list[torch.Tensor]]:
    """Return the agent of two ranks' extremes, and their tensors; the last takes the result."""
    agent: Any = Extremes(reduction)
    tensors = [torch.from_numpy(each).view(dtype).clone() for each in bits]
    for tensor in tensors:
        part = Part([tensor], into(tensor), ALL)
        reduce(agent, "", part, reduction, None, lambda _: None, **options)
    return agent, tensors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["max", "min"])
def test_extremes_of_16_bits_are_exact(dtype: torch.dtype, reduction: str) -> None:
    """Of every number with others, -0 before 0, infinities the outermost."""
    every = np.arange(-(1 << 15), 1 << 15).astype(np.int16)
    every = every[~np.isnan(torch.from_numpy(every).view(dtype).float().numpy())]
    bits = np.array([every, np.random.default_rng(1).permutation(every)])
    agent, (first, last) = extremes(dtype, bits, reduction)
    assert agent.said == [(0, None)] * 2
    one, other = (torch.from_numpy(each).view(dtype) for each in bits)
    expected = (torch.maximum if reduction == "max" else torch.minimum)(one, other)
    assert torch.equal(last, expected)
    zeros = last == 0
    signs = torch.signbit(one[zeros]), torch.signbit(other[zeros])
    both = (torch.logical_and if reduction == "max" else torch.logical_or)(*signs)
    opposite = (one[zeros] == 0) & (other[zeros] == 0)
    assert torch.equal(torch.signbit(last[zeros])[opposite], both[opposite])
    assert torch.equal(first.view(torch.int16), torch.from_numpy(bits[0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize("pattern", [0x7FFF, -1, 0x7FC1, 0xFFC1 - (1 << 16)])
def test_nans_of_16_bits_are_refused_or_pass(
    dtype: torch.dtype, reduction: str, pattern: int
) -> None:
    bits = np.full((2, NARROW_ELEMENTS + 1), 0x3C00, np.int16)
    bits[1, 70] = pattern
    agent, _ = extremes(dtype, bits, reduction)
    assert agent.said == [(0, None), (0, ("nan", 70))]
    infinities = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
    bits[0, 70] = infinities[dtype] if reduction == "max" else infinities[dtype] - (1 << 15)
    agent, (_, last) = extremes(dtype, bits, reduction, passes=True)
    assert agent.said == [(0, None)] * 2
    assert torch.nonzero(last.isnan()).tolist() == [[70]]


@pytest.mark.parametrize(("elements", "bits"), [(NARROW_ELEMENTS, None), (9000, 32)])
def test_extremes_take_32_bits_where_sums_do(elements: int, bits: int | None) -> None:
    agent, (_, last) = extremes(
        torch.bfloat16, np.full((2, elements), 0x3F80, np.int16), "max", wire_bits=bits
    )
    assert {each.dtype for each in agent.given} == {np.dtype(np.float32)}
    assert (last == 1).all()


@pytest.mark.parametrize(
    ("given", "inherited", "variable", "expected"),
    [
        (None, None, "", None),
        (None, None, "16", 16),
        (None, 32, "16", 32),
        (Options(wire_bits=16), 32, "32", 16),
        (Options(), 16, "", 16),
    ],
)
def test_bits_are_the_groups_then_the_default_groups_then_the_environments(
    given: Any,
    inherited: int | None,
    variable: str,
    expected: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOPSUM_WIRE_BITS", variable)
    assert wire_bits_of(given, inherited) == expected


def test_other_bits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="wire_bits is 8: expected 16 or 32"):
        Options(wire_bits=8)
    monkeypatch.setenv("HOPSUM_WIRE_BITS", "17")
    # All ranks refuse it together.
    assert wire_bits_of(None, None) == "17"


@pytest.fixture
def alone() -> Any:
    """A group of one rank, over gloo."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_the_hook_lets_gradients_alone_take_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    bits: list[int | None] = []
    all_reduce = dist.all_reduce

    def noted(*arguments: Any, **options: Any) -> Any:
        bits.append(compressed_bits())
        return all_reduce(*arguments, **options)

    monkeypatch.setattr(dist, "all_reduce", noted)
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    model.register_comm_hook(None, hopsum_torch.compress_hook)
    inputs = torch.arange(6.0).view(2, 3)
    model(inputs).sum().backward()
    torch.testing.assert_close(model.module.weight.grad, inputs.sum(0).expand(2, 3))
    assert bits == [16]
    dist.all_reduce(torch.ones(3))
    assert bits == [16, None]
