"""The Scapy layer makes the frames of wire.py, byte for byte, and reads them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hopsum_scapy
from hopsum.protocol import wire
from hopsum_scapy import IP, UDP, Ether, Hop, Hopsum, build, parse
from tests.oracles.reference_values import unpacked

MAC = st.binary(min_size=6, max_size=6)
ADDRESS = st.builds(wire.Address, mac=MAC, ip=st.binary(min_size=4, max_size=4))
HOPS = st.lists(
    st.builds(
        wire.Hop,
        aggregate=st.booleans(),
        clear=st.booleans(),
        child=st.integers(0, 31),
        fan_in=st.integers(0, 512),
        port=st.integers(0, 510),
    ),
    max_size=wire.HOPS_DEFAULT,
)
HEADERS = st.builds(
    wire.Header,
    kind=st.sampled_from(list(wire.Kind)),
    job=st.integers(0, 0xFFFF),
    tree=st.integers(0, 0xFF),
    epoch=st.integers(0, 0xFFFF),
    fragment=st.integers(0, 0xFFFFFFFF),
    worker=st.integers(0, 0xFFFF),
    weight=st.integers(0, 0xFFFF),
    flags=st.integers(0, 63),
    sequence=st.integers(0, 0xFFFF),
    reduction=st.sampled_from(list(wire.Reduction)),
    exponent=st.integers(0, 255),
)


def made_by_wire(
    source: wire.Address,
    destination: wire.Address,
    header: wire.Header,
    stack: list[wire.Hop],
    values: list[int],
) -> bytes:
    row = wire.frame_template(source, destination, header, stack, len(values))[None, :]
    wire.frame_view(row, len(values), len(stack))["lanes"] = values
    return row.tobytes()


@pytest.mark.slow
@settings(max_examples=25)
@given(
    source=ADDRESS,
    destination=ADDRESS,
    header=HEADERS,
    stack=HOPS,
    lanes=st.sampled_from([32, 352]),
    seed=st.integers(0, 1000),
)
def test_both_make_the_same_bytes(
    source: wire.Address,
    destination: wire.Address,
    header: wire.Header,
    stack: list[wire.Hop],
    lanes: int,
    seed: int,
) -> None:
    frame_lanes = np.random.default_rng(seed).integers(-(1 << 31), 1 << 31, lanes).tolist()
    width = wire.Width(seed % 3) if header.reduction in wire.VALUE_REDUCTIONS else header.width
    header = replace(header, width=width)
    values = list(unpacked(frame_lanes, width))
    frame = made_by_wire(source, destination, header, stack, frame_lanes)
    packet = (
        Ether(src=source.mac.hex(":"), dst=destination.mac.hex(":"))
        / IP(
            src=".".join(map(str, source.ip)),
            dst=".".join(map(str, destination.ip)),
            id=0,
            flags="DF",
        )
        / UDP(chksum=0)
        / Hopsum(
            kind=header.kind.value,
            flags=header.flags,
            reduction=header.reduction.value,
            width=width.value,
            exponent=header.exponent,
            job=header.job,
            tree=header.tree,
            epoch=header.epoch,
            worker=header.worker,
            weight=header.weight,
            sequence=header.sequence,
            fragment_number=header.fragment,
            stack=[
                Hop(
                    aggregate=hop.aggregate,
                    clear=hop.clear,
                    child=hop.child,
                    fan_in=hop.fan_in,
                    port=hop.port,
                )
                for hop in stack
            ],
            lanes=values,
        )
    )
    assert bytes(packet) == frame
    assert bytes(build(frame)) == frame
    layer = parse(frame)[Hopsum]
    assert (layer.hops, layer.sequence, layer.fragment_number) == (
        len(stack),
        header.sequence,
        header.fragment,
    )
    assert layer.lanes == values
    assert [hop.child for hop in layer.stack] == [hop.child for hop in stack]


def test_a_built_packet_is_not_a_copy_of_the_bytes() -> None:
    here = wire.Address(bytes(6), bytes(4))
    header = wire.Header(wire.Kind.RESULT, 1, 0, 1, 7)
    frame = bytearray(made_by_wire(here, here, header, [wire.Hop()], [5] * 32))
    good = bytes(frame)
    frame[24] ^= 0xFF  # the IPv4 checksum
    assert bytes(build(bytes(frame))) == good


def test_summary_names_what_matters() -> None:
    packet = Hopsum(kind="result", job=3, epoch=2, fragment_number=99, weight=8, flags="stale+ecn")
    text = packet.mysummary()
    for part in ("result", "job 3", "epoch 2", "fragment 99", "weight 8", "stale", "ecn"):
        assert part in text


OTHERS = [
    b"\xff" * 60,
    bytes(Ether() / IP() / UDP(dport=53, sport=99)),
    b"",
    *(b"\xff" * n for n in (1, 13)),
]


@pytest.mark.parametrize("other", OTHERS)
def test_other_frames_are_left_alone(other: bytes) -> None:
    assert Hopsum not in parse(other)
    assert bytes(build(other)) == other


def test_numbers_and_names_are_those_of_wire() -> None:
    for ours, theirs in (
        (hopsum_scapy.KINDS, wire.Kind),
        (hopsum_scapy.FLAGS, wire.Flag),
        (hopsum_scapy.REDUCTIONS, wire.Reduction),
        (hopsum_scapy.WIDTHS, wire.Width),
    ):
        assert ours == {member.value: str(member.name).lower() for member in theirs}
    for name in ("VERSION", "UDP_PORT", "LANES_MAX"):
        assert getattr(hopsum_scapy, name) == getattr(wire, name)
