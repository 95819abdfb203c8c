"""Frames without lanes on the wire, which agents handle as if they had some."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.host_agent.bare_frames import with_lanes, without_lanes
from hopsum.host_agent.codec import Frames
from hopsum.protocol.wire import (
    Address,
    Header,
    Hop,
    Kind,
    Reduction,
    carries_lanes,
    frame_bytes,
    frame_template,
)
from tests.packet.hopsum.packets import check_frame

HERE = Address(bytes(6), bytes([10, 0, 0, 1]))
NEAR = Address(bytes([4] * 6), bytes([10, 0, 0, 2]))
THERE = Address(bytes([2] * 6), bytes([10, 0, 255, 254]))


def made(
    reductions: list[Reduction],
    lanes: int,
    hops: int,
    size: int,
    kind: Kind = Kind.CONTRIBUTION,
    sources: Sequence[Address] = (HERE,),
) -> Frames:
    """Frames of these reductions, each with `size` lanes, by turns from some sources."""
    rows = [
        frame_template(
            sources[number % len(sources)],
            THERE,
            Header(kind, 1, 0, 1, number, reduction=reduction),
            [Hop()] * hops,
            size,
        )
        for number, reduction in enumerate(reductions)
    ]
    return np.stack(rows)


@pytest.mark.slow
@given(
    reductions=st.lists(st.sampled_from(Reduction), min_size=1, max_size=6),
    lanes=st.sampled_from([32, 256, 352]),
    hops=st.integers(0, 10),
    kind=st.sampled_from([Kind.CONTRIBUTION, Kind.RESULT, Kind.REPLICATED, Kind.REQUEST]),
    sources=st.lists(st.sampled_from([HERE, NEAR]), min_size=1, max_size=3),
)
def test_frames_go_out_as_their_reductions_say(
    reductions: list[Reduction], lanes: int, hops: int, kind: Kind, sources: list[Address]
) -> None:
    frames = made(reductions, lanes, hops, lanes, kind, sources)
    sent = without_lanes([frames], lanes)
    rows = [row.tobytes() for batch in sent for row in batch]
    assert len(rows) == len(reductions)
    for frame, reduction in zip(rows, reductions, strict=True):
        check_frame(frame)
        up = kind is Kind.CONTRIBUTION or (kind is Kind.REQUEST and hops > 0)
        size = lanes if carries_lanes(reduction, up=up) else 0
        assert len(frame) == frame_bytes(size, hops)
    again = [row.tobytes() for batch in sent for taken in with_lanes(batch, lanes) for row in taken]
    assert again == [row.tobytes() for row in frames]


def test_frames_with_lanes_are_neither_copied_nor_split() -> None:
    frames = made([Reduction.SUM, Reduction.MAX], 32, 2, 32)
    assert without_lanes([frames], 32)[0] is frames
    assert with_lanes(frames, 32)[0] is frames


def test_frames_of_one_length_that_do_and_do_not_have_lanes() -> None:
    """A stack as long as the lanes: 32 entries without lanes are as long as none with them."""
    bare = made([Reduction.NONE], 32, 32, 0)
    full = made([Reduction.SUM], 32, 0, 32)
    batches = with_lanes(np.concatenate([bare, full, bare]), 32)
    assert [batch.shape for batch in batches] == [(1, 318), (1, 190), (1, 318)]


def test_bytes_too_short_for_a_header_stay_as_they_are() -> None:
    noise = np.zeros((2, 20), dtype=np.uint8)
    assert with_lanes(noise, 32)[0] is noise
