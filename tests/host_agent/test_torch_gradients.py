"""Gradients that become ready in another order on every rank, summed in one that all agree on."""

from __future__ import annotations

import re
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is an extra: pip install hopsum[torch]")


from coordination.failure import (  # noqa: E402
    IterationMismatch,
    OperatorError,
    ProcessLost,
)
from host_agent.torch_backend import BackendError, HopsumGroup  # noqa: E402
from host_agent.torch_gradients import OrderedGradients  # noqa: E402
from tests.support.machine import PATIENCE  # noqa: E402
from tests.support.torch_models import together  # noqa: E402

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


@pytest.mark.slow
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


class Scalars(torch.nn.Module):  # type: ignore[misc]
    """Parameters of which each is left out of the loss where the caller wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.values = torch.nn.ParameterDict({n: torch.nn.Parameter(torch.zeros(1)) for n in "abc"})

    def loss(self, names: str, factor: float) -> Any:
        """Its gradient by every parameter of these names is the factor."""
        return sum((self.values[name] * factor).sum() for name in names)


def train_scalars(calls: list[list[str]]) -> list[list[Any]]:
    """By rank, what comes of its iterations: mean gradients, or how it ends.

    `calls`: by rank and iteration the names in its loss; `ab+b`: and those in a second one.
    """
    size = len(calls)
    models = [Scalars() for _ in range(size)]
    all_have_ended = Barrier(size, timeout=PATIENCE)

    def act(group: HopsumGroup, rank: int) -> list[Any]:
        gradients = None
        seen: list[Any] = []
        try:
            # It raises if the others have begun, and failed, before this rank is there.
            gradients = OrderedGradients(models[rank], group)
            for iteration, names in enumerate(calls[rank], 1):
                models[rank].zero_grad()
                for part in names.split("+"):
                    if part:
                        models[rank].loss(part, 10 * iteration + rank).backward()
                gradients.wait(PATIENCE)
                values = models[rank].values
                seen.append({n: p.grad.item() for n, p in values.items() if p.grad is not None})
            gradients.close()
        except IterationMismatch as error:
            seen.append(str(error))
            all_have_ended.wait()
            if gradients is not None:
                gradients.close()
        return seen

    found: list[list[Any]] = together(size, act)
    return found


def means(size: int, names: str, iterations: int) -> list[Any]:
    middle = (size - 1) / 2
    return [dict.fromkeys(names, 10 * i + middle) for i in range(1, iterations + 1)]


@pytest.mark.parametrize("iteration", [1, 2, 4])
@pytest.mark.parametrize(("size", "rank"), [(2, 0), (2, 1), (3, 1)])
def test_a_gradient_left_out_by_a_rank_is_an_error_at_all(
    size: int, rank: int, iteration: int
) -> None:
    calls = [["abc"] * 5 for _ in range(size)]
    calls[rank][iteration - 1] = "ac"
    found = train_scalars(calls)
    assert [seen[:-1] for seen in found] == [means(size, "abc", iteration - 1)] * size
    (error,) = {seen[-1] for seen in found}
    assert f"operator values.b, iteration {iteration}: rank {rank} ended it without" in error


def test_a_gradient_left_out_by_all_is_none() -> None:
    calls = [["abc", "ac", "", "abc"]] * 2
    found = train_scalars(calls)
    expected = [
        {n: value for n, value in mean.items() if n in names}
        for names, mean in zip(calls[0], means(2, "abc", 4), strict=True)
    ]
    assert found == [expected] * 2


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([["abc", "abc"], ["abc", "abc+b"]], "values.b, iteration 2: rank 1 is ready for it after"),
        ([["abc", "ab"], ["abc", "bc"]], r"values.[ac], iteration 2: rank [01] ended it without"),
        ([["abc", ""], ["abc", "a"]], "values.a, iteration 2: rank 0 ended it without"),
        ([["a"], ["a", "a"]], "values.a, iteration 2: rank 0 ended it without"),
    ],
    ids=["twice", "each without another's", "none at one", "one goes on"],
)
def test_ranks_that_do_not_match_all_fail(calls: list[list[str]], message: str) -> None:
    found = train_scalars(calls)
    assert [seen[0] for seen in found] == [means(2, calls[0][0], 1)[0]] * 2
    assert [len(seen) for seen in found] == [2, 2]
    (error,) = {seen[1] for seen in found}
    assert re.search(message, error)


@pytest.mark.slow
@settings(max_examples=12)
@given(
    st.lists(
        st.lists(st.sampled_from(["abc", "abc", "abc", "ab"]), min_size=3, max_size=3),
        min_size=2,
        max_size=3,
    )
)
def test_every_mean_is_of_one_iteration(calls: list[list[str]]) -> None:
    found = train_scalars(calls)
    size = len(calls)
    same = [len(set(names)) == 1 for names in zip(*calls, strict=True)]
    good = [*same, False].index(False)
    for seen in found:
        for number, got in enumerate(seen[:good], 1):
            assert got == means(size, calls[0][number - 1], number)[-1]
        assert len(seen) == good + (good < len(same))
    if good < len(same):
        assert len({seen[-1] for seen in found}) == 1
        assert f"operator values.c, iteration {good + 1}: " in found[0][-1]


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
    with pytest.raises(BackendError, match="need a process group of backend hopsum"):
        OrderedGradients(Branches())
