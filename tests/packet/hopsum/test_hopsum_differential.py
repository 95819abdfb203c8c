"""Random packet sequences: every engine against the reference model, frame by frame."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import (
    VALUE_REDUCTIONS,
    Flag,
    Hop,
    Kind,
    Reduction,
    Width,
    carries_lanes,
)
from tests.oracles.reference_switch import ReferenceSwitch
from tests.packet.hopsum.packets import Packet, raw_ipv4
from tests.packet.hopsum.switches import CPU_PORT, Build, Frame, Switch
from tests.support.search import examples

BUILDS = [Build(lanes, per_lane) for lanes in (32, 96) for per_lane in (False, True)]
EXAMPLES = {
    "interpreter": examples(10, of=40),
    "native": examples(40, of=120),
    "bmv2": examples(4, of=8),
}
CATALOGUE_SIZE = 310
EPOCHS = (1, 1, 1, 1, 1, 1, 1, 2, 3, 0x8001, 0xFFFF)
REDUCTIONS = {
    1: Reduction.MAX,
    2: Reduction.REDUCE_SUM,
    4: Reduction.AND,
    5: Reduction.NONE,
    6: Reduction.BROADCAST,
    8: Reduction.REDUCE_MAX,
    2**31 - 2: Reduction.XOR,
}
"""By fragment; all others are summed."""
WIDTHS = {
    1: Width.WIDTH_16,
    2: Width.WIDTH_8,
    2**31: Width.WIDTH_8,
    2**32 - 2: Width.WIDTH_16,
}
"""By fragment; all others have values of 32 bits."""
FRAGMENTS = (0, 0, 0, 0, 1, 2, 2, 2, 4, 5, 5, 6, 6, 8, 2**31 - 2, 2**31, 2**32 - 2)
"""With a window of 2 nearly all of them meet in one slot."""
SEQUENCES = (0, 0, 0, 1, 1, 2, 3, 4, 12, 66, 130, 2**15 + 3, 2**16 - 1)
LANE_VALUES = (0, 1, -1, 2**31 - 1, -(2**31), 0x1234567, 0x7FFF7F80, -0x7F008080)
HOST_MAC = 0x02000A000002


def configure(switch: Switch) -> None:
    """Two jobs on overlapping slots and one apart, two trees, children in various places, some
    plain entries."""
    for job, base in ((1, 0), (2, 1), (ROOTED_JOB, 8)):
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
    switch.insert(
        "replication", {"job": ROOTED_JOB, "tree": 0, "epoch": 1}, "replicate", group=3, clear=1
    )
    switch.insert("l2_forward", {"dst_mac": HOST_MAC}, "forward", port=7)
    switch.insert("l2_forward", {"dst_mac": HOST_MAC + 1}, "flood", group=3)
    switch.insert("ipv4_route", {"dst_addr": (0x0A020000, 16)}, "route", dst_mac=5, port=6)


def hopsum_frame(rng: random.Random, lane_count: int) -> Frame:
    """A packet of some job, mostly where and how it should be."""
    kind = rng.choice([Kind.CONTRIBUTION] * 6 + [Kind.RESULT, Kind.REPLICATED, *[Kind.REQUEST] * 2])
    bare = kind == Kind.REPLICATED or (kind == Kind.REQUEST and rng.random() < 0.5)
    port = rng.choice((1, 1, 2, 2, 3))
    child, fan_in = {1: (0, 2), 2: (1, 2), 3: (2, 3)}[port]
    job, tree = 1, 0
    if kind != Kind.CONTRIBUTION:
        port = rng.choice((1, 2, 3)) if kind == Kind.REQUEST and bare else 8
    elif rng.random() < 0.1:
        port, child, fan_in, tree = 4, 0, 1, 1
    if rng.random() < 0.15:
        job, tree = rng.choice(((2, 0), (2, 0), (3, 0), (1, 1)))
    if rng.random() < 0.1:
        port = rng.choice((1, 2, 3, 4, 5, 8))
    if rng.random() < 0.1:
        child, fan_in = rng.choice((0, 1, 2, 31)), rng.choice((1, 2, 3))
    first = Hop(
        aggregate=rng.random() < 0.9,
        clear=rng.random() < 0.7,
        child=child,
        fan_in=fan_in,
        port=rng.choice((8, 8, 1, 2)),
    )
    fewest = 1 if kind == Kind.CONTRIBUTION else 0
    rest = [Hop(port=4)] * rng.randint(fewest, 3)
    values = rng.choices(LANE_VALUES, k=5)
    fragment = rng.choice(FRAGMENTS)
    # Nearly all of a fragment's agree on a reduction: those that do not are dropped.
    reduction = REDUCTIONS.get(fragment, Reduction.SUM)
    if rng.random() < 0.05:
        reduction = rng.choice(list(Reduction))
    width = WIDTHS.get(fragment, Width.WIDTH_32)
    if rng.random() < 0.05:
        width = rng.choice(list(Width))
    if reduction not in VALUE_REDUCTIONS:
        width = Width.WIDTH_32
    of_sum = kind == Kind.CONTRIBUTION or (kind == Kind.REQUEST and not bare)
    # Some have lanes where none belong.
    no_lanes = not carries_lanes(reduction, up=of_sum) and rng.random() < 0.95
    packet = Packet(
        tuple(values[lane % 5] for lane in range(0 if no_lanes else lane_count)),
        kind=kind,
        job=job,
        tree=tree,
        epoch=rng.choice(EPOCHS),
        fragment=fragment,
        worker=rng.randrange(4),
        weight=rng.choice((1, 2, 0xFFFF)),
        flags=rng.choice([0] * 4 + [Flag.STALE, Flag.BYPASS, Flag.ECN, 0xC9]),
        reduction=reduction,
        width=width,
        exponent=rng.randrange(256),
        hops=() if bare else (first, *rest),
        tos=rng.choice((0, 0x28, URGENT)),
        sequence=rng.choice(SEQUENCES),
        sequenced=rng.random() < 0.75,
        repair=rng.random() < 0.25,
    )
    return port, packet.frame()


def frame_of(rng: random.Random, lane_count: int) -> Frame:
    """Any frame: ours, broken, plain, or a question about a slot."""
    choice = rng.randrange(20)
    if choice == 0:
        mac = rng.choice((HOST_MAC, HOST_MAC + 1, HOST_MAC + 2)).to_bytes(6, "big")
        dst = rng.choice((bytes([10, 2, 3, 4]), bytes([10, 0, 0, 2])))
        frame = raw_ipv4(bytes(30), dst=dst, ttl=rng.choice((0, 1, 2, 64)), dst_mac=mac)
        return rng.choice((1, 2, 7)), frame
    if choice in (1, 2):
        question = Packet((0,) * lane_count, kind=Kind.INSPECT, job=0, epoch=0).frame()
        return CPU_PORT, b"\1\0\0" + rng.choice((0, 1, 2, 4, 8, 9, 65)).to_bytes(
            4, "big"
        ) + question
    port, frame = hopsum_frame(rng, lane_count)
    if choice == 3:
        changed = bytearray(frame)
        places = (*range(14, 64), *range(66, 71))  # not the port
        changed[rng.choice([at for at in places if at < len(frame)])] = rng.randrange(256)
        return port, bytes(changed)
    if choice == 4:
        return port, disguised(rng, frame)
    return port, frame


def disguised(rng: random.Random, frame: bytes) -> bytes:
    """A frame of weight 0, behind VLAN tags, or a fragment; ours or plain."""
    disguise = rng.randrange(3)
    if disguise == 0:
        return frame[:54] + bytes(2) + frame[56:]
    if disguise == 1:
        tags = rng.choice(("81000005", "88a80005", "88a8000581000006", "81000005" * 3))
        if rng.random() < 0.5:
            frame = raw_ipv4(bytes(30), dst_mac=HOST_MAC.to_bytes(6, "big"))
        return frame[:12] + bytes.fromhex(tags) + frame[12:]
    return raw_ipv4(
        rng.choice((b"", b"HS", b"HSHS", frame[34:])),
        protocol=17,
        fragment=rng.choice((0x2000, 0x2001, 0x00B9)),
        dst_mac=HOST_MAC.to_bytes(6, "big"),
    )


@cache
def catalogue(lane_count: int) -> list[Frame]:
    """The frames that sequences are made of: few enough to meet in slots again and again.

    The first one goes nowhere, so that a failing sequence shrinks to what matters in it.
    """
    rng = random.Random(lane_count)
    nowhere = (1, raw_ipv4(bytes(30), dst_mac=bytes(6)))
    # What completes a slot, comes to it again, asks for its sum or brings its result is rare among
    # frames drawn at random.
    whole = [contribution(child, value, lane_count) for child in (0, 1) for value in MEETING] * 8
    whole += [request(sequence, lane_count) for sequence in (0, 1)] * 10
    whole += [total(lane_count)] * 6
    whole += [frame for frame, times in rooted(lane_count) for _ in range(times)]
    rest = CATALOGUE_SIZE - 1 - len(whole)
    return [nowhere, *whole, *(frame_of(rng, lane_count) for _ in range(rest))]


MEETING = 1, 2**31 - 1
"""Values of contributions to one fragment; some sums wrap around."""
STACK = Hop(aggregate=True, clear=True, child=0, fan_in=2, port=8), Hop(port=4)


def contribution(child: int, value: int, lane_count: int) -> Frame:
    """One of the two contributions to fragment 0 of job 1, without a sequence number."""
    hops = (replace(STACK[0], child=child), STACK[1])
    return child + 1, Packet((value,) * lane_count, worker=child, hops=hops).frame()


def total(lane_count: int) -> Frame:
    """The result of that fragment, as the parent sends it."""
    packet = Packet((1,) * lane_count, kind=Kind.REPLICATED, weight=2, hops=())
    return 8, packet.frame()


def request(sequence: int, lane_count: int) -> Frame:
    """The request of a parent that misses a sum of job 1."""
    packet = Packet((0,) * lane_count, kind=Kind.REQUEST, hops=STACK, tos=URGENT)
    return 8, replace(packet, sequence=sequence, sequenced=True).frame()


ROOTED_JOB = 4
ROOTED = (Reduction.REDUCE_SUM, Reduction.BROADCAST, Reduction.SUM, Reduction.NONE)
"""Its fragments' reductions; the last two take the slots of the first two over."""


