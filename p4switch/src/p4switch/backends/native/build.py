"""Compiles a P4 program to a shared object by way of C, in the cache of `packet_io.compile`."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from p4switch.packet_io.compile import (
    CompileError,
    cache_entry,
    compile_shared,
    compiler,
    compiler_identity,
    is_intact,
    locked,
    replace_file,
    seal,
)

if TYPE_CHECKING:
    # Imported late: a switch whose program is in the cache needs no generator.
    from p4switch import ir
    from p4switch.backends.native.generate import Generated
    from p4switch.backends.native.layout import Layout
    from p4switch.backends.native.own_externs import CFile

RUNTIME = Path(__file__).parent / "runtime"
PACKAGE = Path(__file__).parents[2]
SOURCE_SUFFIXES = (".py", ".p4", ".h")

FLAGS = (
    "-O2",
    "-march=native",
    "-ftree-vectorize",
    "-std=gnu11",
    "-shared",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-w",
)
"""Cache keys contain the meaning of `-march=native` through `machine`."""

LAYOUT = "layout.pickle"
"""The file with the layout of a shared object, kept in the same cache entry."""


@functools.cache
def machine() -> str:
    """Return the processor's features, on which `-march=native` depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return os.uname().machine
    wanted = ("flags", "Features", "model name")
    seen = {line.split(":")[0].strip(): line for line in lines if line.startswith(wanted)}
    return os.uname().machine + "".join(seen.values())


@functools.cache
def runtime_text() -> str:
    """Return the C runtime's source, which is part of cache keys."""
    return "".join(path.read_text() for path in sorted(RUNTIME.iterdir()))


@functools.cache
def package_hash() -> str:
    """Return a hash of p4switch's own source: the version that cached programs belong to.

    Each file counts with its size and time of modification, as for Python's bytecode: to read all
    takes longer than to load a program.
    """
    facts = sorted(
        f"{file.path} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in _sources(PACKAGE)
    )
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _sources(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_dir():
                yield from _sources(entry.path)
            elif entry.name.endswith(SOURCE_SUFFIXES):
                yield entry


def compile_generated(
    generated: Generated, extra_flags: Sequence[str] = (), externs: CFile | None = None
) -> Path:
    """Return the shared object for a C text, compiled or from the cache, with its layout.

    Raises NoCompilerError; ExternError for errors in `externs`; CompileError for any other, which
    is a defect of p4switch.
    """
    from p4switch.backends.native import own_externs
    from p4switch.targets.v1model.engine import ExternError

    own_flags = () if externs is None else own_externs.FLAGS
    try:
        return compile_shared(
            "switch",
            generated.text,
            [*FLAGS, *own_flags, *extra_flags],
            include_paths=[RUNTIME],
            depends=(runtime_text(), machine()),
            companions={LAYOUT: pickle.dumps(generated.layout)},
        )
    except CompileError as error:
        if externs is not None:
            raise ExternError(f"{externs.path}: {error}") from None
        raise CompileError(f"a defect of p4switch, please report it: {error}") from None


def read_layout(path: Path) -> Layout:
    """Return the layout that belongs to a shared object."""
    layout: Layout = pickle.loads(path.with_name(LAYOUT).read_bytes())
    return layout


def build(
    program: ir.Program, extra_flags: Sequence[str] = (), externs: CFile | None = None
) -> Path:
    """Generate and compile a program with its own externs; return the shared object."""
    from p4switch.backends.native.generate import generate

    compiler()
    return compile_generated(generate(program, externs), extra_flags, externs)


def load_kept(
    parts: Sequence[str], make: Callable[[], ir.Program], externs: CFile | None = None
) -> tuple[ir.Program, Path]:
    """Return a program and its shared object, from the cache if possible.

    `parts` and p4switch's own source determine the program; `make` is called if it is not cached.
    Raises the errors of `make` and `build`.
    """
    if externs is not None:
        parts = (*parts, str(externs.path), externs.text)
    entry = cache_entry("program", *parts, package_hash(), machine(), compiler_identity(compiler()))
    kept = entry / "program.pickle"
    with locked(entry):
        if is_intact(entry, [kept.name]):
            program, shared = pickle.loads(kept.read_bytes())
            if is_intact(shared.parent, [shared.name, LAYOUT]):
                return program, shared
        program = make()
        shared = build(program, externs=externs)
        replace_file(kept, pickle.dumps((program, shared)))
        seal(entry, [kept.name])
    return program, shared


def load(
    path: Path,
    include_paths: Sequence[Path] = (),
    defines: Mapping[str, str] | None = None,
    externs: CFile | None = None,
) -> tuple[ir.Program, Path]:
    """Return the program of a file, P4 source or BMv2 JSON, and its shared object.

    Both come from the cache if possible. Its key is the preprocessed source, the defines and
    p4switch's own source, so a second start needs no front end. Raises the errors of the front end
    and of `generate`, and NoCompilerError.
    """
    from p4switch.programs import compile_path, is_bmv2_json, read_file

    defines = dict(defines or {})
    compiler()
    data = read_file(path)
    if is_bmv2_json(data):
        text = data.decode(errors="replace")
    else:
        from p4switch.frontend.source.preprocessor import preprocess

        text = "\n".join(preprocess(path, include_paths=include_paths, defines=defines).texts)
    parts = (str(path), text, repr(sorted(defines.items())))
    return load_kept(
        parts, lambda: compile_path(path, include_paths=include_paths, defines=defines), externs
    )
