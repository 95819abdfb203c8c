"""Calls as PyTorch's profiler shows them: hopsum:all_reduce and so on, like gloo:all_reduce.

An event covers a call from its beginning to its end, with the shapes of what it reads. Those of
gloo's own show inside, where a call goes over gloo. With the profiler off nothing is recorded.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function

from hopsum_torch.names import NAME
from hopsum_torch.outer_work import OuterWork

TITLES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recvAnySource",
    "barrier": "barrier",
}
"""gloo's titles of a group's methods; reduce-scatters, which it shows as all-reduces, have one."""


class Event:
    """An event that begins now.

    It must end in another thread: PyTorch takes one that ends in its own for synchronous, and nests
    it with others.
    """

    def __init__(self, name: str, inputs: list[torch.Tensor]) -> None:
        self._record = record_function(name)
        # What its __enter__ does, which takes no tensors.
        self._record.record = torch._C._autograd._record_function_with_args_enter(name, *inputs)
        self._once = threading.Lock()

    def end_with(self, future: Any) -> None:
        """End when a future does, before those who wait for it learn of it."""
        # It may be over already: the event then ends in the thread that completes the other.
        elsewhere: Any = torch.futures.Future()
        both = torch.futures.collect_all([future, elsewhere])
        self._record._call_end_callbacks_on_future(both)
        thread = threading.Thread(target=elsewhere.set_result, args=(None,), name="hopsum event")
        thread.start()
        thread.join()

    def end(self) -> None:
        """End now, unless it has ended."""
        if self._once.acquire(blocking=False):
            over: Any = torch.futures.Future()
            over.set_result(None)
            self.end_with(over)


class RecordedWork(OuterWork):
    """A pending call whose event ends when a caller sees that the call has ended."""

    def __init__(self, inner: Any, event: Event) -> None:
        super().__init__(inner)
        self._event = event

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the call. Raises what it raises."""
        try:
            return super().wait(timeout)
        finally:
            self._event.end()

    def is_completed(self) -> bool:
        """Return whether the call is over, well or not."""
        over = super().is_completed()
        if over:
            self._event.end()
        return over


def recorded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let the profiler show calls of a method of a group."""
    title = f"{NAME}:{TITLES[method.__name__]}"

    @functools.wraps(method)
    def call(group: Any, *arguments: Any, **options: Any) -> Any:
        if not torch._C._autograd._profiler_enabled():
            return method(group, *arguments, **options)
        # Arguments: the tensors written, then those read, if these are not the same.
        two = len(arguments) > 1 and isinstance(arguments[1], torch.Tensor | list | tuple)
        read = list(_tensors(arguments[1] if two else arguments[:1]))
        return _record(title, read, lambda: method(group, *arguments, **options))

    return call


def _record(title: str, inputs: list[torch.Tensor], call: Callable[[], Any]) -> Any:
    """Begin an event, call, and return the work with which it ends."""
    if not hasattr(dist, "record_comm"):
        return _end_with(Event(title, inputs), call)
    # The user's own name, which PyTorch would give to an event of each work made here.
    name = torch._C._distributed_c10d._get_comm_profiling_name()
    with dist.record_comm(""):
        return _end_with(Event(name or title, inputs), call)


def _end_with(event: Event, call: Callable[[], Any]) -> Any:
    try:
        work = call()
    except BaseException:
        event.end()
        raise
    inner = work
    while isinstance(inner, OuterWork):
        inner = inner.inner
    if hasattr(inner, "when_over"):
        inner.when_over(event.end)
        return work
    try:
        future = inner.get_future()
    except RuntimeError:
        # gloo's point-to-point calls and reduce-scatters have none.
        return RecordedWork(work, event)
    event.end_with(future)
    return work


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an argument, also in lists."""
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, list | tuple):
        for each in argument:
            yield from _tensors(each)
