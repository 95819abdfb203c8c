"""Run as a rank: a training with a loss scaler, whose scale is too great at first, and grows again.

python scaling.py BACKEND KIND. KIND: ddp, hook (gradients are sent as float16), zero
(ZeroRedundancyOptimizer), fsdp2. Prints as JSON of each step the scale, whether it was skipped, and
the sum and the magnitude of this rank's parameters. The gradients of rank 1 are greater than the
others', so it is the first whose gradients are infinite. A process is forked meanwhile.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import hopsum_torch

STEPS = 14
FIRST = {"hook": 2.0**20}
"""The scale at first; with others than these beyond what float32 gradients allow."""


def model_of(kind: str) -> Any:
    """Return a model, the same at all ranks."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(24, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3)]
    model: Any = torch.nn.Sequential(*layers)
    if kind == "fsdp2":
        for layer in (layers[0], layers[2], model):
            fully_shard(layer)
        return model
    # Several buckets.
    model = DistributedDataParallel(model, bucket_cap_mb=0.001)
    if kind == "hook":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return model


def whole(model: Any) -> torch.Tensor:
    """Return this rank's parameters, flat."""
    parts = [getattr(each, "_local_tensor", each).detach() for each in model.parameters()]
    return torch.cat([part.reshape(-1) for part in parts]).double()


def main() -> None:
    """Train, and print what came of it."""
    backend, kind = sys.argv[1:]
    options = None if backend == "gloo" else hopsum_torch.Options(nonfinite="pass")
    dist.init_process_group(backend, pg_options=options)
    rank = dist.get_rank()
    model = model_of(kind)
    optimizer: Any = (
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        if kind == "zero"
        else torch.optim.SGD(model.parameters(), lr=0.1)
    )
    first = FIRST.get(kind, 2.0**127)
    scaler = torch.amp.GradScaler("cpu", init_scale=first, growth_interval=3)
    steps = []
    for number in range(STEPS):
        generator = torch.Generator().manual_seed(100 * rank + number)
        values = torch.randn(16, 24, generator=generator)
        targets = torch.randint(3, (16,), generator=generator)
        before, scale = whole(model), scaler.get_scale()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(values), targets)
        scaler.scale(loss * (40.0 if rank == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        after = whole(model)
        skipped = scaler.get_scale() < scale
        assert skipped == torch.equal(before, after), (number, skipped)
        assert after.isfinite().all()
        steps.append([scale, skipped, float(after.sum()), float(after.norm())])
        if number == STEPS // 2 and not os.fork():
            # As a worker of a data loader, which ends as any process does.
            atexit._run_exitfuncs()
            os._exit(0)
    assert os.wait()[1] == 0
    print("steps", json.dumps(steps), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
