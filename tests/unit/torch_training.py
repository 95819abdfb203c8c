"""Run by torchrun in test_torch_backend: trains two models alike, one of them alone."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import host_agent.torch_backend as backend
from tests.unit.torch_models import model, train

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
