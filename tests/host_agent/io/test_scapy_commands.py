"""`hopsum-agent send` and `hopsum-agent sniff`: packets by hand, on a wire and from a capture."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hopsum.host_agent.io import scapy_commands
from hopsum.host_agent.main import app
from hopsum.protocol.wire import (
    Address,
    Header,
    Hop,
    Kind,
    Reduction,
    Width,
    frame_template,
    frame_view,
)
from hopsum.protocol.wire import Flag as WireFlag
from hopsum_scapy import Hopsum
from p4switch.packet_io.pcap import PcapWriter
from tests.oracles.reference_values import unpacked
from tests.support.protocol_world import LANES, result, star_plan

ADDRESSES = {
    "src_mac": "02:00:00:00:00:01",
    "dst_mac": "02:00:00:00:00:09",
    "src_ip": "10.0.0.1",
    "dst_ip": "10.0.0.9",
}


def run(*arguments: str) -> str:
    outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_a_packet_by_hand_is_the_one_an_agent_sends() -> None:
    source = Address(bytes.fromhex("020000000001"), bytes([10, 0, 0, 1]))
    target = Address(bytes.fromhex("020000000009"), bytes([10, 0, 0, 9]))
    header = Header(
        Kind.CONTRIBUTION, 7, 1, 2, 260, worker=3, flags=int(WireFlag.BYPASS), exponent=9
    )
    hops = (Hop(True, False, 1, 2, 3), Hop(port=2))
    expected = bytes(frame_template(source, target, header, hops, LANES))
    packet = scapy_commands.make_packet(
        header,
        [scapy_commands.parse_hop(t) for t in ("agg,child=1,fan-in=2,port=3", "port=2")],
        scapy_commands.parse_values("", LANES),
        ADDRESSES,
    )
    assert bytes(packet) == expected


def test_values_are_padded_and_may_be_negative() -> None:
    assert scapy_commands.parse_values("1,-2,0x10", 4) == [1, -2, 16, 0]
    assert scapy_commands.parse_values("1,-2", 2, Width.WIDTH_16) == [1, -2, 0, 0]


@pytest.mark.parametrize("width", [Width.WIDTH_16, Width.WIDTH_8])
def test_values_by_hand_may_be_narrow(width: Width) -> None:
    header = Header(Kind.RESULT, 7, 1, 2, 260, width=width)
    values = scapy_commands.parse_values("1,-2,127", LANES, width)
    packet = scapy_commands.make_packet(header, [scapy_commands.parse_hop("")], values, ADDRESSES)
    raw = frame_view(np.frombuffer(bytes(packet), np.uint8)[None], LANES, 1)[0]
    assert int(raw["reduction"]) == width
    assert unpacked(raw["lanes"].tolist(), width) == tuple(values)
    shown = scapy_commands.one_line(packet)
    assert shown.endswith(f"lanes 32: 1 -2 127 0 0 0 0 0 ... (of {width.bits} bits)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agg,kid=1", "'kid=1'; expected `agg`"),
        ("child=512", "child: '512'; expected a whole number from 0 to 511"),
        ("port=x", "port: 'x'; expected a whole number"),
        ("child", "child: ''; expected a whole number"),
        ("agg=1", "'agg=1'; expected `agg`"),
    ],
)
def test_bad_hops(text: str, message: str) -> None:
    with pytest.raises(scapy_commands.CommandError, match=message):
        scapy_commands.parse_hop(text)


def test_bad_values_flags_and_addresses() -> None:
    with pytest.raises(scapy_commands.CommandError, match="3 of them; expected at most 2"):
        scapy_commands.parse_values("1,2,3", 2)
    with pytest.raises(scapy_commands.CommandError, match="value 1: '2147483648'"):
        scapy_commands.parse_values("1,2147483648", 2)
    with pytest.raises(scapy_commands.CommandError, match="lanes 353: expected 1 to 352"):
        scapy_commands.parse_values("1", 353)
    with pytest.raises(scapy_commands.CommandError, match="flag 'loud': expected one of overflow"):
        scapy_commands.parse_flags(["bypass", "loud"])
    with pytest.raises(scapy_commands.CommandError, match="value 0: '128'; expected a whole"):
        scapy_commands.parse_values("128", 2, Width.WIDTH_8)
    with pytest.raises(scapy_commands.CommandError, match="wire-bits 4: expected 32, 16, 8"):
        scapy_commands.parse_width(4)
    header = Header(Kind.RESULT, 1, 0, 1, 0, reduction=Reduction.AND, width=Width.WIDTH_8)
    with pytest.raises(scapy_commands.CommandError, match="wire-bits 8 with reduction and"):
        scapy_commands.make_packet(header, [], [1] * 4, ADDRESSES)
    header = Header(Kind.RESULT, 1, 0, 1, 0)
    with pytest.raises(scapy_commands.CommandError, match="dst_mac 'nonsense': expected"):
        scapy_commands.make_packet(header, [], [1], {**ADDRESSES, "dst_mac": "nonsense"})
    with pytest.raises(scapy_commands.CommandError, match=r"src_ip '10.0.1': expected"):
        scapy_commands.make_packet(header, [], [1], {**ADDRESSES, "src_ip": "10.0.1"})
    with pytest.raises(scapy_commands.CommandError, match="12 hops: expected at most 11 with 352"):
        hops = [scapy_commands.parse_hop("")] * 12
        scapy_commands.make_packet(header, hops, [1] * 352, ADDRESSES)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Two results and a stray frame between."""
    plan, network = star_plan(1)
    path = tmp_path / "some.pcap"
    with PcapWriter(path) as writer:
        writer.write(1.5, result(plan, network, 4, 11)[0].tobytes())
        writer.write(2.0, b"\xff" * 60)
        writer.write(2.5, result(plan, network, 5, 12)[0].tobytes())
    return path


