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
