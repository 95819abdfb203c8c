"""Run as a rank: all that gloo does, each operation's results in a file.

python operations.py BACKEND RESULTS, with the environment that torchrun sets. RESULTS.RANK gets a
dict of the operations' values by name, or the text of what they raised; `modules`, those that are
loaded; and `made`, by operation how many calls went through the switches and over gloo.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

OPERATIONS: dict[str, Callable[[int, int], Any]] = {}
SECONDS = float(os.environ.get("HOPSUM_TEST_SECONDS", "300"))
"""That an operation may take."""
TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
OPS = ("MAX", "MIN", "BAND", "BOR", "BXOR", "PRODUCT")


def operation(act: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    OPERATIONS[act.__name__] = act
    return act


def tensor(rank: int, dtype: torch.dtype = torch.float32, *shape: int) -> torch.Tensor:
    """A rank's own; its sums over a few ranks are exact in every type but the narrowest."""
    generator = torch.Generator().manual_seed(rank)
    drawn = torch.randint(1, 40, shape or (7, 3), generator=generator)
    return drawn.to(dtype) if not dtype.is_floating_point else (drawn / 8 - 2).to(dtype)


def _sum_of(dtype: torch.dtype) -> Callable[[int, int], Any]:
    def act(rank: int, size: int) -> Any:
        mine = tensor(rank, dtype)
        turned = tensor(rank + 50, dtype).t()
        single = tensor(rank, dtype, 1)[0].clone()
        empty = torch.empty(0, dtype=dtype)
        for each in (mine, turned, single, empty):
            dist.all_reduce(each)
        return mine, turned, single, empty

    return act


def _reduced_by(name: str) -> Callable[[int, int], Any]:
    def act(rank: int, size: int) -> Any:
        mine = tensor(rank, torch.int32)
        dist.all_reduce(mine, getattr(dist.ReduceOp, name))
        return mine

    return act


for _name in TYPES:
    OPERATIONS[f"sum_{_name}"] = _sum_of(getattr(torch, _name))
for _name in OPS:
    OPERATIONS[_name.lower()] = _reduced_by(_name)


EDGES = (0.0, -0.0, 1.5, -1.5, float("inf"), -float("inf"), 6e-8, -6e-8, 60000.0, -60000.0)


@operation
def extremes(rank: int, size: int) -> Any:
    """Also for numbers of either sign, and NaNs."""
    found = []
    for name in ("float32", "float16", "bfloat16", "int32", "int8", "uint8"):
        dtype = getattr(torch, name)
        values = (torch.tensor(EDGES) if dtype.is_floating_point else tensor(rank, dtype)).to(dtype)
        if dtype.is_signed and not dtype.is_floating_point:
            values = values - 20
        for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN):
            mine = values.roll(rank).clone()
            dist.all_reduce(mine, op)
            found.append(mine)
    return found


@operation
def bits_of_bytes(rank: int, size: int) -> Any:
    found = []
    for dtype in (torch.int8, torch.uint8):
        for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
            mine = tensor(rank, dtype, 40) * 5
            dist.all_reduce(mine, op)
            found.append(mine)
    return found


@operation
def long_and_narrow(rank: int, size: int) -> Any:
    """Sums, and extremes of floats, whose values take 16 or 8 bits in packets."""
    found = []
    for name in ("float16", "bfloat16", "int8", "uint8"):
        mine = tensor(rank, getattr(torch, name), 10_001) * (5 if "int" in name else 1)
        dist.all_reduce(mine)
        part = torch.empty(6000, dtype=mine.dtype)
        dist.reduce_scatter_tensor(part, tensor(rank, mine.dtype, size * 6000))
        found += [mine, part]
        for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN):
            edges = torch.tensor(EDGES).to(mine.dtype) if mine.is_floating_point() else mine[:10]
            mine = edges.repeat(1001).roll(rank).clone()
            dist.all_reduce(mine, op)
            part = torch.empty(6000, dtype=mine.dtype)
            dist.reduce_scatter_tensor(part, tensor(rank, mine.dtype, size * 6000), op)
            found += [mine, part]
    return found


@operation
def avg(rank: int, size: int) -> Any:
    tensors = [tensor(rank, dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)]
    for mine in tensors:
        dist.all_reduce(mine, dist.ReduceOp.AVG)
    return tensors


@operation
def asynchronous(rank: int, size: int) -> Any:
    tensors = [tensor(rank + 10 * number, torch.float32, 1000) for number in range(20)]
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    for work in works:
        work.wait()
    assert all(work.is_completed() for work in works)
    [again] = works[3].get_future().wait()
    return [*tensors, again]


