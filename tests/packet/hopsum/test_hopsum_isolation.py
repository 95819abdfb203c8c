"""A host cannot affect jobs that it has no part in (docs/security.md)."""

from __future__ import annotations

import random
from itertools import product

import pytest

from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import Flag, Hop, Kind, Reduction
from tests.packet.hopsum.packets import LAST_HOP, Packet, add, lanes_of
from tests.packet.hopsum.star import SERVER_PORT, WINDOW, contribution, send, star, up
from tests.packet.hopsum.switches import CPU_PORT, Switch

UNADMITTED = 5
"""A port that no job admits."""
KINDS = (Kind.CONTRIBUTION, Kind.RESULT, Kind.REPLICATED, Kind.REQUEST)
FLAGS = (0, Flag.STALE, Flag.BYPASS, Flag.OVERFLOW)


def frames_of(kind: Kind, flags: int, *, sequenced: bool, repair: bool, job: int = 1) -> Packet:
    """A whole frame of a kind, for slot and child 0."""
    hops: tuple[Hop, ...] = ()
    if kind is Kind.CONTRIBUTION:
        hops = (Hop(aggregate=True, child=0, fan_in=2, port=SERVER_PORT), LAST_HOP)
    elif kind is Kind.RESULT:
        hops = (Hop(clear=True, port=1),)
    return Packet(
        values=lanes_of(32, 4711),
        kind=kind,
        job=job,
        flags=flags,
        weight=2,
        hops=hops,
        sequence=3,
        sequenced=sequenced,
        repair=repair,
    )


def test_a_host_in_no_job_gets_no_frame_anywhere(switch: Switch) -> None:
    """Frames of every kind, with any flag, reach no slot, and cause no answer."""
    star(switch)
    switch.multicast(9, (1, 2))
    owner = {"job": 1, "tree": 0, "epoch": 1}
    switch.insert("replication", owner, "replicate", group=9, clear=1)
    sent = 0
    for kind, flags, sequenced, repair in product(KINDS, FLAGS, (False, True), (False, True)):
        forged = frames_of(kind, flags, sequenced=sequenced, repair=repair)
        assert send(switch, UNADMITTED, forged) == [], (kind, flags)
        sent += 1
    assert switch.counted() == {Outcome.NOT_ADMITTED: sent}
    parts = [contribution(switch, child) for child in (0, 1)]
    assert up(switch, *parts) == [
        parts[1].popped(values=add(*(part.values for part in parts)), weight=2)
    ]


@pytest.mark.parametrize(
    ("port", "kinds"),
    [(1, (Kind.RESULT, Kind.REPLICATED)), (SERVER_PORT, (Kind.CONTRIBUTION,))],
    ids=["a worker's results", "the server's contributions"],
)
def test_a_member_speaks_in_its_own_part_only(
    switch: Switch, port: int, kinds: tuple[Kind, ...]
) -> None:
    star(switch)
    switch.multicast(9, (1, 2))
    owner = {"job": 1, "tree": 0, "epoch": 1}
    switch.insert("replication", owner, "replicate", group=9, clear=1)
    for kind, flags in product(kinds, FLAGS):
        assert send(switch, port, frames_of(kind, flags, sequenced=True, repair=True)) == []
    assert switch.counted() == {Outcome.NOT_ADMITTED: len(kinds) * len(FLAGS)}


def test_addresses_in_a_frame_change_no_identity(switch: Switch) -> None:
    """The port identifies the sender: with the addresses of child 1 it is still child 0."""
    star(switch)
    parts = [contribution(switch, child) for child in (0, 1)]
    frames = [bytearray(part.frame()) for part in parts]
    frames[0][0:12], frames[0][26:34] = frames[1][0:12], frames[1][26:34]
    frames[0][24:26] = frames[1][24:26]
    out = switch.send_all([(1, bytes(frames[0])), (2, bytes(frames[1]))])
    assert [port for port, _ in out] == [SERVER_PORT]
    total = add(*(part.values for part in parts))
    assert Packet.read(out[0][1]) == parts[1].popped(values=total, weight=2)


@pytest.mark.parametrize("seed", range(4))
def test_another_jobs_worker_does_not_change_what_a_job_gets(switch: Switch, seed: int) -> None:
    """Jobs 1 and 2 share the switch. Packets of 2's workers change nothing for 1.

    They name either job, any child, slot, epoch, number and port.
    """
    rng = random.Random(seed)
    star(switch)
    for child, port in enumerate((3, 4)):
        switch.admit_children(port, 1 << child, fan_in=2, job=2, base=WINDOW, mask=WINDOW - 1)
    switch.admit_results(7, job=2, base=WINDOW, mask=WINDOW - 1)

    def attack() -> Packet:
        kind = rng.choice(KINDS)
        up_hops = tuple(
            Hop(
                aggregate=rng.random() < 0.8,
                child=rng.choice((rng.randrange(4), rng.randrange(512))),
                fan_in=rng.choice((1, 2, 2, 512)),
                port=rng.choice((1, 2, 3, 8, CPU_PORT)),
            )
            for _ in range(rng.randrange(1, 4))
        )
        reduction = rng.choice([Reduction.SUM, *Reduction])
        hops = {
            Kind.CONTRIBUTION: (*up_hops, LAST_HOP),
            Kind.RESULT: tuple(Hop(clear=True, port=hop.port) for hop in up_hops),
            Kind.REPLICATED: (),
            Kind.REQUEST: rng.choice(((), (*up_hops, LAST_HOP))),
        }[kind]
        bare = reduction is Reduction.NONE
        return Packet(
            values=() if bare else lanes_of(32, rng.randrange(1 << 20)),
            kind=kind,
            reduction=reduction,
            job=rng.choice((1, 2, 2)),
            tree=rng.choice((0, 0, 0, 1, 255)),
            epoch=rng.choice((1, 1, 2, 65535)),
            fragment=rng.randrange(2 * WINDOW) if rng.random() < 0.8 else rng.randrange(1 << 32),
            worker=rng.randrange(4),
            weight=rng.choice((1, 2, 65535)),
            flags=rng.choice((0, 0, Flag.STALE, Flag.BYPASS, Flag.OVERFLOW)),
            hops=hops,
            sequence=rng.randrange(1 << 16) if rng.random() < 0.3 else rng.randrange(80),
            sequenced=rng.random() < 0.7,
            repair=rng.random() < 0.3,
        )

    def attacks() -> None:
        for _ in range(12):
            for _, frame in switch.send(rng.choice((3, 4, 7)), attack().frame()):
                # It may go where its stack leads, under its own job's number.
                assert Packet.read(frame).job == 2

    for fragment in range(3 * WINDOW):
        parts = [contribution(switch, child, fragment) for child in (0, 1)]
        attacks()
        assert up(switch, parts[0]) == []
        attacks()
        total = add(*(part.values for part in parts))
        assert up(switch, parts[1]) == [parts[1].popped(values=total, weight=2)]
