"""Run as a rank by tests that end a training: it sums until it is ended, and says that it does."""

from __future__ import annotations

import torch
import torch.distributed as dist

dist.init_process_group("hopsum")
step = 0
while True:
    values = torch.ones(1000)
    dist.all_reduce(values)
    assert values[0] == dist.get_world_size()
    step += 1
    if step % 20 == 0:
        print(f"step {step}", flush=True)
