"""Run as a rank: delegated calls that fail. Prints their errors by name, as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
errors: dict[str, str] = {}
PREMUL = dist._make_nccl_premul_sum(2.0)


def fails(name: str, call: Callable[[], object]) -> None:
    try:
        call()
    except RuntimeError as error:
        # The first line: others are addresses of C++, and times.
        errors[name] = str(error).splitlines()[0]


def reductions(name: str, dtype: torch.dtype, op: object) -> None:
    values, part = torch.ones(2 * size, dtype=dtype), torch.ones(2, dtype=dtype)
    parts = list(values.chunk(size))
    fails(f"reduce_scatter_tensor {name}", lambda: dist.reduce_scatter_tensor(part, values, op))
    fails(f"reduce_scatter {name}", lambda: dist.reduce_scatter(part, parts, op))
    fails(f"all_reduce {name}", lambda: dist.all_reduce(values, op))
    fails(f"reduce {name}", lambda: dist.reduce(values, 0, op))


reductions("int16", torch.int16, dist.ReduceOp.SUM)
reductions("average int64", torch.int64, dist.ReduceOp.AVG)
reductions("factor", torch.float32, PREMUL)
fails("broadcast int16", lambda: dist.broadcast(torch.ones(3, dtype=torch.int16), 0))
model = torch.nn.Linear(6, 6, bias=False)
fully_shard(model)
model.set_gradient_divide_factor(3.0)  # type: ignore[operator]
fails("divide factor", lambda: model(torch.ones(2, 6)).sum().backward())
# In a group of its own, which has a shorter time.
late = dist.new_group(timeout=timedelta(seconds=2))
dist.barrier()
if rank == 0:
    values = torch.ones(2 * size, dtype=torch.int64)
    for name, call in (
        ("reduce_scatter", lambda: dist.reduce_scatter_tensor(values[:2], values, group=late)),
        ("all_reduce", lambda: dist.all_reduce(values, group=late)),
        ("gather", lambda: dist.gather(values, [values.clone() for _ in range(size)], group=late)),
    ):
        fails(f"{name} alone", call)
dist.barrier()
print("errors", json.dumps(errors), flush=True)
os._exit(0)
