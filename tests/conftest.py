"""Fixtures that several rooms share, and what tests marked `network` need."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from hopsum.collectives.workload import Digits
from hopsum.mininet_topos.loader import why_unavailable
from hopsum.mininet_topos.record import state_folder
from tests.support.emulation_turns import wait_for_turn
from tests.support.machine import PATIENCE, held, interface_names, unique, wait_until_up
from tests.support.processes import MARK
from tests.support.search import examples, search_all

_WHY_NO_MININET = why_unavailable()


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
        help="frames or calls of each test of test_frame_fuzz.py and test_call_fuzz.py",
    )
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
    settings.register_profile("hopsum", deadline=None, max_examples=examples(30, of=100))
    settings.load_profile("hopsum")
    # What a shell starts in the background ignores interrupts, as do the commands that tests start
    # and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


MANY_DESCRIPTORS = 500
"""Open files of a test process from which a search for unreferenced ones is worthwhile.

It takes up to a second. One module opens hundreds, and select(2) takes numbers below 1,024 only.
"""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among what is imported and collected, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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
    monkeypatch.setattr("hopsum.planning.embedding.job_planner.PLANNING_SECONDS", PATIENCE)


@pytest.fixture
def short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an epoch of digits have some steps only, in this process: all of them are alike."""
    monkeypatch.setattr(Digits, "STEPS_PER_EPOCH", 5)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Say which tests one worker runs: a module's, which share what is planned and compiled for it.

    All that emulate are one group: two emulations at once would take each other's interface names.
    Marked as soon as it is collected, since pytest-xdist reads the groups before other hooks run.
    """
    if item.get_closest_marker("network") is not None:
        item.add_marker(pytest.mark.xdist_group("network"))
        if _WHY_NO_MININET is not None:
            item.add_marker(pytest.mark.skip(reason=_WHY_NO_MININET))
    elif item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(_module(item)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let workers of pytest-xdist begin with what takes long, for none to be left alone with it."""
    if not hasattr(config, "workerinput"):
        return
    slow = Counter(_module(item) for item in items if item.get_closest_marker("slow") is not None)
    size = Counter(_module(item) for item in items)

    def turn(item: pytest.Item) -> tuple[bool, bool, int, int]:
        module = _module(item)
        one_by_one = _group(item) != module
        emulates = item.get_closest_marker("network") is not None
        return not emulates, not one_by_one, -slow[module], -size[module]

    items.sort(key=turn)


def _module(item: pytest.Item) -> str:
    return item.location[0].removeprefix("tests/").removesuffix(".py")


def _group(item: pytest.Item) -> str:
    marker = item.get_closest_marker("xdist_group")
    assert marker is not None
    name: str = marker.args[0]
    return name


@pytest.fixture(scope="module", autouse=True)
def few_objects_to_look_at() -> None:
    """Keep the collector from what is there before a module's tests, and lives as long as they do.

    Modules, tests, programs that are compiled once: to look at all of these, hundreds of thousands
    of objects, takes up to a second each time. Of these some have become garbage since, and may
    hold descriptors.
    """
    if sum(1 for _ in Path("/proc/self/fd").iterdir()) > MANY_DESCRIPTORS:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def turn_to_emulate(request: pytest.FixtureRequest) -> Iterator[None]:
    """Wait for other runs of network modules, each of which has one turn.

    All processes that its tests start are marked, so that they find those and no others.
    """
    if not _emulates(request.node):
        yield
        return
    with held(state_folder() / "network-tests.lock"), pytest.MonkeyPatch.context() as environment:
        environment.setenv(MARK, unique("test"))
        wait_for_turn()
        yield


@pytest.fixture(autouse=True)
def only_emulation(request: pytest.FixtureRequest, turn_to_emulate: None) -> None:
    """Wait for an emulation that is up for another reason than the module's tests."""
    if _emulates(request.node):
        wait_for_turn()


def _emulates(node: pytest.Item) -> bool:
    return node.get_closest_marker("network") is not None and _WHY_NO_MININET is None
