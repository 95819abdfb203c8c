"""A worker's half of the protocol on one tree: the compiled stream (datapath/stream.c), set up."""

from __future__ import annotations

import copy
import ctypes
from dataclasses import replace
from math import inf
from typing import Any, Protocol, Self

import numpy as np

from hopsum.collectives.plan import JobPlan, Results, TreePlan
from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.codec import (
    UNUSUAL_DOWNWARD,
    Form,
    Frames,
    Matcher,
    address_of,
    mark,
)
from hopsum.host_agent.congestion import most_in_flight, stream_path
from hopsum.host_agent.counters import WorkerStatistics as WorkerStatistics
from hopsum.host_agent.datapath.library import (
    GAPS,
    NESTED,
    Congestion,
    Matching,
    RoundTrip,
    library,
    receive,
    shared_output,
)
from hopsum.host_agent.failure import JobFailed
from hopsum.host_agent.numbers import c_factors
from hopsum.host_agent.options import WorkerOptions as WorkerOptions
from hopsum.host_agent.plan_checks import check_key
from hopsum.host_agent.segment import Call, Segment
from hopsum.host_agent.sure_calls import SureCalls
from hopsum.network.model import Network
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import QUESTION, Flag, Header, Hop, Kind, Reduction

_LEAST_SEGMENTS = 16
_FAILURES = ("", "overflow", "exponent", "no result", "no hand-over")
"""`enum failure` of stream.h."""


class StreamState(ctypes.Structure):
    """`struct stream` of stream.h."""

    _fields_ = c_fields("datapath/stream.h", "stream", NESTED)


_SEGMENT = np.dtype(
    [(name, np.dtype(kind)) for name, kind in c_fields("datapath/stream.h", "segment")]
)
"""`struct segment` of stream.h."""
_SLOT = np.dtype([(name, np.dtype(kind)) for name, kind in c_fields("datapath/stream.h", "slot")])
"""`struct slot` of stream.h."""
_TIMED = {
    *("order", "quiet", "sent_at", "first_sent_at", "due", "overtaken_at", "tries", "timeouts"),
    "asked_at",
}
"""Fields of a slot that say when, or how often."""


class Junction(Protocol):
    """The joint of a stream with the server of its tree at the same host."""

    @property
    def up(self) -> int:
        """The address of the output for frames of the stream."""

    def exchange(self, now: float) -> list[Frames]:
        """Deliver what waits; return the frames to send, each batch of one length."""


