"""`make_switch`: hopsum.p4 on every engine that this machine has, with one set of calls."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator

import pytest

from tests.packet.hopsum import bmv2
from tests.packet.hopsum.switches import Build, EngineSwitch, Switch

ENGINES = (
    pytest.param("interpreter", marks=pytest.mark.slow),
    "native",
    # One process.
    pytest.param("bmv2", marks=[pytest.mark.slow, pytest.mark.xdist_group("bmv2")]),
)
C_COMPILERS = ("cc", "gcc", "clang")

MakeSwitch = Callable[[Build], Switch]


def _why_not(engine: str) -> str | None:
    """Why an engine cannot run here, or None."""
    if engine == "bmv2":
        return bmv2.why_not()
    if engine == "native":
        if importlib.util.find_spec("p4switch.backends.native.engine") is None:
            return "the native executor is not there yet"
        if not any(shutil.which(compiler) for compiler in C_COMPILERS):
            return "the native executor needs a C compiler (cc, gcc or clang)"
    return None


@pytest.fixture(scope="module")
def bmv2_process() -> Iterator[bmv2.Bmv2Process]:
    """One simple_switch_grpc for a module's tests."""
    process = bmv2.Bmv2Process()
    yield process
    process.close()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The name of each engine in turn; skips those that cannot run here."""
    name: str = request.param
    reason = _why_not(name)
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    return name


@pytest.fixture
def make_switch(engine: str, request: pytest.FixtureRequest) -> MakeSwitch:
    """`make_switch(build)`: a new switch; on BMv2 it is the only one at a time."""

    def make(build: Build) -> Switch:
        if engine == "bmv2":
            return bmv2.Bmv2Switch(request.getfixturevalue("bmv2_process"), build)
        return EngineSwitch(engine, build)

    return make


@pytest.fixture
def switch(make_switch: MakeSwitch) -> Switch:
    """A new switch for packets of 32 lanes, no entries in its tables."""
    return make_switch(Build())
