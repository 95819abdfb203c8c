"""Run as a rank: options of groups, which rank 1 has otherwise. Prints as JSON what it meets.

python differing.py default|sub-group|mesh|environment|bits. `default`: rank 1's default group has
another option; `sub-group`: its sub-group, and the default group lets NaNs pass; `mesh`: none has
another, and a dimension of a mesh its own; `environment`, `bits`: rank 1 has a
variable that says nothing.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from hopsum_torch import Options

which, rank, size = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
odd = rank == 1
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(address, port, size, is_master=not rank)
met: dict[str, str] = {}


def join(options: Options | None = None) -> None:
    dist.init_process_group("hopsum", store=store, rank=rank, world_size=size, pg_options=options)


def sum_nan(name: str, group: dist.ProcessGroup | None = None) -> None:
    tensor = torch.tensor([1.0, float("nan")])
    try:
        dist.all_reduce(tensor, group=group)
        met[name] = str(tensor.tolist())
    except RuntimeError as error:
        met[name] = type(error).__name__


def act() -> None:
    if which == "environment":
        if odd:
            os.environ["HOPSUM_NONFINITE"] = "allow"
        join()
    if which == "bits":
        if odd:
            os.environ["HOPSUM_WIRE_BITS"] = "17"
        join()
    join(Options("refuse" if odd and which == "default" else "pass"))
    sum_nan("default")
    if which == "sub-group":
        same = dist.new_group([0, 1])
        if rank < 2:
            sum_nan("inherited", same)
            dist.new_group([0, 1], pg_options=Options("refuse" if odd else None))
        return
    mesh = init_device_mesh(
        "cpu", (2, 2), mesh_dim_names=("rows", "columns"), backend_override={1: Options("refuse")}
    )
    sum_nan("rows", mesh.get_group("rows"))
    sum_nan("columns", mesh.get_group("columns"))


try:
    act()
except RuntimeError as raised:
    met["raised"] = f"{type(raised).__name__}: {raised}"
print("met", json.dumps(met), flush=True)
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
# Rank 0, which has the store, is the last.
store.set(f"over/{rank}", "")
if rank == 0:
    store.wait([f"over/{each}" for each in range(size)])
