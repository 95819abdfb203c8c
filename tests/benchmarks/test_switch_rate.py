"""The benchmark of one switch: it may run while others do."""

from __future__ import annotations

import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks import switch_rate
from hopsum.experiment.description import Engine


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