def test_a_capture_is_read_one_line_a_packet(capture: Path) -> None:
    lines = run("sniff", "--read", str(capture)).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("1.500000 10.0.0.")
    for part in ("result", "job 1", "fragment 4", "hops none", "lanes 32: 11 11"):
        assert part in lines[0]


def test_a_capture_as_json_and_in_full(capture: Path) -> None:
    [first, second] = map(json.loads, run("sniff", "--read", str(capture), "--json").splitlines())
    assert (first["fragment"], second["fragment"]) == (4, 5)
    assert (second["time"], second["kind"], second["flags"]) == (2.5, Kind.RESULT, [])
    assert second["lanes"] == [12] * LANES
    shown = run("sniff", "--read", str(capture), "--show", "--count", "1")
    assert shown.count("[ hopsum ]") == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["sniff"], 2),
        (["sniff", "--read", "x.pcap", "--interface", "lo"], 2),
        (["sniff", "--read", "no-such.pcap"], 1),
        (["sniff", "--interface", "no-such-if", "--timeout", "0"], 1),
        (["send", "--interface", "no-such-if"], 1),
        (["send", "--interface", "lo", "--job", "65536"], 2),
        (["send", "--interface", "lo", "--kind", "shout"], 1),
    ],
)
def test_impossible_commands_end_with_an_error(
    arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, arguments).exit_code == code


def test_packets_are_seen_at_both_ends(veth: tuple[str, str]) -> None:
    sources = [scapy_commands.packets_of_interface(name, 10.0) for name in veth]
    heard: list[Hopsum] = []
    sending = threading.Thread(
        target=run,
        args=(
            *("send", "--interface", veth[0], "--job", "3", "--fragment", "17", "--count", "2"),
            *("--hop", "agg,child=0,fan-in=2,port=3", "--hop", "fan-in=1"),
            *("--values", "1,2,3", "--flags", "bypass", "--flags", "ecn"),
        ),
    )
    sending.start()
    for source in sources:
        heard += [next(source)[1][Hopsum] for _ in range(2)]
    sending.join()
    assert len(heard) == 4
    for hopsum in heard:
        assert (hopsum.job, hopsum.fragment_number, int(hopsum.flags)) == (3, 17, 12)
        assert (hopsum.stack[0].aggregate, hopsum.stack[0].port, hopsum.hops) == (1, 3, 2)
        assert list(hopsum.lanes) == [1, 2, 3] + [0] * 29
