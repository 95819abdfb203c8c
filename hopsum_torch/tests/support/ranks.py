"""Ranks as processes of their own, each with the agent of another host."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import runpy
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PATIENCE = 300.0
"""Seconds until a wait is given up. Only a hung process takes as long, however busy the machine."""
SUPPORT = Path(__file__).parent
COMMON = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
"""The environment of all ranks, which counts where an interpreter starts."""

# Importing torch takes most of a rank's CPU time: it is done once, in a process that all ranks are
# forks of. No test imports more than a training does: hopsum_torch comes in by its entry point.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp"])


class Rank:
    """A process that runs a script, and the file that takes what it prints."""

    def __init__(self, process: Any, printed: Path) -> None:
        self._process = process
        self._printed = printed

    @property
    def returncode(self) -> int | None:
        """Its exit status, or -N where signal N ended it; None as long as it runs."""
        status: int | None = self._process.exitcode
        return status

    def communicate(self) -> str:
        """Wait for its end, and return what it has printed. A hung one is killed."""
        self._process.join(PATIENCE)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        text = self._printed.read_text()
        self._printed.unlink()
        return text


def start(agents: Sequence[str], script: Path, *arguments: str, **environment: str) -> list[Rank]:
    """Start a rank for each agent, by the name of its socket, as torchrun would."""
    port = free_port()
    ranks = []
    inherited = dict(os.environ)
    os.environ.update(COMMON)
    try:
        for rank, agent in enumerate(agents):
            descriptor, printed = tempfile.mkstemp(prefix="rank")
            os.close(descriptor)
            values = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(agents)),
                "HOPSUM_AGENT": agent,
                **environment,
            }
            process = _FORKS.Process(  # type: ignore[attr-defined]
                target=act, args=(values, printed, [str(script), *arguments]), daemon=True
            )
            process.start()
            ranks.append(Rank(process, Path(printed)))
    finally:
        os.environ.clear()
        os.environ.update(inherited)
    return ranks


def free_port() -> int:
    """Return a port that is free, and that no connection is given before rank 0 listens there.

    Linux gives connections ports from 32768 on (ip_local_port_range, ip(7)).
    """
    while True:
        port = random.randrange(20_000, 32_768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def act(environment: Mapping[str, str], printed: str, command: Sequence[str]) -> None:
    """Be a rank: run a script as the main program."""
    os.environ.update(environment)
    output = os.open(printed, os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.argv = list(command)
    runpy.run_path(command[0], run_name="__main__")


def run(agents: Sequence[str], script: Path, *arguments: str, **environment: str) -> list[str]:
    """The output of ranks, all of which must succeed."""
    processes = start(agents, script, *arguments, **environment)
    printed = [process.communicate() for process in processes]
    for process, text in zip(processes, printed, strict=True):
        assert process.returncode == 0, text[-4000:]
    return printed
