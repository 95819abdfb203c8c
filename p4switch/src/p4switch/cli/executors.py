"""Which executor a command uses."""

from __future__ import annotations

import logging

from p4switch.cli.options import fail


def chosen_executor(executor: str | None) -> str:
    """Return the executor that was asked for, or the best that this machine can run."""
    from p4switch.device.loading import EXECUTORS, default_executor
    from p4switch.packet_io.compile import cache_folder

    if executor is None:
        executor, reason = default_executor()
        if reason:
            logging.getLogger("p4switch").warning("%s; running the interpreter", reason)
    elif executor not in EXECUTORS:
        fail(f"--executor {executor}: expected one of {', '.join(EXECUTORS)}")
    if executor == "native":
        # A cache that cannot be trusted is an error now, not at the first push.
        cache_folder()
    return executor
