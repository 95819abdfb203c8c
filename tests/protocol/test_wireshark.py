"""Wireshark's view of the protocol page's vectors; needs tshark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.protocol.wire import ETHERNET_BYTES, IPV4_BYTES, UDP_BYTES, VERSION, Flag
from p4switch.packet_io.pcap import PcapWriter
from tests.support.protocol_vectors import read_vectors
from tests.support.wireshark import assert_captured, dissect

FIELDS = ("kind", "flags", "reduction", "hops", "exponent", "job", "tree", "epoch", "worker")
MORE = ("width", "weight", "sequence", "fragment", "hop.child", "hop.fan_in", "hop.port", "lane")


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A capture of all vectors."""
    path = tmp_path / "vectors.pcap"
    with PcapWriter(path) as writer:
        for vector in read_vectors().values():
            writer.write(0.0, vector.frame)
    return path


@pytest.mark.slow
def test_every_field_is_found(capture: Path) -> None:
    names = [name for field in (*FIELDS, *MORE) for name in ("-e", f"hopsum.{field}")]
    lines = dissect(capture, "-T", "fields", *names)
    for vector, line in zip(read_vectors().values(), lines, strict=True):
        header, stack = vector.header, vector.stack
        found = dict(zip((*FIELDS, *MORE), line.split("\t"), strict=True))
        numbers = {name: int(found[name], 0) for name in (*FIELDS, *MORE[:4])}
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
            "width": header.width,
            "weight": header.weight,
            "sequence": header.sequence,
            "fragment": header.fragment,
        }
        assert found["hop.child"] == ",".join(str(hop.child) for hop in stack)
        assert found["hop.fan_in"] == ",".join(str(hop.fan_in) for hop in stack)
        assert found["hop.port"] == ",".join(str(hop.port) for hop in stack)
        assert found["lane"] == ",".join(map(str, vector.values))


@pytest.mark.slow
def test_flags_can_be_filtered_on(capture: Path) -> None:
    flags = ("overflow", "stale", "bypass", "sequenced", "repair")
    fields = [name for flag in flags for name in ("-e", f"hopsum.flags.{flag}")]
    lines = dissect(capture, "-T", "fields", *fields)
    for vector, line in zip(read_vectors().values(), lines, strict=True):
        found = [int(value) for value in line.split("\t")]
        assert found == [bool(vector.header.flags & Flag[flag.upper()]) for flag in flags]


@pytest.mark.slow
def test_the_summary_says_what_it_is(capture: Path) -> None:
    text = "\n".join(dissect(capture))
    assert "contribution job 7 tree 1 epoch 2 fragment 260 worker 0 weight 1" in text
    assert "replicated result job 7 tree 1 epoch 2 fragment 261 worker 0 weight 2" in text
    assert "weight 2 [overflow]" in text


def expert_infos(capture: Path, *names: str) -> list[list[int]]:
    """The numbers of the packets with each expert information, from one run of tshark."""
    fields = [name for each in names for name in ("-e", f"hopsum.{each}")]
    lines = dissect(capture, "-T", "fields", *fields)
    rows = [line.split("\t") for line in lines]
    return [
        [number for number, row in enumerate(rows, start=1) if row[column]]
        for column in range(len(names))
    ]


def captured(folder: Path, frames: Sequence[bytes]) -> Path:
    path = folder / "frames.pcap"
    with PcapWriter(path) as writer:
        for number, frame in enumerate(frames):
            writer.write(0.001 * number, frame)
    return path


@pytest.mark.slow
def test_a_fragment_is_followed_by_its_key(capture: Path) -> None:
    headers = [vector.header for vector in read_vectors().values()]
    keys = [f"{header.job}/{header.tree}/{header.fragment}" for header in headers]
    assert dissect(capture, "-T", "fields", "-e", "hopsum.key") == keys
    key = max(keys, key=keys.count)
    lines = dissect(capture, "-Y", f'hopsum.key == "{key}"', "-T", "fields", "-e", "frame.number")
    assert lines == [str(number) for number, other in enumerate(keys, start=1) if other == key]


