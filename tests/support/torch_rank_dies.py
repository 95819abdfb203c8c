"""Run on each worker's host by test_torch_in_network: rank 1 is killed in mid-training.

Prints how long the other waited for the error, in seconds, and the error.
"""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist

dist.init_process_group("hopsum")
for _ in range(3):
    dist.all_reduce(torch.ones(1000))
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
try:
    dist.all_reduce(torch.ones(1000))
except RuntimeError as error:
    print("error", time.monotonic() - began, " ".join(str(error).split()), flush=True)
