"""A rank of two that train, or the third, which joins them after some steps; nobody starts again.

joining.py STEPS: prints after each step its process, how many ranks there are, and the loss.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank, steps = int(os.environ["RANK"]), int(sys.argv[1])
# Outlives the groups: where ranks say that they want to join, and the groups' own stores.
lobby = dist.TCPStore(
    os.environ["MASTER_ADDR"],
    int(os.environ["MASTER_PORT"]),
    is_master=rank == 0,
    wait_for_workers=False,
    timeout=timedelta(minutes=5),
)
torch.manual_seed(1)
samples, targets = torch.randn(48, 16), torch.randn(48, 1)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def meet(size: int, step: int) -> tuple[DistributedDataParallel, int]:
    """Form a group of `size` ranks that all go on from rank 0's state, and return its step."""
    store = dist.PrefixStore(f"of {size}", lobby)
    dist.init_process_group("hopsum", store=store, rank=rank, world_size=size)
    state = [net.state_dict(), optimizer.state_dict(), step]
    dist.broadcast_object_list(state)
    net.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    return DistributedDataParallel(net), state[2]


size, step = 2, 0
if rank == 2:
    lobby.wait(["step 5"])
    lobby.set("joins", "")
    size = 3
trained, step = meet(size, step)
while step < steps:
    # All see it before the same step, as rank 0 alone has looked.
    joins = torch.tensor(
        [int(size < 3 and rank == 0 and lobby.check(["joins"]))], dtype=torch.int32
    )
    dist.all_reduce(joins)
    if joins:
        dist.destroy_process_group()
        size = 3
        trained, step = meet(size, step)
        continue  # as the one that has joined
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(trained(samples[rank::size]), targets[rank::size])
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    step += 1
    if rank == 0:
        lobby.set(f"step {step}", "")
    print(f"process {os.getpid()}, {size} ranks, step {step}: loss {mean:.6f}", flush=True)
    if step == 8 and size == 2:
        # However slow the third is: what follows is for three.
        lobby.wait(["joins"])
dist.destroy_process_group()
