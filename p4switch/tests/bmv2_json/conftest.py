"""Fixtures for BMv2 JSON: engines for documents."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from p4switch import ir
from p4switch.stf import engine_factory
from p4switch.targets.v1model.engine import Engine

Run = Callable[[ir.Program], Engine]


@pytest.fixture(params=["interpreter", "native"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Make engines, on each executor in turn."""
    if request.param == "native" and shutil.which("cc") is None:
        pytest.skip("the native executor needs a C compiler")
    yield engine_factory(request.param)
