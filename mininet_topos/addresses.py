"""Where switch number n of an emulation is reached. Standard library only, for `mn --custom`."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
CPU_PORT = 510
GRPC_BASE_PORT = 20000
THRIFT_BASE_PORT = 21000
"""Both below the ports that Linux gives to outgoing connections (from 32768)."""


def program(name: str) -> str:
    """Return where a command of hopsum's environment is: of the checkout's, else the wheel's."""
    checkout = CHECKOUT / ".venv" / "bin" / name
    # A wheel's files are in ENVIRONMENT/lib/python3.N/site-packages.
    installed = CHECKOUT / ".." / ".." / ".." / "bin" / name
    return str(checkout if checkout.exists() else installed.resolve())


def grpc_port(number: int) -> int:
    """Return the P4Runtime port of switch number `number` (its device id, from 1)."""
    return GRPC_BASE_PORT + number


def grpc_address(number: int) -> str:
    """Return the P4Runtime address of switch number `number`."""
    return f"127.0.0.1:{grpc_port(number)}"


def ready_file(switch: str) -> str:
    """Return the file that marks a switch that a controller has programmed."""
    return str(CHECKOUT / "build" / "ready" / switch)
