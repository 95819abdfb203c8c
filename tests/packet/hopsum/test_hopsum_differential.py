"""Random packet sequences: every engine against the reference model, frame by frame."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from protocol.wire import Flag, Hop, Kind, Reduction
from tests.packet.hopsum.packets import Packet, raw_ipv4
from tests.packet.hopsum.switches import CPU_PORT, Build, Frame, Switch
from tests.packet.reference import ReferenceSwitch

BUILDS = [Build(lanes, per_lane) for lanes in (32, 96) for per_lane in (False, True)]
EXAMPLES = {"interpreter": 60, "native": 150, "bmv2": 12}
EPOCHS = (1, 2, 3, 0x8001, 0xFFFF)
FRAGMENTS = (0, 1, 2, 4, 2**31 - 2, 2**31, 2**32 - 2)
"""With a window of 2 nearly all of them meet in one slot."""
LANE_VALUES = (0, 1, -1, 2**31 - 1, -(2**31), 0x1234567)
HOST_MAC = 0x02000A000002


def configure(switch: Switch) -> None:
    """Two jobs on overlapping slots, two trees, children in various places, some plain entries."""
    for job, base in ((1, 0), (2, 1)):
        for port, children, fan_in in ((1, 0b001, 2), (2, 0b010, 2), (3, 0b101, 3)):
            switch.admit_children(port, children, fan_in=fan_in, job=job, base=base, mask=1)
        switch.admit_results(8, job=job, base=base, mask=1)
    switch.admit_children(4, 0b1, fan_in=1, job=1, tree=1, base=4, mask=0)
    switch.admit_children(5, 0, fan_in=0, job=1, tree=1, base=4, mask=0)
    switch.admit_results(8, job=1, tree=1, base=4, mask=0)
    switch.multicast(3, (1, 2, 8))
    for epoch, clear in ((1, 1), (2, 0)):
        switch.insert(
            "replication", {"job": 1, "tree": 0, "epoch": epoch}, "replicate", group=3, clear=clear
        )
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "forward", port=7)
    switch.insert("l2_forward", {"dst_mac": HOST_MAC + 1}, "flood", group=3)
    switch.insert("ipv4_route", {"dst_addr": (0x0A020000, 16)}, "route", dst_mac=5, port=6)


def lanes(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    pattern = draw(st.lists(st.sampled_from(LANE_VALUES), min_size=1, max_size=5))
    return tuple(pattern[lane % len(pattern)] for lane in range(count))


@st.composite
def hopsum_frames(draw: st.DrawFn, lane_count: int) -> Frame:
    kind = draw(st.sampled_from([Kind.CONTRIBUTION] * 5 + [Kind.RESULT, Kind.REPLICATED]))
    up = kind == Kind.CONTRIBUTION
    first = Hop(
        aggregate=draw(st.integers(0, 9)) > 0,
        clear=draw(st.booleans()),
        child=draw(st.sampled_from((0, 0, 1, 1, 2, 31))),
        fan_in=draw(st.sampled_from((2, 2, 2, 2, 3, 1))),
        port=draw(st.sampled_from((8, 8, 1, 2))),
    )
    rest = draw(st.integers(1 if up else 0, 3))
    hops = () if kind == Kind.REPLICATED else (first, *[Hop(port=4)] * rest)
    packet = Packet(
        lanes(draw, lane_count),
        kind=kind,
        job=draw(st.sampled_from((1, 1, 1, 2, 3))),
        tree=draw(st.sampled_from((0, 0, 0, 0, 1))),
        epoch=draw(st.sampled_from(EPOCHS)),
        fragment=draw(st.sampled_from(FRAGMENTS)),
        worker=draw(st.integers(0, 3)),
        weight=draw(st.sampled_from((1, 2, 0xFFFF))),
        flags=draw(st.sampled_from((0, 0, 0, 0, Flag.STALE, Flag.BYPASS, Flag.ECN, 0xF9))),
        reduction=draw(st.sampled_from([Reduction.SUM] * 5 + [Reduction.AND])),
        exponent=draw(st.integers(0, 255)),
        hops=hops,
        tos=draw(st.sampled_from((0, 0x28))),
    )
    usual = 8 if not up else min(first.child, 2) + 1
    port = draw(st.sampled_from((usual, usual, usual, usual, 1, 2, 3, 4, 5, 8)))
    return port, packet.frame()


@st.composite
def frames(draw: st.DrawFn, lane_count: int) -> Frame:
    choice = draw(st.integers(0, 19))
    if choice == 0:
        mac = draw(st.sampled_from((HOST_MAC, HOST_MAC + 1, HOST_MAC + 2)))
        dst = draw(st.sampled_from((bytes([10, 2, 3, 4]), bytes([10, 0, 0, 2]))))
        ttl = draw(st.sampled_from((0, 1, 2, 64)))
        frame = raw_ipv4(bytes(30), dst=dst, ttl=ttl, dst_mac=mac.to_bytes(6, "big"))
        return draw(st.sampled_from((1, 2, 7))), frame
    if choice == 1:
        question = Packet((0,) * lane_count, kind=Kind.INSPECT, job=0, epoch=0).frame()
        slot = draw(st.sampled_from((0, 1, 2, 4, 65)))
        return CPU_PORT, b"\1\0\0" + slot.to_bytes(4, "big") + question
    port, frame = draw(hopsum_frames(lane_count))
    if choice == 2:
        changed = bytearray(frame)
        changed[draw(st.integers(14, min(70, len(frame) - 1)))] = draw(st.integers(0, 255))
        return port, bytes(changed)
    return port, frame


@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_as_the_reference(
    make_switch: Callable[[Build], Switch], engine: str, build: Build
) -> None:
    @settings(
        max_examples=EXAMPLES[engine],
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )
    @given(st.lists(frames(build.lanes), min_size=1, max_size=30))
    def run(sequence: list[Frame]) -> None:
        switch, reference = make_switch(build), ReferenceSwitch(build)
        configure(switch)
        configure(reference)
        for port, frame in sequence:
            assert switch.send(port, frame) == reference.send(port, frame)
        assert switch.counted() == reference.counted()

    run()
