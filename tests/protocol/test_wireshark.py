"""Wireshark's view of the protocol page's vectors; needs tshark."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from p4switch.packet_io.pcap import PcapWriter
from protocol.wire import Flag
from tests.support.machine import PATIENCE
from tests.support.paths import ROOT
from tests.support.protocol_vectors import read_vectors

DISSECTOR = ROOT / "tools" / "wireshark" / "hopsum.lua"
FIELDS = ("kind", "flags", "reduction", "hops", "exponent", "job", "tree", "epoch", "worker")
MORE = ("weight", "sequence", "fragment", "hop.child", "hop.fan_in", "hop.port", "lane")


def dissect(capture: Path, *arguments: str) -> list[str]:
    """tshark's output lines for a capture."""
    tshark = shutil.which("tshark")
    if tshark is None:
        pytest.skip("needs tshark")
    command = [tshark, "-X", f"lua_script:{DISSECTOR}", "-r", str(capture), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert "hopsum.lua" not in done.stderr, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A capture of all vectors."""
    path = tmp_path / "vectors.pcap"
    with PcapWriter(path) as writer:
        for vector in read_vectors().values():
            writer.write(0.0, vector.frame)
    return path


def test_every_field_is_found(capture: Path) -> None:
    names = [name for field in (*FIELDS, *MORE) for name in ("-e", f"hopsum.{field}")]
    lines = dissect(capture, "-T", "fields", *names)
    for vector, line in zip(read_vectors().values(), lines, strict=True):
        header, stack = vector.header, vector.stack
        found = dict(zip((*FIELDS, *MORE), line.split("\t"), strict=True))
        numbers = {name: int(found[name], 0) for name in (*FIELDS, *MORE[:3])}
        assert numbers == {
            "kind": header.kind,
            "flags": header.flags,
            "reduction": header.reduction,
            "hops": len(stack),
            "exponent": header.exponent,
            "job": header.job,
            "tree": header.tree,
            "epoch": header.epoch,
            "worker": header.worker,
            "weight": header.weight,
            "sequence": header.sequence,
            "fragment": header.fragment,
        }
        assert found["hop.child"] == ",".join(str(hop.child) for hop in stack)
        assert found["hop.fan_in"] == ",".join(str(hop.fan_in) for hop in stack)
        assert found["hop.port"] == ",".join(str(hop.port) for hop in stack)
        assert found["lane"] == ",".join(map(str, vector.values))


def test_flags_can_be_filtered_on(capture: Path) -> None:
    vectors = list(read_vectors().values())
    for flag in ("overflow", "stale", "bypass", "sequenced", "repair"):
        lines = dissect(
            capture, "-Y", f"hopsum.flags.{flag} == 1", "-T", "fields", "-e", "frame.number"
        )
        expected = [
            str(number)
            for number, vector in enumerate(vectors, start=1)
            if vector.header.flags & Flag[flag.upper()]
        ]
        assert lines == expected


def test_the_summary_says_what_it_is(capture: Path) -> None:
    text = "\n".join(dissect(capture))
    assert "contribution job 7 tree 1 epoch 2 fragment 260 worker 0 weight 1" in text
    assert "replicated result job 7 tree 1 epoch 2 fragment 261 worker 0 weight 2" in text
    assert "weight 2 [overflow]" in text
