"""The process group: all-reduce and barrier through the switches, everything else over gloo.

| call | of | goes |
| --- | --- | --- |
| all_reduce (also coalesced) | SUM of float32, float16, bfloat16, int32, int8, uint8 | switches |
| | AVG of float32, float16, bfloat16 | switches |
| | MAX, MIN of float32, float16, bfloat16, int32, int8, uint8 | switches |
| | BAND, BOR, BXOR of int32, int8, uint8 | switches |
| | PRODUCT | gloo |
| | float64, int64, bool, complex numbers, sparse tensors | gloo |
| barrier | | switches |
| everything else | | gloo |

That is so for the first group, of all ranks, where each has an agent on a host of its own. All
other groups go over gloo.

*Errors of sums.* With N ranks, S the exact sum, and 2^e above every magnitude in a fragment (256
elements, the first window of them together) of all ranks, s = ceil(log2 N):

- float32: at most N c 2^(e+s-31) (1 + 2^-24) + 2^-24 |S| + 2^-150, c = 1/2 for N <= 256, else 1
  (docs/protocol.md; gloo's own N - 1 additions err by up to (N - 1) 2^-24 times the sum of
  magnitudes).
- float16, bfloat16: the same, as they are summed as float32, and one rounding of the result:
  2^-11 |S| + 2^-25 and 2^-8 |S|. (gloo rounds after every addition.)
- int32: exact. A sum beyond 32 bits is an error at every rank; gloo's wraps.
- int8, uint8: exact, modulo 256, as gloo's.
- AVG: the sum's bound divided by N, and 2^-24 of the quotient.

MAX, MIN, BAND, BOR and BXOR are exact. MAX and MIN of floating-point numbers take infinities, put
-0 before 0 (gloo's take either), and refuse a NaN, which gloo's keep or lose as the order of the
ranks has it.
"""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hopsum_torch import DEVICES, NAME
from hopsum_torch.agent import Agent
from hopsum_torch.errors import HopsumError
from hopsum_torch.rendezvous import meet, turn

SUMMED_AS = {
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int32: torch.int32,
    torch.int8: torch.int32,
    torch.uint8: torch.int32,
}
"""The types that switches sum, and how."""
MOST_ELEMENTS = (1 << 31) - 1
"""Of one tensor through the switches; a longer one goes over gloo."""


def reduction_of(op: Any, dtype: torch.dtype) -> str | None:
    """Return what the agent calls a reduction of this type; None if it goes over gloo."""
    operations = dist.ReduceOp
    reductions = {
        "sum": [operations.SUM, *([operations.AVG] if dtype.is_floating_point else [])],
        "max": [operations.MAX],
        "min": [operations.MIN],
    }
    if not dtype.is_floating_point:
        reductions |= {
            "and": [operations.BAND],
            "or": [operations.BOR],
            "xor": [operations.BXOR],
        }
    return next((name for name, ops in reductions.items() if any(op == each for each in ops)), None)


def in_switches(tensor: torch.Tensor, op: Any) -> bool:
    """Whether a reduction of this tensor can go through the switches."""
    return (
        reduction_of(op, tensor.dtype) is not None
        and tensor.dtype in SUMMED_AS
        and tensor.layout == torch.strided
        and tensor.device.type in DEVICES
        and tensor.numel() <= MOST_ELEMENTS
    )


