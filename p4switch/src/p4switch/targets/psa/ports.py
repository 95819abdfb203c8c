"""Port numbers of PSA's programs and of the engine, which has those of v1model (9 bits)."""

from __future__ import annotations

from p4switch.midend.psa import CPU_PORT, RECIRCULATE_PORT
from p4switch.targets.v1model.engine import EngineOptions

RECIRCULATE_QUEUE = 511
"""The engine's port for packets to recirculate; v1model's to drop."""

PACKET_PATHS = (
    "NORMAL",
    "NORMAL_UNICAST",
    "NORMAL_MULTICAST",
    "CLONE_I2E",
    "CLONE_E2E",
    "RESUBMIT",
    "RECIRCULATE",
)
"""PSA_PacketPath_t."""


def engine_port(port: int, options: EngineOptions) -> int | None:
    """Return the engine's number of a program's port; None if there is no such port."""
    if port == RECIRCULATE_PORT:
        return RECIRCULATE_QUEUE
    if port == CPU_PORT:
        return options.cpu_port
    return port if port < RECIRCULATE_QUEUE else None


def program_port(port: int, options: EngineOptions) -> int:
    """Return a program's number of the engine's port."""
    if port == RECIRCULATE_QUEUE:
        return RECIRCULATE_PORT
    return CPU_PORT if port == options.cpu_port else port
