"""The base class of hopsum's errors, and its two kinds: wrong input, and operations that fail.

A command prints one line for any of them and exits with `exit_code`; anything else is a defect.
"""

from __future__ import annotations

import signal


class HopsumError(Exception):
    """An error that hopsum reports to its user; the message says what, where, and what to do."""

    exit_code = 1


class InputError(HopsumError, ValueError):
    """Unusable input: an option, a file, a network, a plan."""

    exit_code = 2


class OperationError(HopsumError, RuntimeError):
    """An operation on correct input that fails: a switch, a host, or a connection."""


class Interrupted(BaseException):
    """A signal has ended the command; everything it started is cleaned up.

    Notes of the exception (`add_note`) are printed after the word `interrupted`.
    """

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.exit_code = 128 + number
        """Exit code of a process ended by a signal, as in shells."""
