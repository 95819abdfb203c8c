"""Run as a rank: a monitored barrier, and one that rank 1 does not reach. Prints its error as JSON.

python monitoring.py late|dead MILLISECONDS (of its timeout; dead: rank 1 is killed before it).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta

import torch.distributed as dist

dist.init_process_group("hopsum")
rank = dist.get_rank()
group = dist.group.WORLD
assert group is not None
store = dist.distributed_c10d._get_default_store()
group.monitored_barrier(wait_all_ranks=True)
if rank == 1 and sys.argv[1] == "dead":
    os.kill(os.getpid(), signal.SIGKILL)
error = ""
if rank != 1:
    try:
        group.monitored_barrier(timedelta(milliseconds=int(sys.argv[2])), wait_all_ranks=True)
    except RuntimeError as raised:
        error = f"{type(raised).__name__}: {raised}"
print("error", json.dumps(error), flush=True)
store.set(f"over/{rank}", "")
# Rank 0, which has the store, is the last.
if rank:
    store.wait(["over/0"])
    store.set(f"left/{rank}", "")
else:
    store.wait(["left/2"])
dist.destroy_process_group()