class HopsumWork(dist.Work):
    """Calls under way, one or several; `tensors` hold the result in the end."""

    def __init__(
        self, what: str, calls: int, tensors: list[torch.Tensor], timeout: timedelta
    ) -> None:
        super().__init__()
        self._what = what
        self._left = itertools.count(calls - 1, -1)
        self._over = threading.Event()
        self._error: HopsumError | None = None
        self._tensors = tensors
        self._timeout = timeout
        self._future: Any = None
        self._lock = threading.Lock()

    def ended(self, error: HopsumError | None) -> None:
        """Take in the end of one of the calls."""
        self._error = self._error or error
        if next(self._left) > 0:
            return
        with self._lock:
            self._over.set()
            if self._future is None:
                return
        # Callbacks of a future may wait for calls that end later (PowerSGD's do): not in the thread
        # that hears of these.
        threading.Thread(target=self._complete, name="hopsum future", daemon=True).start()

    def _complete(self) -> None:
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._tensors)

    def is_completed(self) -> bool:
        """Whether the call is over, well or not."""
        return self._over.is_set()

    def is_success(self) -> bool:
        """Whether the call is over and has a result."""
        return self.is_completed() and self._error is None

    def exception(self) -> HopsumError | None:
        """Return what the call ended with, if not well."""
        return self._error

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the call. Raises what it ended with, HopsumError after the timeout."""
        # The default of the C++ class, zero, means the group's.
        seconds = (timeout or self._timeout).total_seconds()
        if not self._over.wait(seconds):
            raise HopsumError(
                f"{self._what}: not all ranks have called for it after {seconds:g} s; expected the "
                "same calls in the same order at all of them"
            )
        if self._error is not None:
            raise self._error
        return True

    def result(self) -> list[torch.Tensor]:
        """Return the tensors."""
        return self._tensors

    def get_future(self) -> Any:
        """Return the same as a torch future of the tensors."""
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._over.is_set():
                    self._complete()
            return self._future


class HopsumGroup(dist.ProcessGroup):
    """The ranks of a group: `gloo` is the same ones' gloo backend, `agent` None: it does all."""

    def __init__(
        self, rank: int, size: int, timeout: timedelta, gloo: Any, agent: Agent | None
    ) -> None:
        super().__init__(rank, size)
        self._agent = agent
        self._gloo = gloo
        self._default_timeout = timeout
        self._numbers = itertools.count()
        # A method that is not overridden dispatches to the backend of the tensor's device.
        _set_backend(self, gloo)
        self._plain = dist.ProcessGroup(rank, size)
        _set_backend(self._plain, gloo)
        if agent is not None:
            # A script may end without destroying its groups; its job ends well all the same.
            atexit.register(_close, weakref.ref(self))

    def getBackendName(self) -> str:
        """Return the name by which the backend is registered."""
        return NAME

    # -- what the switches do

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Reduce each tensor over all ranks, in place."""
        return self._allreduce(tensors, opts or dist.AllreduceOptions(), self._gloo.allreduce)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Reduce each of several tensors over all ranks, in place."""
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._allreduce(tensors, opts, self._gloo.allreduce_coalesced)

    def _allreduce(
        self, tensors: Sequence[torch.Tensor], opts: Any, gloo: Callable[..., Any]
    ) -> Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        op = opts.reduceOp
        agent = self._agent
        if agent is None or not tensors or not all(in_switches(tensor, op) for tensor in tensors):
            return gloo(tensors, opts)
        divisor = self.size() if op == dist.ReduceOp.AVG else None
        name = f"all-reduce {next(self._numbers)}"
        work = HopsumWork(name, len(tensors), tensors, self._time(opts))
        for place, tensor in enumerate(tensors):
            which = f", tensor {place}" if len(tensors) > 1 else ""
            what = f"{name}{which} ({_described(tensor)})"
            _reduce(agent, what, tensor, op, divisor, work.ended)
        return work

    def barrier(self, opts: Any = None) -> Any:
        """Wait until all ranks are here."""
        opts = opts or dist.BarrierOptions()
        if self._agent is None:
            return self._gloo.barrier(opts)
        name = f"barrier {next(self._numbers)}"
        work = HopsumWork(name, 1, [], self._time(opts))
        self._agent.barrier(name, work.ended)
        return work

    def _time(self, opts: Any) -> timedelta:
        """Return the call's own timeout, if it has one."""
        given: timedelta = opts.timeout
        return given if given.total_seconds() > 0 else self._default_timeout

    # -- the end

    def shutdown(self) -> None:
        """Make no calls any more; the job is over when all ranks have said so."""
        if self._agent is not None:
            self._agent.close()
        self._gloo.shutdown()

    def abort(self) -> None:
        """Make no calls any more."""
        self.shutdown()


def _reduce(
    agent: Agent,
    what: str,
    tensor: torch.Tensor,
    op: Any,
    divisor: int | None,
    then: Callable[[HopsumError | None], None],
) -> None:
    """Begin to reduce a tensor in place, divided by `divisor` in the end, if given."""
    summed = SUMMED_AS[tensor.dtype]
    reduction = reduction_of(op, tensor.dtype)
    assert reduction is not None
    source = tensor.detach()

    def fill(values: NDArray[Any]) -> tuple[int, tuple[str, int] | None]:
        shared = torch.from_numpy(values)
        shared.view(source.shape).copy_(source)
        if not len(values):
            return 0, None
        if summed == torch.float32:
            return 0, _fault(shared, finite=reduction == "sum")
        if reduction != "sum":
            return 0, None
        least, most = torch.aminmax(shared)
        return max(int(most), -int(least)), None

    def drain(values: NDArray[Any]) -> None:
        shared = torch.from_numpy(values)
        if divisor is not None:
            shared /= divisor
        source.copy_(shared.view(source.shape))

    dtype = np.dtype(np.float32 if summed == torch.float32 else np.int32)
    agent.sum(what, source.numel(), dtype, reduction, fill, drain, then)


