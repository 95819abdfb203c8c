"""Errors while processes agree on an order."""

from __future__ import annotations

from hopsum.protocol.errors import InputError, OperationError


class TreeError(InputError):
    """No tree meets the request; the message names the limit that prevents it."""


class OperatorError(InputError):
    """An invalid call; the message says what was wrong and what was expected."""


class CoordinationError(OperationError):
    """The processes cannot continue to agree on an order.

    The message says who is concerned and what to do.
    """


class ProcessRefused(CoordinationError):
    """This process cannot join: its name is taken, or its tree or version differs."""


class IterationMismatch(CoordinationError):
    """The processes do not call for the same operators in an iteration.

    `operator` and `iteration`: the first such found; `processes`: the names of those at fault.
    Raised at every process: what one has summed, another may lack.
    """

    def __init__(
        self, operator: str, iteration: int, processes: tuple[str, ...], reason: str
    ) -> None:
        super().__init__(
            f"operator {operator}, iteration {iteration}: {', '.join(processes)} {reason}; "
            f"expected every operator once an iteration at every process, or at none: restart all "
            f"from the last state they have in common"
        )
        self.operator = operator
        self.iteration = iteration
        self.processes = processes
        self.reason = reason


class ProcessLost(CoordinationError):
    """A process of the group died or never connected; `name` is its name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"process {name} is lost: {reason}; nothing that needs it can start, restart the group "
            f"without it or with a new one in its place"
        )
        self.name = name
        self.reason = reason
