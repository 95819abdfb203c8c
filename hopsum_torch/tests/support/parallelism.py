"""Run as one of four ranks: what uses groups beyond DDP. Prints what came of it as JSON.

python parallelism.py BACKEND FOLDER COMPILER, FOLDER for checkpoints, COMPILER of torch.compile.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

STEPS = 3


def compiled(compiler: str) -> list[float]:
    """Return what a compiled function with collectives in its graph returns, twice."""

    def function(values: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(values * 2, "sum", dist.group.WORLD)
        parts = functional.reduce_scatter_tensor(total + 1, "avg", 0, dist.group.WORLD)
        return functional.all_gather_tensor(parts.sin(), 0, dist.group.WORLD)

    faster = torch.compile(function, backend=compiler, fullgraph=True)
    values = torch.linspace(-1, 1, 4096) * (dist.get_rank() + 1)
    expected = function(values)
    assert torch.equal(faster(values), faster(values))
    assert torch.allclose(faster(values), expected, atol=1e-5)
    return [float(expected.sum()), float(expected.norm())]


def distributed(mesh: DeviceMesh) -> list[float]:
    """Return norms of a tensor as it takes one placement after the other."""
    whole = torch.arange(4096.0).reshape(64, 64) / 4096
    sharded = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    product = sharded @ sharded  # Partial somewhere
    replicated = product.redistribute(mesh, [Replicate(), Replicate()])
    assert torch.allclose(replicated.to_local(), whole @ whole, rtol=1e-4)
    assert torch.allclose(sharded.full_tensor(), whole)
    norm = sharded.norm()
    assert any(isinstance(each, Partial) for each in norm.placements) or norm.ndim == 0
    return [float(replicated.to_local().norm()), float(norm.full_tensor())]


def model_in_parallel(mesh: DeviceMesh) -> Any:
    """Return a model whose layers are split over the dimension `tensor`."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)]
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(torch.nn.Sequential(*layers), mesh["tensor"], plan)


def trained(model: Any, mesh: DeviceMesh) -> list[float]:
    """Train with tensor parallelism in one dimension, the same data in the other; the losses."""
    data, replicas = mesh["data"], mesh["data"].size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(10 * step + data.get_local_rank())
        optimizer.zero_grad()
        loss = model(torch.randn(16, 32, generator=generator)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            grad: Any = parameter.grad
            dist.all_reduce(grad.to_local(), group=data.get_group())
            grad.to_local().div_(replicas)
        optimizer.step()
        mean = functional.all_reduce(loss.detach(), "avg", data.get_group())
        losses.append(float(mean))
    return losses


def saved_and_loaded(model: Any, mesh: DeviceMesh, folder: str) -> list[float]:
    """Save a model's parts, load them into another one, and return its parameters' norms."""
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder)
    other = model_in_parallel(mesh)
    state = {"model": {name: torch.zeros_like(each) for name, each in other.state_dict().items()}}
    checkpoint.load(state, checkpoint_id=folder)
    other.load_state_dict(state["model"])
    for mine, loaded in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.to_local(), loaded.to_local())
    checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=f"{folder}-later").result()
    return [float(each.full_tensor().norm()) for each in other.parameters()]


def main() -> None:
    """Run all of it."""
    backend, folder, compiler = sys.argv[1:]
    dist.init_process_group(backend)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    found = {"compiled": compiled(compiler), "distributed": distributed(mesh)}
    model = model_in_parallel(mesh)
    found["trained"] = trained(model, mesh)
    found["loaded"] = saved_and_loaded(model, mesh, folder)
    print("found", json.dumps(found), flush=True)
    dist.destroy_process_group()


main()
