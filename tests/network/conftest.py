"""What tests of the network tier need: root, Mininet, and no other emulation on the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mininet_topos.loader import why_unavailable
from mininet_topos.record import EmulationLock, EmulationUp, state_folder
from tests.machine import held, unique, until
from tests.network.processes import MARK

_REASON = why_unavailable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """One group: two emulations at once would take each other's interface names.

    Marked as soon as it is collected, since pytest-xdist reads the groups before other hooks run.
    """
    item.add_marker(pytest.mark.xdist_group("network"))
    if _REASON is not None:
        item.add_marker(pytest.mark.skip(reason=_REASON))


@pytest.fixture(autouse=True)
def only_emulation() -> Iterator[None]:
    """Wait for other runs of these tests, and for an emulation that is up for another reason."""
    folder = state_folder()
    with held(folder / "network-tests.lock"):
        until(_nobody_emulates, "the end of the emulation that is up on this machine")
        yield


def _nobody_emulates() -> bool:
    try:
        EmulationLock(state_folder()).release()
    except EmulationUp:
        return False
    return True


@pytest.fixture(autouse=True)
def own_processes(only_emulation: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mark all processes that the test starts, so that it finds those and no others."""
    monkeypatch.setenv(MARK, unique("test"))
