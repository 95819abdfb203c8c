"""A worker's half of the protocol on one tree, packet by packet, in the words of docs/protocol.md.

The sections are A worker, Exponents and numbers, Congestion, and Losses on a link and past all
switches. It knows values of all types and widths without check lanes, on trees with a root of their
own. It keeps what the rules speak of, is slow, and shares with the product only the layout of
packets, the options, and what follows from a plan alone (`congestion.stream_path`,
`most_in_flight`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.plan import JobPlan, Results
from hopsum.host_agent.codec import Frames
from hopsum.host_agent.congestion import LEAST_WINDOW, NO_QUEUE, most_in_flight, stream_path
from hopsum.host_agent.counters import WorkerStatistics
from hopsum.host_agent.options import STEADY_PROBES, WorkerOptions
from hopsum.network.model import Network
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import (
    QUESTION,
    Address,
    Flag,
    Header,
    Hop,
    Kind,
    Reduction,
    Width,
    carries_lanes,
    frame_template,
    serial_newer,
)
from tests.oracles.reference_links import Arrivals, SentNumbers
from tests.oracles.reference_server import IDENTITY, STACK_AT, Lanes

Tensor = NDArray[Any]

PROBE = 4
"""Fragments of a probe; and of a round of timeouts, those that ask the server."""
ASKING = 3
"""Every third consecutive probe asks the server."""
FEW = 3
"""Transmissions that overtake a fragment from which on it is retransmitted sooner."""
SHORTEST = 1e-4
"""Least time to wait for an overtaken fragment, in seconds."""
GROUP = 4
"""Fragments of 16 bits in the first window that share a prologue."""
AGAIN = 0.25
"""Least interval from which those of further probes grow, in seconds."""


# -- Exponents and numbers


def exponent(values: Tensor) -> int:
    """The byte of the least e with |x| < 2^e for all values, 0 if all are zero."""
    greatest = max((abs(float(x)) for x in values), default=0.0)
    return min(max(math.frexp(greatest)[1], -127), 128) + 127 if greatest else 0


@dataclass(frozen=True)
class Scale:
    """Scaling of floats by exponents, for N workers at the start."""

    workers: int

    @property
    def bits(self) -> int:
        """The s of the document."""
        return math.ceil(math.log2(self.workers))

    def integers(self, values: Tensor, code: int, width: Width) -> list[int]:
        """Scale floats to integers of a width."""
        room = width.bits - 1 - self.bits
        most = 2**room - 1
        scaled = [round(math.ldexp(float(x), room - (code - 127))) for x in floats_of(values)]
        return [min(max(q, -most), most) for q in scaled]

    def floats(self, sums: Iterable[int], code: int, width: Width, dtype: np.dtype[Any]) -> Tensor:
        """Return floats of integer sums of a width."""
        shift = code - 127 + self.bits - (width.bits - 1)
        exact = np.array([math.ldexp(q, shift) for q in sums], np.float64)
        if dtype == np.uint16:
            return bfloat16(exact)
        with np.errstate(over="ignore"):
            return exact.astype(dtype)


def floats_of(values: Tensor) -> Tensor:
    """Floats of 16 or 32 bits as float32; uint16: bfloat16."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def bfloat16(exact: NDArray[np.float64]) -> Tensor:
    """Numbers rounded to nearest even, infinite beyond the range."""
    unit = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 8, -133))
    with np.errstate(over="ignore"):
        single: NDArray[np.float32] = (np.rint(exact / unit) * unit).astype(np.float32)
    return (single.view(np.uint32) >> 16).astype(np.uint16)


def packed(integers: Iterable[int], width: Width) -> list[int]:
    """Integers of a width as lanes, the first in the upper bits of each."""
    size = width.bits // 8
    row = b"".join((q % 2**width.bits).to_bytes(size, "big") for q in integers)
    row += bytes(-len(row) % 4)
    return np.frombuffer(row, ">i4").tolist()


