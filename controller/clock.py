"""The one clock that the controller reads: its event loop's, which may be virtual."""

from __future__ import annotations

import asyncio


def now() -> float:
    """Return seconds of the running event loop's clock, which never goes back."""
    return asyncio.get_running_loop().time()
