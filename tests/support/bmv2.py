"""BMv2, where the machine has it."""

from __future__ import annotations

import shutil

import pytest


def need_bmv2() -> None:
    """Skip the test unless p4c and simple_switch_grpc are on PATH."""
    for command in ("p4c", "simple_switch_grpc"):
        if shutil.which(command) is None:
            pytest.skip(f"{command} is not on PATH")
