"""The pytest plugin: a fixture `switch` that runs a P4 program (docs/testing.md)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# All else is imported when a test requests a switch: every run of pytest where p4switch is
# installed loads the plugin.
if TYPE_CHECKING:
    from p4switch.ir import Program
    from p4switch.targets.v1model.engine import Engine
    from p4switch.testing import Switch

EXECUTORS = {
    "interpreter": ("interpreter",),
    "native": ("native",),
    "both": ("interpreter", "native"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --p4-program and --p4-executor, and the setting p4_program."""
    group = parser.getgroup("p4switch", "P4 programs")
    group.addoption("--p4-program", metavar="FILE", help="the program of tests that name none")
    group.addoption(
        "--p4-executor",
        choices=tuple(EXECUTORS),
        default="interpreter",
        help="executor of the programs (default: interpreter, which shows a packet's path when a "
        "test fails)",
    )
    parser.addini("p4_program", "the program of tests that name none, from the root folder")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker `p4`."""
    config.addinivalue_line(
        "markers",
        "p4(program, defines={}, include_paths=[], **options): the P4 program that `switch` runs, "
        "from the test's folder; `options` are those of p4switch's EngineOptions",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of a switch on each executor that was chosen."""
    if "p4_executor" in metafunc.fixturenames:
        chosen = EXECUTORS[metafunc.config.getoption("--p4-executor")]
        if len(chosen) > 1:
            metafunc.parametrize("p4_executor", chosen, scope="session")


@pytest.fixture(scope="session")
def p4_executor(pytestconfig: pytest.Config) -> str:
    """Name of the executor that tests run on."""
    return str(pytestconfig.getoption("--p4-executor"))


@pytest.fixture
def switch(request: pytest.FixtureRequest, p4_executor: str) -> Iterator[Switch]:
    """Return a new `p4switch.testing.Switch` that runs the program which the marker `p4` names."""
    from p4switch.position import P4Error
    from p4switch.targets.v1model.engine import ExternError
    from p4switch.testing import Switch

    marker = request.node.get_closest_marker("p4")
    keywords = dict(marker.kwargs) if marker is not None else {}
    path = _program_path(request, marker)
    folder = request.path.parent
    includes = tuple(folder / name for name in keywords.pop("include_paths", ()))
    defines = tuple(sorted((k, str(v)) for k, v in keywords.pop("defines", {}).items()))
    if "externs" in keywords:
        keywords["externs"] = folder / keywords["externs"]
    traces: list[str] = []
    problem = ""
    try:
        program = _compiled(path, path.stat().st_mtime_ns, includes, defines)
        engine = _engine(program, p4_executor, keywords, traces)
    except P4Error as error:
        problem = str(error)
    except (ExternError, TypeError, OSError) as error:
        problem = f"{path}: {error}"
    if problem:
        pytest.fail(problem, pytrace=False)
    yield Switch(engine, traces)
    engine.interrupt()


def _program_path(request: pytest.FixtureRequest, marker: pytest.Mark | None) -> Path:
    if marker is not None and marker.args:
        return Path(request.path.parent / marker.args[0]).resolve()
    named = request.config.getoption("--p4-program") or request.config.getini("p4_program")
    if named:
        return Path(request.config.rootpath / named).resolve()
    pytest.fail(
        "which P4 program? Mark the test with @pytest.mark.p4('FILE.p4'), or set p4_program in "
        "the settings of pytest, or give --p4-program",
        pytrace=False,
    )


@lru_cache(maxsize=64)
def _compiled(
    path: Path, _changed_ns: int, includes: tuple[Path, ...], defines: tuple[tuple[str, str], ...]
) -> Program:
    """Return the checked program; once for each time the file changes. Raises P4Error."""
    from p4switch.programs import compile_path

    return compile_path(path, include_paths=includes, defines=dict(defines))


def _engine(program: Program, executor: str, options: dict[str, Any], traces: list[str]) -> Engine:
    """Return an engine; the interpreter leaves the text of each packet's trace in `traces`.

    Raises TypeError for an unknown option, P4Error for a program it cannot run.
    """
    from p4switch.targets.v1model.engine import EngineOptions

    made = EngineOptions(**options)
    if executor == "native":
        from p4switch.backends.native.engine import NativeEngine

        return NativeEngine(program, made)
    from p4switch.backends.reference.interpreter import Interpreter
    from p4switch.backends.reference.trace import PacketTrace, Tracer

    def keep(trace: PacketTrace) -> None:
        traces.append(trace.text())

    return Interpreter(program, made, Tracer(keep))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail a test that leaves frames which it did not expect."""
    result = yield
    found = pyfuncitem.funcargs.get("switch")
    if found is not None:
        from p4switch.testing import Switch

        if isinstance(found, Switch):
            found.expect_nothing()
    return result
