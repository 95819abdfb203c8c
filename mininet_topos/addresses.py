"""Addresses of an emulation's switches. Standard library only, for `mn --custom`."""

from __future__ import annotations

import sys
from pathlib import Path

from p4switch.packet_io.private_files import private_folder

CHECKOUT = Path(__file__).resolve().parent.parent
CPU_PORT = 510
SOCKETS = Path("/run/hopsum-switches")
"""Accessible to root only: a client of a switch's P4Runtime can install any program."""
THRIFT_BASE_PORT = 21000
"""Below the ports that Linux gives to outgoing connections (from 32768)."""


def program(name: str) -> str:
    """Return the path of a command of hopsum's environment.

    That is the checkout's, else the wheel's, else the one that runs this (with `mn --custom`, the
    system's Python does).
    """
    folders = (
        CHECKOUT / ".venv" / "bin",
        # A wheel's files are in ENVIRONMENT/lib/python3.N/site-packages/hopsum.
        (CHECKOUT / ".." / ".." / ".." / ".." / "bin").resolve(),
        Path(sys.executable).parent,
    )
    found = [folder / name for folder in folders if (folder / name).exists()]
    return str(found[0] if found else folders[0] / name)


def grpc_socket(number: int) -> Path:
    """Return the P4Runtime socket of switch number `number` (its device id, from 1)."""
    return SOCKETS / str(number)


def grpc_address(number: int) -> str:
    """Return the P4Runtime address of switch number `number`."""
    return f"unix:{grpc_socket(number)}"


def make_socket_folder() -> None:
    """Make the folder of the sockets. Raises UnsafePathError if another user could change it."""
    if private_folder(SOCKETS).stat().st_mode & 0o077:
        SOCKETS.chmod(0o700)


def trace_file(folder: str | Path, switch: str) -> Path:
    """Return the trace file of a switch in the folder of captures."""
    return Path(folder, f"{switch}-trace.jsonl")


def ready_file(switch: str) -> str:
    """Return the file that marks a switch that a controller has programmed."""
    return str(CHECKOUT / "build" / "ready" / switch)
