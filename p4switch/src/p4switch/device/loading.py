"""Makes engines from device configurations, native if a compiler is installed."""

from __future__ import annotations

import contextlib
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from p4switch.position import P4Error, Position
from p4switch.programs import is_bmv2_json, is_bundle, read_program_file
from p4switch.targets.v1model.engine import Engine, EngineOptions

if TYPE_CHECKING:
    from p4switch.backends.native.own_externs import CFile
    from p4switch.backends.reference.trace import Tracer
    from p4switch.ir import Program

EXECUTORS = ("native", "interpreter")


def default_executor() -> tuple[str, str]:
    """Return `native`, or `interpreter` with the reason."""
    from p4switch.packet_io.compile import NoCompilerError, compiler

    try:
        compiler()
    except NoCompilerError as error:
        return "interpreter", str(error)
    return "native", ""


class Loader:
    """Makes engines from bundles; switches of one process that run the same program share its code.

    With a `tracer` the executor is always the interpreter: the native one cannot trace.
    """

    def __init__(self, executor: str, options: EngineOptions, tracer: Tracer | None = None) -> None:
        self.executor = executor if tracer is None else "interpreter"
        self.options = options
        self.tracer = tracer

    def __call__(self, device_config: bytes) -> Engine:
        """Return an engine for a bundle (`bundle.make_bundle`). Raises P4Error."""
        if self.executor == "interpreter":
            from p4switch.backends.reference.interpreter import Interpreter

            return Interpreter(checked_program(device_config), self.options, self.tracer)
        from p4switch.backends.native.engine import NativeEngine, c_file

        program, compiled = _native_program(device_config, c_file(self.options))
        return NativeEngine(program, self.options, compiled=compiled)


class LoaderWithEntries(Loader):
    """A loader whose engines start with the control-plane state of an STF file."""

    def __init__(self, loader: Loader, entries: Path) -> None:
        super().__init__(loader.executor, loader.options, loader.tracer)
        self._entries = entries

    def __call__(self, device_config: bytes) -> Engine:
        """See `Loader`. Raises StfError too."""
        from p4switch.stf import prepare

        engine = super().__call__(device_config)
        prepare(engine, self._entries)
        return engine


@lru_cache(maxsize=4)
def checked_program(device_config: bytes) -> Program:
    """Return the program of a bundle, or of BMv2 JSON. Raises P4Error."""
    if is_bmv2_json(device_config):
        from p4switch.bmv2_json.reader import read

        return read(device_config, "<device config>")
    from p4switch.frontend.program import compile_program
    from p4switch.frontend.syntax.parser import parse_text

    return compile_program(parse_text(_checked_text(device_config)))


@lru_cache(maxsize=4)
def _native_program(device_config: bytes, externs: CFile | None) -> tuple[Program, Path]:
    """Return a bundle's program and its shared object."""
    from p4switch.backends.native.build import load_kept

    digest = hashlib.sha256(device_config).hexdigest()
    # Cached programs have been checked.
    return load_kept(("bundle", digest), lambda: checked_program(device_config), externs)


def warm(device_config: bytes) -> None:
    """Compile a bundle for switches that start later. They tell what is wrong if it cannot be."""
    from p4switch.packet_io.compile import CompileError
    from p4switch.packet_io.private_files import UnsafePathError

    if default_executor()[0] == "native":
        with contextlib.suppress(P4Error, CompileError, UnsafePathError, OSError):
            _native_program(device_config, None)


def _checked_text(device_config: bytes) -> str:
    """Return the text of a bundle after checking that it has no preprocessor directives."""
    from p4switch.device.bundle import from_text

    if not is_bundle(device_config):
        raise P4Error(
            Position("<device config>", 1, 1),
            "expected the output of `p4switch compile prog.p4 -o prog.p4bin`, or BMv2 JSON",
        )
    text = device_config.decode(errors="replace")
    from_text(text)
    return text


def read_program(
    path: Path, include_paths: list[Path], defines: dict[str, str], p4info: Path | None = None
) -> bytes:
    """Return the bundle of a file: a bundle, P4 source or BMv2 JSON. Raises P4Error.

    `p4info`: as in `read_program_file`.
    """
    data = read_program_file(path, p4info)
    if is_bmv2_json(data) or is_bundle(data):
        return data
    from p4switch.device.kept_bundle import kept_bundle

    return kept_bundle(path, include_paths, defines)
