"""Run as a rank: a monitored barrier, and one that rank 1 does not reach. Prints its error as JSON.

python monitoring.py late|dead|alone MILLISECONDS (of its timeout; dead: rank 1 is killed before it;
alone: rank 2 does not reach it either).
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
alone = sys.argv[1] == "alone"
if rank == 0 or (rank == 2 and not alone):
    within = timedelta(milliseconds=int(sys.argv[2]))
    try:
        # gloo waits for ever for all ranks without time.
        group.monitored_barrier(within, wait_all_ranks=not alone)
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
