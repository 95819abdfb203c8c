"""tshark with hopsum's dissector."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.machine import PATIENCE
from tests.support.paths import ROOT

DISSECTOR = ROOT / "src" / "hopsum" / "protocol" / "hopsum.lua"


def dissect(capture: Path, *arguments: str) -> list[str]:
    """tshark's output lines for a capture."""
    tshark = shutil.which("tshark")
    if tshark is None:
        pytest.skip("needs tshark")
    command = [tshark, "-X", f"lua_script:{DISSECTOR}", "-r", str(capture), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert "hopsum.lua" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def assert_captured(folder: Path) -> None:
    """All 8 fragments of 2 workers are in the files of a switch's ports, and as many sums."""
    names = {file.name for file in folder.glob("*.pcap")}
    assert names == {f"s1-eth{port}_{way}.pcap" for port in (1, 2, 3) for way in ("in", "out")}
    for name, kind, weight in (
        ("s1-eth1_in", 1, 1), ("s1-eth2_in", 1, 1), ("s1-eth3_out", 1, 2), ("s1-eth1_out", 3, 2),
    ):  # fmt: skip
        fragments = dissect(
            folder / f"{name}.pcap",
            "-Y", f"hopsum.kind == {kind} && hopsum.weight == {weight}",
            "-T", "fields", "-e", "hopsum.fragment",
        )  # fmt: skip
        assert {int(fragment) for fragment in fragments} == set(range(8)), name
