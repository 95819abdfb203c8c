"""Runs of one process share an event loop, and still clean up after themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from hopsum.experiment.event_loop import interruption, run_async, terminable
from hopsum.protocol.errors import Interrupted


async def loop_in_use() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_runs_share_a_loop_that_stays_open() -> None:
    first = run_async(loop_in_use())
    assert run_async(loop_in_use()) is first
    assert not first.is_closed()


def test_an_exit_that_can_start_no_thread_is_silent() -> None:
    code = """if True:
        import asyncio, threading
        from hopsum.experiment.event_loop import run_async
        run_async(asyncio.to_thread(int))
        def refuse(thread):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        threading.Thread.start = refuse
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_errors_come_out_and_the_next_run_works() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_async(fail())
    assert not run_async(loop_in_use()).is_closed()


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGTERM, Interrupted), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_cancels_a_run_which_ends_first(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    ended = []

    async def run() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    before = signal.getsignal(signal.SIGTERM)
    with terminable(), pytest.raises(raised):
        run_async(run())
    assert ended == [True]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_that_one_run_waits_for_cancel_the_next(number: signal.Signals) -> None:
    """A command that was stopped by a signal may be followed by another in its process."""

    async def serve() -> None:
        with interruption() as interrupted:
            os.kill(os.getpid(), number)
            await interrupted.wait()

    async def wait() -> None:
        os.kill(os.getpid(), number)
        await asyncio.wait_for(asyncio.Event().wait(), 60)

    with terminable():
        run_async(serve())
        with pytest.raises((KeyboardInterrupt, Interrupted)):
            run_async(wait())


def test_sigterm_interrupts_what_is_not_asynchronous() -> None:
    with terminable(), pytest.raises(Interrupted) as caught:
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.exit_code == 143
