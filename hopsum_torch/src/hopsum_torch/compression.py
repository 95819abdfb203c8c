"""A communication hook of DistributedDataParallel that sends gradients in 16 bits."""

# Without annotations as strings: DistributedDataParallel compares the hook's with its types.

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

_calls = threading.local()


def compress_hook(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average gradients over the ranks, float32 in 16 bits a value; everything else stays as it is.

    `model.register_comm_hook(None, hopsum_torch.compress_hook)`; `group`: None: the default group.
    Their errors are in the README. Where switches do not sum them, they go in 32 bits over gloo.
    """
    chosen = dist.group.WORLD if group is None else group
    gradients = bucket.buffer()
    gradients.div_(dist.get_world_size(chosen))
    with _compressing():
        work = dist.all_reduce(gradients, group=chosen, async_op=True)
    future: torch.futures.Future[Any] = work.get_future()
    return future.then(lambda ended: ended.value()[0])


def compressed_bits() -> int | None:
    """Return the bits that calls of this thread are to take now; None: as their group says."""
    return getattr(_calls, "bits", None)


@contextmanager
def _compressing() -> Iterator[None]:
    _calls.bits = 16
    try:
        yield
    finally:
        _calls.bits = None
