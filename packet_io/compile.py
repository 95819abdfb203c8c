"""Compile C into a shared object, once: the result is cached by the hash of all that makes it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

FLAGS = ("-O2", "-shared", "-fPIC", "-std=gnu11")


class NoCompilerError(RuntimeError):
    """There is no C compiler on PATH; callers have a slower way and say so."""


class CompileError(RuntimeError):
    """The compiler refused the C text; the message holds what it printed."""


@cache
def compiler() -> tuple[str, str]:
    """Path and version line of the C compiler (`$CC`, else `cc`); NoCompilerError if none."""
    path = shutil.which(os.environ.get("CC", "cc"))
    if path is None:
        raise NoCompilerError("no C compiler: neither $CC nor cc is on PATH; install gcc")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return path, version.stdout.partition("\n")[0]


def cache_folder() -> Path:
    """Where compiled objects are kept: `$XDG_CACHE_HOME/hopsum` or `~/.cache/hopsum`."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "hopsum"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def compile_shared(name: str, text: str, flags: Sequence[str] = FLAGS) -> Path:
    """Return the shared object of a C text, compiling it unless the cache has it.

    Safe against other processes doing the same. Raises NoCompilerError, CompileError.
    """
    path, version = compiler()
    digest = hashlib.sha256("\0".join((version, *flags, text)).encode()).hexdigest()[:24]
    target = cache_folder() / f"{name}-{digest}.so"
    if target.exists():
        return target
    with (cache_folder() / f"{name}-{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
                source = Path(folder) / f"{name}.c"
                source.write_text(text)
                built = Path(folder) / target.name
                done = subprocess.run(
                    [path, *flags, "-o", str(built), str(source)],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode != 0:
                    raise CompileError(f"{path} could not compile {name}.c:\n{done.stderr}")
                built.replace(target)
    return target
