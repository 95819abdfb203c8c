"""The base class of hopsum's errors, and its two kinds: wrong input, and operations that fail.

A command prints one line for any of them and exits with `exit_code`; anything else is a defect.
"""

from __future__ import annotations


class HopsumError(Exception):
    """An error that hopsum reports to its user; the message says what, where, and what to do."""

    exit_code = 1


class InputError(HopsumError, ValueError):
    """Unusable input: an option, a file, a network, a plan."""

    exit_code = 2


class OperationError(HopsumError, RuntimeError):
    """An operation on correct input that fails: a switch, a host, or a connection."""
