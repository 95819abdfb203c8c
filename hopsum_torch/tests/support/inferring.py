"""Run as a rank: collectives in inference mode. Prints `over` at the end."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

dist.init_process_group("hopsum")
rank, size = dist.get_rank(), dist.get_world_size()
LARGE = 1 << 17
"""Elements of a result that is taken out in the background."""

with torch.inference_mode():
    for elements in (3, LARGE):
        made = torch.full((elements,), rank + 1.0)
        dist.all_reduce(made)
        assert made.eq(size * (size + 1) / 2).all()
        dist.broadcast(made.fill_(rank), 1)
        assert made.eq(1).all()
        gathered = torch.empty(size * elements)
        dist.all_gather_into_tensor(gathered, made.fill_(rank))
        assert gathered.view(size, -1).eq(torch.arange(size).view(-1, 1)).all()
        part = torch.empty(elements)
        dist.reduce_scatter_tensor(part, gathered)
        assert part.eq(size * rank).all()

# Outside, too; and a result that is made outside may be waited for inside.
dist.all_reduce(made)
ordinary = torch.ones(3, requires_grad=True)
with torch.inference_mode():
    dist.all_reduce(ordinary)
assert ordinary.tolist() == [size] * 3
work = dist.all_reduce(torch.ones(3), async_op=True)
with torch.inference_mode():
    work.wait()

names = [thread.name for thread in threading.enumerate()]
assert "hopsum agent" in names, names
dist.all_reduce(torch.ones(LARGE), async_op=True).get_future().wait()
print("over", flush=True)
dist.destroy_process_group()
