"""Pick an executor: native where there is a C compiler, else the interpreter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from p4switch.targets.v1model.engine import Engine, EngineOptions

EXECUTORS = ("native", "interpreter")
_log = logging.getLogger(__name__)


def engine_maker(
    path: Path,
    include_paths: Sequence[Path] = (),
    defines: Mapping[str, str] | None = None,
    executor: str | None = None,
    options: EngineOptions | None = None,
) -> Callable[[], Engine]:
    """Compile a program and return a factory of engines for it.

    `executor`: `native`, `interpreter`, or None for native if there is a C compiler, else the
    interpreter with a warning. Raises P4Error; NoCompilerError if native is requested without one.
    """
    from p4switch.packet_io.compile import NoCompilerError

    if executor not in (None, *EXECUTORS):
        raise ValueError(f"executor {executor!r}: expected one of {', '.join(EXECUTORS)}")
    if executor != "interpreter":
        try:
            return _native_maker(path, include_paths, defines, options)
        except NoCompilerError as error:
            if executor == "native":
                raise
            _log.warning("%s; the interpreter runs instead (slower)", error)
    from p4switch.backends.reference.interpreter import Interpreter
    from p4switch.programs import compile_path

    program = compile_path(path, include_paths=include_paths, defines=defines)
    return lambda: Interpreter(program, options)


def _native_maker(
    path: Path,
    include_paths: Sequence[Path],
    defines: Mapping[str, str] | None,
    options: EngineOptions | None,
) -> Callable[[], Engine]:
    from p4switch.backends.native.build import load
    from p4switch.backends.native.engine import NativeEngine, c_file

    program, compiled = load(path, include_paths, defines, c_file(options))
    return lambda: NativeEngine(program, options, compiled=compiled)