class Stream:
    """The fragments of one (job, tree), from 0 on, one in flight per slot of the window.

    Slot f mod W sends f + W once it has the result of f, independently of other slots, so that a
    loss delays one slot only. `statistics` and `progress` (the time of the last result on any tree,
    in seconds) are shared by a worker's streams. Frames to send are appended to `output`, each
    batch of one length.
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
        progress: ctypes.c_double,
        key: bytes | None = None,
    ) -> None:
        self._key = key
        self._options = options
        self._output = output
        self.junction: Junction | None = None
        """Where the tree's server is at this host."""
        self._tos = 0
        self._statistics = statistics
        self._progress = progress
        self._factors = c_factors(bits)
        self._segments: list[Segment] = []
        self._numbers: list[int] = []
        """Of the unfinished segments, in order: by which the ring has them."""
        self.failure: JobFailed | None = None
        self._entered = False
        self._state = StreamState(
            window=plan.in_flight,
            lanes=plan.lanes,
            values=plan.values,
            checked=plan.integrity,
            factors=self._factors,
            round_trip=RoundTrip(
                initial=options.initial_timeout,
                least=options.min_timeout,
                most=options.max_timeout,
            ),
            congestion=Congestion(window=plan.in_flight),
            deadline=options.deadline,
            min_probe=options.min_probe,
        )
        self._find_arrays(np.zeros(library().stream_layout(self.address, None), np.uint8))
        self._set_ring(np.zeros(_LEAST_SEGMENTS, _SEGMENT))
        self._bind(plan, tree, worker, network)
        library().stream_start(self.address, options.first_fragment)

    @property
    def address(self) -> int:
        """The address of `struct stream`, which stays where it is."""
        return ctypes.addressof(self._state)

    @property
    def most_output(self) -> int:
        """The most frames that one call makes."""
        return int(self._state.most_output)

    def _find_arrays(self, memory: Frames) -> None:
        """Divide the memory of the state's arrays."""
        self._memory = memory
        library().stream_layout(self.address, memory.ctypes.data)
        self._state.counters = ctypes.addressof(self._statistics)
        self._state.progress = ctypes.addressof(self._progress)

    def _set_ring(self, ring: Any) -> None:
        self._ring = ring
        self._state.segments, self._state.segment_room = ring.ctypes.data, len(ring)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a snapshot; the calls' results are those of the copies of the calls."""
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(self.__dict__)
        copied._output = copy.deepcopy(self._output, memo)
        copied._statistics = copy.deepcopy(self._statistics, memo)
        copied._progress = copy.deepcopy(self._progress, memo)
        calls = [copy.deepcopy(each.call, memo) for each in self._segments]
        copied._segments = [
            each.copy_for(call) for each, call in zip(self._segments, calls, strict=True)
        ]
        copied._numbers = self._numbers[:]
        copied._state = StreamState.from_buffer_copy(self._state)
        copied._find_arrays(self._memory.copy())
        copied._set_ring(self._ring.copy())
        for number, segment in zip(copied._numbers, copied._segments, strict=True):
            copied._point(number, segment)
        copied._set_frames()
        copied.junction = copy.deepcopy(self.junction, memo)
        return copied

    def state_key(self) -> tuple[Any, ...]:
        """Return what distinguishes states: all but times and counters."""
        state = self._state
        slots, numbers = self._slots, self._numbers
        return (
            *(slots[name].tobytes() for name in _SLOT.names or () if name not in _TIMED),
            ctypes.string_at(state.result_lanes, 4 * state.lanes * state.window),
            ctypes.string_at(state.sent.fragments, 8 * state.sent.size),
            ctypes.string_at(state.arrivals.asked, 8 * GAPS),
            *(state.sent.next, state.arrivals.newest, state.arrivals.missing, state.end),
            *(self._ring[name][self._places(numbers)].tobytes() for name in ("open", "greatest")),
            tuple(each.codes.tobytes() + each.result.tobytes() for each in self._segments),
            None if self.failure is None else str(self.failure),
        )

    @property
    def _slots(self) -> Any:
        """Return the slots as records (window,), sharing memory."""
        address, window = self._state.slots, self._state.window
        room = (ctypes.c_uint8 * (window * _SLOT.itemsize)).from_address(address)
        return np.frombuffer(room, _SLOT)

    def _places(self, numbers: list[int]) -> list[int]:
        return [number % len(self._ring) for number in numbers]

    # -- the plan

    def _bind(self, plan: JobPlan, tree: TreePlan, worker: int, network: Network) -> None:
        """Take addresses, stacks, numbers and epoch from a plan."""
        self.plan = plan
        self.tree = tree
        self.is_root = tree.server == plan.workers[worker]
        self.worker = worker
        self._forms = _Forms(plan, tree, worker, network)
        state, options = self._state, self._options
        state.flow.key = plan.job << 8 | tree.tree
        state.worker, state.workers, state.epoch = worker, len(plan.workers), plan.epoch
        state.flags = int(Flag.BYPASS) if tree.singles else 0
        state.direct = tree.direct(worker)
        state.repaired = state.round_trip.patient = tree.repaired(plan.results)
        state.request_flags = int(QUESTION) if self._forms.end_to_end else 0
        state.end_to_end = self._forms.end_to_end
        # A server at a worker's host has lost its state only if that worker is lost, too.
        state.hands_over = tree.server not in plan.workers
        # Where losses are repaired, each timeout is four times as long as the one before it.
        state.most_timeouts = -(-options.bypass_after // (2 if state.repaired else 1))
        state.most_tries = 4 * options.bypass_after
        state.most_output = 4 * state.window + 2 * GAPS
        path = stream_path(network, plan, tree)
        congestion = state.congestion
        congestion.queues = path is not None
        congestion.path_round_trip, congestion.path_step = path or (0.0, 0.0)
        congestion.most = float(min(most_in_flight(plan, tree), state.window))
        self._set_frames()
        if plan.integrity:
            library().check_restart(
                self.address + StreamState.checks.offset,
                *(check_key(plan, self._key), tree.tree, len(plan.workers), plan.lanes),
            )

    def _set_frames(self) -> None:
        """Point to the frames of the plan, with the ToS byte as it is."""
        forms, state = self._forms, self._state
        self._prefixes = [
            forms.prefix(forms.up, self._tos),
            forms.prefix(forms.up, self._tos | URGENT),
            forms.prefix(forms.total, self._tos),
            forms.prefix(forms.request, self._tos | URGENT),
        ]
        state.prefix, state.urgent, state.total, state.request = (
            each.ctypes.data for each in self._prefixes
        )
        state.prefix_bytes, state.request_bytes = len(self._prefixes[0]), len(self._prefixes[3])
        state.results, state.requests = Matching.of(*forms.results), Matching.of(*forms.requests)

    def mark(self, tos: int) -> None:
        """Give frames another IP ToS byte from now on, also those that are sent again."""
        self._tos = tos
        self._set_frames()

    def adopt(
        self, plan: JobPlan, tree: TreePlan, worker: int, network: Network, now: float
    ) -> None:
        """Go on under a new epoch: send again what is in flight, hand over the last results."""
        self._bind(plan, tree, worker, network)
        self._send(library().stream_adopt, now)

    # -- calls

    @property
    def end(self) -> int:
        """The number the next fragment submitted will have (it runs on over tensors)."""
        return int(self._state.end)

    @property
    def in_flight(self) -> int:
        """Fragments sent whose results are not here."""
        return int(self._state.open)

    def submit(self, segment: Segment, now: float) -> None:
        """Append a tensor's part to the stream; it starts at `end`."""
        state = self._state
        self._make_room()
        number = state.next_segment
        self._ring[number % len(self._ring)] = 0
        row = self._ring[number % len(self._ring)]
        remark = segment.call.remark
        row["trees"] = segment.call.open_parts
        row["first"], row["elements"] = segment.first, len(segment.source)
        row["type"], row["width"] = segment.element, segment.width
        row["reduction"] = segment.reduction
        row["prologues"] = row["unanswered"] = segment.prologues
        row["group"] = segment.group
        row["remark"] = 0 if remark is None else remark.own
        row["open"] = segment.end - segment.first
        self._append(number, segment)
        state.next_segment = number + 1
        state.end = segment.end
        self.fill_window(now)

    def _make_room(self) -> None:
        """Let the ring have room for one more segment."""
        state, old = self._state, self._ring
        numbers = [*range(state.first_segment, state.next_segment)]
        if len(numbers) < len(old):
            return
        ring = np.zeros(2 * len(old), _SEGMENT)
        ring[[number % len(ring) for number in numbers]] = old[self._places(numbers)]
        self._set_ring(ring)

    def _append(self, number: int, segment: Segment) -> None:
        self._segments.append(segment)
        self._numbers.append(number)
        self._point(number, segment)

    def _point(self, number: int, segment: Segment) -> None:
        """Let the ring point to a segment's values."""
        row = self._ring[number % len(self._ring)]
        row["source"], row["result"] = segment.source.ctypes.data, segment.result.ctypes.data
        row["exponents"], row["codes"] = segment.exponents.ctypes.data, segment.codes.ctypes.data
        row["waiting"] = segment.call.prologues.ctypes.data

    def take_over(self, call: Call, reduction: Reduction) -> None:
        """Go on with a process's call that the flow has begun; `leave` follows.

        `call`: of int32, whose result takes the place of its values.
        """
        number = self._state.next_segment - 1
        first, values = int(self._ring[number % len(self._ring)]["first"]), call.result
        codes = np.zeros(0, dtype=np.uint8)
        lanes, window = self.plan.values, self._state.window
        self._append(
            number, Segment(call, values, values, 0, first, lanes, window, codes, reduction)
        )

    def fill_window(self, now: float) -> None:
        """Send the next fragments of all idle slots, if possible."""
        self._send(library().stream_fill, now)

    def _send(self, function: Any, now: float, *arguments: Any) -> None:
        """Call a function of the compiled stream that may send; `arguments` precede the time."""
        if self.junction is not None:
            function(self.address, *arguments, now, self.junction.up)
            self._output += self.junction.exchange(now)
        else:
            output = shared_output(self.most_output)
            function(self.address, *arguments, now, output.begin(whole=False))
            self._output += output.take()
        self.settle()

    def settle(self) -> None:
        """Finish segments whose results are all in place, and look why the stream has failed."""
        state = self._state
        if not state.news:
            return
        state.news = 0
        finished = [not self._ring[place]["open"] for place in self._places(self._numbers)]
        for done, number, segment in zip(finished, self._numbers, self._segments, strict=True):
            if done:
                remark = segment.call.remark
                if remark is not None:
                    greatest = int(self._ring[number % len(self._ring)]["greatest"])
                    remark.maximum = max(remark.maximum, greatest)
                segment.call.open_parts -= 1
        if any(finished):
            left = [place for place, done in enumerate(finished) if not done]
            self._segments = [self._segments[place] for place in left]
            self._numbers = [self._numbers[place] for place in left]
        if state.failure and self.failure is None:
            self._explain()

    # -- frames and time

    def receive(self, frames: Frames, now: float) -> None:
        """Take in frames (n, length) of any content, of this job and tree."""
        function = library().stream_receive
        self._output += receive(function, self.address, frames, now, self.most_output, False)
        self.settle()

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do, at the latest; None: nothing waits."""
        if self._entered:
            return None
        due: float = library().stream_deadline(self.address)
        return None if due == inf else due

    @property
    def deferrable(self) -> float:
        """How many results may wait for one another, to be taken in together.

        A flow sees to its own.
        """
        return inf if self._entered else int(library().stream_deferrable(self.address))

    def tick(self, now: float) -> None:
        """Send again what has waited too long, or give up."""
        self._send(library().stream_tick, now)

    def postpone(self, now: float) -> None:
        """Let the deadlines of what is in flight, or handed over, count from now."""
        library().stream_postpone(self.address, now)

    def resume(self, now: float) -> None:
        """Send what is in flight again at once."""
        self._send(library().stream_resume, now)

    # -- as a flow

    def enter(self, calls: SureCalls | None = None) -> list[int]:
        """Leave frames and timers to a flow (flow.h) until `leave`; return its address.

        `calls`: to take from a process, if nothing is in flight. There is none if no results can
        come.
        """
        if self.failure is not None or not (self._state.open or calls):
            return []
        self._make_room()
        self._entered = True
        library().stream_enter(self.address, None if calls is None else calls.address)
        return [self.address]

    def leave(self, now: float) -> int:
        """Take over what the flow has done; return the bytes that it has sent."""
        if not self._entered:
            return 0
        self._entered = False
        self.settle()
        return int(self._state.flow.sent_bytes)

    # -- failure

    def _explain(self) -> None:
        """Say why the stream has failed."""
        state = self._state
        slot = self._slots[state.failed_slot]
        match _FAILURES[state.failure]:
            case "overflow":
                why = (
                    "the sum of its integers wrapped around at a switch or the server "
                    "(overflow flag); send smaller values, or float32, which is scaled to fit"
                )
            case "exponent":
                why = (
                    "the workers' common exponent was altered on its way to the server (check "
                    "lanes): a bit has flipped in a switch, or contributions are forged"
                )
            case "no result":
                why = (
                    f"no result for {state.failed_at - slot['first_sent_at']:.3g} s after "
                    f"{slot['tries']} tries ({state.open} of the window's {state.window} fragments "
                    f"are in flight); some worker's part has not reached the server, or the server "
                    f"does not answer: ask the server which workers are missing, and look at the "
                    f"switches between"
                )
            case _:
                self._fail(
                    int(slot["result"]),
                    f"server {self.tree.server} has not taken over the last results for "
                    f"{self._options.deadline:.3g} s (epoch {self.plan.epoch}): is it running?",
                )
                return
        fragment = int(slot["fragment"])
        [segment] = [each for each in self._segments if each.first <= fragment < each.end]
        self._fail(
            fragment & 0xFFFFFFFF,
            f"{segment.call.name} ({segment.elements(fragment)}), worker {self.worker}, server "
            f"{self.tree.server}, epoch {self.plan.epoch}: {why}",
        )

    def _fail(self, wire: int, message: str) -> None:
        self.failure = JobFailed(self.plan.job, self.tree.tree, wire, message)

    # -- for the model checker, in whose time only it decides what is late

    @property
    def slots_in_flight(self) -> list[int]:
        """The slots whose fragments are in flight."""
        return [int(slot) for slot in np.flatnonzero(self._slots["in_flight"])]

    @property
    def hands_over(self) -> bool:
        """Whether there are results that a new server may lack."""
        return bool(self._slots["handing"].any())

    @property
    def next_fragments(self) -> list[int]:
        """The fragment in flight, or the next one, by slot."""
        return [int(fragment) for fragment in self._slots["fragment"]]

    def retry(self, slot: int, now: float, *, bypass: bool = False, ask: bool = False) -> None:
        """Retransmit a slot's fragment: past the switches from now on, or this once (`ask`)."""
        if bypass:
            self._slots["timeouts"][slot] = self._state.most_timeouts
        self._send(library().stream_retry, now, slot, ask)

    def hand_over(self, now: float) -> None:
        """Send the results again that a new server may lack."""
        self._send(library().stream_hand_over, now)


class _Forms:
    """The frames that a stream sends and receives under one plan."""

    def __init__(self, plan: JobPlan, tree: TreePlan, worker: int, network: Network) -> None:
        here = address_of(network, plan.workers[worker])
        there = address_of(network, tree.server)
        stack = tree.up[worker]
        up = Header(
            Kind.CONTRIBUTION,
            plan.job,
            tree.tree,
            plan.epoch,
            0,
            worker=worker,
            reduction=plan.reduction,
        )
        total = replace(up, weight=len(plan.workers))
        result = replace(total, kind=Kind.RESULT)
        request = replace(up, kind=Kind.REQUEST)
        self.end_to_end = plan.results is Results.UNICAST
        """Whether results are numbered by the server: a worker asks it for missing ones."""
        self.up = Form(here, there, up, stack, plan.lanes)
        self.total = Form(here, there, total, stack, plan.lanes)
        if self.end_to_end:
            question = replace(up, reduction=Reduction.NONE)
            self.request = Form(here, there, question, stack, plan.lanes)
        else:
            self.request = Form(here, there, request, (), plan.lanes)

        def matchers(
            header: Header, hops: tuple[Hop, ...], unusual: int, **options: bool
        ) -> tuple[Matcher, Matcher]:
            """Return the matchers of frames that come here, with lanes and without."""
            whole = Form(there, here, header, hops, plan.lanes)
            bare = Form(there, here, replace(header, reduction=Reduction.NONE), hops, 0)
            return (
                Matcher(whole.template, unusual_flags=unusual, **options),
                Matcher(bare.template, unusual_flags=unusual, **options),
            )

        self.results = matchers(result, (), UNUSUAL_DOWNWARD, either_result=True, weighed=True)
        self.requests = matchers(request, stack, 0)

    def prefix(self, form: Form, tos: int) -> Frames:
        """Return the part of a form's frames before the lanes, with an IP ToS byte."""
        prefix = form.prefix.copy()
        mark(prefix[None], tos)
        return prefix
