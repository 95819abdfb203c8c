"""Externs that a program declares itself, written in C (docs/externs.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from p4switch import ir
from p4switch.backends.native.types import is_scalar, is_signed
from p4switch.position import UnsupportedError
from p4switch.targets.v1model.engine import ExternError

SUFFIX = ".c"
"""Suffix of extern files for the native executor; all others are Python, for the interpreter."""

FLAGS = ("-Wl,-z,defs",)
"""Missing definitions are an error when the file is compiled, not when it is loaded."""


@dataclass(frozen=True, slots=True)
class CFile:
    """A file of externs in C."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> CFile:
        """Read a file. Raises ExternError if it cannot be read, or lacks the suffix of C files."""
        if path.suffix != SUFFIX:
            raise ExternError(
                f"{path}: the native executor takes externs in C, in a file FILE{SUFFIX}"
            )
        try:
            return cls(path, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ExternError(f"{path}: cannot be read: {error}") from error


@dataclass(slots=True)
class OwnExterns:
    """A program's interface to a file of externs: prototypes, and objects whose state the switch
    keeps."""

    file: CFile
    prototypes: dict[str, str] = field(default_factory=dict)
    """C declarations by function name."""
    objects: dict[ir.ExternInstance, str] = field(default_factory=dict)
    """Members of the frame that hold the state of instances."""

    def declare(self, call: ir.CallExtern, name: str, result: str, parameters: list[str]) -> None:
        """Record how a function is called. UnsupportedError if that differs from another call."""
        text = f"{result} {name}({', '.join(parameters) or 'void'});"
        if self.prototypes.setdefault(name, text) != text:
            raise UnsupportedError(
                call.position,
                f"extern {call.method!r} is called with arguments of several kinds: C has one "
                f"function {name!r}, here {self.prototypes[name]}",
            )

    def member(self, instance: ir.ExternInstance) -> str:
        """Return the member of the frame that holds an instance's state."""
        return self.objects.setdefault(instance, f"own{len(self.objects)}")

    def head(self) -> Iterator[str]:
        """Yield the file's lines, such that errors refer to its own line numbers."""
        name = str(self.file.path).replace("\\", "\\\\").replace('"', '\\"')
        yield f'#line 1 "{name}"'
        yield self.file.text
        yield '#line 1 "switch.c"'

    def declarations(self) -> Iterator[str]:
        """Yield prototypes, against which the compiler checks the file's functions."""
        yield from self.prototypes.values()
        for kind, count in {i.extern: len(i.arguments) for i in self.objects}.items():
            parameters = ", ".join([f"extern_{kind} *", *["u64"] * count])
            yield f"void extern_{kind}_init({parameters});"

    def start(self) -> Iterator[str]:
        """Yield statements that construct all objects in the frame `f`."""
        for instance, member in self.objects.items():
            numbers = []
            for argument in instance.arguments:
                if not isinstance(argument, int):
                    raise UnsupportedError(
                        instance.position,
                        f"constructor of {instance.extern!r}: externs in C take numbers, "
                        "Booleans and enums",
                    )
                numbers.append(f"{int(argument) & (1 << 64) - 1:#x}ull")
            arguments = ", ".join([f"&f->{member}", *numbers])
            yield f"extern_{instance.extern}_init({arguments});"


def c_type(kind: ir.Type) -> str | None:
    """Return the C type of an argument; None if externs in C do not support it."""
    if not is_scalar(kind):
        return None
    return "i64" if is_signed(kind) else "u64"
