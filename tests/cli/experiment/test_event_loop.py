"""Runs of one process share an event loop, and clean up after themselves all the same."""

from __future__ import annotations

import asyncio

import pytest

from cli.experiment.event_loop import run_async


async def loop_in_use() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_runs_share_a_loop_that_stays_open() -> None:
    first = run_async(loop_in_use())
    assert run_async(loop_in_use()) is first
    assert not first.is_closed()


def test_errors_come_out_and_the_next_run_works() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_async(fail())
    assert not run_async(loop_in_use()).is_closed()
