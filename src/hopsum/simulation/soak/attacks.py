"""Frames that a host forges to harm jobs in which it has no part."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection

from hopsum.protocol.wire import (
    ETHERNET_BYTES,
    REPLICATED_IP,
    REPLICATED_MAC,
    VERSION,
    Kind,
    ipv4_checksum,
)
from hopsum.simulation.soak.schedule import Attack, Forgery
from hopsum.simulation.world import World
from p4switch.targets.v1model.engine import Engine

KEPT = 256
"""Frames of each job that are kept for replay."""
_IP = ETHERNET_BYTES
_HEADER = _IP + 28
_KIND, _FLAGS, _JOB, _HOPS = _HEADER, _HEADER + 1, _HEADER + 4, _HEADER + 7
_STACK = _HEADER + 20
_WEIGHT = _HEADER + 12
_PORT = bytes([0x48, 0x53])

HostsOf = Callable[[int], Collection[str] | None]
"""The hosts with a part in a job; None where there is no such job."""


class Attacker:
    """Overhears frames on all links (an `Observer`) and sends forged ones.

    `hosts_of`: the hosts of each job, so that attackers have no part in it.
    """

    def __init__(self, hosts_of: HostsOf) -> None:
        self.sent = 0
        self.world: World | None = None
        self._hosts_of = hosts_of
        self._overheard: dict[int, deque[bytes]] = {}

    # -- an observer

    def left(self, time: float, source: str, target: str, frame: bytes, lost: bool) -> None:
        """Keep a frame of a job."""
        if len(frame) > _STACK and frame[36:38] == _PORT and frame[12:14] == b"\x08\x00":
            job = int.from_bytes(frame[_JOB : _JOB + 2], "big")
            self._overheard.setdefault(job, deque(maxlen=KEPT)).append(frame)

    def entered(
        self, time: float, node: str, port: int, frame: bytes, engine: Engine | None
    ) -> None:
        """Nothing."""

    def handled(self, time: float, switch: str, frame: bytes, engine: Engine) -> None:
        """Nothing."""

    # -- attacks

    def plan(self, attack: Attack, began: float) -> None:
        """Schedule forged frames from `start` to `stop` after `began`."""
        assert self.world is not None
        rng = random.Random(f"attack/{attack.seed}")
        world = self.world

        def send(number: int) -> None:
            due = began + attack.start + number * attack.every
            if due < began + attack.stop:
                self._send(world, attack, rng)
                world.queue.at(due + attack.every, lambda: send(number + 1))

        world.queue.at(began + attack.start, lambda: send(0))

    def _send(self, world: World, attack: Attack, rng: random.Random) -> None:
        jobs = [job for job in sorted(self._overheard) if self._is_foreign(job, attack.host)]
        if not jobs:
            return
        frame = rng.choice(self._overheard[rng.choice(jobs)])
        access = world.network.access_switch(attack.host)
        world.channels[attack.host, access].transmit(forge(attack.forgery, frame, rng))
        self.sent += 1

    def _is_foreign(self, job: int, host: str) -> bool:
        hosts = self._hosts_of(job)
        return hosts is not None and host not in hosts


def forge(forgery: Forgery, frame: bytes, rng: random.Random) -> bytes:
    """Return a forged frame made from an overheard one of hopsum."""
    match forgery:
        case Forgery.REPLAY:
            return frame
        case Forgery.FIELDS:
            return _with_other_fields(frame, rng)
        case Forgery.RESULT:
            return _as_result(frame, rng)
        case Forgery.REQUEST:
            return _of_kind(frame, Kind.REQUEST)
        case Forgery.FRAGMENT:
            return _as_fragment(frame, rng)
        case Forgery.TAGGED:
            tag = rng.choice([b"\x81\x00", b"\x88\xa8"]) + rng.randrange(1 << 16).to_bytes(2, "big")
            return frame[:12] + tag * rng.choice([1, 1, 2, 3]) + frame[12:]
        case Forgery.INSPECT:
            return _without_stack(_of_kind(frame, Kind.INSPECT))
        case Forgery.NOISE:
            return frame[:_HEADER] + rng.randbytes(rng.choice([0, 1, 20, len(frame) - _HEADER]))


def _of_kind(frame: bytes, kind: Kind) -> bytes:
    return frame[:_KIND] + bytes([VERSION << 4 | kind]) + frame[_KIND + 1 :]


def _with_other_fields(frame: bytes, rng: random.Random) -> bytes:
    forged = bytearray(frame)
    for _ in range(rng.choice([1, 1, 2, 5])):
        # A prologue's result has nothing after its header.
        behind = range(_STACK, len(frame)) or range(_HEADER, _STACK)
        at = rng.choice([rng.randrange(_HEADER, _STACK), rng.choice(behind)])
        if not _JOB <= at < _JOB + 2:
            # Another job number may belong to a job in which the attacker has a part.
            forged[at] = rng.randrange(256)
    return bytes(forged)


def _as_result(frame: bytes, rng: random.Random) -> bytes:
    """Return a result with random sums and any weight."""
    bare = _without_stack(frame)
    kind = rng.choice([Kind.RESULT, Kind.REPLICATED])
    forged = bytearray(_of_kind(bare, kind))
    forged[_FLAGS] = rng.choice([0, 0x10, 0x30])
    forged[_WEIGHT : _WEIGHT + 2] = rng.randint(1, 6).to_bytes(2, "big")
    forged[_STACK:] = rng.randbytes(len(forged) - _STACK)
    if kind is Kind.REPLICATED:
        forged[:6], forged[30:34] = REPLICATED_MAC, REPLICATED_IP
    return _checked(forged)


def _as_fragment(frame: bytes, rng: random.Random) -> bytes:
    forged = bytearray(frame)
    match rng.randrange(4):
        case 0:
            forged[20:22] = bytes(2)
        case 1:
            forged[20:22] = b"\x20\x00"
        case 2:
            forged[20:22] = rng.randrange(1, 1 << 13).to_bytes(2, "big")
        case _:
            # Four bytes of options: no operations.
            forged[_IP] = 0x46
            forged[_IP + 20 : _IP + 20] = b"\x01\x01\x01\x00"
            forged[16:18] = (len(forged) - _IP).to_bytes(2, "big")
    return _checked(forged)


def _without_stack(frame: bytes) -> bytes:
    bare = bytearray(frame[:_STACK] + frame[_STACK + 4 * frame[_HOPS] :])
    bare[_HOPS] = 0
    bare[16:18] = (len(bare) - _IP).to_bytes(2, "big")
    bare[38:40] = (len(bare) - _IP - 20).to_bytes(2, "big")
    return _checked(bare)


def _checked(frame: bytearray) -> bytes:
    """Return the frame with its IPv4 checksum recomputed."""
    frame[24:26] = bytes(2)
    length = 4 * (frame[_IP] & 15)
    frame[24:26] = ipv4_checksum(bytes(frame[_IP : _IP + length])).to_bytes(2, "big")
    return bytes(frame)
