"""Where the commands of an emulation's processes are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hopsum.mininet_topos import addresses


def made(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_programs_are_those_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "env" / "lib" / "python3" / "site-packages" / "hopsum"
    monkeypatch.setattr(addresses, "CHECKOUT", checkout)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "mine" / "bin" / "python"))
    assert addresses.program("p4switch") == str(checkout / ".venv" / "bin" / "p4switch")
    # Found in the environment of another name, into which a checkout is installed,
    mine = made(tmp_path / "mine" / "bin" / "p4switch")
    assert addresses.program("p4switch") == str(mine)
    # in that of a wheel, and in the checkout's own.
    wheels = made(tmp_path / "env" / "bin" / "p4switch")
    assert addresses.program("p4switch") == str(wheels)
    own = made(checkout / ".venv" / "bin" / "p4switch")
    assert addresses.program("p4switch") == str(own)
