"""Compiles C text to shared objects, in a cache shared by many processes.

A cache entry is a folder named by the hash of all its inputs. A file lock per entry lets one
process build while others wait, so twenty switches start from one compile. The cache is in
$XDG_CACHE_HOME/p4switch, or ~/.cache/p4switch. Its contents are executed, so only its owner may
write there. Hashes of its files tell those that were damaged, which are made again.
$P4SWITCH_CFLAGS holds more flags for the compiler, after all others.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from p4switch.packet_io.private_files import ANOTHER_PLACE, UnsafePathError, private_folder

FLAGS = ("-O2", "-shared", "-fPIC", "-std=gnu11")

SEAL = "sha256sums"
"""The file with the hashes of an entry's other files."""


class NoCompilerError(RuntimeError):
    """There is no C compiler on PATH; callers fall back to a slower way and say so."""


class CompileError(RuntimeError):
    """The compiler refused the C text; the message contains its output."""


def compiler() -> str:
    """Return the C compiler: $CC, or `cc` on the path. NoCompilerError if there is none."""
    wanted = os.environ.get("CC") or "cc"
    found = shutil.which(wanted)
    if found is None:
        raise NoCompilerError(
            f"no C compiler: {wanted!r} is not on PATH; install gcc or clang, or name one by $CC"
        )
    return found


def own_flags() -> list[str]:
    """Return the flags in $P4SWITCH_CFLAGS."""
    return shlex.split(os.environ.get("P4SWITCH_CFLAGS", ""))


def compiler_identity(path: str) -> str:
    """Return a compiler's identity: its file, size, modification time, and `own_flags`.

    Querying its version would start a process at each start of a switch.
    """
    file = Path(path).resolve()
    facts = file.stat()
    return f"{file} {facts.st_size} {facts.st_mtime_ns} {own_flags()}"


def cache_folder() -> Path:
    """Return the folder of compiled objects, created if missing. Raises UnsafePathError."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        parent = Path(base) if base else Path.home() / ".cache"
    except RuntimeError as error:
        raise UnsafePathError(
            f"user {os.getuid()} has no home folder for compiled code; {ANOTHER_PLACE}"
        ) from error
    return private_folder(parent / "p4switch")


def cache_entry(*parts: str) -> Path:
    """Return the folder of the entry with these inputs; it need not exist."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return cache_folder() / digest.hexdigest()[:40]


@contextmanager
def locked(entry: Path) -> Iterator[None]:
    """Hold an entry's lock; the entry is created."""
    entry.mkdir(parents=True, exist_ok=True)
    with (entry / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file of a `locked` cache entry atomically."""
    made = path.with_suffix(".new")
    made.write_bytes(data)
    made.replace(path)


def seal(entry: Path, names: Sequence[str]) -> None:
    """Write down the hashes of files of a `locked` cache entry, for `is_intact`."""
    replace_file(entry / SEAL, _sums(entry, names).encode())


def is_intact(entry: Path, names: Sequence[str]) -> bool:
    """Return whether these files of a cache entry are as they were when it was sealed.

    Files written shortly before a power failure, or on a full disk, may be cut or full of zeros.
    """
    try:
        return (entry / SEAL).read_bytes() == _sums(entry, names).encode()
    except OSError:
        return False


def _sums(entry: Path, names: Sequence[str]) -> str:
    """Return the hashes of files as `sha256sum` writes them."""
    hashes = {name: hashlib.sha256((entry / name).read_bytes()) for name in names}
    return "".join(f"{found.hexdigest()}  {name}\n" for name, found in hashes.items())


def compile_shared(
    name: str,
    text: str,
    flags: Sequence[str] = FLAGS,
    *,
    include_paths: Sequence[Path] = (),
    depends: Sequence[str] = (),
    companions: Mapping[str, bytes] | None = None,
) -> Path:
    """Return the shared object of a C text, compiling it unless the cache has it.

    `depends` is part of the entry's key, `include_paths` are not: it holds further inputs, such as
    the text of headers there. `companions`: further files, by name, that the cache keeps in the
    same folder. Raises NoCompilerError, CompileError, UnsafePathError.
    """
    path = compiler()
    companions = companions or {}
    kept = [part for file, data in sorted(companions.items()) for part in (file, data.hex())]
    entry = cache_entry(name, text, compiler_identity(path), *flags, "", *depends, "", *kept)
    target = entry / f"{name}.so"
    names = (target.name, *companions)
    if is_intact(entry, names):
        return target
    with locked(entry):
        if not is_intact(entry, names):
            for file, data in companions.items():
                replace_file(entry / file, data)
            includes = [f"-I{folder}" for folder in include_paths]
            _compile(path, [*flags, *includes], text, target)
            seal(entry, names)
    return target


def _compile(path: str, flags: Sequence[str], text: str, target: Path) -> None:
    """Compile next to the target and rename, so that the file appears atomically."""
    import tempfile

    source = target.with_suffix(".c")
    source.write_text(text)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        command = [path, *flags, *own_flags(), "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(f"{path} failed on {source}:\n{done.stderr[-2000:]}")
        made.replace(target)
