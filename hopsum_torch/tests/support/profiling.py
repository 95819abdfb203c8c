"""Run as a rank: every operation under PyTorch's profiler. Prints its events of calls as JSON.

python profiling.py gloo|hopsum. Three ranks.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import profile, record_function

backend = sys.argv[1]
dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()
group: Any = dist.group.WORLD
store = dist.distributed_c10d._get_default_store()
MEANWHILE = "meanwhile"
LARGE = 4096


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def each(*shape: int) -> list[torch.Tensor]:
    return [ones(*shape) for _ in range(size)]


def at_root(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return tensors if rank == 0 else []


def one_to_another(receive: Callable[[], object]) -> object:
    return dist.send(ones(3), 1) if rank == 0 else receive() if rank == 1 else None


model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 4))
CALLS: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: dist.all_reduce(ones(2, 3)),
    "all_reduce int64": lambda: dist.all_reduce(ones(2, dtype=torch.int64)),
    "all_reduce strided": lambda: dist.all_reduce(ones(4, 6)[:, ::2]),
    "all_reduce coalesced": lambda: dist.all_reduce_coalesced([ones(2, 3), ones(4)]),
    "reduce": lambda: dist.reduce(ones(5), 0),
    "broadcast": lambda: dist.broadcast(ones(LARGE), 0),
    "broadcast small": lambda: dist.broadcast(ones(5), 0),
    "all_gather": lambda: dist.all_gather(each(LARGE), ones(LARGE)),
    "all_gather small": lambda: dist.all_gather(each(2, 3), ones(2, 3)),
    "all_gather single": lambda: dist.all_gather_into_tensor(ones(size * LARGE), ones(LARGE)),
    "all_gather coalesced": lambda: group.allgather_into_tensor_coalesced(
        [ones(size * 2), ones(size * 4)], [ones(2), ones(4)]
    ).wait(),
    "gather": lambda: dist.gather(ones(2, 3), at_root(each(2, 3)) or None),
    "scatter": lambda: dist.scatter(ones(2, 3), at_root(each(2, 3)) or None),
    "all_to_all": lambda: dist.all_to_all(each(2), each(2)),
    "all_to_all single": lambda: dist.all_to_all_single(ones(size), ones(size)),
    "barrier": dist.barrier,
    "DDP": lambda: model(ones(2, 3)).sum().backward(),
    "send, recv": lambda: one_to_another(lambda: dist.recv(ones(3), 0)),
    "send, recv from any": lambda: one_to_another(lambda: dist.recv(ones(3))),
}
REDUCE_SCATTERS: dict[str, Callable[[], object]] = {
    "list": lambda: dist.reduce_scatter(ones(2), each(2)),
    "single": lambda: dist.reduce_scatter_tensor(ones(4), ones(size * 4)),
    "over gloo": lambda: dist.reduce_scatter_tensor(
        ones(2, dtype=torch.int64), ones(size * 2, dtype=torch.int64)
    ),
}


def events(profiled: profile) -> list[list[Any]]:
    return [
        [event.name, event.input_shapes, event.is_async]
        for event in profiled.function_events
        if event.name.startswith(f"{backend}:")
    ]


def shown(call: Callable[[], object]) -> list[list[Any]]:
    with profile(record_shapes=True) as profiled:
        call()
    return events(profiled)


def within(tensor: torch.Tensor) -> bool:
    """Whether the event of an all-reduce covers what rank 0 does before the others call."""
    with profile() as profiled:
        if rank:
            store.wait([f"{tensor.dtype}"])
        work = dist.all_reduce(tensor, async_op=True)
        with record_function(MEANWHILE):
            ones(2)
        if rank == 0:
            store.set(f"{tensor.dtype}", "")
        work.wait()
    times = {event.name: event.time_range for event in profiled.function_events}
    whole, part = times[f"{backend}:all_reduce"], times[MEANWHILE]
    return rank > 0 or (whole.start <= part.start and part.end <= whole.end)


def fails(tensor: torch.Tensor) -> bool:
    try:
        dist.all_reduce(tensor)
    except RuntimeError:
        return True
    return False


found: dict[str, Any] = {"calls": {name: shown(call) for name, call in CALLS.items()}}
found["within"] = [within(ones(3)), within(ones(3, dtype=torch.int64))]
if backend == "hopsum":
    found["reduce-scatters"] = {name: shown(call) for name, call in REDUCE_SCATTERS.items()}
    # gloo sums what is not a number.
    assert fails(torch.tensor([float("nan")])) == (os.environ["HOPSUM_AGENT"] != "none")
    assert fails(ones(2, dtype=torch.int16))
    found["failed"] = [shown(lambda: fails(torch.tensor([float("nan")])))]
    found["failed"] += [shown(lambda: fails(ones(2, dtype=torch.int16)))]
if hasattr(dist, "record_comm"):
    with profile(record_shapes=True) as profiled, dist.record_comm("mine"):
        dist.all_reduce(ones(4, 6)[:, ::2])
        dist.all_reduce(ones(2, dtype=torch.int64))
    found["named"] = [
        event.input_shapes for event in profiled.function_events if event.name == "mine"
    ]
print("found", json.dumps(found), flush=True)
dist.destroy_process_group()
