"""A progress bar for work of over a second, in terminals and notebooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

SECONDS = 1.0
"""Work that takes less time shows no bar."""


@contextmanager
def progress_bar(
    what: str, shown: bool | None = None, console: Console | None = None
) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of what is done and the total, which draws a bar.

    `shown` None: only after a second. `console`: None: standard error. Elsewhere than on a terminal
    or in a notebook nothing is drawn.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    out = console or Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=out,
        transient=True,
        refresh_per_second=4,
        # Elsewhere the bar would leave an empty line.
        disable=shown is False or not (out.is_terminal or out.is_jupyter),
    )
    started, task = time.monotonic(), bar.add_task(what, total=None)
    if shown:
        bar.start()

    def advance(done: int, total: int) -> None:
        if time.monotonic() - started > SECONDS:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        bar.stop()
