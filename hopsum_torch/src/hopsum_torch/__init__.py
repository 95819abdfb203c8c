"""A `torch.distributed` backend: `init_process_group("hopsum")`, with nothing to import.

What switches can do of the calls of a group of all ranks goes through them, by way of the host's
agent; everything else, and everything where there is no agent, goes over gloo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopsum_torch.names import DEVICES, NAME

if TYPE_CHECKING:
    from hopsum_torch.compression import compress_hook
    from hopsum_torch.options import Options

__all__ = ["Options", "compress_hook", "register"]


def register() -> None:
    """Make the backend known; PyTorch calls it when it is imported (entry point torch.backends)."""
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=list(DEVICES))


def __getattr__(name: str) -> Any:
    # PyTorch imports this module, and has no options of backends before it is imported itself.
    if name == "Options":
        from hopsum_torch.options import Options

        return Options
    if name == "compress_hook":
        from hopsum_torch.compression import compress_hook

        return compress_hook
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _create(options: Any, backend_options: Any) -> Any:
    """Return a group; `options` as PyTorch gives them to backends (_DistributedBackendOptions).

    `backend_options`: the caller's `pg_options`.
    """
    # Not when torch is imported: most processes that import it make no group.
    from hopsum_torch.group import create

    return create(options, backend_options)
