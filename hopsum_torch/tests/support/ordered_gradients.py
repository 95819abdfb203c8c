"""Run as a rank: steps with ordered gradients. Prints as JSON what came of each: the error, or the
parameters whose gradients are not what they must be.

python ordered_gradients.py BACKEND SEED STEP... STEP: skips (ranks use some of the parameters, in
orders of their own, with delays), or what rank 1 does: twice (uses a parameter twice), replaced
(replaces a gradient), nan, sparse, dead (is killed in the middle). At first: differs (rank 1 has
another parameter), apart (rank 1 begins with another iteration).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from random import Random

import torch
import torch.distributed as dist

from hopsum_torch.ordered import OrderedGradients

backend, seed, *steps = sys.argv[1:]
dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
SHAPES = [(3,), (40, 30), (2, 2, 2), (1000,), (9000,), (), (64, 3)]


class Model(torch.nn.Module):
    """Parameters, one of them frozen, one known by two names, and one of an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.nn.ParameterList(torch.full(each, float(rank)) for each in SHAPES)
        self.also = self.own[0]
        self.frozen = torch.nn.Parameter(torch.full((4,), float(rank)), requires_grad=False)
        self.words = torch.nn.Embedding(5, 2, sparse=True)


def value(number: int, of_rank: int, place: int) -> float:
    """Return the gradient of a parameter at a rank in a step, which no other has."""
    return 1000.0 * number + 100 * of_rank + place + 1


def plan(number: int, of_rank: int) -> list[int]:
    """Return the parameters that a rank uses in a step, in its order."""
    random = Random(f"{seed} {number} {of_rank}")
    return random.sample(range(len(SHAPES)), random.randint(0, len(SHAPES)))


def backward(number: int, place: int) -> None:
    (model.own[place] * value(number, rank, place)).sum().backward()


def skips(number: int) -> list[str]:
    """Take a step; return which gradients are wrong, and how."""
    random = Random(f"{seed} {number} {rank} delays")
    for place in plan(number, rank):
        if random.random() < 0.3:
            time.sleep(random.random() / 30)
        if random.random() < 0.3:
            with ordered.no_sync():
                (model.own[place] * -1000.0).sum().backward()
            (model.own[place] * 1000.0).sum()
            (model.own[place] * (1000.0 + value(number, rank, place))).sum().backward()
        elif random.random() < 0.2:
            with ordered.no_sync():
                backward(number, place)
        else:
            backward(number, place)
    ordered.synchronize()
    wrong = []
    for place, parameter in enumerate(model.own):
        who = [each for each in range(size) if place in plan(number, each)]
        mean = sum(value(number, each, place) for each in who) / size
        grad = parameter.grad
        right = (
            grad is None
            if not who
            else grad is not None and bool(torch.isclose(grad, torch.tensor(mean), rtol=1e-5).all())
        )
        if not right:
            wrong.append(f"{place}: {grad}, expected {mean if who else None}")
    return wrong


def take(number: int, step: str) -> list[str]:
    if step == "skips":
        return skips(number)
    for place in range(len(SHAPES)):
        if rank == 1 and step == "dead" and place == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        backward(number, place)
    if rank == 1 and step == "twice":
        backward(number, 2)
    elif rank == 1 and step == "replaced":
        model.own[1].grad = torch.ones(SHAPES[1])
    elif rank == 1 and step == "nan":
        (model.words.weight.sum() * float("nan")).backward()
    elif rank == 1 and step == "sparse":
        model.words(torch.tensor([1])).sum().backward()
    ordered.synchronize()
    return []


came: list[list[str] | str] = []
try:
    model = Model()
    if steps[0] == "differs" and rank == 1:
        model.own.append(torch.ones(5))
    ordered = OrderedGradients(model, iteration=rank if steps[0] == "apart" else 0)
    assert all(float(each.sum()) == 0 for each in [*model.own, model.frozen])
    for number, step in enumerate(steps):
        try:
            came.append(take(number, step))
        except RuntimeError as error:
            came.append(f"{type(error).__name__}: {error}")
        model.zero_grad()
    came.append(list(ordered.order))
    ordered.close()
except RuntimeError as error:
    came.append(f"{type(error).__name__}: {error}")
print("came", json.dumps(came), flush=True)
# All have their errors before the first leaves, and rank 0, which has the store, is the last.
others = [each for each in range(1, size) if each != 1 or "dead" not in steps]
store.set(f"over/{rank}", "")
store.wait([f"over/{each}" for each in (0, *others)])
store.set(f"left/{rank}", "")
if not rank:
    store.wait([f"left/{each}" for each in others])
