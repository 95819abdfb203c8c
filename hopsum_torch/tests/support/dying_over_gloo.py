"""Run as a rank: rank 1 dies while all others gather over gloo. Prints the errors that a rank got.

python dying_over_gloo.py default|sub-group, in which all ranks are.

All stay until every rank has its error: the exit of one would reach the others.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("hopsum")
rank, size = dist.get_rank(), dist.get_world_size()
group = dist.new_group() if sys.argv[1] == "sub-group" else None
parts = [torch.empty(1000) for _ in range(size)]
dist.all_gather(parts, torch.ones(1000), group)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
errors = []
try:
    while True:
        dist.all_gather(parts, torch.ones(1000), group)
except RuntimeError as error:
    errors += [time.monotonic() - began, str(error)]
try:
    dist.all_reduce(torch.ones(3, dtype=torch.float64), group=group)
except RuntimeError as error:
    errors.append(str(error))
print("errors", json.dumps(errors), flush=True)
store = dist.distributed_c10d._get_default_store()
store.set(f"errors/{rank}", "")
store.wait([f"errors/{each}" for each in range(size) if each != 1])
# Rank 0 has the store: it leaves last.
store.add("left", 1)
while rank == 0 and store.add("left", 0) < size - 1:
    pass
