"""Ordered gradients with skipped parameters, random delays and faults: no sum mixes iterations."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

import torch
import torch.distributed as dist
from tests.support.agents import Agents
from tests.support.ranks import SUPPORT, run, start

from hopsum_torch.ordered import OrderedGradients

pytestmark = pytest.mark.slow

RANKS = 3
EXAMPLE = SUPPORT.parents[2] / "examples/ordered_experts/train.py"


def came_of(where: str, seed: int, *steps: str) -> list[list[list[str] | str]]:
    """Return by rank what came of each step, and the order; none of rank 1's, if it dies.

    `where`: gloo, or hopsum, with the tests' agents.
    """
    agents = Agents(RANKS) if where == "hopsum" else None
    names = ["none"] * RANKS if agents is None else list(agents.names.values())
    script = SUPPORT / "ordered_gradients.py"
    ranks = start(names, script, where, str(seed), *steps)
    printed = [rank.communicate() for rank in ranks]
    if agents is not None:
        agents.close()
        assert {kind for kind, _ in agents.sums} == {"and", "copy", "sum"}
        # The default group's job, and one of the gradients' own.
        assert len(agents.submitted) == 2
    expected = [-9 if rank == 1 and "dead" in steps else 0 for rank in range(RANKS)]
    assert [rank.returncode for rank in ranks] == expected, printed
    found = [re.search(r"^came (.*)$", text, re.MULTILINE) for text in printed]
    return [json.loads(each[1]) if each is not None else [] for each in found]


@pytest.mark.parametrize("where", ["gloo", "hopsum"])
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3, 4))])
def test_every_gradient_is_the_mean_of_its_iteration(where: str, seed: int) -> None:
    steps = 20
    came = came_of(where, seed, *["skips"] * steps)
    assert [each[:steps] for each in came] == [[[]] * steps] * RANKS
    orders = [each[steps] for each in came]
    assert orders == [orders[0]] * RANKS
    # One of them under the name that comes first.
    assert set(orders[0]) == {"also", *(f"own.{place}" for place in range(1, 7)), "words.weight"}


@pytest.mark.parametrize("where", ["gloo", "hopsum"])
def test_an_iteration_fails_at_all_ranks_with_names_and_the_next_one_works(where: str) -> None:
    steps = ["skips", "twice", "skips", "replaced", "skips", "sparse", "skips", "nan", "skips"]
    came = came_of(where, 5, *steps)
    texts = {
        "twice": "iteration 1: rank 1: own.2 became ready twice",
        "replaced": "iteration 3: rank 1: own.1.grad was replaced",
        "sparse": "iteration 5: rank 1: words.weight has a sparse gradient",
        # Over gloo NaNs pass.
        "nan": r"iteration 7: words.weight: .*rank 1 \(h2\): element 0 is nan",
    }
    for each in came:
        for step, found in zip(steps, each, strict=False):
            if step == "skips" or (step, where) == ("nan", "gloo"):
                assert found == []
            else:
                assert str(found).startswith("SumRefused: ordered gradients, ")
                assert re.search(texts[step], str(found))


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("gloo", "rank 1 gave no answer"),
        ("hopsum", r"the process on h2 disconnected .*\(h2 is rank 1\)"),
    ],
)
def test_a_rank_that_dies_is_named_by_all_others(where: str, text: str) -> None:
    came = came_of(where, 6, "skips", "dead", "skips")
    for rank in (0, 2):
        first, *others, _ = came[rank]
        assert first == []
        for error in others:
            assert re.match(f"GroupLost: .*{text}", str(error))


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ("differs", "parameter own.7: none at rank 0, float32, shape \\[5\\] at rank 1"),
        ("apart", "rank 0 is in iteration 0, rank 1 in 1"),
    ],
)
def test_ranks_that_do_not_fit_together_are_named(step: str, text: str) -> None:
    came = came_of("gloo", 7, step)
    assert all(re.match(f"NoAgreement: .*{text}", str(each[0])) for each in came), came


@pytest.mark.parametrize("where", ["gloo", "hopsum"])
def test_a_mixture_of_experts_trains_as_with_ddp(where: str) -> None:
    agents = Agents(RANKS)
    names = list(agents.names.values()) if where == "hopsum" else ["none"] * RANKS
    printed = run(names, SUPPORT / "ordered_training.py", where, str(EXAMPLE))
    agents.close()
    for text in printed:
        found = re.search(r"^came (.*)$", text, re.MULTILINE)
        assert found is not None, text
        difference, *losses = json.loads(found[1])
        assert difference < 1e-5
        assert losses[0::2] == pytest.approx(losses[1::2], rel=1e-4)


@pytest.fixture
def alone() -> Iterator[None]:
    """Provide a group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    for thread in threading.enumerate():
        if thread.name == "ordered gradients":
            thread.join()


@pytest.mark.usefixtures("alone")
def test_gradients_after_an_interrupted_synchronize_join_no_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or those of the next step would be summed with the others' of this one."""
    going_on = threading.Event()
    monkeypatch.setattr(OrderedGradients, "_cycle", lambda _: going_on.wait())
    model = torch.nn.Linear(2, 2)
    ordered = OrderedGradients(model)
    model(torch.ones(2)).sum().backward()
    # A shell's jobs in the background ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = (threading.main_thread().ident, signal.SIGINT)
    threading.Timer(0.2, signal.pthread_kill, interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            ordered.synchronize()
    finally:
        signal.signal(signal.SIGINT, before)
        monkeypatch.undo()
        going_on.set()
    # Should it end the iteration all the same.
    [thread] = [each for each in threading.enumerate() if each.name == "ordered gradients"]
    thread.join()
    model(torch.ones(2)).sum().backward()
    with pytest.raises(RuntimeError, match="iteration 0 was interrupted"):
        ordered.synchronize()


@pytest.mark.usefixtures("alone")
def test_gradients_that_were_accumulated_and_cleared_are_lacking() -> None:
    model = torch.nn.Linear(2, 2)
    ordered = OrderedGradients(model)
    with ordered.no_sync():
        model(torch.ones(2)).sum().backward()
    model.weight.grad = None
    ordered.synchronize()
    assert model.weight.grad is None
    assert model.bias.grad.tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("alone")
def test_a_closed_one_leaves_gradients_alone() -> None:
    model = torch.nn.Linear(2, 2)
    ordered = OrderedGradients(model)
    model(torch.ones(2)).sum().backward()
    ordered.synchronize()
    assert ordered.iteration == 1
    ordered.close()
    model(torch.ones(2)).sum().backward()
    assert model.bias.grad.tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match="closed"):
        ordered.synchronize()


@pytest.mark.usefixtures("alone")
def test_parameters_elsewhere_are_refused() -> None:
    with pytest.raises(ValueError, match="weight is not on the CPU"):
        OrderedGradients(torch.nn.Linear(2, 2, device="meta"))