def unpacked(lanes: Iterable[int], width: Width) -> list[int]:
    """The integers in lanes."""
    return np.frombuffer(np.array([*lanes], ">i4").tobytes(), f">i{width.bits // 8}").tolist()


@dataclass
class Part:
    """A tensor on this tree: `first` is its first prologue, if it is of floats."""

    values: Tensor
    result: Tensor
    first: int
    lanes: int
    window: int
    reduction: Reduction
    width: Width

    def __post_init__(self) -> None:
        self.scaled = self.values.dtype in (np.float32, np.float16, np.uint16)
        self.data = -(-len(self.values) // (self.lanes * self.width.per_lane))
        self.group = self.window if self.width is Width.WIDTH_32 else min(self.window, GROUP)
        self.prologues = -(-min(self.data, self.window) // self.group) if self.scaled else 0
        self.codes: dict[int, int] = {}
        """The results of prologues."""
        self.end = self.first + self.data + self.prologues
        self.open = self.end - self.first
        values = floats_of(self.values)
        self._own = [exponent(values[self.place(i)]) for i in range(self.data * self.scaled)]

    @property
    def is_done(self) -> bool:
        """Whether all its results are here."""
        return not self.open

    def place(self, data: int) -> slice:
        """Where the values of a data fragment are."""
        each = self.lanes * self.width.per_lane
        return slice(data * each, (data + 1) * each)

    def number(self, fragment: int) -> int:
        """Which data fragment it is; negative: a prologue."""
        return fragment - self.first - self.prologues

    def announced(self, data: int) -> int:
        """The exponent byte that goes with a data fragment, one window ahead, or a prologue."""
        if not self.scaled:
            return 0
        if data < 0:
            start = (data + self.prologues) * self.group
            return max(self._own[start : min(start + self.group, self.window)])
        return self._own[data + self.window] if data + self.window < self.data else 0


# -- Timers


@dataclass
class RoundTrip:
    """Timeouts by measured round trips (RFC 6298); `patient` where neighbours repair losses."""

    options: WorkerOptions
    patient: bool = False
    smoothed: float | None = None
    variation: float = 0.0

    def __post_init__(self) -> None:
        self.timeout = self.options.initial_timeout
        self.backed_off_at = -inf

    @property
    def known(self) -> float:
        """The smoothed round trip, 0 if there is none."""
        return self.smoothed or 0.0

    def measure(self, seconds: float) -> None:
        """Take a sample."""
        if self.smoothed is None:
            self.smoothed, self.variation = seconds, seconds / 2
        else:
            self.variation += (abs(self.smoothed - seconds) - self.variation) / 4
            self.smoothed += (seconds - self.smoothed) / 8
        least = max(self.options.min_timeout, self.smoothed + 4 * self.variation)
        self.timeout = min(self.options.max_timeout, least)

    def back_off(self, now: float, last_sent: float) -> bool:
        """Double the timeout in a new round of timeouts; return whether it is one."""
        if last_sent < self.backed_off_at:
            return False
        most = self.options.max_timeout * (8 if self.patient else 1)
        self.timeout = min(most, self.timeout * (4 if self.patient else 2))
        self.backed_off_at = now
        return True

    def restart(self) -> None:
        """Forget the back-off."""
        self.timeout = min(self.options.max_timeout, self.timeout)


@dataclass
class Congestion:
    """The congestion window, in fragments (section Congestion)."""

    most: float
    path: tuple[float, float] | None
    size: float = 0.0
    ignored: int = 0
    """Marks of earlier transmissions do not count."""
    round: int = 0
    shortest: float = inf

    def answered(
        self, newest: int, following: int, in_flight: int, round_trip: float, *, marked: bool
    ) -> None:
        """Follow results of fragments sent once, of which `newest` was sent last."""
        if self.path is None or not (marked or self.limited):
            return
        self.shortest = min(self.shortest, round_trip)
        if marked and newest >= self.ignored:
            self.size = max(min(self.size, in_flight) / 2, min(LEAST_WINDOW, self.most))
            self.ignored = following
        elif newest >= self.round and in_flight >= int(self.size):
            empty, step = self.path
            if self.shortest <= NO_QUEUE * empty:
                step = max(step, self.size)
            self.size = min(self.size + step, self.most)
        else:
            return
        self.round, self.shortest = following, inf

    window: int = 0

    @property
    def limited(self) -> bool:
        """Whether fewer fragments than slots may be in flight."""
        return self.size < self.window


# -- A worker


@dataclass
class Flight:
    """A fragment in flight."""

    part: Part
    fragment: int
    reduction: Reduction
    width: Width
    exponent: int
    code: int
    order: int
    """Number of its last transmission."""
    sent_at: float
    first_sent_at: float
    due: float
    tries: int = 1
    timeouts: int = 0
    bypass: bool = False
    into_silence: bool = False
    overtaken_at: float = inf


@dataclass(frozen=True)
class Done:
    """The last result of a slot."""

    fragment: int
    exponent: int
    reduction: Reduction
    width: Width
    lanes: Lanes


@dataclass
class Slot:
    """One of the W slots: its next fragment, or the one in flight."""

    fragment: int
    flight: Flight | None = None
    done: Done | None = None
    handing: bool = False
    code: int = 0
    """Exponent byte of the last result, which scales the next fragment of the tensor."""


@dataclass
class ReferenceWorker:
    """Worker number `index` on the one tree of a plan."""

    plan: JobPlan
    index: int
    network: Network
    options: WorkerOptions = field(default_factory=WorkerOptions)

    def __post_init__(self) -> None:
        self.statistics = WorkerStatistics()
        self.failure: str | None = None
        self.sent: list[bytes] = []
        first, window = self.options.first_fragment, self.plan.in_flight
        self.slots = [Slot(first + (slot - first) % window) for slot in range(window)]
        self.parts: deque[Part] = deque()
        self.end = first
        self._scale = Scale(len(self.plan.workers))
        self._following = 0
        self._newest = self._newest_void = -1
        """The last transmissions that are known to be answered, and that prove nothing."""
        self._probes = 0
        self._round_trip = RoundTrip(self.options)
        self._shortest = inf
        self._answered_at = self._last_sent_at = -inf
        self._next_due = self._repair_due = self._handing_due = inf
        self._handing_since = self._handing_timeout = 0.0
        self._begin(self.plan)
        self._congestion.size = self._congestion.most

    def _begin(self, plan: JobPlan) -> None:
        self.plan = plan
        [self.tree] = plan.trees
        self._workers = len(plan.workers)
        self._stack = self.tree.up[self.index]
        self.numbers = SentNumbers(2 * plan.in_flight)
        self._arrivals = Arrivals()
        sums = [[hop.aggregate for hop in stack[:-1]] for stack in self.tree.up]
        self._direct = not any(sums[self.index])
        self._unicast = plan.results is Results.UNICAST
        if self._unicast:
            self._repaired = all(len({*each}) < 2 for each in sums)
        else:
            self._repaired = not self.tree.singles and all(all(each) for each in sums)
        self._round_trip.patient = self._repaired
        limit = float(min(most_in_flight(plan, self.tree), plan.in_flight))
        path = stream_path(self.network, plan, self.tree)
        before = getattr(self, "_congestion", Congestion(limit, path))
        before.most, before.path, before.window = limit, path, plan.in_flight
        self._congestion = before

    # -- frames to send

    def _address(self, host: str) -> Address:
        found = self.network.hosts[host]
        return Address(found.mac_bytes, found.ip_bytes)

    def _header(self, kind: Kind, fragment: int, **fields: Any) -> Header:
        known = {"worker": self.index, "weight": 1, "reduction": self.plan.reduction, **fields}
        return Header(
            kind, self.plan.job, self.tree.tree, self.plan.epoch, fragment % 2**32, **known
        )

    def _send(
        self, header: Header, stack: tuple[Hop, ...], lanes: Iterable[int], tos: int = 0
    ) -> None:
        up = header.kind is Kind.CONTRIBUTION or bool(stack)
        count = self.plan.lanes if carries_lanes(header.reduction, up=up) else 0
        here, there = self._address(self.plan.workers[self.index]), self._address(self.tree.server)
        frame = frame_template(here, there, header, stack, count, tos).tobytes()
        values = [*lanes][:count]
        values += [0] * (count - len(values))
        self.sent.append(frame[: len(frame) - 4 * count] + np.array(values, ">i4").tobytes())

    def _numbered(self, header: Header) -> Header:
        """Number a contribution: for the next neighbour, or for the server past all switches."""
        if header.flags & Flag.BYPASS and not self._direct:
            return header
        number = self.numbers.number(header.fragment)
        return replace(header, sequence=number, flags=header.flags | Flag.SEQUENCED)

    def _contribution(self, flight: Flight) -> tuple[Header, list[int]]:
        part, data = flight.part, flight.part.number(flight.fragment)
        values = part.values[part.place(data)] if data >= 0 else part.values[:0]
        integers = [int(x) for x in values] if not part.scaled else []
        if part.scaled and data >= 0:
            integers = self._scale.integers(values, flight.code, part.width)
        lanes = packed(integers, part.width)
        bypass = flight.bypass or self.tree.singles
        return self._header(
            Kind.CONTRIBUTION,
            flight.fragment,
            flags=int(Flag.BYPASS) if bypass else 0,
            exponent=flight.exponent,
            reduction=flight.reduction,
            width=flight.width,
        ), lanes

    # -- tensors

    def submit(
        self,
        values: Tensor,
        now: float,
        reduction: Reduction = Reduction.SUM,
        width: Width = Width.WIDTH_32,
    ) -> Tensor:
        """Sum a flat tensor; return where its result will be."""
        result = np.zeros_like(values)
        lanes, window = self.plan.lanes, self.plan.in_flight
        part = Part(values, result, self.end, lanes, window, reduction, width)
        if len(values):
            self.parts.append(part)
            self.end = part.end
            self._fill(now)
        return result

    def flights(self) -> list[Flight]:
        """Return what is in flight, by slot."""
        return [slot.flight for slot in self.slots if slot.flight is not None]

    def _fill(self, now: float) -> None:
        """Send the next fragments of idle slots, as the congestion window allows."""
        idle = [s for s in self.slots if s.flight is None and s.fragment < self.end]
        idle.sort(key=lambda slot: slot.fragment)
        if self._congestion.limited:
            limit = int(self._congestion.size)
            least = min(slot.fragment for slot in self.slots)
            oldest = sum(slot.fragment < least + limit for slot in idle)
            idle = idle[: max(limit - len(self.flights()), oldest, 0)]
        for slot in idle:
            self._send_next(slot, now)

    def _send_next(self, slot: Slot, now: float) -> None:
        [part] = [each for each in self.parts if each.first <= slot.fragment < each.end]
        data, code = part.number(slot.fragment), slot.code
        if part.scaled and 0 <= data < self.plan.in_flight:
            if len(part.codes) < part.prologues:
                return
            code = part.codes[data // part.group]
        slot.flight = Flight(
            part,
            slot.fragment,
            Reduction.NONE if data < 0 else part.reduction,
            Width.WIDTH_32 if data < 0 else part.width,
            part.announced(data),
            code,
            self._following,
            now,
            now,
            now + min(self._round_trip.timeout, self.options.deadline),
        )
        header, lanes = self._contribution(slot.flight)
        self._send(self._numbered(header), self._stack, lanes)
        self._following += 1
        self._last_sent_at = now
        self._next_due = min(self._next_due, slot.flight.due)
        self.statistics.sent += 1

    # -- retransmissions

    def _send_again(
        self, flights: list[Flight], now: float, *, silence: bool = False, ask: bool = False
    ) -> None:
        due = now + min(self._round_trip.timeout, self.options.deadline)
        self._newest_void = max([self._newest_void, *(each.order for each in flights)])
        for flight in sorted(flights, key=lambda each: each.fragment):
            header, lanes = self._contribution(flight)
            if ask:
                header = replace(header, flags=header.flags | Flag.BYPASS)
            self._send(self._numbered(header), self._stack, lanes)
            flight.order, flight.sent_at, self._last_sent_at = self._following, now, now
            self._following += 1
            flight.overtaken_at, flight.into_silence = inf, silence
            flight.due = min(due, flight.first_sent_at + self.options.deadline)
            self._next_due = min(self._next_due, due)
            self.statistics.retransmissions += 1

    def _try_again(
        self, flights: list[Flight], now: float, *, silence: bool = False, ask: bool = False
    ) -> None:
        """Retransmit; past the switches after R timeouts or 4 R retransmissions."""
        r = self.options.bypass_after
        timeouts = math.ceil(r / 2) if self._repaired else r
        for flight in flights:
            flight.tries += 1
            if flight.timeouts >= timeouts or flight.tries > 4 * r:
                flight.bypass = True
                self.statistics.bypassed += 1
        self._send_again(flights, now, silence=silence, ask=ask)

    def _send_all_again(self, now: float) -> None:
        for flight in self.flights():
            flight.tries, flight.timeouts, flight.first_sent_at = 2, 0, now
        self._send_again(self.flights(), now)

    def _repair_losses(self, now: float) -> None:
        """Retransmit what has been overtaken for long enough."""
        lost, self._repair_due = [], inf
        for place, slot in enumerate(self.slots):
            flight = slot.flight
            if flight is None or flight.order >= self._newest:
                continue
            by_few = self._newest - flight.order < FEW
            share = 0.25 * ((place + self.index) % self._workers) / self._workers
            patience = (1.0 if by_few else 0.25) * self._shortest
            patience += (share + (2.0 if self._repaired else 0)) * self._round_trip.known
            flight.overtaken_at = min(flight.overtaken_at, now)
            until = flight.overtaken_at + max(patience, SHORTEST)
            if until <= now:
                lost.append(flight)
            else:
                self._repair_due = min(self._repair_due, until)
        self.statistics.fast_retransmissions += len(lost)
        if lost:
            self._try_again(lost, now)

    def _probe_due(self) -> float:
        shortest = self._shortest
        if shortest == inf:
            if not self._repaired:
                return inf
            shortest = self._round_trip.options.initial_timeout / 2
        patience = max(self.options.min_probe, 2 * shortest)
        if self._probes and self._round_trip.known > 0:
            patience = min(patience, max(AGAIN, 2 * max(shortest, self._round_trip.known)))
        doublings = self._probes - (STEADY_PROBES if self._repaired else 0)
        patience *= 2 ** max(doublings, 0)
        most = self.options.max_timeout * (8 if self._repaired else 1)
        return max(self._answered_at, self._last_sent_at) + min(patience, most)

    @property
    def _asks(self) -> bool:
        return self._probes > 0 and self._probes % ASKING == 0

    def _send_probe(self, now: float) -> None:
        self._probes = min(self._probes + 1, 30)
        newest = sorted(self.flights(), key=lambda each: -each.order)[:PROBE]
        self.statistics.probes += len(newest)
        self._try_again(newest, now, silence=True, ask=self._asks)

    def _expire(self, now: float) -> None:
        """Retransmit what has timed out; fragments that results still precede are queued."""
        until = self._answered_at + self._round_trip.timeout
        steady = self._repaired and self._probes < STEADY_PROBES
        if steady and self._answered_at <= max(self._answered_at, self._last_sent_at):
            until = max(until, now + self._round_trip.timeout)
        due = []
        for flight in self.flights():
            latest = flight.first_sent_at + self.options.deadline
            if flight.due > now:
                continue
            if until > now:
                flight.due = min(until, latest)
            if until <= now or latest <= now:
                due.append(flight)
        if due:
            self._time_out(due, now)
        self._next_due = min((each.due for each in self.flights()), default=inf)

    def _time_out(self, due: list[Flight], now: float) -> None:
        oldest = min(due, key=lambda each: each.first_sent_at)
        if oldest.first_sent_at + self.options.deadline <= now:
            self._fail("no result")
            return
        ask = False
        last_sent = max(each.sent_at for each in due)
        if self._round_trip.back_off(now, last_sent) and self._probe_due() == inf:
            self._probes += 1
            ask = self._asks
        self.statistics.timeouts += len(due)
        for flight in due:
            flight.timeouts += 1
        due.sort(key=lambda each: each.fragment)
        asking = due[:PROBE] if ask else []
        for flights, asks in ((asking, True), (due[len(asking) :], False)):
            if flights:
                self._try_again(flights, now, silence=True, ask=asks)

    def _fail(self, why: str) -> None:
        self.failure = why
        self._next_due = self._handing_due = inf

    # -- packets

    def receive(self, frames: Frames, now: float) -> None:
        """Process packets as they are on the wire, (n, length), that come together."""
        answered: list[tuple[Slot, Flight]] = []
        marked = opened = False
        for frame in frames:
            if self.failure is not None:
                return
            accepted = self._receive(frame.tobytes(), now)
            if accepted is not None:
                slot, flight, flags = accepted
                answered.append((slot, flight))
                marked |= bool(flags & Flag.ECN)
                opened |= flight.part.number(flight.fragment) < 0
        if answered and self.failure is None:
            self._conclude(answered, now, marked=marked, opened=opened)

    def _receive(self, frame: bytes, now: float) -> tuple[Slot, Flight, Flag] | None:
        if len(frame) < STACK_AT:
            self.statistics.foreign += 1
            return None
        kind, epoch = frame[42] & 15, int.from_bytes(frame[50:52], "big")
        if kind == Kind.REQUEST:
            if self._is_like(frame, Kind.REQUEST, self._stack) and epoch == self.plan.epoch:
                self._repair(int.from_bytes(frame[56:58], "big"))
            else:
                self.statistics.foreign += 1
            return None
        if not (self._is_like(frame, Kind.RESULT, ()) or self._is_like(frame, Kind.REPLICATED, ())):
            self.statistics.foreign += 1
            return None
        return self._receive_result(frame, epoch)

    def _is_like(self, frame: bytes, kind: Kind, stack: tuple[Hop, ...]) -> bool:
        """Whether a frame's lengths, ports, kind, job and tree are those of this stream."""
        reduction = frame[44] >> 4
        known = reduction in Reduction.__members__.values()
        has_lanes = not known or carries_lanes(Reduction(reduction), up=bool(stack))
        lanes = self.plan.lanes if has_lanes else 0
        like = frame_template(
            *[Address(bytes(6), bytes(4))] * 2,
            self._header(kind, 0, reduction=Reduction.SUM if lanes else Reduction.NONE),
            stack,
            lanes,
        ).tobytes()
        widths = frame[44] & 0x0F < 4
        same = len(frame) == len(like) and all(frame[part] == like[part] for part in IDENTITY)
        return same and widths

    def _receive_result(self, frame: bytes, epoch: int) -> tuple[Slot, Flight, Flag] | None:
        statistics, flags = self.statistics, Flag(frame[43])
        fragment, number = (
            int.from_bytes(frame[at], "big") for at in (slice(58, 62), slice(56, 58))
        )
        whole = int.from_bytes(frame[54:56], "big") == self._workers
        slot = self.slots[fragment % self.plan.in_flight]
        flight = slot.flight
        ours = flight is not None and flight.fragment % 2**32 == fragment
        wraps = frame[44] & 0x0F == Width.WIDTH_8
        unusual = flags & ~(Flag.ECN | Flag.SEQUENCED | Flag.REPAIR)
        if wraps:
            unusual &= ~Flag.OVERFLOW
        if epoch == self.plan.epoch and whole and not unusual:
            self._take_number(number, flags)
        elif serial_newer(self.plan.epoch, epoch, 16):
            statistics.stale_results += 1
            return None
        elif not whole:
            statistics.refused += 1
            return None
        elif flags & QUESTION == QUESTION:
            if self._direct and epoch == self.plan.epoch:
                self._repair(number)
            else:
                statistics.refused += 1
            return None
        elif flags & Flag.OVERFLOW and not wraps:
            statistics.refused += 1
            if ours:
                self._fail("overflow")
            return None
        statistics.ecn += bool(flags & Flag.ECN)
        if flight is None or not ours or frame[44] != flight.reduction << 4 | flight.width:
            statistics.stale_results += 1
            handed = None if slot.done is None else slot.done.fragment
            if self._handing_due < inf and handed == fragment:
                self._note_handed(slot)
            return None
        self._accept(slot, flight, frame)
        return slot, flight, flags

    def _take_number(self, number: int, flags: Flag) -> None:
        """Take the number of a result, and ask for those that are missing."""
        if not (self._unicast or flags & Flag.SEQUENCED):
            return
        _, missing = self._arrivals.take(
            number,
            repair=bool(flags & Flag.REPAIR),
            window=self.plan.in_flight if self._unicast else 0,
        )
        for each in missing:
            fields = {"sequence": each, "flags": int(Flag.SEQUENCED)}
            if self._unicast:
                fields |= {"flags": int(Flag.SEQUENCED | QUESTION), "reduction": Reduction.NONE}
                self._send(self._header(Kind.CONTRIBUTION, 0, **fields), self._stack, (), URGENT)
            else:
                self._send(self._header(Kind.REQUEST, 0, **fields), (), (), URGENT)
            self.statistics.requests += 1

    def _repair(self, number: int) -> None:
        """Send the contribution of a number again, if its result is missing."""
        fragment = self.numbers.find(number)
        if fragment is None:
            return
        flight = self.slots[fragment % self.plan.in_flight].flight
        if flight is None or flight.fragment % 2**32 != fragment:
            return
        if flight.bypass and not self._direct:
            return
        header, lanes = self._contribution(flight)
        flags = header.flags | Flag.SEQUENCED | Flag.REPAIR
        self._send(replace(header, sequence=number, flags=flags), self._stack, lanes, URGENT)
        self.statistics.repaired += 1
        self.statistics.retransmissions += 1

    def _accept(self, slot: Slot, flight: Flight, frame: bytes) -> None:
        """Put a result in place; the slot is idle."""
        part, data, code = flight.part, flight.part.number(flight.fragment), frame[45]
        lanes = tuple(np.frombuffer(frame[STACK_AT:], ">i4").tolist())
        if data < 0:
            part.codes[data + part.prologues] = code
        else:
            place, dtype = part.place(data), part.result.dtype
            values = unpacked(lanes, part.width)[: len(part.result[place])]
            part.result[place] = (
                self._scale.floats(values, flight.code, part.width, dtype)
                if part.scaled
                else np.array(values, np.int64).astype(dtype)
            )
        slot.done = Done(
            flight.fragment % 2**32,
            code,
            flight.reduction,
            flight.width,
            lanes or (0,) * self.plan.lanes,
        )
        part.open -= 1
        slot.code = code
        slot.flight = None
        slot.fragment += self.plan.in_flight
        if self._handing_due < inf:
            self._note_handed(slot)

    def _conclude(
        self, answered: list[tuple[Slot, Flight]], now: float, *, marked: bool, opened: bool
    ) -> None:
        """Measure, detect losses, and send what there is room for."""
        limited = self._congestion.limited
        in_flight = len(self.flights()) + len(answered)
        self._answered_at, self._probes = now, 0
        once = [flight for _, flight in answered if flight.tries == 1]
        measured = [flight for flight in once if flight.reduction is not Reduction.NONE]
        if measured:
            self._shortest = min(self._shortest, now - max(each.sent_at for each in measured))
        for _, flight in answered:
            known = self._round_trip.known or inf
            plausible = self._shortest if flight.into_silence else known
            if flight in measured or now - flight.sent_at >= plausible:
                self._newest = max(self._newest, flight.order)
            else:
                self._newest_void = max(self._newest_void, flight.order)
        if measured:
            self._round_trip.measure(now - min(each.sent_at for each in measured))
        after = self._following - 1 - self._newest
        in_order = len(self.flights()) == after and self._newest_void <= self._newest
        if not in_order:
            self._congestion.ignored = self._following
        if once:
            self._congestion.answered(
                max(each.order for each in once),
                self._following,
                in_flight,
                now - max(each.sent_at for each in once),
                marked=marked,
            )
        self.statistics.accepted += len(answered)
        if not in_order:
            self._repair_losses(now)
        if opened or limited or self._congestion.limited:
            self._fill(now)
            return
        for slot, _ in answered:
            if slot.fragment < self.end:
                self._send_next(slot, now)

    # -- epochs

    def adopt(self, plan: JobPlan, now: float) -> None:
        """Go on under a newer plan: retransmit all, and hand over the last results."""
        if not serial_newer(plan.epoch, self.plan.epoch, 16):
            return
        self._begin(plan)
        self._round_trip.restart()
        self._probes = 0
        congestion = self._congestion
        path, most = congestion.path, congestion.most
        congestion.size = min(congestion.size, most) if path is not None else most
        for flight in self.flights():
            flight.bypass = False
        self._send_all_again(now)
        if self.tree.server in plan.workers or not any(slot.done for slot in self.slots):
            return
        for slot in self.slots:
            slot.handing = slot.done is not None
        self._handing_since, self._handing_timeout = now, self._round_trip.timeout
        self._hand_over(now)

    def _note_handed(self, slot: Slot) -> None:
        slot.handing = False
        if not any(each.handing for each in self.slots):
            self._handing_due = inf

    def _hand_over(self, now: float) -> None:
        latest = self._handing_since + self.options.deadline
        for slot in self.slots:
            done = slot.done
            if done is None or not slot.handing:
                continue
            if latest <= now:
                self._fail("no hand-over")
                return
            header = self._header(
                Kind.CONTRIBUTION,
                done.fragment,
                weight=self._workers,
                exponent=done.exponent,
                reduction=done.reduction,
                width=done.width,
                flags=int(Flag.BYPASS),
            )
            self._send(self._numbered(header), self._stack, done.lanes)
            self.statistics.handed_over += 1
        self._handing_due = min(now + self._handing_timeout, latest)
        self._handing_timeout = min(2 * self._handing_timeout, self.options.max_timeout)

    # -- time

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self.failure is not None:
            return
        if self._handing_due <= now:
            self._hand_over(now)
        if self.failure is not None or not self.flights():
            return
        if self._repair_due <= now:
            self._repair_losses(now)
        if self._next_due <= now:
            self._expire(now)
        if self.failure is None and self._probe_due() <= now:
            self._send_probe(now)

    @property
    def deadline(self) -> float:
        """When something is due; infinity: nothing."""
        due = self._handing_due
        if self.failure is None and self.flights():
            due = min(due, self._probe_due(), self._next_due, self._repair_due)
        return due

    def take_output(self) -> list[bytes]:
        """What is to be sent, in order."""
        sent, self.sent = self.sent, []
        return sent
