"""Pending calls around others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist


class OuterWork(dist.Work):
    """A pending call that delegates to `inner` whatever a subclass does not override."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the call. Raises what it raises."""
        # Some of gloo's works do not accept None.
        return bool(self.inner.wait(timeout) if timeout else self.inner.wait())

    def is_completed(self) -> bool:
        """Return whether the call is over, well or not."""
        return bool(self.inner.is_completed())

    def is_success(self) -> bool:
        """Return whether the call is over and has a result."""
        return bool(self.inner.is_success())

    def exception(self) -> Any:
        """Return the exception of the call, if any."""
        return self.inner.exception()

    def result(self) -> Any:
        """Return the tensors."""
        return self.inner.result()

    def source_rank(self) -> int:
        """Return the rank that a message came from."""
        return int(self.inner._source_rank())

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return the same as a torch future of the tensors."""
        return self.inner.get_future()
