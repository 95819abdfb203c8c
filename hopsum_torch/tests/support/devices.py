"""Run as a rank: python devices.py DEVICE, all kinds of calls with tensors there.

Prints whether results are as expected, and whether shared memory is pinned.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys

import torch
import torch.distributed as dist

from hopsum_torch.shared_memory import Memory

device = torch.device(sys.argv[1])
dist.init_process_group("cpu:hopsum,cuda:hopsum")
rank, size = dist.get_rank(), dist.get_world_size()
# Work on another stream than the one on which results are copied back.
stream = (
    torch.cuda.stream(torch.cuda.Stream(device))
    if device.type == "cuda"
    else contextlib.nullcontext()
)
wrong = []


def check(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    if not torch.equal(found.cpu(), expected):
        wrong.append(name)


with stream:
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8):
        tensor = (torch.arange(3000, device=device) % 7 + rank).to(dtype)
        expected = sum((torch.arange(3000) % 7 + each).to(dtype) for each in range(size))
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        check(f"all-reduce {dtype}", tensor, expected)
    large = torch.full((200_000,), rank + 1.0, device=device)
    dist.all_reduce(large, dist.ReduceOp.AVG)
    check("AVG", large, torch.full((200_000,), (size + 1) / 2))
    part = torch.empty(1000, device=device)
    dist.reduce_scatter_tensor(part, torch.arange(1000.0 * size, device=device))
    check("reduce-scatter", part, size * torch.arange(1000.0 * rank, 1000.0 * (rank + 1)))
    gathered = torch.empty(5000 * size, device=device)
    dist.all_gather_into_tensor(gathered, torch.full((5000,), float(rank), device=device))
    check("all-gather", gathered, torch.arange(float(size)).repeat_interleave(5000))
    copied = torch.full((5000,), float(rank), device=device)
    dist.broadcast(copied, 1)
    check("broadcast", copied, torch.ones(5000))
    reduced = torch.full((50,), rank + 1, device=device, dtype=torch.int32)
    dist.reduce(reduced, 0, dist.ReduceOp.MAX)
    if rank == 0:
        check("reduce", reduced, torch.full((50,), size, dtype=torch.int32))
    dist.barrier()
memories = [each for each in gc.get_objects() if isinstance(each, Memory)]
print("said", json.dumps({"wrong": wrong, "pinned": [memory.pinned for memory in memories]}))
dist.destroy_process_group()
