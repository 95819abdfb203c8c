"""Programs in C of hopsum's own: a wheel's shared objects, or ones compiled for this machine."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from p4switch.packet_io.compile import FLAGS, compile_shared

_EXACT = ("-O3", "-fno-math-errno", "-ffp-contract=off")
"""Flags with which numbers are the same with every compiler, to the last bit."""
_STRICT = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-function")


def program_of(constants: Mapping[str, object], files: Sequence[str]) -> str:
    """Return the text of a program: constants, then files by their paths from `hopsum` on.

    Compilers, debuggers and gcov give places in these files, as `hopsum/host_agent/..`.
    """
    text = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    for file in files:
        text += f'#line 1 "hopsum/{file}"\n' + resources.files("hopsum").joinpath(file).read_text()
    return text


@dataclass(frozen=True)
class CLibrary:
    """A program, and its functions by name: the types of the result and of the arguments.

    `package`: a wheel has the shared object there, whose name begins with `name`.
    """

    package: str
    name: str
    text: str
    functions: Mapping[str, tuple[Any, ...]]

    def shared(self) -> Path:
        """Return the shared object, compiled unless it has been before. Raises NoCompilerError."""
        return compile_shared(self.name, self.text, (*FLAGS, *_EXACT, *_STRICT))

    def packaged(self) -> Path:
        """Return where a wheel has the shared object, if it has one (setup.py)."""
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        return Path(str(resources.files(self.package))) / f"{self.name}-{digest}.so"

    def load(self) -> ctypes.PyDLL:
        """Load it: a wheel's own, or one for this machine. Raises NoCompilerError."""
        path = self.packaged()
        loaded = ctypes.PyDLL(str(path if path.exists() else self.shared()))
        # PyDLL: calls are too short to let other threads run.
        for name, (result, *arguments) in self.functions.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
        return loaded
