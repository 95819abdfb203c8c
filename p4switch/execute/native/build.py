"""From C text to a loaded object, with a cache that many switches share.

An entry of the cache is a folder named by the hash of all that went into it. A file lock a
entry lets one process build while others wait, so twenty switches start from one compile. The cache
stands in $XDG_CACHE_HOME/p4switch, or ~/.cache/p4switch.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from p4switch import ir
from p4switch.execute.native.generate import Generated, generate
from p4switch.execute.native.layout import Layout

RUNTIME = Path(__file__).parent / "runtime"
PACKAGE = Path(__file__).parents[2]

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
"""`-march=native` is part of the entry's name through `machine`."""

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g")
"""Additional flags for tests; the process must preload the address sanitizer's library."""


class NoCompilerError(Exception):
    """There is no C compiler; the interpreter runs every program without one."""


class CompileError(Exception):
    """The C compiler refused generated code: a defect of p4switch."""


def cache_folder() -> Path:
    """Where compiled programs are kept; made if it is not there."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "p4switch"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def compiler() -> str:
    """The C compiler: $CC, or `cc` on the path. NoCompilerError if there is none."""
    wanted = os.environ.get("CC") or "cc"
    found = shutil.which(wanted)
    if found is None:
        raise NoCompilerError(
            f"no C compiler: {wanted!r} is not on PATH; install gcc or clang for the native "
            "engine, or use the interpreter"
        )
    return found


@functools.cache
def compiler_version(path: str) -> str:
    """What the compiler says of itself."""
    return subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]


@functools.cache
def machine() -> str:
    """The processor's features, on which `-march=native` depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return os.uname().machine
    wanted = ("flags", "Features", "model name")
    seen = {line.split(":")[0].strip(): line for line in lines if line.startswith(wanted)}
    return os.uname().machine + "".join(seen.values())


@functools.cache
def runtime_text() -> str:
    """The C runtime, as part of an entry's name."""
    return "".join(path.read_text() for path in sorted(RUNTIME.iterdir()))


@functools.cache
def package_hash() -> str:
    """A hash of p4switch's own source: the version that cached programs belong to."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def hash_of(*parts: str) -> str:
    """A name for what the parts determine."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:40]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an entry's lock."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_generated(generated: Generated, extra_flags: Sequence[str] = ()) -> Path:
    """The shared object for a C text, compiled or from the cache; its layout lies beside it."""
    path = compiler()
    flags = [*FLAGS, *extra_flags]
    text, layout = generated.text, pickle.dumps(generated.layout)
    name = hash_of(
        text, runtime_text(), layout.hex(), compiler_version(path), " ".join(flags), machine()
    )
    folder = cache_folder() / name
    target = folder / "switch.so"
    if target.exists():
        return target
    with locked(folder):
        if not target.exists():
            (folder / "layout.pickle").write_bytes(layout)
            _compile(path, flags, text, target)
    return target


def read_layout(path: Path) -> Layout:
    """The layout that belongs to a shared object."""
    layout: Layout = pickle.loads(path.with_name("layout.pickle").read_bytes())
    return layout


def _compile(path: str, flags: Sequence[str], text: str, target: Path) -> None:
    """Compile next to the target and rename, so that nobody sees half a file."""
    source = target.with_name("switch.c")
    source.write_text(text)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        command = [path, *flags, f"-I{RUNTIME}", "-o", str(made), str(source)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise CompileError(
                f"{path} failed on {source}; this is a defect of p4switch, please report it:\n"
                f"{result.stderr[-2000:]}"
            )
        made.replace(target)


def build(program: ir.Program, extra_flags: Sequence[str] = ()) -> Path:
    """Generate and compile a program; the shared object."""
    compiler()
    return compile_generated(generate(program), extra_flags)


def load(
    path: Path,
    include_paths: Sequence[Path] = (),
    defines: Mapping[str, str] | None = None,
) -> tuple[ir.Program, Path]:
    """A program from its source and its shared object, both from the cache if they are there.

    The entry is named by the preprocessed source, the defines and p4switch's own source, so a
    second start needs no front end. Errors are those of the front end, of `generate`, and
    NoCompilerError.
    """
    from p4switch.check.program import compile_file
    from p4switch.source.preprocessor import preprocess

    defines = dict(defines or {})
    compiler()
    tokens = preprocess(path, include_paths=include_paths, defines=defines)
    text = "\n".join(tokens.texts)
    name = hash_of("program", str(path), text, repr(sorted(defines.items())), package_hash())
    folder = cache_folder() / name
    kept = folder / "program.pickle"
    with locked(folder):
        if kept.exists():
            program, generated = pickle.loads(kept.read_bytes())
        else:
            program = compile_file(path, include_paths=include_paths, defines=defines)
            generated = generate(program)
            made = kept.with_suffix(".new")
            made.write_bytes(pickle.dumps((program, generated)))
            made.replace(kept)
    return program, compile_generated(generated)
