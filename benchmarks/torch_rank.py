"""One rank of a measurement of PyTorch's collectives, through the switches and over gloo.

python -m benchmarks.torch_rank KIND REPEATS, by torchrun. KIND: latency, cpu, sharded, groups,
types, a training: cnn, cnn_compressed (over gloo it is not), fsdp_gpt, fsdp_gpt_bfloat16, or
ordered:MODEL with and without ordered gradients: of cnn, layers with early exits (exits), or
experts in an order (ORDERS). Both backends are in one process and take turns. Rank 0 prints
`figures` and a JSON object.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import random
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import hopsum_torch
from benchmarks.torch_names import (
    ALONE,
    BUCKETS,
    CPU,
    FIGURES,
    GLOO,
    NAMESPACES,
    ORDERED,
    PROCESSES,
    RANK,
    SMALL,
    SWITCHES,
    SWITCHES_16,
    TYPES,
    WAKE_UP,
)
from hopsum_torch.ordered import OrderedGradients

CALLS = 100
"""Calls of each kind per turn, for latency."""
LARGE, LARGE_CALLS = 1_000_000, 8
"""Elements, and calls per turn, for CPU time."""
SHARDED = 252_000
"""Elements that FSDP's calls gather and scatter; divisible among 3, 4 or 8 ranks."""
ROW = 4
"""Ranks in a row of a mesh."""
BATCH = 8
"""Images or lines per step of a rank."""
TEXT, CHARACTERS = 4096, 96
"""Random text: its length and the size of its alphabet."""
TYPED_BYTES = 16_000_000
"""Size of the tensors whose types are compared."""
GRADIENTS, BETWEEN, IMAGES = 5, 3, 12
"""Gradients whose sums' errors are measured, steps from one to the next, and a rank's images."""
EXPERTS, WIDTH, EXPERT_SECONDS, ROUTED = 8, 256, 0.04, 2
"""Experts, their width, the time of one's back-propagation, and how many a rank uses if routed."""
ORDERS = ("same", "reversed", "rotated", "routed", "stages")
"""In which ranks use experts: all the same one; every other rank the reverse; each begins with
another; each uses random ones of them in each step. Stages, of a pipeline in both directions: each
pair of ranks has a group of its own and the same stages, which one of them uses in the reverse of
the other's order (Chimera, by Li and Hoefler, SC 2021)."""
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

Groups = dict[str, dist.ProcessGroup]


def groups() -> Groups:
    """Return the ranks' group through the switches and one over gloo."""
    # By default gloo listens at the address of the host's name.
    interfaces = [name for _, name in socket.if_nameindex() if name != "lo"]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interfaces[0])
    dist.init_process_group("hopsum")
    world = dist.group.WORLD
    assert world is not None
    return {SWITCHES: world, GLOO: dist.new_group(backend="gloo")}


