"""A small model, how the PyTorch tests train it, and groups of ranks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from host_agent.torch_backend import HopsumGroup
from tests.support.machine import PATIENCE as SECONDS

PATIENCE = timedelta(seconds=SECONDS)


def together(size: int, act: Callable[[HopsumGroup, int], Any]) -> list[Any]:
    """What each rank of a group comes to, a thread each."""
    store = dist.HashStore()

    def rank_acts(rank: int) -> Any:
        group = HopsumGroup(store, rank, size, PATIENCE)
        try:
            return act(group, rank)
        finally:
            group.shutdown()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank_acts, range(size)))


def model() -> torch.nn.Module:
    """Always the same one."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def train(net: torch.nn.Module, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """All parameters, flat, after five steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), targets).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def check_training_together() -> None:
    """Of the process group: the same model comes of training it together and alone."""
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(size * 4, 8, generator=generator)
    targets = torch.randint(3, (size * 4,), generator=generator)
    shared = train(DistributedDataParallel(model()), images[rank::size], targets[rank::size])
    torch.testing.assert_close(shared, train(model(), images, targets))
    everyone: list[object] = [None] * size
    dist.all_gather_object(everyone, shared.tolist())
    assert all(other == everyone[0] for other in everyone)
