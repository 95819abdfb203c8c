"""What tests of the network tier need: root, Mininet, and the machine to themselves."""

from __future__ import annotations

import pytest

from mininet_topos.loader import why_unavailable

_REASON = why_unavailable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """One group: two emulations at once would take each other's interface names.

    Marked as soon as it is collected, since pytest-xdist reads the groups before other hooks run.
    """
    item.add_marker(pytest.mark.xdist_group("network"))
    if _REASON is not None:
        item.add_marker(pytest.mark.skip(reason=_REASON))
