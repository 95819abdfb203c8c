"""A `torch.distributed` backend: import this module, then `init_process_group("hopsum")`.

Under plain `torchrun`, for CPU tensors. Sums of float32, float64, int32 and int64, broadcast,
all-gather and barrier run on the ring of the group's ranks, over TCP connections that the group
keeps; each rank tells the others where it listens through the group's store. A group's calls run in
the order in which they are made, in a thread of their own, so that `async_op` and the buckets of
DistributedDataParallel overlap with computing. Other collectives and reductions are refused.

Where HOPSUM_JOB and HOPSUM_HOST name a job of a hopsum cluster (`hopsum submit --from-processes`)
and this process's host in it, the sums of float32 and int32 of the first group, all ranks, one on
each of the job's worker hosts, go through the switches: the host's agent sends them
(`process_socket`). float32 sums have the error bound of docs/protocol.md then.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from collectives.algorithms.ring import ring_all_gather, ring_all_reduce, ring_broadcast
from collectives.execution import Execution, channels
from collectives.schedule import Schedule
from host_agent.io.process_socket import CODES, AgentSocket
from host_agent.io.tcp_collective import TcpCollective
from protocol.errors import OperationError

NAME = "hopsum"
ADDRESS = "HOPSUM_ADDRESS"
"""Environment: the IPv4 address at which the other ranks reach this one, if not the usual one."""
JOB, HOST = "HOPSUM_JOB", "HOPSUM_HOST"
"""Environment: the number of this training's job in a cluster, and this host's name there."""
SUMMABLE = (torch.float32, torch.int32, torch.float64, torch.int64)

all_reduce = cache(ring_all_reduce)
all_gather = cache(ring_all_gather)
broadcast = cache(ring_broadcast)


class BackendError(OperationError):
    """A call that this backend does not do; the message says which and what it does."""


class HopsumWork(dist.Work):
    """A call under way, and the tensors that hold its result."""

    def __init__(self, done: Future[None], tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._done = done
        self._future: Any = torch.futures.Future()
        done.add_done_callback(lambda done: self._finish(done, tensors))

    def _finish(self, done: Future[None], tensors: list[torch.Tensor]) -> None:
        error = done.exception()
        if isinstance(error, Exception):
            self._future.set_exception(error)
        else:
            self._future.set_result(tensors)

    def is_completed(self) -> bool:
        """Whether the call is over, well or not."""
        return self._done.done()

    def is_success(self) -> bool:
        """Whether the call is over and has a result."""
        return self._done.done() and self._done.exception() is None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the call; raises what it raised, such as PeerLost with the rank that is gone."""
        # The default of the C++ class, zero, means no limit too.
        self._done.result(timeout.total_seconds() if timeout else None)
        return True

    def get_future(self) -> Any:
        """Return the same as a torch future of the tensors."""
        return self._future


