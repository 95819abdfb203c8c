"""Supervision of an emulation's processes: one that ends is restarted and never ends others.

A process that keeps ending is restarted after increasing pauses.
"""

from __future__ import annotations

import asyncio
import math
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hopsum.mininet_topos.emulation import Emulation
from hopsum.mininet_topos.failures import SwitchFailed
from hopsum.mininet_topos.fork_server import Process

WATCH_SECONDS = 0.5
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
CALM_SECONDS = 60.0
"""A process that has run for at least these seconds is restarted immediately."""

Notify = Callable[[str], None]


@dataclass(slots=True)
class Backoff:
    """Restart policy of a process. Times in seconds of the caller's clock."""

    started: float
    """Time of its last start."""
    pause: float = 0.0
    due: float = math.inf
    """Time of its next start; infinite while it runs."""

    def ended(self, now: float) -> float:
        """Record its end; return the pause until its restart."""
        if now - self.started >= CALM_SECONDS:
            self.pause = 0.0
        pause = self.pause
        self.due = now + pause
        self.pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * pause))
        return pause

    def start(self, now: float) -> None:
        """Record its start."""
        self.started, self.due = now, math.inf


async def supervise(
    names: Iterable[str],
    start: Callable[[str], None],
    ended: Callable[[], Mapping[str, str]],
    what: str,
    notify: Notify,
) -> None:
    """Keep processes running forever; the given ones run already.

    `start` restarts one; if it raises OSError or SwitchFailed, it is retried later. `ended` returns
    those that have ended, with the reason. `what`: word for them in messages, before their names.
    """
    loop = asyncio.get_running_loop()
    states = {name: Backoff(loop.time()) for name in names}
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        now = loop.time()
        for name, why in ended().items():
            state = states[name]
            if math.isinf(state.due):
                pause = state.ended(now)
                when = f" in {pause:.0f} s" if pause else ""
                notify(f"{what} {name} ended ({why}); restarting it{when}")
            if now < state.due:
                continue
            state.start(now)
            try:
                start(name)
            except (OSError, SwitchFailed) as error:
                notify(f"{what} {name} could not be started: {error}")


async def keep_switches(emulation: Emulation, notify: Notify) -> None:
    """Restart switch processes that end by themselves, forever."""

    def ended() -> dict[str, str]:
        return {
            name: _why(code, emulation.log_tail(name))
            for name, code in emulation.ended_switches().items()
        }

    await supervise(emulation.network.switches, emulation.restart_switch, ended, "switch", notify)


async def keep_agents(
    emulation: Emulation,
    hosts: Sequence[str],
    arguments: Callable[[str], Sequence[str]],
    notify: Notify,
) -> None:
    """Keep an agent running on each of these hosts until cancelled; then end them.

    `arguments`: of a host's agent.
    """
    processes: dict[str, Process] = {}

    def start(host: str) -> None:
        processes[host] = emulation.start_agent(host, arguments(host))

    def ended() -> dict[str, str]:
        codes = {host: process.poll() for host, process in processes.items()}
        return {
            host: _why(code, emulation.log_tail(host))
            for host, code in codes.items()
            if code is not None
        }

    try:
        for host in hosts:
            start(host)
        await supervise(hosts, start, ended, "agent on", notify)
    finally:
        await asyncio.to_thread(end_processes, list(processes.values()))


def _why(code: int, log: str) -> str:
    """Return how a process ended, with the end of its log if that gives the reason."""
    return f"code {code}" if code <= 0 else f"code {code}: {log}"


def end_processes(processes: Iterable[Process], seconds: float = 5.0) -> None:
    """Terminate processes; kill those that have not ended after some seconds."""
    processes = list(processes)
    for process in processes:
        process.terminate()
    until = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
