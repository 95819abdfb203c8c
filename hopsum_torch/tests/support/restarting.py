"""Run by torchrun --max-restarts 1: rank 1 is killed in the first attempt, and the second is whole.

Prints on each rank which attempt it is and what was summed; what ended the first attempt is raised.
"""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("hopsum")
rank, size = dist.get_rank(), dist.get_world_size()
for step in range(4):
    if (attempt, rank, step) == (0, 1, 2):
        os.kill(os.getpid(), signal.SIGKILL)
    values = torch.full((300,), float(rank + step))
    dist.all_reduce(values)
    assert values.tolist() == [float(size * (size - 1) // 2 + size * step)] * 300
everyone: list[object] = [None] * size
dist.all_gather_object(everyone, rank)
print(f"rank {rank}, attempt {attempt}: {step + 1} sums, {everyone}", flush=True)
dist.destroy_process_group()
