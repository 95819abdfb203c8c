"""A worker's half of the protocol on one tree: what is in flight, and what comes next."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.plan import JobPlan, Results, TreePlan
from hopsum.host_agent.check_lanes import ResultChecks
from hopsum.host_agent.codec import (
    UNUSUAL_DOWNWARD,
    Form,
    Frames,
    Matcher,
    address_of,
    epochs_of,
    every,
    exponents_of,
    flags_of,
    fragments_of,
    mark,
    reductions_of,
    some,
    weights_of,
)
from hopsum.host_agent.congestion import most_in_flight, stream_path
from hopsum.host_agent.failure import JobFailed
from hopsum.host_agent.fast_path import FastPath
from hopsum.host_agent.flight import BYPASS, Flight
from hopsum.host_agent.history import History
from hopsum.host_agent.integrity import make_integrity
from hopsum.host_agent.link_repairs import SEQUENCED, LinkRepairs
from hopsum.host_agent.numbers import Factors, dequantise, factors, quantise
from hopsum.host_agent.options import WorkerOptions as WorkerOptions
from hopsum.host_agent.options import WorkerStatistics as WorkerStatistics
from hopsum.host_agent.recovery import NEVER, Progress, low_high
from hopsum.host_agent.segment import Call, OpenSegments, Segment
from hopsum.host_agent.sure_calls import SureCalls
from hopsum.network.model import Network
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import QUESTION, Flag, Header, Hop, Kind, Reduction, serial_newer

_ECN = np.uint8(Flag.ECN)


class Stream:
    """The fragments of one (job, tree), from 0 on, one in flight per slot of the window.

    Slot f mod W sends f + W once it has the result of f, independently of other slots, so that a
    loss delays one slot only. Per slot: `_fragment`, the one in flight or the next one; `_wire`,
    its number on the wire while it is in flight, else _IDLE; the frame sent; and the last result,
    for a server that starts empty.
    """

    def __init__(
        self,
        plan: JobPlan,
        tree: TreePlan,
        worker: int,
        network: Network,
        options: WorkerOptions,
        bits: int,
        output: list[Frames],
        statistics: WorkerStatistics,
        progress: Progress,
        tos: int = 0,
        key: bytes | None = None,
    ) -> None:
        self._tos = tos
        self._key = key
        self._options = options
        self._bits = bits
        self._output = output
        self._statistics = statistics
        self._window = window = plan.in_flight
        self.failure: JobFailed | None = None

        self._segments = OpenSegments()
        self._end = options.first_fragment

        self._code = np.zeros(window, dtype=np.uint8)
        """By slot: exponent bytes of the fragments in flight, or the next ones."""
        self._last = np.zeros(window, dtype=np.intp)
        self._results = History(window, plan.lanes)
        self._handing = np.zeros(window, dtype=np.bool_)
        self._handing_due = NEVER
        self._handing_since = 0.0
        self._handing_timeout = 0.0

        self._links = LinkRepairs(window, 1, output, statistics)
        self._flight = Flight(window, options, self._links, output, statistics, progress)
        self._checks: ResultChecks | None = None
        self._fast = FastPath(self._flight, self._links, self._segments)
        self._entered = False
        self._bind(plan, tree, worker, network)
        self._flight.frames = self._up.make(np.zeros(window), 0)

    def _bind(self, plan: JobPlan, tree: TreePlan, worker: int, network: Network) -> None:
        """Take addresses, stacks and epoch from a plan."""
        self.plan = plan
        self.tree = tree
        self.is_root = tree.server == plan.workers[worker]
        self._worker = worker
        self._flight.bind(
            worker, len(plan.workers), hop_by_hop=tree.hop_by_hop, numbered=self._numbered
        )
        path = stream_path(network, plan, tree)
        self._flight.congestion.move(path, most_in_flight(plan, tree))
        here = address_of(network, plan.workers[worker])
        there = address_of(network, tree.server)
        weight = len(plan.workers)
        up = Header(
            Kind.CONTRIBUTION,
            plan.job,
            tree.tree,
            plan.epoch,
            0,
            worker=worker,
            reduction=plan.reduction,
        )
        total = replace(up, weight=weight)
        result = replace(total, kind=Kind.RESULT)
        self._flags = int(Flag.BYPASS) if tree.singles else 0
        self._up = Form(here, there, up, tree.up[worker], plan.lanes, self._tos)
        self._total = Form(here, there, total, tree.up[worker], plan.lanes, self._tos)
        self._down = Form(there, here, result, (), plan.lanes)
        request = replace(up, kind=Kind.REQUEST)
        unicast = plan.results is Results.UNICAST
        self._links.restart(
            Form(there, here, request, tree.up[worker], plan.lanes), end_to_end=unicast
        )
        stack: tuple[Hop, ...] = ()
        self._request_flags = 0
        if unicast:
            self._request_flags = int(QUESTION)
            stack, request = tree.up[worker], replace(up, reduction=Reduction.NONE)
        self._request = Form(here, there, request, stack, plan.lanes, self._tos | URGENT)
        self._matcher = Matcher(
            self._down.template, either_result=True, weighed=True, unusual_flags=UNUSUAL_DOWNWARD
        )
        integrity = make_integrity(plan, tree.tree, self._key)
        if integrity is not None:
            self._checks = self._checks or ResultChecks(self._window)
            self._checks.bind(integrity, self._down)

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do, at the latest; None: nothing waits."""
        if self._entered:
            return None
        due = self._handing_due
        if self.failure is None:
            due = min(due, self._flight.deadline)
        return None if due == NEVER else due

    @property
    def end(self) -> int:
        """The number the next fragment submitted will have (it runs on over tensors)."""
        return self._end

    @property
    def in_flight(self) -> int:
        """Fragments sent whose results are not here."""
        return self._flight.open

    @property
    def deferrable(self) -> float:
        """How many results may wait for one another, to be taken in together.

        A quarter of a full window, as the rest must cover the round trip. Once the last fragment
        is sent, no result lets another go, and half of those outstanding may. A flow sees to its
        own.
        """
        if self._entered:
            return inf
        outstanding = self._flight.open
        return outstanding // (4 if outstanding >= self._flight.congestion.limit else 2)

    def submit(self, segment: Segment, now: float) -> None:
        """Append a tensor's part to the stream; it starts at `end`."""
        first_of_all = self._segments.empty
        self._segments.append(segment)
        self._end = segment.end
        if first_of_all and not self._flight.congestion.limited:
            # All slots are idle, and these are their next fragments.
            fragments = np.arange(segment.first, min(segment.end, segment.first + self._window))
            self._pump(fragments & (self._window - 1), now)
        else:
            self.fill_window(now)

    def mark(self, tos: int) -> None:
        """Give frames another IP ToS byte from now on, also those that are sent again."""
        self._tos = tos
        self._up.mark(tos)
        self._total.mark(tos)
        self._request.mark(tos | URGENT)
        mark(self._flight.frames, tos)

    # -- sending

    def fill_window(self, now: float) -> None:
        """Send the next fragments of all idle slots, if possible."""
        slots = self._flight.idle(self._end)
        if len(slots):
            self._pump(slots, now)

    def _pump(self, slots: NDArray[np.intp], now: float) -> None:
        """Send the next fragments of idle slots, as far as they exist and can be scaled."""
        fragments = self._flight.fragment[slots]
        if low_high(fragments)[1] >= self._end:
            exist = fragments < self._end
            slots, fragments = slots[exist], fragments[exist]
            if not len(slots):
                return
        for segment, rows in self._segments.of(fragments):
            if rows is None:
                self._send(segment, slots, fragments, now)
            else:
                self._send(segment, slots[rows], fragments[rows], now)

    def _send(
        self,
        segment: Segment,
        slots: NDArray[np.intp],
        fragments: NDArray[np.int64],
        now: float,
    ) -> None:
        """Send fragments of one segment for the first time."""
        data = fragments - (segment.first + segment.prologue)
        if segment.scaled and low_high(data)[0] < self._window:
            early = data < self._window
            code = segment.first_window_code
            if code is None or segment.call.prologues:
                ready = ~early | (data < 0)
                slots, fragments, data = slots[ready], fragments[ready], data[ready]
                if not len(slots):
                    return
            else:
                self._code[slots[early]] = code
        if self._checks is None:
            made = self._fast.send(self, segment, fragments, now)
            if made is not None:
                self._output.append(made)
                return
        if segment.scaled:
            values = quantise(segment.values(data), self._code[slots], self._bits)
        else:
            values = segment.values(data)
        wire = fragments & 0xFFFFFFFF
        frames = self._up.make(wire, segment.announced(fragments), self._flags)
        reductions_of(frames)[...] = segment.reductions(data, bare=self._checks is None)
        if self._checks is None:
            self._up.values(frames)[...] = values
        else:
            lanes = self._up.values(frames)
            integrity = self._checks.integrity
            lanes[:, : integrity.values] = values
            needed = np.ones(len(slots), dtype=np.bool_)
            if segment.scaled:
                needed = (data < 0) | (segment.own_codes(data) == self._code[slots])
            integrity.protect(lanes, wire, self._worker, needed)
        self._flight.send(slots, wire, frames, now)

    # -- results

    def receive(self, frames: Frames, now: float) -> None:
        """Take in frames of one length."""
        if self._checks is None and self._handing_due == NEVER:
            taken = self._fast.take(self, frames, now, self._end)
            if taken is not None:
                if len(taken.following):
                    self._output.append(taken.following)
                if not taken.segment.open:
                    self._close(taken.segment)
                if taken.refill:
                    self.fill_window(now)
                return
        if self._matcher.all_plain(frames):
            self._ask_for_gaps(frames)
        else:
            frames = self._sift(frames, now)
            if not len(frames):
                return
        self._statistics.ecn += int(np.count_nonzero(flags_of(frames) & _ECN))
        flight = self._flight
        wire = fragments_of(frames)
        slots = wire & (self._window - 1)
        expected = flight.wire[slots] == wire
        expected &= reductions_of(frames) == reductions_of(flight.frames)[slots]
        if len(frames) > 1:
            rows = np.arange(len(frames))
            self._last[slots] = rows
            expected &= self._last[slots] == rows
        if not every(expected):
            self._unexpected(slots[~expected], wire[~expected])
            frames, slots, wire = frames[expected], slots[expected], wire[expected]
            if not len(frames):
                return
        if self._checks is not None:
            genuine = self._genuine(self._checks, frames, slots, wire, now)
            frames, slots, wire = frames[genuine], slots[genuine], wire[genuine]
            if not len(frames) or self.failure is not None:
                return
        self._accept(frames, exponents_of(frames), slots, wire, now)

    @property
    def _factors(self) -> Factors:
        """Scale factors of this worker."""
        return factors(self._bits)

    @property
    def _numbered(self) -> bool:
        """Whether contributions have numbers on the link: not where no switch sums them."""
        return not self.tree.singles

    def _accept(
        self,
        frames: Frames,
        codes: NDArray[np.uint8],
        slots: NDArray[np.intp],
        wire: NDArray[np.int64],
        now: float,
    ) -> None:
        """Take results of fragments in flight, each slot once."""
        used = self._code[slots]
        values = self._down.values(frames)[:, : self.plan.values]
        self._results.keep(slots, wire, self._down.raw(frames), codes, reductions_of(frames))
        self._code[slots] = codes
        if self._checks is not None:
            self._checks.settle(slots)
        if self._handing_due != NEVER:
            self._handed(slots)
        marked = some((flags_of(frames) & _ECN) != 0)
        # Slots may have been idle because the window was small.
        opened = self._flight.congestion.limited
        fragments = self._flight.answered(slots, now, marked=marked)
        opened |= self._flight.congestion.limited
        for segment, rows in self._segments.of(fragments):
            if rows is None:
                opened |= self._store(segment, fragments, values, used, codes)
            else:
                opened |= self._store(
                    segment, fragments[rows], values[rows], used[rows], codes[rows]
                )
        if opened:
            self.fill_window(now)
        else:
            self._pump(slots, now)

    def _store(
        self,
        segment: Segment,
        fragments: NDArray[np.int64],
        values: NDArray[np.int32],
        used: NDArray[np.uint8],
        codes: NDArray[np.uint8],
    ) -> bool:
        """Put results of one segment in place; whether its first window has its scale now."""
        opened = False
        segment.open -= len(fragments)
        data = fragments - (segment.first + segment.prologue)
        if segment.scaled:
            if segment.waits:
                # Data of the first window waits for the prologue, so it is alone here.
                segment.begin(int(codes[0]))
                opened = True
            else:
                segment.store(data, dequantise(values, used, self._bits))
        else:
            segment.take_remark(codes)
            segment.store(data, values)
        if not segment.open:
            self._close(segment)
        return opened

    # -- as a flow

    def enter(self, calls: SureCalls | None = None) -> list[int]:
        """Leave ordinary results, and all timers, to a flow (flow.h) until `leave`.

        `calls`: to take from a process, if nothing is in flight. Returns the flow's address; none
        if no results can come, or all must come to `receive`.
        """
        if self._checks is not None or self.failure is not None or self._handing_due != NEVER:
            return []
        flow = self._fast.enter(self, self._end, calls)
        self._entered = flow is not None
        return [] if flow is None else [flow]

    def take_over(self, call: Call, reduction: Reduction) -> None:
        """Go on with a process's call that the flow has begun; `leave` follows.

        `call`: of int32, whose result takes the place of its values.
        """
        no_codes = np.zeros(0, dtype=np.uint8)
        first, values = self._fast.first, call.result
        lanes = self.plan.values
        segment = Segment(call, values, values, 0, first, lanes, self._window, no_codes, reduction)
        self._segments.append(segment)
        self._fast.follow(segment)

    def leave(self, now: float) -> int:
        """Take over what the flow has done; return the bytes that it has sent."""
        if not self._entered:
            return 0
        self._entered = False
        left = self._fast.leave()
        self._end = left.end
        if left.segment is not None and not left.segment.open:
            self._close(left.segment)
        if left.refill:
            self.fill_window(now)
        return left.sent_bytes

    def _close(self, segment: Segment) -> None:
        """Remove a segment whose results are all in place."""
        self._segments.remove(segment)
        self._fast.release()

    def _sift(self, frames: Frames, now: float) -> Frames:
        """Return the results to look at, of frames that are not all plain ones.

        The rest is counted.
        """
        plain, belongs = self._matcher.sift(frames)
        statistics = self._statistics
        statistics.foreign += len(frames) - int(plain.sum()) - int(belongs.sum())
        keep = plain
        if plain.any():
            self._ask_for_gaps(frames[plain])
        if belongs.any():
            keep = plain.copy()
            for row in np.flatnonzero(belongs):
                keep[row] = self._usable(frames[row : row + 1], now)
        return frames[keep]

    def _ask_for_gaps(self, frames: Frames) -> None:
        """Ask the neighbour for results that were lost on the way from it."""
        flags = flags_of(frames)
        sequenced = (flags & SEQUENCED) != 0
        if not self._links.end_to_end and not every(sequenced):
            if not some(sequenced):
                return
            frames, flags = frames[sequenced], flags[sequenced]
        self._links.take(frames, flags, 0, self._make_requests)

    def _make_requests(self, count: int) -> Frames:
        requests = self._request.make(np.zeros(count), 0, self._request_flags)
        self._request.raw(requests)[...] = 0
        return requests

    def answer_requests(self, frames: Frames) -> None:
        """Send again what the neighbour asks for: fragments lost on the link to it."""
        numbers, wire = self._links.requested(frames)
        slots = wire & (self._window - 1)
        flight = self._flight
        wanted = (flight.wire[slots] == wire) & ((flags_of(flight.frames)[slots] & BYPASS) == 0)
        if some(wanted):
            repairs = flight.frames[slots[wanted]]
            self._statistics.retransmissions += len(repairs)
            self._links.repair(repairs, numbers[wanted], self._tos)

    def _usable(self, frame: Frames, now: float) -> bool:
        """Whether a result of another epoch, flags or weight than usual is one to look at."""
        statistics = self._statistics
        if serial_newer(self.plan.epoch, int(epochs_of(frame)[0]), 16):
            statistics.stale_results += 1
            return False
        if int(weights_of(frame)[0]) != len(self.plan.workers):
            statistics.refused += 1
            return False
        flags = int(flags_of(frame)[0])
        wire = int(fragments_of(frame)[0])
        slot = wire & (self._window - 1)
        if self._checks is not None and flags & Flag.BYPASS:
            self._send_alone(self._checks, frame, slot, wire, now)
            return False
        if flags & Flag.OVERFLOW and (self._checks is None or self._checks.wrapped(frame)):
            statistics.refused += 1
            if int(self._flight.wire[slot]) == wire:
                self._fail(
                    slot,
                    "the sum of its int32 values wrapped around at a switch or the server "
                    "(overflow flag); send smaller values, or float32, which is scaled to fit",
                )
            return False
        return True

    # -- check lanes

    def _genuine(
        self,
        checks: ResultChecks,
        frames: Frames,
        slots: NDArray[np.intp],
        wire: NDArray[np.int64],
        now: float,
    ) -> NDArray[np.bool_]:
        """Which results of fragments in flight are the server's, and can be right.

        The server is asked for the others. An exponent that has been altered on the way up, which
        all have by now, ends the job.
        """
        announced = exponents_of(self._flight.frames)[slots]
        genuine, wrong = checks.verify(frames, wire, announced)
        if not every(genuine):
            self._doubt(checks, slots[~genuine], wire[~genuine], now)
        if some(wrong):
            self._fail(
                int(slots[wrong][0]),
                "the workers' common exponent was altered on its way to the server (check lanes): "
                "a bit has flipped in a switch, or contributions are forged",
            )
        return genuine

    def _doubt(
        self, checks: ResultChecks, slots: NDArray[np.intp], wire: NDArray[np.int64], now: float
    ) -> None:
        """Ask the server for results that came altered or forged; once a round trip for each."""
        flight = self._flight
        slots = np.unique(slots[flight.wire[slots] == wire])
        self._statistics.corrupt += len(slots)
        slots = checks.to_ask(slots, now, flight.round_trip.smoothed or 0.0)
        if len(slots):
            flight.try_again(slots, now, quiet=False, ask=True)

    def _send_alone(
        self, checks: ResultChecks, frame: Frames, slot: int, wire: int, now: float
    ) -> None:
        """Send a fragment around the switches, from now on, if it is the server that asks."""
        if int(self._flight.wire[slot]) != wire:
            self._statistics.stale_results += 1
        elif not checks.asks(frame):
            self._statistics.refused += 1
        else:
            self._statistics.asked += 1
            self._flight.go_around(np.array([slot]), now)

    def _unexpected(self, slots: NDArray[np.intp], wire: NDArray[np.int64]) -> None:
        """Results of nothing in flight: late copies, or the answer to a hand-over."""
        self._statistics.stale_results += len(slots)
        if self._handing_due != NEVER:
            self._handed(slots[self._results.has(slots, wire)])

    # -- time

    def tick(self, now: float) -> None:
        """Send again what has waited too long."""
        if self._handing_due <= now:
            self._hand_over(now)
        flight = self._flight
        if self.failure is not None or not flight.open:
            return
        overdue = flight.tick(now)
        if overdue is not None:
            self._fail(
                overdue,
                f"no result for {now - flight.first_sent_at[overdue]:.3g} s after "
                f"{flight.tries[overdue]} tries ({flight.open} of the window's {self._window} "
                f"fragments are in flight); some worker's part has not reached the server, or the "
                f"server does not answer: ask the server which workers are missing, and look at "
                f"the switches between",
            )

    def postpone(self, now: float) -> None:
        """Let the deadlines of what is in flight, or handed over, count from now."""
        self._flight.postpone(now)
        self._handing_since = now

    def resume(self, now: float) -> None:
        """Send what is in flight again at once."""
        self._flight.resume(now)

    def _fail(self, slot: int, why: str) -> None:
        """End the job over the fragment in flight in a slot."""
        fragment = int(self._flight.fragment[slot])
        [(segment, _)] = self._segments.of(np.array([fragment]))
        self._fail_with(
            int(self._flight.wire[slot]),
            f"{segment.call.name} ({segment.elements(fragment)}), worker "
            f"{self._worker}, server {self.tree.server}, epoch {self.plan.epoch}: {why}",
        )

    def _fail_with(self, wire: int, message: str) -> None:
        if self.failure is None:
            self.failure = JobFailed(self.plan.job, self.tree.tree, wire, message)
        self._flight.stop()
        self._handing_due = NEVER

    # -- epochs

    def adopt(
        self,
        plan: JobPlan,
        tree: TreePlan,
        worker: int,
        network: Network,
        now: float,
    ) -> None:
        """Go on under a new epoch: send again what is in flight, hand over the last results."""
        flight, former = self._flight, self._flight.frames
        lanes = self._up.raw(former)
        integrity = None if self._checks is None else self._checks.integrity
        before = self._worker
        self._bind(plan, tree, worker, network)
        self._fast.unbind()
        frames = self._up.make(np.maximum(flight.wire, 0), exponents_of(former), self._flags)
        self._up.raw(frames)[...] = lanes
        reductions_of(frames)[...] = reductions_of(former)
        flight.frames = frames
        slots = flight.slots
        if integrity is not None and self._checks is not None and len(slots):
            lane_values = self._up.values(frames)[slots]
            wire = flight.wire[slots]
            self._checks.integrity.protect_again(lane_values, wire, worker, integrity, before)
            self._up.values(frames)[slots] = lane_values
        flight.send_all_again(now)
        kept = self._results.filled
        # A server at a worker's host has lost its state only if that worker is lost, too.
        if len(kept) and tree.server not in plan.workers:
            self._handing[kept] = True
            self._handing_since = now
            self._handing_timeout = flight.round_trip.timeout
            self._hand_over(now)

    def _hand_over(self, now: float) -> None:
        """Send the last results that the new server has not answered yet."""
        slots = np.flatnonzero(self._handing)
        latest = self._handing_since + self._options.deadline
        if latest <= now:
            wire = int(self._results.fragment[slots[0]])
            self._fail_with(
                wire,
                f"server {self.tree.server} has not taken over the last results for "
                f"{self._options.deadline:.3g} s (epoch {self.plan.epoch}): is it running?",
            )
            return
        frames = self._results.make(self._total, slots)
        flags_of(frames)[...] = Flag.BYPASS
        self._output.append(frames)
        self._statistics.handed_over += len(slots)
        self._handing_due = min(now + self._handing_timeout, latest)
        self._handing_timeout = min(2 * self._handing_timeout, self._options.max_timeout)

    def _handed(self, slots: NDArray[np.intp]) -> None:
        """Take in that the new server knows the last results of these slots, or newer ones."""
        self._handing[slots] = False
        if not self._handing.any():
            self._handing_due = NEVER
