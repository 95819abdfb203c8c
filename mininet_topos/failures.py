"""Errors of emulations. Standard library only, for `mn --custom`."""

from __future__ import annotations


class EmulationError(RuntimeError):
    """The emulation could not be brought up; the message says what failed."""

    exit_code = 2
    """As of `hopsum.protocol.errors`, which `mn --custom` cannot import."""


class MininetUnavailable(EmulationError):
    """Mininet cannot be used here; the message says what is missing and what to do."""


class SwitchFailed(EmulationError):
    """A switch process did not come up; the message has the end of its log."""