@operation
def long(rank: int, size: int) -> Any:
    mine = tensor(rank, torch.float32, 300_000)
    dist.all_reduce(mine)
    return mine


@operation
def all_reduce_coalesced(rank: int, size: int) -> Any:
    tensors = [tensor(rank), tensor(rank + 1, torch.float32, 5)]
    dist.all_reduce_coalesced(tensors)
    with dist._coalescing_manager():
        more = [tensor(rank + 2), tensor(rank + 3)]
        for each in more:
            dist.all_reduce(each)
    return [*tensors, *more]


@operation
def functional_all_reduce(rank: int, size: int) -> Any:
    return functional.all_reduce(tensor(rank), "sum", dist.group.WORLD) + 0


@operation
def reduce(rank: int, size: int) -> Any:
    mine = tensor(rank)
    dist.reduce(mine, 1)
    # What is left on others is not defined.
    return mine if rank == 1 else None


@operation
def reduce_of_types(rank: int, size: int) -> Any:
    found = []
    for name in TYPES:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            mine = tensor(rank, getattr(torch, name)).t()
            dist.reduce(mine, size - 1, op)
            found.append(mine if rank == size - 1 else None)
    works = [dist.reduce(tensor(rank), root, async_op=True) for root in range(size)]
    for work in works:
        work.wait()
    [mean] = works[rank].result()
    return [*found, mean]


@operation
def broadcast(rank: int, size: int) -> Any:
    mine = tensor(rank)
    dist.broadcast(mine, 1)
    return mine


@operation
def broadcast_of_types(rank: int, size: int) -> Any:
    """Also for an odd number of bytes, columns, infinities and NaNs."""
    found = [tensor(rank, getattr(torch, name), 4103) for name in TYPES]
    found += [tensor(rank, torch.int32, 5003) % 2 == 0, tensor(rank, torch.float32, 30, 50).t()]
    found += [torch.complex(tensor(rank, torch.float32, 700), tensor(rank + 1, torch.float32, 700))]
    found += [torch.full((2000,), value * (rank + 1)) for value in (float("inf"), -float("inf"))]
    found += [torch.empty(0), torch.tensor(float(rank))]
    works = [dist.broadcast(each, 1, async_op=True) for each in found]
    for work in works:
        work.wait()
    return found


@operation
def all_gather(rank: int, size: int) -> Any:
    found = [torch.empty(7, 3) for _ in range(size)]
    dist.all_gather(found, tensor(rank))
    return found


@operation
def all_gather_into_tensor(rank: int, size: int) -> Any:
    found = torch.empty(7 * size, 3)
    dist.all_gather_into_tensor(found, tensor(rank))
    return found


@operation
def all_gather_of_types(rank: int, size: int) -> Any:
    """Also for odd numbers of bytes, columns and infinities."""
    found = []
    sources = [tensor(rank, getattr(torch, name), 11, 373) for name in TYPES]
    sources += [tensor(rank, torch.int32, 99, 101) % 2 == 0, torch.full((5000,), -float("inf"))]
    sources += [torch.complex(sources[0], sources[0] + 1)]
    for source in sources:
        whole = torch.empty(size * source.shape[0], *source.shape[1:], dtype=source.dtype)
        columns = [torch.empty_like(source.t()).t() for _ in range(size)]
        works = [
            dist.all_gather_into_tensor(whole, source, async_op=True),
            dist.all_gather(columns, source, async_op=True),
        ]
        for work in works:
            work.wait()
        found += [whole, *columns]
    return found


@operation
def all_gather_coalesced(rank: int, size: int) -> Any:
    sources = [tensor(rank, torch.float32, 5000), tensor(rank, torch.float16, 9001)]
    found = [torch.empty(size * len(source), dtype=source.dtype) for source in sources]
    with dist._coalescing_manager():
        for whole, source in zip(found, sources, strict=True):
            dist.all_gather_into_tensor(whole, source)
    return found


@operation
def functional_all_gather(rank: int, size: int) -> Any:
    return (
        functional.all_gather_tensor(tensor(rank, torch.float32, 50, 90), 0, dist.group.WORLD) + 0
    )


@operation
def gather_while_scattering(rank: int, size: int) -> Any:
    """As FSDP does, the own part in place."""
    whole, part = torch.zeros(size, 5000), torch.empty(5000)
    whole[rank] = tensor(rank, torch.float32, 5000)
    works = []
    for _ in range(3):
        gathering = dist.all_gather_into_tensor(whole.view(-1), whole[rank], async_op=True)
        source = tensor(rank, torch.float32, size * 5000)
        works += [gathering, dist.reduce_scatter_tensor(part, source, async_op=True)]
    for work in works:
        work.wait()
    return whole, part