def latency(found: Groups, repeats: int) -> dict[str, Any]:
    """Return microseconds, and CPU time, of each call of one fragment, by kind of call."""
    floats, integers = torch.ones(SMALL), torch.ones(SMALL, dtype=torch.int32)
    calls: dict[str, Callable[[], object]] = {
        "barrier": lambda: dist.barrier(found[SWITCHES]),
        "int32": lambda: dist.all_reduce(integers, dist.ReduceOp.MAX, found[SWITCHES]),
        "float32": lambda: dist.all_reduce(floats, dist.ReduceOp.AVG, found[SWITCHES]),
        GLOO: lambda: dist.all_reduce(floats, dist.ReduceOp.SUM, found[GLOO]),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    used: dict[str, defaultdict[str, float]] = {name: defaultdict(float) for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            floats.fill_(1)
            dist.barrier(found[GLOO])
            before = _cpu_seconds()
            for number in range(CALLS):
                began = time.perf_counter()
                call()
                # The first calls after different ones are mispredicted, as those of the first turn.
                if turn and number > 1:
                    taken[name].append(1e6 * (time.perf_counter() - began))
            dist.barrier(found[GLOO])
            if turn:
                after = _cpu_seconds()
                for who, seconds in after.items():
                    used[name][who] += 1e6 * (seconds - before[who]) / (repeats * CALLS)
    return {**taken, CPU: used, WAKE_UP: _wake_ups(repeats * CALLS)}


def _wake_ups(count: int) -> list[float]:
    """Return microseconds until a message wakes a process: half a round trip."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if not child:
        ours.close()
        while message := theirs.recv(100):
            theirs.send(message)
        os._exit(0)
    theirs.close()
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        ours.send(b"a message")
        ours.recv(100)
        taken.append(0.5e6 * (time.perf_counter() - began))
    ours.close()
    os.waitpid(child, 0)
    return taken


def cpu(found: Groups, repeats: int) -> dict[str, Any]:
    """Return seconds of CPU time per gigabyte of a rank's tensors, by user."""
    values = torch.ones(LARGE)
    gigabytes = repeats * LARGE_CALLS * 4e-9 * LARGE
    used: dict[str, dict[str, float]] = {name: {} for name in found}
    for turn in range(repeats + 1):
        for name, group in found.items():
            dist.barrier(found[GLOO])
            before = _cpu_seconds()
            for _ in range(LARGE_CALLS):
                dist.all_reduce(values, group=group)
                values.fill_(1)
            dist.barrier(found[GLOO])
            after = _cpu_seconds()
            for who, seconds in after.items():
                more = (seconds - before[who]) / gigabytes if turn else 0.0
                used[name][who] = used[name].get(who, 0.0) + more
    return used


def _cpu_seconds() -> dict[str, float]:
    """Return the CPU time used so far, by name; RANK: by this process."""
    namespaces = {
        _namespace(str(process)): name
        for name, process in json.loads(os.environ.get(NAMESPACES, "{}")).items()
    }
    used = dict.fromkeys(namespaces.values(), 0.0)
    if namespaces:
        for process in filter(str.isdigit, (path.name for path in Path("/proc").iterdir())):
            with contextlib.suppress(OSError):
                name = namespaces.get(_namespace(process))
                if name is not None:
                    used[name] += _cpu_of(process)
    for name, process in json.loads(os.environ.get(PROCESSES, "{}")).items():
        used[name] = _cpu_of(str(process))
    return {**used, RANK: time.process_time()}


def _namespace(process: str) -> str:
    return str(Path(f"/proc/{process}/ns/net").readlink())


def _cpu_of(process: str) -> float:
    """Return a process's CPU time in seconds (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def cnn() -> nn.Module:
    """Return a CNN for images of 8 by 8, of five million parameters."""
    widths = (1, 64, 128, 256, 256, 512, 512)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        if after in (64, 128):
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Steps:
    """Steps of a training in a group. `alone`: without any communication, for comparison."""

    def __init__(self, kind: str, group: dist.ProcessGroup) -> None:
        torch.manual_seed(1)
        self._kind = kind
        if kind in ("cnn", "cnn_compressed"):
            self._model: Any = DistributedDataParallel(cnn(), process_group=group)
            self._alone: nn.Module = cnn()
            if kind == "cnn_compressed" and group.name() == "hopsum":
                self._model.register_comm_hook(group, hopsum_torch.compress_hook)
            images, targets = torch.randn(BATCH, 1, 8, 8), torch.randint(1000, (BATCH,))
            self._loss = lambda model: nn.functional.cross_entropy(model(images), targets)
        else:
            example = _example("fsdp_gpt")
            mesh = DeviceMesh.from_group(group, "cpu")
            self._model, self._alone = example.Model(CHARACTERS), example.Model(CHARACTERS)
            policy = MixedPrecisionPolicy()
            if kind == "fsdp_gpt_bfloat16":
                policy = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)
                self._alone.to(torch.bfloat16)
            for layer in (*self._model.layers, self._model):
                fully_shard(layer, mesh=mesh, mp_policy=policy)
            context = example.CONTEXT + 1
            lines = torch.randint(CHARACTERS, (TEXT,)).unfold(0, context, context)[:BATCH]
            self._loss = lambda model: model(lines)
        self._optimizers = {
            model: torch.optim.SGD(model.parameters(), lr=0.01)
            for model in (self._model, self._alone)
        }

    def take(self, *, alone: bool = False) -> float:
        """Run a step; return its milliseconds."""
        model = self._alone if alone else self._model
        began = time.perf_counter()
        self._optimizers[model].zero_grad()
        self._loss(model).backward()  # type: ignore[no-untyped-call]
        self._optimizers[model].step()
        return 1e3 * (time.perf_counter() - began)


def _example(name: str) -> Any:
    """Return the module of an example's training."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / name / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def steps(kind: str, found: Groups, repeats: int) -> dict[str, Any]:
    """Return milliseconds of each step by backend, and of steps that do not communicate."""
    trainings = {name: Steps(kind, group) for name, group in found.items()}
    taken: dict[str, list[float]] = {**{name: [] for name in found}, ALONE: []}
    for turn in range(repeats + 1):
        for name, training in trainings.items():
            dist.barrier(found[GLOO])
            taken[name].append(training.take())
        dist.barrier(found[GLOO])
        taken[ALONE].append(trainings[GLOO].take(alone=True))
        if not turn:
            for each in taken.values():
                each.clear()
    return taken


class _Pause(torch.autograd.Function):
    """Values as they are; back-propagation takes as long as an expert's on a processor apart."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(EXPERT_SECONDS)
        return gradient


class Experts(nn.Module):
    """Parallel layers, used in one of ORDERS.

    Their time is slept, as ranks would otherwise share this machine's cores and wait for each other
    there.
    """

    def __init__(self, order: str, rank: int, ranks: int) -> None:
        super().__init__()
        self._experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self._order = order
        self._random = random.Random(rank)
        first = rank * EXPERTS // ranks
        self._usual = {
            "reversed": [*range(EXPERTS)][:: -1 if rank % 2 else 1],
            "stages": [*range(EXPERTS)][:: -1 if 2 * rank >= ranks else 1],
            "rotated": [*range(first, EXPERTS), *range(first)],
        }.get(order, [*range(EXPERTS)])

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of all used experts' values."""
        chosen = self._usual
        if self._order == "routed":
            chosen = self._random.sample(chosen, ROUTED)
        return torch.stack([_Pause.apply(self._experts[each](values)) for each in chosen]).sum(0)


class EarlyExits(nn.Module):
    """A chain of layers, as many and as slow as there are experts.

    A rank leaves it after a random layer in each step, so it has no gradients for those behind.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self._random = random.Random(rank)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values with which the rank leaves."""
        for layer in self._layers[: self._random.randint(1, EXPERTS)]:
            values = _Pause.apply(torch.tanh(layer(values)))
        return values


def _ordered_model(kind: str) -> nn.Module:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if kind == "cnn":
        return cnn()
    return EarlyExits(rank) if kind == "exits" else Experts(kind, rank, ranks)


class OrderedSteps:
    """Steps of a training whose gradients are `ordered`, or in DDP's buckets; of one expert each.

    Without a `group` they are not reduced.
    """

    def __init__(self, kind: str, group: dist.ProcessGroup | None, *, ordered: bool) -> None:
        torch.manual_seed(1)
        self._inputs = torch.randn(BATCH, 1, 8, 8) if kind == "cnn" else torch.randn(BATCH, WIDTH)
        self._model: Any = _ordered_model(kind)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.001)
        self._ordered = None
        if group is not None and ordered:
            self._ordered = OrderedGradients(self._model, group)
        elif group is not None:
            options = {} if kind == "cnn" else {"bucket_cap_mb": 4e-6 * WIDTH * WIDTH}
            self._model = DistributedDataParallel(
                self._model,
                process_group=group,
                find_unused_parameters=kind in ("routed", "exits"),
                **options,
            )

    def take(self) -> float:
        """Run a step; return its milliseconds."""
        began = time.perf_counter()
        self._optimizer.zero_grad()
        self._model(self._inputs).square().mean().backward()
        if self._ordered is not None:
            self._ordered.synchronize()
        self._optimizer.step()
        return 1e3 * (time.perf_counter() - began)


def _pairs() -> Groups:
    """Return this rank's group with the one opposite, through the switches and over gloo."""
    ranks = dist.get_world_size()
    pairs = [[rank, ranks - 1 - rank] for rank in range(ranks // 2)]
    return {
        name: dist.new_subgroups_by_enumeration(pairs, backend=backend)[0]
        for name, backend in ((SWITCHES, "hopsum"), (GLOO, "gloo"))
    }


def ordered(kind: str, found: Groups, repeats: int) -> dict[str, Any]:
    """Return milliseconds of each step by backend and way, and of steps without communication."""
    trainings: dict[str, OrderedSteps] = {
        f"{name}, {way}": OrderedSteps(kind, group, ordered=way == ORDERED)
        for name, group in (_pairs() if kind == "stages" else found).items()
        for way in (BUCKETS, ORDERED)
    }
    trainings[ALONE] = OrderedSteps(kind, None, ordered=False)
    taken: dict[str, list[float]] = {name: [] for name in trainings}
    # Buckets and the order table are made in the first step.
    for turn in range(-2, repeats):
        for name, training in trainings.items():
            dist.barrier(found[GLOO])
            milliseconds = training.take()
            if turn >= 0:
                taken[name].append(milliseconds)
    return taken


def sharded(found: Groups, repeats: int) -> dict[str, Any]:
    """Return milliseconds, and bytes over this host's link in units of the tensor, by backend.

    The collectives are those of FSDP: an all-gather, a reduce-scatter, and both at once.
    """
    ranks = dist.get_world_size()
    whole, part = torch.ones(SHARDED // ranks * ranks), torch.ones(SHARDED // ranks)

    def gather(group: dist.ProcessGroup) -> Any:
        return dist.all_gather_into_tensor(whole.clone(), part, group, async_op=True)

    def scatter(group: dist.ProcessGroup) -> Any:
        return dist.reduce_scatter_tensor(part.clone(), whole, group=group, async_op=True)

    calls = {"all-gather": [gather], "reduce-scatter": [scatter], "both at once": [scatter, gather]}
    return {
        name: {
            call: _over_links([partial(one, group) for one in begin], whole, found[GLOO], repeats)
            for call, begin in calls.items()
        }
        for name, group in found.items()
    }


def sub_groups(found: Groups, repeats: int) -> dict[str, Any]:
    """Return the same of all-reduces in the rows and columns of a mesh of ranks, of `ROW` columns.

    Also of a reduce-scatter in rows and an all-reduce of its parts in columns, as FSDP calls them
    for hybrid shards, and the milliseconds in which a rank's two groups are made.
    """
    places = torch.arange(dist.get_world_size()).view(-1, ROW)
    whole, part = torch.ones(SHARDED), torch.ones(SHARDED // ROW)

    def sum_in(group: dist.ProcessGroup, values: torch.Tensor = whole) -> Any:
        return dist.all_reduce(values, dist.ReduceOp.AVG, group, async_op=True)

    def hybrid(row: dist.ProcessGroup, column: dist.ProcessGroup) -> Any:
        dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.AVG, row)
        return sum_in(column, part)

    result: dict[str, Any] = {}
    for name, backend in ((SWITCHES, "hopsum"), (GLOO, "gloo")):
        dist.barrier(found[GLOO])
        began = time.perf_counter()
        row, _ = dist.new_subgroups_by_enumeration(places.tolist(), backend=backend)
        column, _ = dist.new_subgroups_by_enumeration(places.t().tolist(), backend=backend)
        made = 1e3 * (time.perf_counter() - began)
        calls = {
            "rows": [partial(sum_in, row)],
            "rows and columns at once": [partial(sum_in, row), partial(sum_in, column, whole + 0)],
            "hybrid shards": [partial(hybrid, row, column)],
        }
        result[name] = {
            call: {**_over_links(begin, whole, found[GLOO], repeats), "made": made}
            for call, begin in calls.items()
        }
    return result


def _over_links(
    begin: Sequence[Callable[[], Any]],
    tensor: torch.Tensor,
    everyone: dist.ProcessGroup,
    turns: int,
) -> dict[str, Any]:
    """Return figures of calls that are under way at once, but for the first turn.

    Milliseconds, and bytes over this host's link in units of the tensor; `begin` returns work.
    """
    taken = [_over_link(begin, tensor, everyone) for _ in range(turns + 1)][1:]
    return {"bytes": tensor.nbytes, **{key: [each[key] for each in taken] for key in taken[0]}}


def _over_link(
    begin: Sequence[Callable[[], Any]], tensor: torch.Tensor, everyone: dist.ProcessGroup
) -> dict[str, float]:
    """Return the figures of one turn of `_over_links`."""
    dist.barrier(everyone)
    before, began = _link_bytes(), time.perf_counter()
    for work in [one() for one in begin]:
        work.wait()
    taken = 1e3 * (time.perf_counter() - began)
    links = {key: (count - before[key]) / tensor.nbytes for key, count in _link_bytes().items()}
    return {"milliseconds": taken, **links}


def types(found: Groups, repeats: int) -> dict[str, Any]:
    """Return milliseconds, bytes over this host's link and errors of sums, by type and backend.

    Bytes as of `_over_links`. Errors: of gradients, L2 norms relative to that of the exact sum;
    integers have none.
    """
    options = hopsum_torch.Options(wire_bits=16)
    groups = {**found, SWITCHES_16: dist.new_group(backend="hopsum", pg_options=options)}
    gradients = _gradients(found[GLOO])
    result: dict[str, Any] = {}
    for name in TYPES:
        dtype = getattr(torch, name)
        # The default group sends all other types as that of 16 bits does.
        ways = {way: each for way, each in groups.items() if name == "float32" or way in found}
        values = torch.ones(TYPED_BYTES // dtype.itemsize, dtype=dtype)
        taken: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for way in [*ways] * (repeats + 1):
            values.fill_(1)
            add = partial(dist.all_reduce, values, group=ways[way], async_op=True)
            taken[way].append(_over_link([add], values, found[GLOO]))
        result[name] = {
            way: {key: [each[key] for each in taken[way][1:]] for key in taken[way][0]}
            for way in ways
        }
        if dtype.is_floating_point:
            for way, group in ways.items():
                result[name][way]["errors"] = [
                    _error(each.to(dtype), group, found[GLOO]) for each in gradients
                ]
    return result


def _gradients(group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Return a rank's gradients from a training of the example's CNN, each as one tensor."""
    torch.manual_seed(1)
    digits, kept = load_digits(), []

    def keep(group: dist.ProcessGroup, bucket: Any) -> Any:
        kept.append(bucket.buffer().clone())
        return allreduce_hook(group, bucket)

    # DistributedDataParallel compares them with its types; here they are strings.
    keep.__annotations__.clear()
    net = DistributedDataParallel(_example("ddp_cnn").model(), process_group=group)
    net.register_comm_hook(group, keep)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    targets = torch.tensor(digits.target)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for batch in torch.randperm(len(images)).split(IMAGES * ranks)[: GRADIENTS * BETWEEN]:
        mine = batch[rank::ranks]
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images[mine]), targets[mine]).backward()
        optimizer.step()
    return kept[BETWEEN - 1 :: BETWEEN]


def _error(values: torch.Tensor, group: dist.ProcessGroup, everyone: dist.ProcessGroup) -> float:
    """Return the relative error of the sum of the ranks' values in a group, as an L2 norm."""
    exact = values.double()
    dist.all_reduce(exact, group=everyone)
    dist.all_reduce(total := values.clone(), group=group)
    return float((total.double() - exact).norm() / exact.norm())


def _link_bytes() -> dict[str, int]:
    """Return the bytes that this host's interface has sent and received."""
    folder = Path("/sys/class/net") / os.environ["GLOO_SOCKET_IFNAME"] / "statistics"
    names = {"sent": "tx_bytes", "received": "rx_bytes"}
    return {key: int((folder / name).read_text()) for key, name in names.items()}


@contextlib.contextmanager
def measuring() -> Iterator[Groups]:
    """Provide the groups while the block runs."""
    torch.set_num_threads(1)
    try:
        yield groups()
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Run the measurement that the arguments name."""
    kind, repeats = sys.argv[1], int(sys.argv[2])
    with measuring() as found:
        match kind:
            case "latency":
                result = latency(found, repeats)
            case "cpu":
                result = cpu(found, repeats)
            case "sharded":
                result = sharded(found, repeats)
            case "groups":
                result = sub_groups(found, repeats)
            case "types":
                result = types(found, repeats)
            case _ if kind.startswith("ordered:"):
                result = ordered(kind.removeprefix("ordered:"), found, repeats)
            case _:
                result = steps(kind, found, repeats)
        if dist.get_rank() == 0:
            print(FIGURES + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
