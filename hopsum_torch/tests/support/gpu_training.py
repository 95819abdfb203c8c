"""Run as a rank: python gpu_training.py DEVICE ddp|fsdp, a training of ranks that share a device.

Prints the losses of its steps, and those of the same training by one process.
"""

from __future__ import annotations

import gc
import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from hopsum_torch.shared_memory import Memory

STEPS, BATCH, WIDTH, CLASSES = 20, 64, 512, 10

device, way = torch.device(sys.argv[1]), sys.argv[2]
dist.init_process_group("cpu:gloo,cuda:hopsum" if device.type == "cuda" else "hopsum")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
inputs = torch.randn(BATCH, WIDTH).to(device)
targets = torch.randint(CLASSES, (BATCH,)).to(device)


def model() -> nn.Sequential:
    """The same at each call and rank."""
    torch.manual_seed(2)
    layers = (nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU())
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).to(device)


def train(net: nn.Module, part: slice) -> torch.Tensor:
    """The loss of each step, of a part of the batch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs[part]), targets[part])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


alone = train(model(), slice(None))
net: nn.Module = model()
if way == "ddp":
    net = DistributedDataParallel(net)
else:
    group = dist.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, device.type)
    for layer in net.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
losses = train(net, slice(rank, None, size))
dist.all_reduce(losses, dist.ReduceOp.AVG)
memories = [each for each in gc.get_objects() if isinstance(each, Memory)]
said = {
    "losses": losses.tolist(),
    "alone": alone.tolist(),
    "pinned": [memory.pinned for memory in memories],
}
print("said", json.dumps(said))
dist.destroy_process_group()