@operation
def uneven_parts(rank: int, size: int) -> Any:
    found = torch.empty(4 + rank)
    dist.reduce_scatter(found, [tensor(rank, torch.float32, 4 + each) for each in range(size)])
    return found


@operation
def gather(rank: int, size: int) -> Any:
    found = [torch.empty(7, 3) for _ in range(size)] if rank == 0 else None
    dist.gather(tensor(rank), found)
    return found


@operation
def scatter(rank: int, size: int) -> Any:
    found = torch.empty(7, 3)
    dist.scatter(found, [tensor(each) for each in range(size)] if rank == 0 else None)
    return found


@operation
def reduce_scatter(rank: int, size: int) -> Any:
    found = torch.empty(7, 3)
    dist.reduce_scatter(found, [tensor(rank + each) for each in range(size)])
    return found


@operation
def reduce_scatter_tensor(rank: int, size: int) -> Any:
    found, mean = torch.empty(2, 3), torch.empty(2, 3)
    dist.reduce_scatter_tensor(found, tensor(rank, torch.float32, 2 * size, 3))
    dist.reduce_scatter_tensor(mean, tensor(rank, torch.float32, 2 * size, 3), op=dist.ReduceOp.AVG)
    return found, mean


@operation
def reduce_scatter_of_types(rank: int, size: int) -> Any:
    found = []
    for name in TYPES:
        dtype = getattr(torch, name)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN):
            part, one = torch.empty(5, 2, dtype=dtype), torch.empty(3, dtype=dtype)
            columns = torch.empty(2, 5, dtype=dtype).t()
            dist.reduce_scatter_tensor(part, tensor(rank, dtype, 5 * size, 2), op=op)
            dist.reduce_scatter_tensor(columns, tensor(rank, dtype, 5 * size, 2), op=op)
            dist.reduce_scatter(one, list(tensor(rank, dtype, size, 3)), op=op)
            found += [part, one, columns]
    return found


@operation
def reduce_scatter_coalesced(rank: int, size: int) -> Any:
    found = [torch.empty(2, 3), torch.empty(4)]
    with dist._coalescing_manager():
        for each in found:
            source = tensor(rank, torch.float32, each.shape[0] * size, *each.shape[1:])
            dist.reduce_scatter_tensor(each, source)
    return found


@operation
def functional_reduce_scatter(rank: int, size: int) -> Any:
    source = tensor(rank, torch.float32, 2 * size, 3)
    return functional.reduce_scatter_tensor(source, "avg", 0, dist.group.WORLD) + 0


@operation
def all_to_all(rank: int, size: int) -> Any:
    found = [torch.empty(7, 3) for _ in range(size)]
    dist.all_to_all(found, [tensor(rank * size + each) for each in range(size)])
    return found


@operation
def all_to_all_single(rank: int, size: int) -> Any:
    found = torch.empty(size, 3)
    dist.all_to_all_single(found, tensor(rank, torch.float32, size, 3))
    return found


@operation
def send_and_receive(rank: int, size: int) -> Any:
    found = torch.empty(7, 3)
    if rank == 0:
        dist.send(tensor(rank), 1)
        dist.send(tensor(rank + 1), 1)
    elif rank == 1:
        dist.recv(found, 0)
        assert dist.recv(found) == 0
    return found if rank == 1 else None


