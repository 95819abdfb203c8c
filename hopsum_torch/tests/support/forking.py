"""Run as a rank that forks: a process that ends at once, and one that outlives rank 1, which dies.

Prints as JSON what calls raise in a forked process, and the error of a call after that.
"""

from __future__ import annotations

import atexit
import json
import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("hopsum")
rank, size = dist.get_rank(), dist.get_world_size()
pending = dist.all_reduce(torch.ones(3), async_op=True)
ours, childs = os.pipe()
if not os.fork():
    errors = []
    for call in (lambda: dist.all_reduce(torch.ones(3)), pending.wait):
        try:
            call()
        except RuntimeError as error:
            errors.append(f"{type(error).__name__}: {error}")
    os.write(childs, json.dumps(errors).encode())
    atexit._run_exitfuncs()
    os._exit(0)
assert os.wait()[1] == 0
pending.wait()
for _ in range(3):
    after = torch.full((5,), rank + 1.0)
    dist.all_reduce(after)
    assert after.tolist() == [size * (size + 1) / 2] * 5
print("forked", os.read(ours, 1 << 16).decode(), flush=True)
if rank == 1:
    if not os.fork():
        # Until the others have noticed, as they end after that.
        os.close(1)
        os.close(2)
        dist.distributed_c10d._get_default_store().wait(["over/0", "over/2"])
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(torch.ones(3))
except RuntimeError as error:
    print("dead", str(error), flush=True)
store = dist.distributed_c10d._get_default_store()
store.set(f"over/{rank}", "")
# Rank 0, which has the store, is the last.
if rank:
    store.wait(["over/0"])
    store.set(f"left/{rank}", "")
else:
    store.wait(["left/2"])
dist.destroy_process_group()
