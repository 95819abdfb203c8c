"""Run on each worker's host by test_torch_in_network: sums and trains through the switches."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import host_agent.torch_backend as backend
from tests.unit.torch_models import model, train

ELEMENTS = 100_000

dist.init_process_group(backend.NAME)
rank, size = dist.get_rank(), dist.get_world_size()

whole = torch.arange(ELEMENTS, dtype=torch.int32) * (rank + 1)
dist.all_reduce(whole)
times = size * (size + 1) // 2
assert torch.equal(whole, torch.arange(ELEMENTS, dtype=torch.int32) * times)
long = torch.full((10,), 1 << 40, dtype=torch.int64)
dist.all_reduce(long)
assert torch.equal(long, torch.full((10,), size << 40, dtype=torch.int64))

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
