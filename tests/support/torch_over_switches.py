"""Run on each worker's host by test_torch_in_network: sums and trains through the switches.

At the end a gradient is left out by one rank.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

import host_agent.torch_backend as backend
from coordination.failure import IterationMismatch
from host_agent.torch_gradients import OrderedGradients
from tests.support.torch_models import check_training_together

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

net = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.zeros(5)) for name in "ab"})
gradients = OrderedGradients(net)
told = ""
for iteration in (1, 2, 3, 4):
    net.zero_grad()
    names = "a" if (rank, iteration) == (1, 3) else "ab"
    sum((net[name] * (10 * iteration + rank)).sum() for name in names).backward()
    try:
        gradients.wait(60)
    except IterationMismatch as error:
        told = f"{iteration}: {error}"
        break
    for name in names:
        expected = torch.full((5,), 10 * iteration + (size - 1) / 2)
        torch.testing.assert_close(net[name].grad, expected)
gradients.close()
assert told.startswith("3: operator b, iteration 3: rank 1 ended it without"), told
dist.destroy_process_group()
