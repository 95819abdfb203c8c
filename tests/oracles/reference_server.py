"""The server of one (job, tree), packet by packet, in the words of docs/protocol.md (A server).

It keeps what the rules speak of and nothing else, is slow, and shares with the product only the
layout of packets. Sections are those of the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce

import numpy as np

from hopsum.collectives.plan import JobPlan, Results
from hopsum.host_agent.codec import Frames
from hopsum.host_agent.counters import ServerStatistics
from hopsum.host_agent.server import Missing
from hopsum.network.model import Network
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import (
    LANE_BYTES,
    QUESTION,
    REPLICATED_IP,
    REPLICATED_MAC,
    Address,
    Flag,
    Header,
    Hop,
    Kind,
    Reduction,
    Width,
    carries_lanes,
    frame_template,
    ipv4_checksum,
    serial_newer,
)
from tests.oracles.reference_check_lanes import ReferenceCheckLanes
from tests.oracles.reference_links import Arrivals, SentNumbers
from tests.oracles.reference_values import Lanes, combine, is_known

STACK_AT = 62
NO_FLAGS = Flag(0)
SUMMED = Flag.OVERFLOW | Flag.ECN
IDENTITY = (
    *(slice(12, 15), slice(16, 18), slice(20, 22), slice(23, 24), slice(34, 40)),
    *(slice(42, 43), slice(46, 50)),
)
"""What a packet of a stream has as expected: types and versions, lengths, ports, kind, job, tree
and hops."""


@lru_cache
def _template(header: Header, stack: tuple[Hop, ...], lanes: int) -> bytes:
    """A frame between any hosts."""
    nowhere = Address(bytes(6), bytes(4))
    return frame_template(nowhere, nowhere, header, stack, lanes).tobytes()


@dataclass(frozen=True)
class Packet:
    """A contribution or request as it arrived, with lanes of zeros if it had none."""

    frame: bytes
    lanes: Lanes

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self.frame[at : at + size], "big")

    @property
    def tos(self) -> int:
        return self.frame[15]

    @property
    def flags(self) -> Flag:
        return Flag(self.frame[43])

    @property
    def reduction(self) -> Reduction:
        return Reduction(self.frame[44] >> 4)

    @property
    def width(self) -> Width:
        return Width(self.frame[44] & 15)

    @property
    def exponent(self) -> int:
        return self.frame[45]

    @property
    def epoch(self) -> int:
        return self._number(50, 2)

    @property
    def worker(self) -> int:
        return self._number(52, 2)

    @property
    def weight(self) -> int:
        return self._number(54, 2)

    @property
    def sequence(self) -> int:
        return self._number(56, 2)

    @property
    def fragment(self) -> int:
        return self._number(58, 4)

    @property
    def child(self) -> int:
        return Hop.unpack(self._number(STACK_AT, 4)).child


@dataclass
class Sum:
    """The fragment that is being summed in a slot."""

    fragment: int
    reduction: Reduction
    width: Width
    since: float
    sums: dict[int, None] = field(default_factory=dict)
    """Children whose sums are in."""
    total: Lanes | None = None
    """Their sum."""
    singles: dict[int, Lanes] = field(default_factory=dict)
    """Of workers that bypass the switches."""
    flags: Flag = NO_FLAGS
    exponent: int = 0
    doubted: bool = False
    """Whether check lanes have shown the sum to be wrong: only singles count."""

    def empty(self) -> None:
        """Drop what is in."""
        self.sums, self.total, self.singles = {}, None, {}
        self.flags, self.exponent = Flag(0), 0


@dataclass(frozen=True)
class Finished:
    """The last finished fragment of a slot, with its total."""

    fragment: int
    lanes: Lanes
    exponent: int
    flags: Flag
    reduction: Reduction
    width: Width
    own: bool
    """Whether this server summed it: it was not handed over."""
    number: int | None = None
    """Under which it was sent to all in this epoch."""


class ReferenceServer:
    """The server of tree `tree` of a job; `key`: of check lanes."""

    def __init__(
        self, plan: JobPlan, tree: int, network: Network, key: bytes | None = None
    ) -> None:
        self.statistics = ServerStatistics()
        self._network = network
        self._key = key
        self._number = tree
        self._output: list[bytes] = []
        self._tos = 0
        self._window = plan.in_flight
        self._history: dict[int, Finished] = {}
        self._begin(plan)

    # -- Epochs

    def _begin(self, plan: JobPlan) -> None:
        """Begin a plan's epoch: unfinished fragments are dropped, the history is kept."""
        self.plan = plan
        [self.tree] = [tree for tree in plan.trees if tree.tree == self._number]
        self._workers = len(plan.workers)
        self._replicates = plan.results is Results.REPLICATED
        groups = self.tree.server_children
        self._child_of = {w: child for child, group in enumerate(groups) for w in group}
        self._sums: dict[int, Sum] = {}
        self._sent = SentNumbers(2 * self._window)
        self._arrivals = [Arrivals() for _ in groups]
        self._history = {slot: replace(f, number=None) for slot, f in self._history.items()}
        self._checks = None
        if plan.integrity and self._key is not None:
            self._checks = ReferenceCheckLanes(self._workers, self._key, self._number, plan.lanes)

    def adopt(self, plan: JobPlan) -> None:
        """Go on under a newer epoch."""
        if not serial_newer(plan.epoch, self.plan.epoch, 16):
            return
        if (plan.epoch - self.plan.epoch) % 2**16 != 1:
            # Another server may have been at work in between.
            self._history = {slot: replace(f, own=False) for slot, f in self._history.items()}
        self._begin(plan)
        if self._replicates or self._is_summed_below:
            self._send_history()

    @property
    def _is_summed_below(self) -> bool:
        return any(hop.aggregate for stack in self.tree.up for hop in stack[:-1])

    def _send_history(self) -> None:
        """Send the whole history to all, oldest first."""

        def is_older(slot: int, other: int) -> bool:
            a, b = self._history[slot].fragment, self._history[other].fragment
            return serial_newer(b, a, 32)

        slots = sorted(
            self._history, key=lambda s: sum(is_older(other, s) for other in self._history)
        )
        for worker in self._recipients():
            for slot in slots:
                self._send_result(slot, worker, Flag.SEQUENCED)
                self.statistics.answered += 1

    # -- Packets

    def receive(self, frames: Frames, now: float) -> None:
        """Process packets as they are on the wire, (n, length)."""
        for frame in frames:
            self._receive(frame.tobytes(), now, whole=False)

    def receive_whole(self, frames: Frames, now: float) -> None:
        """Process packets of a worker at this host, which have lanes whatever their reduction."""
        for frame in frames:
            self._receive(frame.tobytes(), now, whole=True)

    def take_output(self) -> list[Frames]:
        """What is to be sent, each a batch of one."""
        sent, self._output = self._output, []
        return [np.frombuffer(frame, np.uint8)[None] for frame in sent]

    def _receive(self, frame: bytes, now: float, *, whole: bool) -> None:
        lanes = self.plan.lanes if whole else self._lanes_of(frame)
        if self._is_like(frame, Kind.REQUEST, (), lanes):
            request = Packet(frame, ())
            if request.epoch == self.plan.epoch:
                self._send_again(request.sequence, None)
            else:
                self.statistics.foreign += 1
        elif self._is_like(frame, Kind.CONTRIBUTION, (Hop(),), lanes):
            self.statistics.received += 1
            values = np.frombuffer(frame, ">i4", lanes, len(frame) - LANE_BYTES * lanes)
            packet = Packet(frame, tuple(values.tolist()) or (0,) * self.plan.lanes)
            if self._is_sum(packet):
                self._receive_sum(packet, now)
            else:
                self._receive_other(packet, now)
        else:
            self.statistics.foreign += 1

    def _lanes_of(self, frame: bytes) -> int:
        """The lanes that a packet should have on the wire."""
        if len(frame) < STACK_AT:
            return 0
        up = frame[42] & 15 == Kind.CONTRIBUTION or (
            frame[42] & 15 == Kind.REQUEST and frame[49] > 0
        )
        known = frame[44] >> 4 in Reduction.__members__.values()
        carries = not known or carries_lanes(Reduction(frame[44] >> 4), up=up)
        return self.plan.lanes if carries else 0

    def _is_like(self, frame: bytes, kind: Kind, stack: tuple[Hop, ...], lanes: int) -> bool:
        """Whether a frame's lengths, ports, kind, job and tree are those of this stream."""
        reduction = Reduction.SUM if lanes else Reduction.NONE
        header = Header(kind, self.plan.job, self._number, 1, 0, reduction=reduction)
        like = _template(header, stack, lanes)
        return (
            len(frame) == len(like)
            and all(frame[part] == like[part] for part in IDENTITY)
            and is_known(frame[44])
        )

    def _is_sum(self, packet: Packet) -> bool:
        """Whether it is of this epoch, and what this tree's children send while all is well."""
        flags = packet.flags & (Flag.STALE | Flag.BYPASS)
        if self.tree.singles:
            usual = flags == Flag.BYPASS and packet.weight == 1
        else:
            usual = not flags
        return usual and packet.epoch == self.plan.epoch

    # -- Results and answers

    def _recipients(self) -> Iterator[int | None]:
        """To whom a result for all goes; None: to all at once, by the switches."""
        yield from [None] if self._replicates else range(self._workers)

    def _header(self, kind: Kind, fragment: int, worker: int | None) -> Header:
        return Header(
            kind,
            self.plan.job,
            self._number,
            self.plan.epoch,
            fragment,
            worker=worker or 0,
            weight=self._workers,
            reduction=self.plan.reduction,
        )

    def _stack_to(self, worker: int, *, clears: bool) -> tuple[Hop, ...]:
        stack = self.tree.down[worker]
        return stack if clears else tuple(replace(hop, clear=False) for hop in stack)

    def _address(self, host: str) -> Address:
        found = self._network.hosts[host]
        return Address(found.mac_bytes, found.ip_bytes)

    def _send(
        self, header: Header, stack: tuple[Hop, ...], to: Address, lanes: Lanes, tos: int
    ) -> None:
        count = len(lanes) if carries_lanes(header.reduction, up=False) else 0
        own = self._address(self.tree.server)
        frame = frame_template(own, to, header, stack, count, tos).tobytes()
        if count:
            frame = frame[: -LANE_BYTES * count] + np.array(lanes, ">i4").tobytes()
        self._output.append(frame)

    def _send_result(self, slot: int, worker: int | None, flags: Flag) -> None:
        """Send a finished fragment to a worker or all; with SEQUENCED under its number."""
        done = self._history[slot]
        if flags and done.number is None:
            done = replace(done, number=self._sent.number(done.fragment))
            self._history[slot] = done
        header = replace(
            self._header(Kind.REPLICATED if worker is None else Kind.RESULT, done.fragment, worker),
            flags=int(done.flags | flags),
            exponent=done.exponent,
            reduction=done.reduction,
            width=done.width,
            sequence=done.number or 0 if flags else 0,
        )
        tos = self._tos | (URGENT if flags & Flag.REPAIR else 0)
        if worker is None:
            self._send(header, (), Address(REPLICATED_MAC, REPLICATED_IP), done.lanes, tos)
            return
        stack = self._stack_to(worker, clears=not self._replicates)
        self._send(header, stack, self._address(self.plan.workers[worker]), done.lanes, tos)

    def _repeat(self, slot: int, worker: int | None) -> None:
        self._send_result(slot, worker, Flag.SEQUENCED | Flag.REPAIR)
        self.statistics.repaired += 1

    def _send_again(self, number: int, worker: int | None) -> None:
        """Send the result again that was sent under a number, if the history has it."""
        fragment = self._sent.find(number)
        if fragment is not None and self._has(fragment):
            self._repeat(fragment % self._window, worker)

    def _has(self, fragment: int) -> bool:
        done = self._history.get(fragment % self._window)
        return done is not None and done.fragment == fragment

    def _answer(self, packet: Packet) -> None:
        """Answer the packet's worker, who asks for a finished fragment."""
        if packet.worker >= self._workers:
            self.statistics.refused += 1
            return
        flags = NO_FLAGS if self._replicates else Flag.SEQUENCED
        self._send_result(packet.fragment % self._window, packet.worker, flags)
        self.statistics.answered += 1

    # -- Losses on a link, and past all switches

    def _is_direct(self, packet: Packet) -> bool:
        """Whether no switch sums what the packet's worker sends."""
        return packet.worker < self._workers and not any(
            hop.aggregate for hop in self.tree.up[packet.worker][:-1]
        )

    def _is_copy(self, packet: Packet) -> bool:
        """Take a neighbour's number, and request what is missing.

        Returns whether it had come before.
        """
        direct = self._is_direct(packet)
        child = self._child_of[packet.worker] if direct else packet.child
        if child >= len(self._arrivals) or not (direct or packet.flags & Flag.SEQUENCED):
            return False
        repair = bool(packet.flags & Flag.REPAIR)
        copy, missing = self._arrivals[child].take(
            packet.sequence, repair=repair, window=self._window if direct else 0
        )
        for number in missing:
            if direct:
                self._request_of_worker(packet.worker, number)
            else:
                self._request(packet, number)
        return copy

    def _request_of_worker(self, worker: int, number: int) -> None:
        """Send a question, without lanes, for the contribution sent under a number."""
        header = replace(
            self._header(Kind.RESULT, 0, worker),
            flags=int(QUESTION | Flag.SEQUENCED),
            reduction=Reduction.NONE,
            sequence=number,
        )
        stack = self._stack_to(worker, clears=not self._replicates)
        to = self._address(self.plan.workers[worker])
        self._send(header, stack, to, (), self._tos | URGENT)
        self.statistics.requests += 1

    def _request(self, packet: Packet, number: int) -> None:
        """Send a copy of the packet back, with lanes, as a request for a number."""
        like = _template(Header(Kind.REQUEST, self.plan.job, 0, 1, 0), (Hop(),), self.plan.lanes)
        frame = bytearray(packet.frame[: STACK_AT + 4])
        frame[0:6], frame[6:12] = packet.frame[6:12], packet.frame[0:6]
        frame[26:30], frame[30:34] = packet.frame[30:34], packet.frame[26:30]
        frame[15] = self._tos | URGENT
        frame[16:18], frame[38:40] = like[16:18], like[38:40]
        frame[42:45] = like[42], Flag.SEQUENCED, Reduction.SUM << 4
        frame[56:58] = number.to_bytes(2, "big")
        frame[24:26] = bytes(2)
        frame[24:26] = ipv4_checksum(bytes(frame[14:34])).to_bytes(2, "big")
        self._output.append(bytes(frame) + np.array(packet.lanes, ">i4").tobytes())
        self.statistics.requests += 1

    # -- A server: sums of children

    def _receive_sum(self, packet: Packet, now: float) -> None:
        self._tos = packet.tos & ~URGENT
        copy = self._is_copy(packet)
        if self._has(packet.fragment):
            if packet.flags & Flag.SEQUENCED and (copy or packet.flags & Flag.REPAIR):
                return
            if packet.flags & Flag.SEQUENCED and self._replicates:
                self._repeat(packet.fragment % self._window, None)
            else:
                self._answer(packet)
            return
        groups = self.tree.server_children
        child: int | None = packet.child
        if self.tree.singles:
            child = self._child_of.get(packet.worker)
        elif packet.child >= len(groups) or len(groups[packet.child]) != packet.weight:
            child = None
        if child is None or not packet.weight:
            self.statistics.refused += 1
            return
        self._add(packet, child, now)

    def _open(self, packet: Packet, now: float) -> Sum | None:
        """The sum of the packet's fragment, opened if it is newer than its slot's."""
        slot = packet.fragment % self._window
        opened, done = self._sums.get(slot), self._history.get(slot)
        if opened is not None and opened.fragment == packet.fragment:
            if (opened.reduction, opened.width) == (packet.reduction, packet.width):
                return opened
            self.statistics.refused += 1
            return None
        for other in (opened, done):
            if other is not None and not serial_newer(packet.fragment, other.fragment, 32):
                self.statistics.older += 1
                return None
        self._sums[slot] = Sum(packet.fragment, packet.reduction, packet.width, now)
        return self._sums[slot]

    def _heard(self, opened: Sum) -> set[int]:
        """The workers whose contributions are in."""
        groups = self.tree.server_children
        return set(opened.singles).union(*[groups[child] for child in opened.sums])

    def _add(self, packet: Packet, child: int, now: float) -> None:
        opened = self._open(packet, now)
        if opened is None or (opened.doubted and not self._is_alone_and_right(packet, opened)):
            return
        if child in opened.sums:
            self.statistics.repeats += 1
            return
        self.statistics.sums += 1
        for worker in self.tree.server_children[child]:
            opened.singles.pop(worker, None)
        flags = packet.flags & SUMMED
        if packet.weight == self._workers:
            self._finish_sum(opened, packet.lanes, packet.exponent, flags)
            return
        lanes, over = packet.lanes, NO_FLAGS
        if opened.total is not None:
            lanes, wraps = combine(opened.total, lanes, opened.reduction, opened.width)
            over |= Flag.OVERFLOW if wraps else NO_FLAGS
        opened.sums[child], opened.total = None, lanes
        opened.flags |= flags | over
        opened.exponent = max(opened.exponent, packet.exponent)
        self._finish_if_complete(opened)

    def _finish_if_complete(self, opened: Sum) -> None:
        if len(self._heard(opened)) < self._workers:
            return
        parts = [lanes for _, lanes in sorted(opened.singles.items())]
        if opened.total is not None:
            parts.insert(0, opened.total)

        def add(total: Lanes, lanes: Lanes) -> Lanes:
            combined, wraps = combine(total, lanes, opened.reduction, opened.width)
            opened.flags |= Flag.OVERFLOW if wraps else NO_FLAGS
            return combined

        self._finish_sum(opened, reduce(add, parts), opened.exponent, opened.flags)

    def _finish(self, done: Finished) -> None:
        slot = done.fragment % self._window
        self._history[slot] = done
        opened = self._sums.get(slot)
        if opened is not None and not serial_newer(opened.fragment, done.fragment, 32):
            del self._sums[slot]
        self.statistics.results += 1
        self.statistics.overflowed += bool(done.flags & Flag.OVERFLOW)
        for worker in self._recipients():
            self._send_result(slot, worker, Flag.SEQUENCED)
            self.statistics.result_frames += 1

    # -- Check lanes

    def _finish_sum(self, opened: Sum, lanes: Lanes, exponent: int, flags: Flag) -> None:
        """Finish a fragment with a complete sum, if its check lanes fit."""
        checks = self._checks
        if checks is not None:
            needing = checks.sum(lanes, opened.fragment)
            if needing is not None:
                needed, over = needing > 0, False
                flags &= ~Flag.OVERFLOW
            elif opened.doubted and flags & Flag.OVERFLOW:
                needed, over = True, True
            else:
                opened.doubted = True
                opened.empty()
                self.statistics.corrupt += 1
                self._ask_for_singles(opened)
                return
            lanes = checks.sealed(lanes, opened.fragment, exponent, needed=needed, over=over)
        of = opened.fragment, lanes, exponent, flags, opened.reduction, opened.width
        self._finish(Finished(*of, own=True))

    def _ask_for_singles(self, opened: Sum) -> None:
        """Ask workers whose contributions are missing to send them as singles."""
        assert self._checks is not None
        for worker in sorted(set(range(self._workers)) - self._heard(opened)):
            header = replace(
                self._header(Kind.RESULT, opened.fragment, worker), flags=int(Flag.BYPASS)
            )
            to = self._address(self.plan.workers[worker])
            stack = self._stack_to(worker, clears=False)
            self._send(header, stack, to, self._checks.question(opened.fragment), self._tos)
            self.statistics.asked += 1

    def _is_alone_and_right(self, packet: Packet, opened: Sum) -> bool:
        """Whether a packet to a slot in doubt is a worker's own and fits."""
        assert self._checks is not None
        if not self.tree.singles:
            self.statistics.repeats += 1
        elif self._checks.is_single(packet.lanes, packet.fragment, packet.worker):
            return True
        else:
            self.statistics.corrupt += 1
        self._ask_for_singles(opened)
        return False

    # -- A server: all else

    def _receive_other(self, packet: Packet, now: float) -> None:
        """Process a packet of another epoch, a question, a single, or a total handed over."""
        statistics, flags = self.statistics, packet.flags
        question = flags & Flag.STALE and flags & Flag.BYPASS
        ours = packet.epoch == self.plan.epoch
        if ours and not question and flags & Flag.BYPASS and self._is_direct(packet):
            self._is_copy(packet)
        if serial_newer(packet.epoch, self.plan.epoch, 16):
            statistics.newer += 1
        elif question and packet.epoch == self.plan.epoch:
            if self._replicates or packet.worker >= self._workers:
                statistics.refused += 1
            else:
                self._send_again(packet.sequence, packet.worker)
        elif not question and self._has(packet.fragment):
            self._answer(packet)
        elif packet.epoch != self.plan.epoch:
            statistics.older += 1
        elif flags & Flag.STALE:
            statistics.stale += 1
        elif (
            not flags & Flag.BYPASS
            or packet.worker >= self._workers
            or packet.weight not in (1, self._workers)
        ):
            statistics.refused += 1
        elif self._is_total(packet):
            self._take_total(packet)
        elif self._is_single(packet):
            self._take_single(packet, now)

    def _fits_alone(self, packet: Packet) -> bool:
        return self._checks is None or self._checks.is_single(
            packet.lanes, packet.fragment, packet.worker
        )

    def _is_total(self, packet: Packet) -> bool:
        """Whether it is of all workers; of a single worker's job check lanes tell."""
        if packet.weight != self._workers:
            return False
        return self._checks is None or packet.weight > 1 or not self._fits_alone(packet)

    def _is_single(self, packet: Packet) -> bool:
        if self._fits_alone(packet):
            return True
        self.statistics.corrupt += 1
        opened = self._sums.get(packet.fragment % self._window)
        if opened is not None and opened.doubted and opened.fragment == packet.fragment:
            self._ask_for_singles(opened)
        return False

    def _take_single(self, packet: Packet, now: float) -> None:
        opened = self._open(packet, now)
        if opened is None:
            return
        if packet.worker in self._heard(opened):
            self.statistics.repeats += 1
            return
        self.statistics.singles += 1
        opened.singles[packet.worker] = packet.lanes
        opened.flags |= packet.flags & SUMMED
        opened.exponent = max(opened.exponent, packet.exponent)
        self._finish_if_complete(opened)

    def _take_total(self, packet: Packet) -> None:
        done = self._history.get(packet.fragment % self._window)
        flags = packet.flags & SUMMED
        if done is not None and not serial_newer(packet.fragment, done.fragment, 32):
            self.statistics.older += 1
        elif not self._is_within_window(packet):
            self.statistics.refused += 1
        elif self._checks is not None and not self._checks.is_result(
            packet.lanes, packet.fragment, packet.exponent, over=bool(flags & Flag.OVERFLOW)
        ):
            self.statistics.corrupt += 1
            self.statistics.refused += 1
        else:
            self.statistics.handed_over += 1
            lanes, exponent = packet.lanes, packet.exponent
            of = packet.fragment, lanes, exponent, flags, packet.reduction, packet.width
            self._finish(Finished(*of, own=False))

    def _is_within_window(self, packet: Packet) -> bool:
        slot = packet.fragment % self._window
        done, opened = self._history.get(slot), self._sums.get(slot)
        if done is not None and done.own:
            return (packet.fragment - done.fragment) % 2**32 <= self._window
        return opened is None or (opened.fragment - packet.fragment) % 2**32 <= 2 * self._window

    def missing(self) -> Missing | None:
        """The missing workers of the fragment that was opened first."""
        if not self._sums:
            return None
        _, opened = min(self._sums.items(), key=lambda item: (item[1].since, item[0]))
        heard = self._heard(opened)
        missing = [name for worker, name in enumerate(self.plan.workers) if worker not in heard]
        return Missing(opened.fragment, opened.since, tuple(missing))
