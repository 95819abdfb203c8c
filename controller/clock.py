"""The controller's clock: that of its event loop, which may be virtual."""

from __future__ import annotations

import asyncio


def now() -> float:
    """Return the running event loop's monotonic time, in seconds."""
    return asyncio.get_running_loop().time()
