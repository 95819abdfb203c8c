"""Background tasks."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

LOGGER = logging.getLogger("hopsum.controller")


def log_defect(task: asyncio.Task[Any]) -> None:
    """Log the exception of a task unless it was cancelled: for `add_done_callback`."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        LOGGER.error("%s ended", task.get_name(), exc_info=error)
