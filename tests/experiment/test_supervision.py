"""Processes that end are started again, in virtual time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from hopsum.experiment.supervision import (
    CALM_SECONDS,
    LONGEST_PAUSE,
    Backoff,
    end_processes,
    keep_agents,
    keep_switches,
    supervise,
)
from hopsum.mininet_topos.emulation import Emulation
from hopsum.mininet_topos.failures import SwitchFailed
from hopsum.simulation.loop import run_virtual


def test_pauses_grow_while_a_process_keeps_ending() -> None:
    backoff, now = Backoff(0.0), CALM_SECONDS
    pauses = []
    for _ in range(8):
        pauses.append(backoff.ended(now))
        now += pauses[-1]
        assert backoff.due == now
        backoff.start(now)
        now += 1.0
    assert pauses == [0, 1, 2, 4, 8, 16, LONGEST_PAUSE, LONGEST_PAUSE]
    assert backoff.ended(now + CALM_SECONDS) == 0.0


@dataclass
class World:
    """Processes by name; those in `broken` end at once, those in `blocked` do not start."""

    starts: list[tuple[float, str]] = field(default_factory=list)
    down: dict[str, str] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    blocked: set[str] = field(default_factory=set)
    received: list[str] = field(default_factory=list)

    def start(self, name: str) -> None:
        self.starts.append((asyncio.get_running_loop().time(), name))
        if name in self.blocked:
            raise SwitchFailed(f"{name}: its port is taken")
        if name not in self.broken:
            self.down.pop(name, None)

    def supervising(self) -> Coroutine[Any, Any, None]:
        return supervise(
            ["a", "b"], self.start, lambda: dict(self.down), "switch", self.received.append
        )


def during(world: World, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        task = asyncio.create_task(world.supervising())
        await test()
        assert not task.done()
        task.cancel()

    run_virtual(main())


def test_a_process_that_ends_is_restarted_at_once() -> None:
    world = World()

    async def test() -> None:
        await asyncio.sleep(100.0)
        assert not world.starts
        world.down["b"] = "code -9"
        await asyncio.sleep(1.0)
        assert [name for _, name in world.starts] == ["b"]
        assert world.received == ["switch b ended (code -9); restarting it"]

    during(world, test)


@pytest.mark.parametrize("kind", ["broken", "blocked"])
def test_a_process_that_keeps_failing_is_restarted_ever_more_rarely(kind: str) -> None:
    """The other one is still kept running."""
    world = World(**{kind: {"a"}})

    async def test() -> None:
        world.down["a"] = "code 1: it has no port"
        await asyncio.sleep(300.0)
        tries = len(world.starts)
        assert 8 <= tries <= 16
        assert "restarting it in 30 s" in world.received[-1] or "could not" in world.received[-1]
        world.down["b"] = "code 0"
        await asyncio.sleep(1.0)
        assert world.starts[-1][1] == "b"
        getattr(world, kind).clear()
        await asyncio.sleep(LONGEST_PAUSE + 1)
        assert not world.down

    during(world, test)


class Process:
    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.code = -15

    def wait(self, timeout: float | None = None) -> int:
        assert self.code is not None
        return self.code


@dataclass
class Emulated:
    """The calls that an emulation receives."""

    network: Any
    processes: dict[str, list[Process]] = field(default_factory=dict)
    switches: dict[str, int] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)

    def start_agent(self, host: str, arguments: list[str]) -> Process:
        self.commands.append(arguments)
        self.processes.setdefault(host, []).append(Process())
        return self.processes[host][-1]

    def log_tail(self, name: str) -> str:
        return f"the end of {name}'s log"

    def ended_switches(self) -> dict[str, int]:
        return dict(self.switches)

    def restart_switch(self, name: str) -> None:
        del self.switches[name]


class Names:
    hosts = ("h1", "h2")
    switches = ("s1", "s2")


def test_an_agent_that_fails_costs_no_other_and_is_started_again() -> None:
    """Also with an exit code that is not 0: nothing but an interrupt ends the cluster."""
    emulated, received = Emulated(Names()), list[str]()

    async def main() -> None:
        task = asyncio.create_task(
            keep_agents(
                cast(Emulation, emulated),
                Names.hosts,
                lambda host: ["agent", host],
                received.append,
            )
        )
        await asyncio.sleep(1.0)
        emulated.processes["h1"][0].code = 1
        emulated.processes["h2"][0].code = -9
        await asyncio.sleep(1.0)
        assert {host: len(all_) for host, all_ in emulated.processes.items()} == {"h1": 2, "h2": 2}
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())
    assert [process[1].code for process in emulated.processes.values()] == [-15, -15]
    assert emulated.commands[-1] == ["agent", "h2"]
    assert received == [
        "agent on h1 ended (code 1: the end of h1's log); restarting it",
        "agent on h2 ended (code -9); restarting it",
    ]


def test_a_switch_process_is_started_again() -> None:
    emulated, received = Emulated(Names()), list[str]()

    async def main() -> None:
        task = asyncio.create_task(keep_switches(cast(Emulation, emulated), received.append))
        await asyncio.sleep(1.0)
        emulated.switches["s2"] = -9
        await asyncio.sleep(1.0)
        assert not emulated.switches
        task.cancel()

    run_virtual(main())
    assert received == ["switch s2 ended (code -9); restarting it"]


def test_processes_end_even_if_they_do_not_want_to() -> None:
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); print('on', flush=True); input()"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", stubborn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    end_processes(processes, 0.1)
    assert [process.returncode for process in processes] == [-9, -9]
    for process in processes:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
