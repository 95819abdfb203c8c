"""Run on each worker's host by test_torch_in_network: sums and trains through the switches."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ELEMENTS = 100_000


def model() -> torch.nn.Module:
    """Always the same one."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def train(net: torch.nn.Module, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """All parameters, flat, after five steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), targets).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def refused(tensor: torch.Tensor) -> str:
    """The error of a sum that is refused."""
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("there is a sum")


dist.init_process_group("hopsum")
rank, size = dist.get_rank(), dist.get_world_size()
times = size * (size + 1) // 2

whole = torch.arange(ELEMENTS, dtype=torch.int32) * (rank + 1)
dist.all_reduce(whole)
assert torch.equal(whole, torch.arange(ELEMENTS, dtype=torch.int32) * times)
for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8, torch.uint8):
    small = torch.full((3, 5), rank + 1, dtype=dtype)
    dist.all_reduce(small)
    torch.testing.assert_close(small, torch.full((3, 5), times, dtype=dtype))
mean = torch.full((1000,), float(rank))
dist.all_reduce(mean, dist.ReduceOp.AVG)
torch.testing.assert_close(mean, torch.full((1000,), (size - 1) / 2))

# Errors stay with their calls, and name ranks.
received = refused(torch.tensor([1.0, 2.0, float("nan") if rank == 1 else 3.0]))
assert "rank 1 (h2): element 2 is nan" in received, received
received = refused(torch.ones(10 + rank))
assert "the ranks make different calls" in received, received
received = refused(torch.full((4,), 1 << 30, dtype=torch.int32))
assert f"element 0: the sum is {size << 30}, beyond int32" in received, received
# Sums within 32 bits of what is not: the rest of the ranks submit nothing.
wide = torch.tensor([{0: (1 << 31) - 1, 1: -(1 << 31)}.get(rank, 0)], dtype=torch.int32)
dist.all_reduce(wide)
assert wide.item() == -1

dist.barrier()
largest = torch.tensor([rank])
dist.all_reduce(largest, dist.ReduceOp.MAX)
assert largest.item() == size - 1

generator = torch.Generator().manual_seed(2)
images = torch.randn(size * 4, 8, generator=generator)
targets = torch.randint(3, (size * 4,), generator=generator)
shared = train(DistributedDataParallel(model()), images[rank::size], targets[rank::size])
torch.testing.assert_close(shared, train(model(), images, targets))
everyone: list[object] = [None] * size
dist.all_gather_object(everyone, shared.tolist())
assert all(other == everyone[0] for other in everyone)
dist.destroy_process_group()
