"""Pinned memory, from and to which GPUs copy directly (CUDA runtime API, cudaHostRegister)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch

from hopsum_torch.errors import HopsumError
from hopsum_torch.shared_memory import Memory

PORTABLE = 1
"""cudaHostRegisterPortable: for all GPUs of the process."""


def pinning(tensors: Iterable[torch.Tensor]) -> Callable[[Memory], None] | None:
    """Return the function that pins a call's memory if a tensor is on a GPU, else None.

    Waits for the work of the current streams on these tensors: results are copied in another
    thread.
    """
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    return pin if devices else None


def pin(memory: Memory) -> None:
    """Pin a memory, once, for as long as it exists. Raises HopsumError."""
    if memory.pinned:
        return
    address = memory.bytes.ctypes.data
    error = int(torch.cuda.cudart().cudaHostRegister(address, memory.size, PORTABLE))
    if error:
        raise HopsumError(
            f"{memory.size} bytes of shared memory cannot be pinned: CUDA error {error}, perhaps "
            "of an earlier operation (CUDA_LAUNCH_BLOCKING=1 shows which)"
        )
    memory.pinned = True
    weakref.finalize(memory, _unpin, address)


def _unpin(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)
