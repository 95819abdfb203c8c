"""Engines of a P4 program: native where there is a C compiler, else the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from p4switch.backends.native.build import load
from p4switch.backends.native.engine import NativeEngine, c_file
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.packet_io.compile import NoCompilerError
from p4switch.programs import compile_path
from p4switch.targets.v1model.engine import Engine, EngineOptions


def engine_maker(
    path: Path,
    defines: Mapping[str, str] | None = None,
    executor: str | None = None,
    options: EngineOptions | None = None,
) -> Callable[[], Engine]:
    """Compile a program and return a factory of engines for it.

    `executor`: `native`, `interpreter`, or None for native if there is a C compiler. Raises
    P4Error; NoCompilerError if native is requested without one.
    """
    if executor != "interpreter":
        try:
            native, compiled = load(path, (), defines, c_file(options))
            return lambda: NativeEngine(native, options, compiled=compiled)
        except NoCompilerError:
            if executor == "native":
                raise
    program = compile_path(path, defines=defines)
    return lambda: Interpreter(program, options)
