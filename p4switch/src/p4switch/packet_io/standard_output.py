"""An output that cannot be written ends a command with a line of error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, EIO, ENOSPC

UNWRITABLE = frozenset({EDQUOT, EFBIG, EIO, ENOSPC})


@contextmanager
def failures_reported(program: str) -> Iterator[None]:
    """Write standard output to its end; where that fails (a full disk), say so and exit with 1.

    A reader that has gone (`| head`) ends the program in silence.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        gone = isinstance(error, BrokenPipeError)
        if not gone and error.errno not in UNWRITABLE:
            raise
        _discard_output()
        if not gone:
            sys.stderr.write(f"{program}: cannot write the output: {error.strerror}\n")
        sys.exit(1)


def _discard_output() -> None:
    """Let the interpreter's last flush succeed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
