"""Run as a rank: means of integers, contiguous and strided, waited for and not."""

from __future__ import annotations

import torch
import torch.distributed as dist

dist.init_process_group("hopsum")
rank, size = dist.get_rank(), dist.get_world_size()
for dtype in (torch.int64, torch.int32, torch.uint8):
    values = torch.tensor([[rank, 9], [7 * rank, 2]], dtype=dtype)
    strided = values.clone().T
    dist.all_reduce(values, dist.ReduceOp.AVG)
    work = dist.all_reduce(strided, dist.ReduceOp.AVG, async_op=True)
    work.wait()
    ranks = size * (size - 1) // 2
    expected = [[ranks // size, 9], [7 * ranks // size, 2]]
    assert values.tolist() == expected, values
    assert strided.T.tolist() == expected, strided
dist.destroy_process_group()