@operation
def batched_send_and_receive(rank: int, size: int) -> Any:
    found = torch.empty(7, 3)
    ops = [
        dist.P2POp(dist.isend, tensor(rank), (rank + 1) % size),
        dist.P2POp(dist.irecv, found, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return found


@operation
def barrier(rank: int, size: int) -> Any:
    dist.barrier()
    dist.barrier(async_op=True).wait()


@operation
def objects(rank: int, size: int) -> Any:
    mine = {"rank": rank, "text": "x" * rank}
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, mine)
    first: list[Any] = [mine]
    dist.broadcast_object_list(first, 1)
    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(mine, gathered)
    scattered: list[Any] = [None]
    dist.scatter_object_list(scattered, [[each] for each in range(size)] if rank == 0 else None)
    return everyone, first, gathered, scattered


@operation
def sub_groups(rank: int, size: int) -> Any:
    """For ranks that may share a host, ranks that may not, and all ranks."""
    pair, ends = dist.new_group([0, 1]), dist.new_group([0, size - 1])
    mine = tensor(rank)
    if rank in (0, size - 1):
        dist.all_reduce(mine, group=ends)
    if rank < 2:
        dist.all_reduce(mine, group=pair)
        dist.barrier(pair)
        dist.destroy_process_group(pair)
    everyone = dist.new_group()
    dist.all_reduce(mine, group=everyone)
    return mine


def _model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def _train(model: Any, optimizer: Any, rank: int, dtype: torch.dtype = torch.float32) -> None:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(4):
        optimizer.zero_grad()
        images = torch.randn(4, 8, generator=generator).to(dtype)
        targets = torch.randint(3, (4,), generator=generator)
        torch.nn.functional.cross_entropy(model(images).float(), targets).backward()
        optimizer.step()


def _trained(model: Any, rank: int, dtype: torch.dtype = torch.float32) -> Any:
    _train(model, torch.optim.SGD(model.parameters(), 0.1), rank, dtype)
    return [parameter.detach().clone() for parameter in model.parameters()]


@operation
def ddp(rank: int, size: int) -> Any:
    return _trained(DistributedDataParallel(_model(), bucket_cap_mb=0.0001), rank)


@operation
def ddp_bfloat16(rank: int, size: int) -> Any:
    return _trained(DistributedDataParallel(_model().bfloat16()), rank, torch.bfloat16)


@operation
def ddp_unused_parameters(rank: int, size: int) -> Any:
    """Each rank's loss leaves another layer out, and none of them all."""

    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.branches = torch.nn.ModuleList(torch.nn.Linear(8, 3) for _ in range(4))

        def forward(self, images: torch.Tensor) -> Any:
            order = [(rank + each) % 4 for each in range(3)]
            return sum(self.branches[branch](images).tanh() for branch in order)

    return _trained(DistributedDataParallel(Branches(), find_unused_parameters=True), rank)


@operation
def fp16_hook(rank: int, size: int) -> Any:
    model = DistributedDataParallel(_model())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return _trained(model, rank)


@operation
def power_sgd_hook(rank: int, size: int) -> Any:
    model = DistributedDataParallel(_model())
    state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2, min_compression_rate=0.1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return _trained(model, rank)


@operation
def fsdp1(rank: int, size: int) -> Any:
    model = FullyShardedDataParallel(_model(), device_id=torch.device("cpu"))
    return _trained(model, rank)


@operation
def fsdp2(rank: int, size: int) -> Any:
    return _sharded(rank, None)


@operation
def hybrid_shards(rank: int, size: int) -> Any:
    """Sharded in the rows of a mesh, and summed in its columns."""
    rows = size if size % 2 else 2
    mesh = init_device_mesh("cpu", (rows, size // rows), mesh_dim_names=("replicate", "shard"))
    return _sharded(rank, mesh)


def _sharded(rank: int, mesh: DeviceMesh | None) -> Any:
    model = _model()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    _train(model, torch.optim.SGD(model.parameters(), 0.1), rank)
    return [parameter.full_tensor() for parameter in model.parameters()]


@operation
def zero(rank: int, size: int) -> Any:
    model = DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    _train(model, optimizer, rank)
    return [parameter.detach().clone() for parameter in model.parameters()]


def count_calls() -> Counter[str]:
    """Count the calls that hopsum_torch hands to the agent, and those that it passes on to gloo."""
    from hopsum_torch.agent import AgentClient
    from hopsum_torch.group import HopsumGroup

    made: Counter[str] = Counter()

    def counted(of: type, method: str, where: str) -> None:
        before = getattr(of, method)

        def after(self: Any, *arguments: Any, **options: Any) -> Any:
            made[where] += 1
            return before(self, *arguments, **options)

        setattr(of, method, after)

    counted(AgentClient, "sum", "switches")
    counted(AgentClient, "copy", "switches")
    counted(AgentClient, "barrier", "switches")
    counted(HopsumGroup, "_pass_on", "gloo")
    return made


def main() -> None:
    backend, results = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    if backend != "gloo":
        # Calls over gloo look often whether a rank is gone.
        sys.modules["hopsum_torch.work"].SLICE_SECONDS = 0.0001  # type: ignore[attr-defined]
    made, made_by = Counter[str](), {}
    if backend != "gloo":
        made = count_calls()
    found = {}
    for name, act in OPERATIONS.items():
        # One that hangs says where.
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            found[name] = act(rank, size)
        except Exception as error:  # noqa: BLE001 - the test compares it
            found[name] = f"{type(error).__name__}: {error}"
        made_by[name] = dict(made)
        made.clear()
    faulthandler.cancel_dump_traceback_later()
    # In somebody else's process: no module of hopsum's has a place here.
    found["modules"] = sorted({name.partition(".")[0] for name in sys.modules})
    found["made"] = made_by
    torch.save(found, f"{results}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
