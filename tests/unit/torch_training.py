"""Run by torchrun in test_torch_backend: trains two models alike, one of them alone."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import host_agent.torch_backend as backend


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def train(net: torch.nn.Module, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), targets).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


dist.init_process_group(backend.NAME)
rank, size = dist.get_rank(), dist.get_world_size()
generator = torch.Generator().manual_seed(2)
images = torch.randn(size * 4, 8, generator=generator)
targets = torch.randint(3, (size * 4,), generator=generator)
together = train(DistributedDataParallel(model()), images[rank::size], targets[rank::size])
alone = train(model(), images, targets)
torch.testing.assert_close(together, alone)
everyone: list[object] = [None] * size
dist.all_gather_object(everyone, together.tolist())
assert all(other == everyone[0] for other in everyone)
dist.destroy_process_group()
