"""Tasks that nobody waits for."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

LOGGER = logging.getLogger("hopsum.controller")


def log_defect(task: asyncio.Task[Any]) -> None:
    """Log what has ended a task, if that was no cancellation: for `add_done_callback`."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        LOGGER.error("%s ended", task.get_name(), exc_info=error)
