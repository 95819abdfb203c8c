"""Run as a rank: steps of a training, some of which fail. Prints as JSON what came of each: the
error, or the sum of the parameters.

python failing_training.py KIND FAULT... KIND: ddp, hook (a communication hook in Python), zero
(ZeroRedundancyOptimizer), fsdp2. FAULT, of each step: none, nan or inf (in rank 1's gradient),
missing (rank 1 does not use a layer), late (rank 1 does not take the step), dead (rank 1 is killed
before it).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

kind, *faults = sys.argv[1:]
dist.init_process_group("hopsum")
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()


class Model(torch.nn.Module):
    """Two layers, the second of which a rank may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(40, 30)
        self.second = torch.nn.Linear(30, 30)

    def forward(self, values: torch.Tensor, *, whole: bool = True) -> torch.Tensor:
        values = self.first(values)
        return self.second(values) if whole else values


torch.manual_seed(0)
model: Any = Model()
if kind == "fsdp2":
    for layer in (model.first, model.second, model):
        fully_shard(layer)
else:
    # Each layer has a bucket.
    model = DistributedDataParallel(model, bucket_cap_mb=0.001)
if kind == "hook":
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
optimizer: Any = (
    ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    if kind == "zero"
    else torch.optim.SGD(model.parameters(), lr=0.1)
)
came: list[float | str] = []


def whole_sum() -> float:
    """Return the sum of the parameters; of what this rank has of them with FSDP2."""
    parts = [getattr(each, "_local_tensor", each).double().sum() for each in model.parameters()]
    return float(sum(parts))


def step(number: int, fault: str) -> None:
    """Take a step."""
    values = torch.full((8, 40), 0.01 * (rank + number))
    if rank == 1 and fault in ("nan", "inf"):
        values[0, 0] = float(fault)
    try:
        model(values, whole=rank != 1 or fault != "missing").sum().backward()
        optimizer.step()
        came.append(whole_sum())
    except RuntimeError as error:
        came.append(f"{type(error).__name__}: {error}")
    optimizer.zero_grad()


for number, fault in enumerate(faults):
    if fault in ("late", "missing"):
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
    if rank == 1 and fault == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank != 1 or fault != "late":
        step(number, fault)
print("came", json.dumps(came), flush=True)
# All have their errors before the first leaves, and rank 0, which has the store, is the last.
others = [each for each in range(1, size) if each != 1 or "dead" not in faults]
store.set(f"over/{rank}", "")
store.wait([f"over/{each}" for each in (0, *others)])
store.set(f"left/{rank}", "")
if not rank:
    store.wait([f"left/{each}" for each in others])
