"""Run on each worker's host by test_torch_in_network: sums and trains through the switches."""

from __future__ import annotations

import torch
import torch.distributed as dist

import host_agent.torch_backend as backend
from tests.unit.torch_models import check_training_together

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

check_training_together()
dist.destroy_process_group()
