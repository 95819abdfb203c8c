"""Externs that a program declares itself, written in Python (docs/externs.md)."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from p4switch import ir
from p4switch.backends.reference.host import BoundExtern
from p4switch.backends.reference.values import is_object
from p4switch.position import P4Error, UnsupportedError
from p4switch.targets.v1model.engine import ExternError


class PythonExterns:
    """The functions and classes of a file, by the names of the program's externs."""

    def __init__(self, path: Path) -> None:
        """Run the file. Raises ExternError, caused by the file's exception, if that fails."""
        self._path = path
        try:
            self._names: Mapping[str, Any] = runpy.run_path(str(path))
        except Exception as error:
            raise ExternError(f"{path}: cannot be run: {type(error).__name__}: {error}") from error
        self._objects: dict[ir.ExternInstance, Any] = {}

    def bind(self, call: ir.CallExtern) -> BoundExtern:
        """Return the function behind a call. Raises P4Error if the file has none."""
        place = self._holder(call)
        function = getattr(place, call.method, None) if call.instance else place
        if not callable(function):
            owner = f"{call.instance.extern}." if call.instance is not None else ""
            raise UnsupportedError(
                call.position,
                f"extern {owner + call.method!r} is not one of v1model, and {self._path} does "
                "not define it",
            )
        outputs = sum(
            argument.direction in ("out", "inout") and not is_object(argument.value.type)
            for argument in call.arguments
        ) + (call.result is not None)
        return BoundExtern(self._checked(function, outputs, call))

    def _holder(self, call: ir.CallExtern) -> Any:
        """Return the function itself, or an instance's object, which is made at its first call."""
        if call.instance is None:
            return self._names.get(call.method)
        if call.instance not in self._objects:
            made = self._names.get(call.instance.extern)
            if made is None:
                return None
            try:
                self._objects[call.instance] = made(*call.instance.arguments)
            except Exception as error:
                raise P4Error(
                    call.instance.position,
                    f"extern {call.instance.extern!r} of {self._path} cannot be made: "
                    f"{type(error).__name__}: {error}",
                ) from error
        return self._objects[call.instance]

    def _checked(
        self, function: Callable[..., Any], outputs: int, call: ir.CallExtern
    ) -> Callable[..., Any]:
        """Return a function that checks the number of returned values."""

        def run(*arguments: Any) -> Any:
            values = function(*arguments)
            if outputs > 1 and not (isinstance(values, tuple) and len(values) == outputs):
                raise ExternError(
                    f"{call.position}: {call.method!r} of {self._path} returned {values!r:.80}; "
                    f"expected a tuple of {outputs}: its out and inout arguments, then its result"
                )
            if outputs == 1 and (values is None or isinstance(values, tuple)):
                raise ExternError(
                    f"{call.position}: {call.method!r} of {self._path} returned {values!r:.80}; "
                    "expected one value"
                )
            return values

        return run
