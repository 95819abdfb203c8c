"""Signals that end a process, whichever thread takes them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.machine import PATIENCE

# The main thread sleeps when another one takes the signal, which CPython cannot tell it.
TAKEN_BY_ANOTHER_THREAD = """
import os, signal, sys, threading
from pathlib import Path
from p4switch.cli.run_command import noted_signals

never, _ = os.pipe()
taker = threading.Thread(target=os.read, args=(never, 1), daemon=True)
taker.start()
main = threading.main_thread()

def end():
    state = Path(f"/proc/self/task/{main.native_id}/stat")
    def sleeps():
        waits = any(name in ("wait", "select") for name in names(sys._current_frames()[main.ident]))
        return waits and state.read_text().rpartition(")")[2].split()[0] == "S"
    while not sleeps():
        pass
    signal.pthread_kill(taker.ident, signal.NUMBER)

def names(frame):
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back

with noted_signals() as wait:
    threading.Thread(target=end, daemon=True).start()
    wait()
print("ended")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_another_thread_takes_ends_the_wait(name: str) -> None:
    script = TAKEN_BY_ANOTHER_THREAD.replace("NUMBER", name)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
