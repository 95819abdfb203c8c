"""Short random histories under sanitizers; `make sanitize` has all tests of the data path."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import sanitizers
from tests.support.paths import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sanitizers.missing() is not None, reason=f"the compiler lacks {sanitizers.missing()}"
    ),
]

HISTORIES = """
from tests.host_agent.datapath import test_server_equivalence, test_worker_equivalence
for each in (test_server_equivalence, test_worker_equivalence):
    for seed, name in enumerate(each.PLANS):
        each.compare(each.PLANS[name](), seed, 60)
"""
BEYOND = """
import ctypes, pathlib, sys
from p4switch.packet_io.compile import FLAGS, compile_shared
text = "int beyond(int i) { int a[4] = {0}; return a[i]; }"
ctypes.CDLL(compile_shared("beyond", text, FLAGS)).beyond(4)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script under sanitizers."""
    command = [sys.executable, "-m", "tests.support.sanitizers", "-c", script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_histories_leave_no_finding() -> None:
    ended = run(HISTORIES)
    assert ended.returncode == 0, ended.stderr[-4000:]


def test_a_read_beyond_an_array_is_found() -> None:
    ended = run(BEYOND)
    assert ended.returncode != 0
    assert "Sanitizer" in ended.stderr or "runtime error" in ended.stderr, ended.stderr[-4000:]