@pytest.mark.slow
def test_expert_information(capture: Path, tmp_path: Path) -> None:
    vectors = list(read_vectors().values())
    flags = {"overflowed": Flag.OVERFLOW, "stale": Flag.STALE, "bypass": Flag.BYPASS}
    *flagged, truncated = expert_infos(capture, *flags, "truncated")
    assert truncated == []
    assert flagged == [
        [n for n, vector in enumerate(vectors, start=1) if vector.header.flags & flag]
        for flag in flags.values()
    ]
    frame = vectors[0].frame
    start = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES
    kind, cut = bytearray(frame), frame[:-2]
    kind[start] |= 0xF
    other = bytearray(frame)
    other[start + 19] ^= 1
    strange = captured(tmp_path, [frame, bytes(other), frame, bytes(kind), cut, frame])
    names = ("malformed", "truncated", "duplicate", "first_copy")
    malformed, truncated, duplicate, original = expert_infos(strange, *names)
    assert (malformed, truncated) == ([4], [5])
    assert (duplicate, original) == ([3, 5, 6], [3, 5, 6])
    lines = dissect(strange, "-Y", "hopsum.first_copy", "-T", "fields", "-e", "hopsum.first_copy")
    assert lines == ["1", "1", "1"]


@pytest.mark.slow
def test_what_every_switch_drops_is_malformed(capture: Path, tmp_path: Path) -> None:
    frame = next(iter(read_vectors().values())).frame
    start = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES
    version = VERSION << 4
    no_lanes, request, replicated = 0x40, version | 5, version | 3

    def changed(*changes: tuple[int, int]) -> bytes:
        made = bytearray(frame)
        for offset, value in changes:
            made[start + offset] = value
        return bytes(made)

    short = bytearray(frame[: start + 10])
    short[16:18], short[38:40] = b"\0\x26", b"\0\x12"  # IPv4 total length, UDP length

    # Offsets in the hopsum header, or in front of it: of the UDP source port.
    wrong = {
        "Version 2: unknown version": changed((0, 0x21)),
        "Kind 0: unknown kind": changed((0, version)),
        "Reduction 6: unknown reduction": changed((2, 0x60)),
        "Width 3: unknown width": changed((2, 0x03)),
        "Reduction and with values of 16 bits": changed((2, 0x11)),
        "Job 0": changed((4, 0), (5, 0)),
        "Epoch 0": changed((8, 0), (9, 0)),
        "Weight 0": changed((12, 0), (13, 0)),
        "Contribution without stack entries": changed((7, 0)),
        "Replicated result with stack entries": changed((0, replicated)),
        "Request of a reduction without lanes": changed((0, request), (2, no_lanes)),
        "UDP source port 18514": changed((-7, 0x52)),
        "Shorter than a header": bytes(short),
    }
    strange = captured(tmp_path, list(wrong.values()))
    shown = dissect(
        strange, "-Y", "hopsum.malformed", "-T", "fields", "-E", "occurrence=f",
        "-e", "_ws.expert.message",
    )  # fmt: skip
    assert shown == list(wrong)
    assert expert_infos(capture, "malformed") == [[]]


@pytest.mark.slow
def test_a_run_is_captured(tmp_path: Path) -> None:
    folder = tmp_path / "pcap"
    done = CliRunner().invoke(
        app,
        ["run", "--topology", "star:2", "--workers", "2", "--elements", "2000", "--rounds", "1",
         "--dtype", "int32", "--loss", "0.1", "--pcap", str(folder)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert_captured(folder)
    # The way of one fragment, at the port of the server.
    [line] = dissect(
        folder / "s1-eth3_out.pcap", "-Y", 'hopsum.key == "1/0/3" && !hopsum.duplicate',
        "-T", "fields", "-e", "hopsum.weight",
    )  # fmt: skip
    assert line == "2"
    [repairs] = expert_infos(folder / "s1-eth1_in.pcap", "repair")
    assert repairs
