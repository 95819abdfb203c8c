"""The packet layout: lengths, bounds, checksums, serial numbers, which frames are ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.protocol import wire

HERE = wire.Address(bytes(range(6)), bytes([10, 1, 2, 3]))
THERE = wire.Address(bytes(range(6, 12)), bytes([10, 1, 2, 4]))
HEADER = wire.Header(wire.Kind.CONTRIBUTION, 1, 2, 3, 4)


@pytest.mark.parametrize("lanes", [32, 64, 256, 352])
@pytest.mark.parametrize("hops", [0, 1, 10])
def test_frames_fit_the_mtu_and_carry_their_lengths(lanes: int, hops: int) -> None:
    frame = wire.frame_template(HERE, THERE, HEADER, [wire.Hop()] * hops, lanes)
    assert len(frame) == wire.frame_bytes(lanes, hops)
    assert len(frame) - wire.ETHERNET_BYTES <= wire.MTU
    record = wire.frame_view(frame[None, :], lanes, hops)[0]
    assert int(record["total_length"]) == len(frame) - 14
    assert int(record["udp_length"]) == len(frame) - 34
    assert int(record["hops"]) == hops
    assert record["lanes"].shape == (lanes,)


@pytest.mark.parametrize(("lanes", "most"), [(32, 255), (128, 235), (256, 107), (352, 11)])
def test_as_many_hops_as_lanes_leave_room_for(lanes: int, most: int) -> None:
    assert wire.most_hops(lanes) == most == wire.check_hops(most, lanes)
    frame = wire.frame_template(HERE, THERE, HEADER, [wire.Hop()] * most, lanes)
    assert len(frame) - wire.ETHERNET_BYTES <= wire.MTU
    with pytest.raises(wire.LayoutError, match=f"{most}"):
        wire.frame_template(HERE, THERE, HEADER, [wire.Hop()] * (most + 1), lanes)
    for hops in (1, most + 1):
        with pytest.raises(wire.LayoutError, match=f"expected 2 to {most} with {lanes} lanes"):
            wire.check_hops(hops, lanes)


@pytest.mark.parametrize("lanes", [0, 1, 31, 33, 48, 384, -32])
def test_impossible_lane_counts(lanes: int) -> None:
    with pytest.raises(wire.LayoutError, match="multiple of 32 from 32 to 352"):
        wire.check_lanes(lanes)
    with pytest.raises(wire.LayoutError):
        wire.frame_template(HERE, THERE, HEADER, [], lanes)


def test_stacks_have_an_end() -> None:
    with pytest.raises(wire.LayoutError, match="256 entries: at most 255"):
        wire.pack_stack([wire.Hop()] * (wire.MAX_HOPS + 1))


@pytest.mark.parametrize("reduction", sorted({*wire.Reduction} - {*wire.VALUE_REDUCTIONS}))
def test_words_have_no_narrow_values(reduction: wire.Reduction) -> None:
    header = replace(HEADER, reduction=reduction, width=wire.Width.WIDTH_16)
    with pytest.raises(wire.LayoutError, match=f"{reduction.name} with values of 16 bits"):
        wire.frame_template(HERE, THERE, header, [], 32)


@pytest.mark.parametrize(
    "changes", [{"child": 512}, {"child": -1}, {"fan_in": 513}, {"port": 511}, {"port": -1}]
)
def test_hop_fields_have_bounds(changes: dict[str, Any]) -> None:
    with pytest.raises(wire.LayoutError, match="expected 0"):
        replace(wire.Hop(), **changes).pack()


@given(
    st.builds(
        wire.Hop,
        aggregate=st.booleans(),
        clear=st.booleans(),
        child=st.integers(0, 511),
        fan_in=st.integers(0, 512),
        port=st.integers(0, 510),
    )
)
def test_hops_survive_packing(hop: wire.Hop) -> None:
    assert wire.Hop.unpack(hop.pack()) == hop


def test_a_hop_has_its_bits_where_the_page_draws_them() -> None:
    assert wire.Hop(True, False, 5, 7, 258).pack() == 1 << 31 | 5 << 21 | 7 << 11 | 258
    assert wire.Hop(True, False, 511, 512, 510).pack() == 0xBFF0_01FE | 512 << 11
    assert wire.Hop(False, True, 0, 0, 0).pack() == 0x40_00_00_00


def test_checksum_of_rfc_1071() -> None:
    # The example of Wikipedia's "Internet checksum", checked by hand.
    header = bytes.fromhex("4500 0073 0000 4000 4011 0000 c0a8 0001 c0a8 00c7")
    assert wire.ipv4_checksum(header) == 0xB861
    # 0 and 0xFFFF are the same sum, of which only zeros have the first.
    assert wire.ipv4_checksum(bytes(20)) == 0xFFFF
    assert wire.ipv4_checksum(bytes(18) + b"\xff\xff") == 0


@given(st.binary(min_size=4, max_size=4), st.binary(min_size=4, max_size=4))
def test_the_checksum_makes_the_header_sum_to_nothing(source: bytes, target: bytes) -> None:
    frame = wire.frame_template(
        wire.Address(bytes(6), source), wire.Address(bytes(6), target), HEADER, [], 32
    )
    assert wire.ipv4_checksum(frame[14:34].tobytes()) == 0


def test_foreign_frames_are_not_ours() -> None:
    frame = wire.frame_template(HERE, THERE, HEADER, [wire.Hop()], 32)
    places = (12, 13, 14, 20, 21, 23, 36, 42)
    frames = np.stack([frame] * (len(places) + 1))
    for row, at in enumerate(places, start=1):
        frames[row, at] ^= 0x11
    assert wire.is_hopsum(frames).tolist() == [True] + [False] * len(places)
    assert not wire.is_hopsum(frames[:, :61]).any()


@pytest.mark.parametrize(
    ("a", "b", "bits", "newer"),
    [
        (1, 0, 16, True),
        (0, 1, 16, False),
        (5, 5, 16, False),
        (0, 0xFFFF, 16, True),
        (0x8000, 0, 16, False),
        (0x7FFF, 0, 16, True),
        (3, 0xFFFFFFFE, 32, True),
        (1 << 31, 0, 32, False),
    ],
)
def test_serial_numbers(a: int, b: int, bits: int, newer: bool) -> None:
    assert wire.serial_newer(a, b, bits) is newer


@given(st.integers(1, 0xFFFF))
def test_the_next_epoch_is_newer_and_never_0(epoch: int) -> None:
    following = wire.next_epoch(epoch)
    assert 1 <= following <= 0xFFFF
    assert wire.serial_newer(following, epoch, 16)


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_of_two_serial_numbers_at_most_one_is_newer(a: int, b: int) -> None:
    assert not (wire.serial_newer(a, b, 16) and wire.serial_newer(b, a, 16))
