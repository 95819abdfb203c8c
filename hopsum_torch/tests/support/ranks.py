"""Ranks as processes of their own, each with the agent of another host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PATIENCE = 600.0
"""Seconds until a wait is given up. Only a hung process takes as long, however busy the machine."""
SUPPORT = Path(__file__).parent


def start(
    agents: Sequence[str], script: Path, *arguments: str, **environment: str
) -> list[subprocess.Popen[str]]:
    """Start a rank for each agent, by the name of its socket, as torchrun would."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONWARNINGS": "ignore",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(agents)),
                "HOPSUM_AGENT": agent,
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, agent in enumerate(agents)
    ]


def run(agents: Sequence[str], script: Path, *arguments: str, **environment: str) -> list[str]:
    """What ranks print, all of which must end well."""
    processes = start(agents, script, *arguments, **environment)
    printed = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    for process, text in zip(processes, printed, strict=True):
        assert process.returncode == 0, text[-4000:]
    return printed
