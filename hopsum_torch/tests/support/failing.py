"""Run as a rank: calls that fail stay alone; then rank 1 dies. Prints the errors, as JSON."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

dist.init_process_group("hopsum")
rank, size = dist.get_rank(), dist.get_world_size()
errors: dict[str, str] = {}


def refused(
    name: str, tensor: torch.Tensor, call: Callable[[torch.Tensor], object] = dist.all_reduce
) -> None:
    try:
        call(tensor)
    except RuntimeError as error:
        errors[name] = str(error)


values = torch.ones(2, 3)
if rank == 1:
    values[1, 0] = -float("inf")
refused("infinite", values)
refused("shape", torch.ones(3 + (rank == 1)))
refused("type", torch.ones(3, dtype=torch.int32 if rank == 1 else torch.float32))
refused(
    "operation",
    torch.ones(3),
    lambda tensor: dist.barrier() if rank == 1 else dist.all_reduce(tensor),
)
refused("reduce", values.clone(), lambda tensor: dist.reduce(tensor, 2))
parts = torch.full((size, 2), float("nan") if rank == 0 else 1.0)
refused("scatter", parts, lambda tensor: dist.reduce_scatter_tensor(torch.empty(2), tensor))
refused("broadcast", torch.ones(2000 + rank), lambda tensor: dist.broadcast(tensor, 0))
assert len(errors) == 7, errors

after = torch.full((5,), rank + 1.0)
dist.all_reduce(after)
assert after.tolist() == [size * (size + 1) / 2] * 5
# Async: the error comes of the wait, and of the future.
work = dist.all_reduce(torch.tensor([float("nan")]), async_op=True)
try:
    work.get_future().wait()
except RuntimeError as error:
    errors["future"] = str(error)
assert not work.is_success()

if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
refused("dead", torch.ones(4))
errors["seconds"] = str(time.monotonic() - began)
refused("afterwards", torch.ones(4))
print("errors", json.dumps(errors), flush=True)
dist.destroy_process_group()
