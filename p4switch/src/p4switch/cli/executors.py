"""Choice of a command's executor."""

from __future__ import annotations

import logging
from pathlib import Path

from p4switch.cli.options import fail


def executor_of_externs(externs: Path, executor: str | None) -> str:
    """Return the executor for a file of externs; an error if another was requested."""
    language, taker = ("C", "native") if externs.suffix == ".c" else ("Python", "interpreter")
    if executor not in (None, taker):
        fail(f"externs in {language} run in the {taker} executor: leave --executor {executor} out")
    return chosen_executor(taker)


def chosen_executor(executor: str | None) -> str:
    """Return the requested executor, or the best that this machine can run."""
    from p4switch.device.loading import EXECUTORS, default_executor
    from p4switch.packet_io.compile import cache_folder

    if executor is None:
        executor, reason = default_executor()
        if reason:
            logging.getLogger("p4switch").warning("%s; running the interpreter", reason)
    elif executor not in EXECUTORS:
        fail(f"--executor {executor}: expected one of {', '.join(EXECUTORS)}")
    if executor == "native":
        # Report an untrusted cache now, not at the first push.
        cache_folder()
    return executor
