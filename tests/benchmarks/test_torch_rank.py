"""Models whose training steps are measured."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def torch() -> Any:
    """Imported here, since it takes seconds and all processes of a test run collect this file."""
    return pytest.importorskip("torch", reason="torch is an extra: make torch")


@pytest.fixture
def torch_rank(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with experts that take no time."""
    from benchmarks import torch_rank

    monkeypatch.setattr(torch_rank, "EXPERT_SECONDS", 0.0)
    return torch_rank


@pytest.mark.slow
def test_ranks_leave_at_depths_of_their_own(torch: Any, torch_rank: Any) -> None:
    depths: list[list[int]] = []
    for rank in (0, 1):
        model = torch_rank.EarlyExits(rank)
        depths.append([])
        for _ in range(20):
            model.zero_grad()
            model(torch.randn(2, torch_rank.WIDTH)).square().mean().backward()
            used = [each.weight.grad is not None for each in model.get_submodule("_layers")]
            depth = sum(used)
            assert used == [number < depth for number in range(torch_rank.EXPERTS)]
            depths[-1].append(depth)
    assert depths[0] != depths[1]
    assert {*depths[0], *depths[1]} == set(range(1, torch_rank.EXPERTS + 1))


def test_the_ranks_of_a_pair_have_their_stages_in_reverse(torch: Any, torch_rank: Any) -> None:
    orders = []
    for rank in range(4):
        model = torch_rank.Experts("stages", rank, 4)
        used: list[str] = []
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_hook(lambda *call, to=used, name=name: to.append(name))
        model(torch.randn(2, torch_rank.WIDTH))
        orders.append(used)
    assert len(set(orders[0])) == torch_rank.EXPERTS
    for one, other in ((0, 3), (1, 2)):
        assert orders[one] == orders[other][::-1]
