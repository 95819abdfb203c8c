"""Compile what a process compiles with other flags."""

from __future__ import annotations

import os


def recompiled(flags: str) -> dict[str, str]:
    """Return the environment of a process whose C text is compiled with more flags."""
    return {**os.environ, "P4SWITCH_CFLAGS": flags}
