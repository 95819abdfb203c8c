"""Commands that configure interfaces."""

from __future__ import annotations

import pytest

from hopsum.mininet_topos.interfaces import ordered_command


@pytest.mark.parametrize(
    ("processor", "mask"),
    [(0, "1"), (31, "80000000"), (32, "1,00000000"), (69, "20,00000000,00000000")],
)
def test_masks_of_processors_have_groups_of_32_bits(processor: int, mask: str) -> None:
    assert ordered_command("s1-eth1", processor)[-2:] == ["s1-eth1", mask]


def test_no_interface_is_part_of_a_script() -> None:
    """The shell is given names as arguments, which it does not read as commands."""
    scripts = {ordered_command(name, 1)[2] for name in ("s1-eth1", "$(id)-eth0")}
    assert len(scripts) == 1
