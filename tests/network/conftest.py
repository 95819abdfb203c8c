"""What tests of the network tier need: root, Mininet, and the machine to themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from mininet_topos.loader import why_unavailable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One group: two emulations at once would take each other's interface names."""
    reason = why_unavailable()
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker(pytest.mark.xdist_group("network"))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
