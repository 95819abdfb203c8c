"""Commands that configure interfaces."""

from __future__ import annotations

import pytest

from mininet_topos.interfaces import ordered_command


@pytest.mark.parametrize(
    ("processor", "mask"),
    [(0, "1"), (31, "80000000"), (32, "1,00000000"), (69, "20,00000000,00000000")],
)
def test_masks_of_processors_have_groups_of_32_bits(processor: int, mask: str) -> None:
    command = ordered_command("s1-eth1", processor)
    assert f" echo {mask} > " in command[-1]
