"""Fixtures that several tiers share."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from tests.machine import PATIENCE, interface_names, until

# Nothing is timed in tests: a busy machine must not fail them.
settings.register_profile("hopsum", deadline=None)
settings.load_profile("hopsum")


def wait_until_up(*interfaces: str) -> None:
    """Return when the kernel has noticed the carrier: until then it drops what is sent."""
    for interface in interfaces:
        state = Path("/sys/class/net", interface, "operstate")
        until(lambda state=state: state.read_text().strip() == "up", f"{interface} to come up")  # type: ignore[misc]


@contextmanager
def _veth_pair() -> Iterator[tuple[str, str]]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2 for a veth pair")
    a, b = interface_names("a", "b")
    subprocess.run(["ip", "link", "add", a, "type", "veth", "peer", "name", b], check=True)
    try:
        for name in (a, b):
            subprocess.run(["sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1"], check=True)
            subprocess.run(["ip", "link", "set", name, "up"], check=True)
        wait_until_up(a, b)
        yield a, b
    finally:
        if Path("/sys/class/net", a).exists():
            subprocess.run(["ip", "link", "delete", a], check=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of long runs."""
    parser.addoption(
        "--fuzz-frames",
        type=int,
        default=None,
        help="frames of each test of tests/unit/test_frame_fuzz.py, some millions for a long run",
    )


@pytest.fixture
def veth() -> Iterator[tuple[str, str]]:
    """A veth pair, up, IPv6 off, gone afterwards; needs root."""
    with _veth_pair() as pair:
        yield pair


@pytest.fixture
def other_veth() -> Iterator[tuple[str, str]]:
    """A second one."""
    with _veth_pair() as pair:
        yield pair


@pytest.fixture
def time_to_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a plan of an embedding depend on its search alone, and not on how busy the machine is."""
    monkeypatch.setattr("planning.embedding.job_planner.PLANNING_SECONDS", PATIENCE)
