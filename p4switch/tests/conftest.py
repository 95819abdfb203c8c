"""Fixtures that several rooms share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.search import examples, search_all
from tests.support.veth import skip_without_veths, veth_pairs


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of compiled programs, empty and of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "p4switch"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of long runs."""
    parser.addoption(
        "--all-examples",
        action="store_true",
        help="as many examples as each random search has, not the few that are enough day by day",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Say how far to search, before modules are collected that ask."""
    if config.getoption("--all-examples"):
        search_all()
    # Nothing is timed in tests: a busy machine must not fail them.
    settings.register_profile("p4switch", deadline=None, max_examples=examples(30, of=100))
    settings.load_profile("p4switch")
    # What a shell starts in the background ignores interrupts, as do the commands that tests start
    # and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let one worker run all tests of a module, which share what is compiled for it."""
    if item.get_closest_marker("xdist_group") is None:
        network = item.get_closest_marker("network") is not None
        item.add_marker(pytest.mark.xdist_group("network" if network else item.location[0]))


@contextmanager
def _veth_pair() -> Iterator[tuple[str, str]]:
    skip_without_veths()
    with veth_pairs(1) as [pair]:
        yield pair


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
