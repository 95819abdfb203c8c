"""Environment of a program's code: the externs, tables and value sets of the architecture."""

from __future__ import annotations

from collections.abc import Callable as Function
from dataclasses import dataclass
from typing import Protocol

from p4switch import ir
from p4switch.backends.reference.values import Value


@dataclass(slots=True)
class BoundExtern:
    """A bound call of an extern.

    `function` takes the values of the in and inout arguments (objects by reference, to change
    in place) and of `extra`, in order, and returns the new values of the scalar out and inout
    arguments and the result: one bare, several as a tuple.
    """

    function: Function[..., Value]
    extra: tuple[ir.Expression, ...] = ()


class TableHost(Protocol):
    """A table's entries and look-up."""

    actions: list[Function[..., None]]
    """Functions of the actions' data, which are unsigned as in the control plane."""

    def apply(
        self, key: tuple[int, ...], selector: tuple[tuple[int, int], ...]
    ) -> tuple[bool, int]:
        """Run the action for a key; return whether it hit, and the action's index in the table."""


class ValueSetHost(Protocol):
    """A parser value set's members."""

    def contains(self, values: tuple[int, ...]) -> bool:
        """Return whether any member matches all the values."""


class Host(Protocol):
    """Functions that the program's code calls."""

    def bind_extern(self, call: ir.CallExtern) -> BoundExtern:
        """Return the function behind a call."""

    def table_runtime(self, table: ir.Table) -> TableHost:
        """Return a table's look-up and state."""

    def value_set_runtime(self, value_set: ir.ValueSet) -> ValueSetHost:
        """Return a value set."""

    def step(self) -> None:
        """Count a step of the current packet; raises BudgetSpent when it has none left."""

    def length_changed(self, bits: int) -> None:
        """Note that a header became valid (positive) or invalid by setValid or setInvalid."""
