"""Gradients that become ready in another order on every rank, summed in one that all agree on."""

from __future__ import annotations

from threading import Barrier
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra: pip install hopsum[torch]")


from collectives.coordination.failure import OperatorError, ProcessLost  # noqa: E402
from host_agent.torch_backend import HopsumError, HopsumGroup  # noqa: E402
from host_agent.torch_gradients import OrderedGradients  # noqa: E402
from tests.machine import PATIENCE  # noqa: E402
from tests.unit.torch_models import together  # noqa: E402

BRANCHES = 5
STEPS = 4


class Branches(torch.nn.Module):  # type: ignore[misc]
    """Branches beside each other: gradients arise in the reverse order of their computing."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(4, width) for _ in range(BRANCHES))

    def forward(self, values: Any, order: Any) -> Any:
        """The sum of all branches, computed in this order."""
        return sum(self.branches[branch](values).tanh() for branch in order)


def batches(rank: int) -> list[Any]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(6, 4, generator=generator) for _ in range(STEPS)]


def test_ranks_with_orders_of_their_own_train_as_one_process_does() -> None:
    size = 3
    # Made one after the other: the seed is the process's.
    models = [Branches() for _ in range(size)]

    def act(group: HopsumGroup, rank: int) -> Any:
        model = models[rank]
        gradients = OrderedGradients(model, group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(100 + rank)
        orders = []
        for values in batches(rank):
            optimizer.zero_grad()
            order = torch.randperm(BRANCHES, generator=generator).tolist()
            model(values, order).square().mean().backward()
            gradients.wait(PATIENCE)
            orders.append(gradients.order)
            optimizer.step()
        gradients.close()
        return orders, torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    alone = Branches()
    names = sorted(name for name, _ in alone.named_parameters())
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [alone(batches(r)[step], range(BRANCHES)).square().mean() for r in range(size)]
        (sum(losses) / size).backward()
        optimizer.step()
    expected = torch.cat([p.detach().reshape(-1) for p in alone.parameters()])

    found = together(size, act)
    for orders, parameters in found:
        torch.testing.assert_close(parameters, expected)
        assert orders == found[0][0]
        assert [sorted(order) for order in orders] == [names] * STEPS


def test_another_shape_at_one_rank_is_an_error_at_all() -> None:
    models = [Branches(3), Branches(7)]
    # Who goes at once is lost to those that have not heard yet.
    all_have_heard = Barrier(2, timeout=PATIENCE)

    def act(group: HopsumGroup, rank: int) -> None:
        gradients = OrderedGradients(models[rank], group)
        models[rank](batches(rank)[0], range(BRANCHES)).square().mean().backward()
        with pytest.raises(OperatorError, match=r"branches\.\d\.\w+: the processes differ"):
            gradients.wait(PATIENCE)
        all_have_heard.wait()
        gradients.close()

    together(2, act)


def test_a_rank_that_goes_is_named() -> None:
    models = [Branches(), Branches()]

    def act(group: HopsumGroup, rank: int) -> None:
        gradients = OrderedGradients(models[rank], group)
        models[rank](batches(rank)[0], range(BRANCHES)).square().mean().backward()
        if rank == 1:
            gradients.wait(PATIENCE)
            gradients._coordinator.close()
            return
        # It may hear of it as early as at the end of the first iteration.
        with pytest.raises(ProcessLost, match="process rank 1 is lost"):
            for values in batches(rank):
                gradients.wait(PATIENCE)
                models[rank](values, range(BRANCHES)).square().mean().backward()
        gradients.close()

    together(2, act)


def test_a_group_of_another_backend_is_refused() -> None:
    with pytest.raises(HopsumError, match="need a process group of backend hopsum"):
        OrderedGradients(Branches())