class HopsumGroup(dist.ProcessGroup):
    """The ranks of a group and the connections of their ring; `switches`: along with it.

    Raises PeerLost if a rank does not come within `timeout`.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        switches: AgentSocket | None = None,
    ) -> None:
        super().__init__(rank, size)
        self._ours, self._size = rank, size
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hopsum collectives")
        self._closed = threading.Event()
        self._collective: TcpCollective | None = None
        self._switches = switches
        if size > 1:
            self._collective = _connect(store, rank, size, timeout.total_seconds())

    def getBackendName(self) -> str:
        """Return the name by which the backend is registered."""
        return NAME

    # -- collectives

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> HopsumWork:
        """Sum each tensor over all ranks, in place."""
        if opts is not None and opts.reduceOp != dist.ReduceOp.SUM:
            raise BackendError(
                f"all-reduce with {opts.reduceOp.op.name}: {NAME} sums; expected ReduceOp.SUM"
            )
        tensors = list(tensors)
        for tensor in tensors:
            self._check(tensor)
            if tensor.dtype not in SUMMABLE:
                raise BackendError(
                    f"all-reduce of {tensor.dtype}: expected one of "
                    f"{', '.join(str(kind) for kind in SUMMABLE)}"
                )

        def run() -> None:
            for tensor in tensors:
                flat = tensor.detach().reshape(-1).contiguous()
                self._sum(flat.numpy())
                self._put_back(tensor, flat)

        return self._submit(run, tensors)

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> HopsumWork:
        """Give the root's tensors to all ranks; of any type, as bytes."""
        tensors = list(tensors)
        for tensor in tensors:
            self._check(tensor)

        def run() -> None:
            for tensor in tensors:
                flat = tensor.detach().reshape(-1).contiguous()
                values = flat.view(torch.uint8).numpy()
                self._run(broadcast(self._size, len(values), opts.rootRank), values)
                self._put_back(tensor, flat)

        return self._submit(run, tensors)

    def allgather(
        self,
        outputs: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> HopsumWork:
        """Give every rank's tensor to all; the tensors of all ranks have one shape and type."""
        outputs = [list(row) for row in outputs]
        for row, tensor in zip(outputs, inputs, strict=True):
            for other in (tensor, *row):
                self._check(other)
                if (other.dtype, other.numel()) != (tensor.dtype, tensor.numel()):
                    raise BackendError(
                        f"all-gather of {tensor.dtype} {tuple(tensor.shape)} into {other.dtype} "
                        f"{tuple(other.shape)}: expected the same type and number of elements"
                    )

        def run() -> None:
            for row, tensor in zip(outputs, inputs, strict=True):
                for output, gathered in zip(row, self._gathered(tensor), strict=True):
                    self._put_back(output, gathered)

        return self._submit(run, [tensor for row in outputs for tensor in row])

    def _allgather_base(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> HopsumWork:
        """Return the same into one tensor, rank after rank."""
        return self.allgather([list(output.reshape(self._size, -1).unbind())], [tensor.reshape(-1)])

    def barrier(self, opts: Any = None) -> HopsumWork:
        """Wait until all ranks are here."""
        values = np.zeros(self._size, dtype=np.int32)
        return self._submit(lambda: self._run(all_reduce(self._size, self._size), values), [])

    def meet(self, what: str) -> tuple[socket.socket, list[tuple[str, int]]]:
        """Listen for the other ranks; the socket, and where each rank listens, by rank.

        All ranks call it once with the same word.
        """
        return _listen(self._store, f"{NAME}/{what}", self._ours, self._size)

    # -- the end

    def shutdown(self) -> None:
        """Let what is under way end, and close the connections."""
        if not self._closed.is_set():
            self._closed.set()
            self._thread.shutdown(wait=True)
            if self._collective is not None:
                self._collective.close()
            if self._switches is not None:
                self._switches.close()

    def abort(self) -> None:
        """Begin nothing more; what is under way ends by itself."""
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    # -- parts

    def _check(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise BackendError(
                f"a tensor on {tensor.device}, {tensor.layout}: {NAME} takes dense CPU tensors"
            )

    def _submit(self, run: Callable[[], None], tensors: list[torch.Tensor]) -> HopsumWork:
        if self._closed.is_set():
            raise BackendError(f"{NAME}: the process group of rank {self._ours} has been shut down")
        return HopsumWork(self._thread.submit(run), tensors)

    def _run(self, schedule: Schedule, values: Any) -> None:
        if self._collective is not None and len(values):
            self._collective.run(Execution(schedule, self._ours, values))

    def _sum(self, values: Any) -> None:
        if self._switches is not None and values.dtype in CODES:
            if len(values):
                self._switches.sum(values)
        else:
            self._run(all_reduce(self._size, len(values)), values)

    def _gathered(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """All ranks' tensors, flat."""
        own = tensor.detach().reshape(-1).contiguous()
        room = torch.empty((self._size, own.numel()), dtype=own.dtype)
        # In the ring's schedule rank r begins with part r + 1.
        room[(self._ours + 1) % self._size] = own
        values = room.reshape(-1).view(torch.uint8).numpy()
        self._run(all_gather(self._size, len(values)), values)
        return [room[(rank + 1) % self._size] for rank in range(self._size)]

    @staticmethod
    def _put_back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
        """Copy a result into place, unless it has been made there."""
        if tensor.data_ptr() != flat.data_ptr():
            with torch.no_grad():
                tensor.copy_(flat.reshape(tensor.shape))


def _connect(store: Any, rank: int, size: int, timeout: float) -> TcpCollective:
    """Meet the neighbours on the ring."""
    server, told = _listen(store, NAME, rank, size)
    targets, sources = channels(all_reduce(size, size), rank)
    return TcpCollective(
        rank,
        [host for host, _ in told],
        targets=targets,
        sources=sources,
        port=[port for _, port in told],
        server=server,
        timeout=timeout,
    )


def _listen(
    store: Any, key: str, rank: int, size: int
) -> tuple[socket.socket, list[tuple[str, int]]]:
    """Listen, tell the others where through the store, and hear where they do."""
    address = os.environ.get(ADDRESS) or _own_address()
    server = socket.create_server((address, 0), backlog=size)
    store.set(f"{key}/{rank}", f"{address}:{server.getsockname()[1]}")
    told = [store.get(f"{key}/{other}").decode().rpartition(":") for other in range(size)]
    return server, [(host, int(port)) for host, _, port in told]


def _own_address() -> str:
    """Return the address from which this machine speaks to the one where the store is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Nothing is sent: connecting only chooses the route.
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))
        return str(probe.getsockname()[0])


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> HopsumGroup:
    switches = _switches(size, timeout) if next(_groups) == 0 else None
    return HopsumGroup(store, rank, size, timeout, switches)


_groups = count()


def _switches(size: int, timeout: timedelta) -> AgentSocket | None:
    """Return the host's agent, if the environment names a job; raises SumRefused, BackendError."""
    job, host = os.environ.get(JOB), os.environ.get(HOST)
    if job is None and host is None:
        return None
    if host is None or job is None or not job.isdecimal():
        raise BackendError(
            f"{JOB} is {job!r} and {HOST} {host!r}: expected the job's number, and this host's "
            "name in the network; or neither"
        )
    agent = AgentSocket(host, int(job), timeout.total_seconds())
    if agent.workers != size:
        agent.close()
        raise BackendError(
            f"job {job} has {agent.workers} workers and the group {size} ranks: expected a rank on "
            "each of the job's worker hosts"
        )
    return agent


if not hasattr(dist.Backend, NAME.upper()):
    dist.Backend.register_backend(NAME, _create, devices=["cpu"])
