"""A progress bar for what takes over a second, in terminals and notebooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS = 1.0
"""What ends sooner shows no bar."""


@contextmanager
def progress_bar(what: str, shown: bool | None) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of what is done and the total, which draws a bar on standard error.

    `shown` None: only after a second.
    """
    if shown is False:
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    bar = Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    started, task = time.monotonic(), bar.add_task(what)

    def advance(done: int, total: int) -> None:
        if shown or time.monotonic() - started > SECONDS:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        bar.stop()