def _set_backend(group: Any, gloo: Any) -> None:
    kind = dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(kind)
    group._register_backend(torch.device("cpu"), kind, gloo)
    if torch.cuda.is_available():
        group._register_backend(torch.device("cuda"), kind, gloo)


GIL_HELD = (
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_into_tensor_coalesced",
    "alltoall_base",
    "broadcast",
    "recv",
    "reduce_scatter",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "send",
)
"""Methods that a subclass written in Python may not inherit.

PyProcessGroup.hpp (WORK_OVERRIDE) looks for an override with the GIL held, and finding none calls
the base class without letting go of it. A thread of gloo that gives back a tensor then waits for
the GIL with gloo's queue locked, which the base class waits for: both hang.
"""


def _through_plain(name: str) -> Callable[..., Any]:
    """Return a method that calls the same of a group that is not a Python subclass."""

    def method(self: HopsumGroup, *arguments: Any, **options: Any) -> Any:
        return getattr(self._plain, name)(*arguments, **options)

    method.__name__ = name
    return method


for _name in GIL_HELD:
    # torch before 2.13 has fewer.
    if hasattr(dist.ProcessGroup, _name):
        setattr(HopsumGroup, _name, _through_plain(_name))


def create(options: Any) -> HopsumGroup:
    """Return a group; `options` as PyTorch gives them to backends (_DistributedBackendOptions).

    Raises HopsumError, at all ranks, where their agents do not fit together.
    """
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    gloo_options = dist.ProcessGroupGloo._Options()
    gloo_options._timeout = timeout
    gloo_options._devices = [_gloo_device()]
    store = dist.PrefixStore(turn(options.store, rank), options.store)
    gloo_store = dist.PrefixStore("gloo/", store)
    gloo = dist.ProcessGroupGloo(gloo_store, rank, size, gloo_options)
    gloo.options.global_ranks_in_group = options.global_ranks_in_group
    gloo.options.group_name = options.group_id
    gloo._set_sequence_number_for_group()
    agent = None
    # The first group, of all ranks, has no list of them.
    if not options.global_ranks_in_group:
        met = meet(store, rank, size, timeout.total_seconds())
        if isinstance(met, Agent):
            agent = met
        elif rank == 0 and os.environ.get("HOPSUM_AGENT") != "none":
            warnings.warn(f"hopsum: all goes over gloo: {met}", stacklevel=2)
    return HopsumGroup(rank, size, timeout, gloo, agent)


def _close(group: weakref.ref[HopsumGroup]) -> None:
    found = group()
    if found is not None and found._agent is not None:
        found._agent.close()


def _gloo_device() -> Any:
    """Return gloo's network device, at the address by which the other ranks reach this one.

    gloo's own choice, where GLOO_SOCKET_IFNAME names no interface, is what the host's name stands
    for, often 127.0.1.1 alone. The way to the ranks' store is a better one.
    """
    master = os.environ.get("MASTER_ADDR")
    if os.environ.get("GLOO_SOCKET_IFNAME") or not master:
        return dist.ProcessGroupGloo.create_default_device()
    try:
        family, kind, _, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # Nothing is sent: connecting only chooses the route.
            probe.connect(address)
            return dist.ProcessGroupGloo.create_device(hostname=probe.getsockname()[0])
    except OSError:
        return dist.ProcessGroupGloo.create_default_device()


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}, shape {list(tensor.shape)}"


def _fault(values: torch.Tensor, *, finite: bool = True) -> tuple[str, int] | None:
    """Return the first value that is not finite, and its index; unless `finite`, the first NaN."""
    # One pass where all is well: a NaN or an infinity makes the extremes differ from themselves.
    least, most = torch.aminmax(values)
    if torch.isfinite(least) and torch.isfinite(most):
        return None
    wrong = ~torch.isfinite(values) if finite else torch.isnan(values)
    if not wrong.any():
        return None
    index = int(torch.nonzero(wrong)[0])
    found = float(values[index])
    return ("nan" if found != found else "inf" if found > 0 else "-inf"), index
