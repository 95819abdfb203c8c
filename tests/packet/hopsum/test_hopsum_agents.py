"""What an agent accepts, a switch recognises as hopsum's: no way around admission (H29).

A stranger sends what looks like a contribution or a result to the addresses of a job's hosts.
For any change of the frame: if an agent would still take it, no switch may forward it as
plain traffic.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from hopsum.host_agent.server import Server
from hopsum.host_agent.worker import Worker
from hopsum.protocol import wire
from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import Flag, Hop, Kind
from tests.packet.hopsum.switches import Build, Switch
from tests.support.protocol_world import contribution, frame, result, star_plan

UNADMITTED_PORT = 3
HOST_PORT = 5
TAGS = ("81000005", "81000000", "88a80005", "91000005")
RANDOM_FRAMES = {"interpreter": 3_000, "native": 12_000, "bmv2": 1_500}
BYTES = range(12, 66)
"""Everything behind the addresses but the lanes."""

PLAN, NETWORK = star_plan(3, aggregates=("s0",))


class Agents:
    """The server and a worker of a job; `take` says which frames get past their decoders."""

    def __init__(self) -> None:
        self._server = Server(PLAN, 0, NETWORK)
        self._worker = Worker(PLAN, 0, NETWORK)

    def take(self, data: bytes) -> bool:
        """Whether an agent has a use for a frame, as its kernel shows it: without its outer tag."""
        if data[12:14] in (b"\x81\x00", b"\x88\xa8"):
            data = data[:12] + data[16:]
        row = np.frombuffer(data, np.uint8)[None, :]
        before = self._server.statistics.foreign + self._worker.statistics.foreign
        self._server.receive(row, 0.0)
        self._worker.receive(row, 0.0)
        return self._server.statistics.foreign + self._worker.statistics.foreign == before + 1


def as_sent() -> list[bytes]:
    """Frames that agents accept, and their form after the last hop."""
    own = wire.Hop(aggregate=True, fan_in=3, port=HOST_PORT)
    frames = [
        contribution(PLAN, NETWORK, 0, 0, 7, weight=3),
        contribution(PLAN, NETWORK, 0, 1, 7, weight=3, flags=Flag.BYPASS),
        frame(PLAN, NETWORK, Kind.CONTRIBUTION, 2, 7, (own, Hop(fan_in=3))),
        result(PLAN, NETWORK, 0, 7),
        frame(PLAN, NETWORK, Kind.REPLICATED, 0, 7, weight=3),
        frame(PLAN, NETWORK, Kind.RESULT, 0, 7, (Hop(port=HOST_PORT),), weight=3),
    ]
    return [row[0].tobytes() for row in frames]


def with_options(data: bytes) -> bytes:
    words = bytes([1]) * 4
    return data[:14] + bytes([0x46]) + data[15:34] + words + data[34:]


def disguised(rng: random.Random, data: bytes) -> bytes:
    """The frame after one change that could hide it from a switch, or none."""
    changed = bytearray(data)
    match rng.randrange(8):
        case 0 | 1:
            changed[rng.choice(BYTES)] = rng.choice((0, 1, 0xFF, rng.randrange(256)))
        case 2:
            changed[rng.choice(BYTES)] ^= 1 << rng.randrange(8)
        case 3:
            changed[20:22] = rng.choice((0, 0x2000, 0x2001, 0x6000, 0x0001, 0x1FFF)).to_bytes(2)
        case 4:
            changed[12:12] = bytes.fromhex(rng.choice(TAGS))
        case 5:
            return with_options(data)
        case 6:
            return data + bytes(rng.choice((1, 4)))
    return bytes(changed)


def with_checksum(data: bytes) -> bytes:
    """The frame with a right IPv4 checksum where its header is in its usual place."""
    made = bytearray(data)
    made[24:26] = bytes(2)
    made[24:26] = wire.ipv4_checksum(bytes(made[14:34])).to_bytes(2, "big")
    return bytes(made)


def disguises(count: int, seed: int) -> list[bytes]:
    """Random frames of up to three changes; some without any sense at all."""
    rng = random.Random(seed)
    bases = as_sent()
    made = []
    for _ in range(count):
        data = rng.choice(bases)
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            data = disguised(rng, data)
        if rng.random() < 0.05:
            data = data[:12] + rng.randbytes(len(data) - 12)
        made.append(with_checksum(data) if rng.random() < 0.5 else data)
    return made


def unadmitted(switch: Switch, frames: Iterable[bytes]) -> dict[Outcome, int]:
    """Send frames in at a port of no job; return the outcomes counted."""
    for host in NETWORK.hosts.values():
        mac = int.from_bytes(host.mac_bytes, "big")
        switch.insert("l2_forward", {"dst_mac": mac}, "forward", port=HOST_PORT)
    group = int.from_bytes(wire.REPLICATED_MAC, "big")
    switch.insert("l2_forward", {"dst_mac": group}, "forward", port=HOST_PORT)
    assert switch.send(UNADMITTED_PORT, *frames) == []
    return switch.counted()


@pytest.mark.slow
def test_frames_for_agents_are_never_plain_traffic(
    make_switch: Callable[[Build], Switch], engine: str
) -> None:
    agents = Agents()
    frames = disguises(RANDOM_FRAMES[engine], 1)
    taken = [data for data in frames if agents.take(data)]
    assert len(frames) / 10 < len(taken) < len(frames) * 9 / 10
    counted = unadmitted(make_switch(Build()), taken)
    assert set(counted) == {Outcome.MALFORMED, Outcome.NOT_ADMITTED}
    assert sum(counted.values()) == len(taken)


@pytest.mark.slow
def test_no_value_of_a_byte_gets_around_admission(
    make_switch: Callable[[Build], Switch], engine: str
) -> None:
    agents = Agents()
    step = 4 if engine == "native" else 16
    taken = []
    for data in as_sent():
        for place in BYTES:
            for value in range(place % step, 256, step):
                changed = data[:place] + bytes([value]) + data[place + 1 :]
                if agents.take(changed):
                    taken += [changed, with_checksum(changed)]
    assert taken
    counted = unadmitted(make_switch(Build()), taken)
    assert Outcome.PLAIN not in counted
    assert sum(counted.values()) == len(taken)


@pytest.mark.parametrize("tag", TAGS[:3])
def test_a_tag_hides_nothing(switch: Switch, tag: str) -> None:
    """A kernel takes one tag off: two and three must not become one and two on the way."""
    tags = bytes.fromhex(tag)
    frames = [data[:12] + tags * n + data[12:] for data in as_sent() for n in (1, 2)]
    assert unadmitted(switch, frames) == {Outcome.MALFORMED: len(frames)}
