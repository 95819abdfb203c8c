"""Every packet test runs on every executor: `make_engine` is parametrised over them."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from p4switch.frontend.program import compile_file
from p4switch.ir import Program
from p4switch.stf import engine_factory
from p4switch.targets.v1model.engine import Engine, EngineOptions
from tests.support.paths import PROGRAMS

C_COMPILERS = ("cc", "gcc", "clang")

EngineMaker = Callable[..., Engine]


@cache
def compiled(name: str) -> Program:
    """The checked program `programs/NAME.p4`."""
    return compile_file(PROGRAMS / f"{name}.p4")


def _why_not(executor: str) -> str | None:
    """Why an executor cannot run here, or None."""
    if executor == "native":
        if importlib.util.find_spec("p4switch.backends.native.engine") is None:
            return "the native executor is not there yet"
        if not any(shutil.which(compiler) for compiler in C_COMPILERS):
            return "the native executor needs a C compiler (cc, gcc or clang)"
    return None


@pytest.fixture(params=["interpreter", "native"])
def executor(request: pytest.FixtureRequest) -> str:
    """The name of each executor in turn; skips those that cannot run here."""
    name: str = request.param
    reason = _why_not(name)
    if reason is not None:
        pytest.skip(reason)
    return name


@pytest.fixture
def make_engine(executor: str) -> EngineMaker:
    """`make_engine(program, options=None)`: an engine; program is a name or a checked program."""

    def make(program: str | Program, options: EngineOptions | None = None) -> Engine:
        checked = compiled(program) if isinstance(program, str) else program
        factory: Callable[..., Engine] = engine_factory(executor)
        return factory(checked, options or EngineOptions())

    return make


@pytest.fixture
def compile_text(tmp_path: Path) -> Callable[[str], Program]:
    """`compile_text(source)`: a checked program from text."""

    def compile_source(
        source: str, include_paths: Sequence[Path] = (), defines: Mapping[str, str] | None = None
    ) -> Program:
        path = tmp_path / "program.p4"
        path.write_text(source, encoding="utf-8")
        return compile_file(path, include_paths=[PROGRAMS, *include_paths], defines=defines)

    return compile_source
