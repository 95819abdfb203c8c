"""Which sums take fewer than 32 bits a value, and the hook that lets gradients do so."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hopsum_torch
from hopsum_torch.compression import compressed_bits
from hopsum_torch.options import Options, wire_bits_of
from hopsum_torch.tensors import NARROW_ELEMENTS, is_narrow


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
    with pytest.raises(ValueError, match="HOPSUM_WIRE_BITS is '17': expected 16 or 32"):
        wire_bits_of(None, None)


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
