"""The benchmark of one switch: it may run while others do."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks import switch_rate
from hopsum.collectives.choices import Engine
from tests.support.machine import until


class Started:
    """A process that is not there."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self.pid = 1
        self.command = command
        STARTED.append(self)

    def terminate(self) -> None:
        pass

    def wait(self) -> None:
        pass


STARTED: list[Started] = []


@pytest.mark.parametrize("engine", list(Engine))
def test_switches_listen_on_ports_of_their_own(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Started)
    STARTED.clear()
    with ExitStack() as stack:
        for number in range(5):
            log = tmp_path / str(number)
            switch = stack.enter_context(switch_rate.switch_process(engine, ["a", "b"], log))
            command = STARTED[-1].command
            assert switch.address == command[command.index("--grpc-server-addr") + 1]
            ports = [int(switch.address.rpartition(":")[2])]
            if engine is Engine.BMV2:
                ports.append(int(command[command.index("--thrift-port") + 1]))
            for port in ports:
                # Nobody listens there, so a switch can.
                stack.enter_context(socket.create_server(("127.0.0.1", port)))


def test_the_time_of_ended_threads_counts() -> None:
    """A thread that ends while the threads are read must neither crash this nor be missed."""
    spent: list[float] = []

    def work() -> None:
        sum(range(3_000_000))
        spent.append(time.thread_time())

    before = switch_rate.cpu_seconds(os.getpid())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists(), "its end")
    assert switch_rate.cpu_seconds(os.getpid()) - before >= 0.9 * spent[0]


def test_figures_of_bmv2_say_how_it_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = tmp_path / "simple_switch_grpc"
    switch.write_text("#!/bin/sh\necho 1.15.5-abc\n")
    switch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("BMV2_BUILD", raising=False)
    assert switch_rate.build_of(Engine.BMV2) == "1.15.5-abc, flags unknown (BMV2_BUILD)"
    monkeypatch.setenv("BMV2_BUILD", "-O2")
    assert switch_rate.build_of(Engine.BMV2) == "1.15.5-abc, -O2"
    assert not switch_rate.build_of(Engine.EMBEDDED)