def rooted(lane_count: int) -> list[tuple[Frame, int]]:
    """The frames of a job with lanes in one direction only, and how many of each there are."""
    frames = []
    for fragment, reduction in enumerate(ROOTED):
        hops = [(replace(STACK[0], child=child), STACK[1]) for child in (0, 1)]
        packets = [
            (1, Packet((), worker=0, hops=hops[0]), 6),
            (2, Packet((), worker=1, hops=hops[1]), 6),
            (8, Packet((), kind=Kind.REPLICATED, weight=2), 5),
            (8, Packet((), kind=Kind.REQUEST, hops=STACK, sequenced=True), 4),
            (1, Packet((), kind=Kind.REQUEST, sequenced=True), 4),
        ]
        for port, packet, times in packets:
            of_sum = packet.kind == Kind.CONTRIBUTION or bool(packet.hops)
            shaped = replace(
                packet,
                job=ROOTED_JOB,
                fragment=fragment,
                reduction=reduction,
                values=(3,) * lane_count if carries_lanes(reduction, up=of_sum) else (),
            )
            rare = fragment >= 2
            if not rare or packet.kind == Kind.CONTRIBUTION:
                frames.append(((port, shaped.frame()), 1 if rare else times))
    return frames


sequences = st.lists(st.integers(0, CATALOGUE_SIZE - 1), min_size=40, max_size=60)


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_as_the_reference(
    make_switch: Callable[[Build], Switch], engine: str, build: Build
) -> None:
    @settings(
        max_examples=EXAMPLES[engine],
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(sequences)
    def run(sequence: list[int]) -> None:
        switch, reference = make_switch(build), ReferenceSwitch(build)
        configure(switch)
        configure(reference)
        for number in sequence:
            port, frame = catalogue(build.lanes)[number]
            # A request and a forwarded frame may leave by one port, in any order.
            assert sorted(switch.send(port, frame)) == sorted(reference.send(port, frame))
        assert switch.counted() == reference.counted()

    run()


@pytest.mark.slow
def test_the_sequences_reach_every_outcome() -> None:
    """Else the comparison would prove little. The reference has no loss on purpose, no queues."""
    seen: set[Outcome] = set()

    @settings(max_examples=EXAMPLES["native"], database=None, derandomize=True)
    @given(sequences)
    def run(sequence: list[int]) -> None:
        reference = ReferenceSwitch(Build())
        configure(reference)
        for number in sequence:
            port, frame = catalogue(32)[number]
            reference.send(port, frame)
        seen.update(reference.counted())

    run()
    assert set(Outcome) - seen == {Outcome.INJECTED_LOSS, Outcome.CONGESTED}
