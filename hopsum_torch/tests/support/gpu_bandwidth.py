"""Run as a rank: python gpu_bandwidth.py DEVICE, copies and all-reduces of tensors there.

Prints a row for each size: bytes per second of copies between the device and shared memory, as it
is and pinned, and of the tensors of all-reduces.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from hopsum_torch.pinned import pin
from hopsum_torch.shared_memory import Memory

SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
"""Bytes."""
REPEATS = 5

device = torch.device(sys.argv[1])
dist.init_process_group("cpu:gloo,cuda:hopsum" if device.type == "cuda" else "hopsum")


def rate(size: int, function: Callable[..., object], *arguments: object) -> float:
    """Bytes per second of calls that move `size` bytes each, by their median without the first."""
    taken = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        function(*arguments)
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return size / median(taken[1:])


rows = []
for size in SIZES:
    row: dict[str, float] = {"bytes": size}
    memory, there = Memory(0, size), torch.ones(size, dtype=torch.uint8, device=device)
    here = torch.from_numpy(memory.bytes[:size])
    for name in ("pageable", "pinned"):
        if name == "pinned":
            if device.type != "cuda":
                continue
            pin(memory)
        row[f"to_{name}"] = rate(size, here.copy_, there)
        row[f"from_{name}"] = rate(size, there.copy_, here)
    memory.close_descriptor()
    values = torch.ones(size // 4, device=device)
    row["all_reduce"] = rate(size, dist.all_reduce, values, dist.ReduceOp.AVG)
    rows.append(row)
print("said", json.dumps(rows))
dist.destroy_process_group()
