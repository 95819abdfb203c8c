"""Run as a rank of four: sums of two sub-groups, and the error of one; prints them as JSON."""

from __future__ import annotations

import json
import warnings

import torch
import torch.distributed as dist

warnings.simplefilter("always")
dist.init_process_group("hopsum")
rank = dist.get_rank()
with warnings.catch_warnings(record=True) as caught:
    outer, inner = dist.new_group([0, 3]), dist.new_group([1, 2])
mine = outer if rank in (0, 3) else inner
tensor = torch.tensor([float(rank), 1.0])
dist.all_reduce(tensor, group=mine)
error = ""
wrong = torch.full((3,), float("nan") if rank == 2 else 1.0)
try:
    dist.all_reduce(wrong, group=mine)
except RuntimeError as raised:
    error = str(raised)
dist.all_reduce(tensor)
said = {
    "sum": tensor.tolist(),
    "error": error,
    "warned": [str(each.message) for each in caught],
}
print("said", json.dumps(said))
dist.destroy_process_group(mine)
dist.all_reduce(tensor)
dist.destroy_process_group()
