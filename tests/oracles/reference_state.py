"""State of the oracle's switch: slots, arrivals from neighbours, and frames sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsum.protocol.wire import Flag, Reduction, serial_newer
from tests.packet.hopsum.packets import Packet

NUMBERS = 1 << 16
HISTORY = 64
"""Numbers before the newest that may still come."""
RETRY = 8
"""A missing number is requested again each time the newest is a multiple of this ahead of it."""
SUMMED_FLAGS = Flag.OVERFLOW | Flag.ECN
"""The flags that live in a slot."""


@dataclass
class Slot:
    """The contents of a slot, and their fragment; job 0: unused."""

    job: int = 0
    tree: int = 0
    epoch: int = 0
    fragment: int = 0
    cleared: bool = False
    kept: bool = False
    """Whether the values are those of the result."""
    children: set[int] = field(default_factory=set)
    fan_in: int = 0
    weight: int = 0
    flags: int = 0
    exponent: int = 0
    reduction: int = 0
    width: int = 0
    values: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        """All children have been seen."""
        return len(self.children) == self.fan_in

    def is_of(self, packet: Packet) -> bool:
        """The slot's owner is the packet's fragment."""
        mine = (self.job, self.tree, self.epoch, self.fragment)
        return mine == (packet.job, packet.tree, packet.epoch, packet.fragment)

    def fits(self, packet: Packet) -> bool:
        """Its values fit in the packet's place: a packet can lose its lanes, not gain any."""
        return len(self.values) <= len(packet.values)

    def gives_way_to(self, packet: Packet) -> bool:
        """Empty, of another job or tree, or older."""
        if self.job == 0 or (self.job, self.tree) != (packet.job, packet.tree):
            return True
        if self.epoch != packet.epoch:
            return serial_newer(packet.epoch, self.epoch, 16)
        return serial_newer(packet.fragment, self.fragment, 32)

    def gives_way_to_result(self, packet: Packet) -> bool:
        """The same, but an unfinished sum of another job or tree stays."""
        another = (self.job, self.tree) != (packet.job, packet.tree)
        return self.gives_way_to(packet) and not (self.job and another and not self.cleared)

    def open_for_result(self, packet: Packet) -> None:
        """No child has been seen, and none is needed."""
        self.job, self.tree = packet.job, packet.tree
        self.epoch, self.fragment = packet.epoch, packet.fragment
        self.children, self.fan_in, self.cleared = set(), 0, True

    def keep(self, packet: Packet) -> None:
        """Hold the result until the slot is used again."""
        self.kept = True
        self.reduction, self.width = packet.reduction, packet.width
        self.weight, self.exponent = packet.weight, packet.exponent
        self.flags, self.values = packet.flags & SUMMED_FLAGS, packet.values


Owner = tuple[int, int, int]
"""Job, tree, epoch."""


@dataclass
class Arrivals:
    """Which numbers have come from a neighbour: the newest, those before it that have not, and
    which of these have been asked for."""

    owner: Owner = (0, 0, 0)
    newest: int = 0
    missing: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)

    def take(self, packet: Packet) -> tuple[int | None, bool]:
        """Take in a packet's number; return one to ask for, and whether it had come before."""
        again = False
        owner, number = (packet.job, packet.tree, packet.epoch), packet.sequence
        lead = (number - self.newest) % NUMBERS
        same = self.owner == owner
        if same and (lead == 0 or lead > NUMBERS - HISTORY):
            again = number not in self.missing
            self.missing.discard(number)
        elif packet.repair:
            return None, False
        elif same and lead < NUMBERS // 2:
            self.newest = number
            self.missing |= {(number - back) % NUMBERS for back in range(1, min(lead, HISTORY))}
        elif self.owner[:2] == owner[:2] and serial_newer(self.owner[2], packet.epoch, 16):
            return None, False
        else:
            self.owner, self.newest = owner, number
            self.missing, self.asked = set(), set()
            if number < HISTORY:
                self.missing = set(range(number))
        return self._to_ask_for(packet, moved=not same or 0 < lead < NUMBERS // 2), again

    def _to_ask_for(self, packet: Packet, *, moved: bool) -> int | None:
        def back(number: int) -> int:
            return (self.newest - number) % NUMBERS

        self.missing = {number for number in self.missing if back(number) < HISTORY}
        again = {number for number in self.asked if moved and back(number) % RETRY == RETRY - 1}
        self.asked = {number for number in self.asked - again if back(number) < HISTORY}
        left = self.missing - self.asked
        if not left or packet.reduction == Reduction.NONE:
            return None
        number = min(left, key=back)
        self.asked.add(number)
        return number


@dataclass
class SentLog:
    """The fragments of the last numbers that were sent, in as many cells as the window has."""

    owner: Owner = (0, 0, 0)
    next: int = 0

    def number(self, packet: Packet) -> int | None:
        """Return the number of a frame of this packet's owner; None after a newer epoch."""
        owner = packet.job, packet.tree, packet.epoch
        if self.owner[:2] == owner[:2] and serial_newer(self.owner[2], packet.epoch, 16):
            return None
        if self.owner != owner:
            self.owner, self.next = owner, 0
        number = self.next
        self.next = (number + 1) % NUMBERS
        return number
