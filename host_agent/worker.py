"""A worker: sums tensors with the other workers of its job, over the trees of its plan."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache, partial
from math import inf
from typing import NamedTuple

import numpy as np

from hopsum.collectives.operation import Ranges
from hopsum.collectives.plan import JobPlan, PlanError, tensor_ranges, wire_width
from hopsum.host_agent.codec import STACK_START, TREE_AT, Frames, by_number, in_turns
from hopsum.host_agent.elements import TYPES, Element, element_of, widths_of
from hopsum.host_agent.failure import CallError, JobFailed
from hopsum.host_agent.numbers import exponent_codes, worker_bits
from hopsum.host_agent.plan_checks import check_job, check_same_job
from hopsum.host_agent.segment import Call, Remark, Segment, Tensor
from hopsum.host_agent.stream import Stream, WorkerOptions, WorkerStatistics
from hopsum.host_agent.sure_calls import AnsweredCall, InFlightCall, SureCalls
from hopsum.host_agent.timeout import earliest
from hopsum.network.model import Network
from hopsum.protocol.wire import (
    LANE_REDUCTIONS,
    ROOT_REDUCTIONS,
    Reduction,
    Width,
    serial_newer,
)

OPERATIONS = (*LANE_REDUCTIONS, *ROOT_REDUCTIONS, Reduction.BROADCAST)
"""Reductions of calls."""
CUTS = 64
"""Number of lengths of tensors whose division among the trees is kept."""


class FlowCalls(NamedTuple):
    """Calls of a process that flows have finished, and the one in flight."""

    done: list[AnsweredCall]
    begun: tuple[int, InFlightCall] | None
    """Its number, and the call."""


class Worker:
    """Worker number `index` of a job: frames and time in, frames and the next deadline out.

    All workers of a job submit tensors of the same lengths and types in the same order; calls are
    numbered from 0. Times are seconds of one monotonic clock, the caller's. It keeps no thread,
    socket or clock. Frames it is given may be reused after the call; those it gives are the
    caller's.
    """

    def __init__(
        self,
        plan: JobPlan,
        index: int,
        network: Network,
        options: WorkerOptions | None = None,
        key: bytes | None = None,
    ) -> None:
        """`key`: for a plan with integrity."""
        check_job(plan)
        if not 0 <= index < len(plan.workers):
            raise PlanError(
                f"job {plan.job}: there is no worker {index}; expected 0 to {len(plan.workers) - 1}"
            )
        options = options or WorkerOptions()
        self.plan = plan
        self._expected: SureCalls | None = None
        self.cut_as(plan)
        self.host = plan.workers[index]
        self.statistics = WorkerStatistics()
        self._network = network
        self._scale_workers = options.scale_workers or len(plan.workers)
        self._check_scale(plan)
        self._outputs: dict[int, list[Frames]] = {tree.tree: [] for tree in plan.trees}
        self._calls: dict[int, Call] = {}
        self._held: list[Call] = []
        """Those of several trees that wait for prologues."""
        self._next_call = 0
        self._taken = FlowCalls([], None)
        bits = worker_bits(self._scale_workers)
        progress = ctypes.c_double(-inf)
        self._streams = {
            tree.tree: Stream(
                plan,
                tree,
                index,
                network,
                options,
                bits,
                self._outputs[tree.tree],
                self.statistics,
                progress,
                key=key,
            )
            for tree in plan.trees
        }
        [*self._all] = self._streams.values()

    # -- calls

    def submit(
        self,
        tensor: Tensor,
        now: float,
        *,
        out: Tensor | None = None,
        name: str | None = None,
        reduction: Reduction | None = None,
        remark: Remark | None = None,
        ranges: Ranges | None = None,
        width: Width | None = None,
    ) -> int:
        """Start summing a tensor (any shape); return the number of the call.

        It is of float32, float16, int32, int16, int8, uint8, or uint16, which are the bits of
        bfloat16. `width`: of its values in packets, float32 and int32 in 32 bits, others as wide as
        they are unless it says otherwise (`elements.widths_of`); where that would not do, 32
        (`wire_width`). Sums of 8 bits are modulo 256; of 16 or 32 they fail the job if they wrap.
        `reduction`: how values combine, floats by SUM or REDUCE_SUM alone; None: as the plan says.
        The tensor is read until the call is done and must not change before. `out` (C-contiguous,
        same shape and type) takes the result; it may be the tensor itself. `ranges`: the elements
        of the flat tensor that each tree takes, disjoint; None: all, by the trees' shares. Of a
        reduction to the root only the ranges of trees whose root is here are written, of
        a BROADCAST only these are read. `remark`: of integers without check lanes. Raises
        CallError for a tensor that cannot be sent, NumbersError at a NaN or infinity (nothing is
        sent then).
        """
        number = self._next_call
        name = name or f"tensor of call {number}"
        element = element_of(tensor.dtype)
        if element is None:
            raise CallError(f"{name}: type {tensor.dtype}; expected {TYPES}")
        scaled = element.scaled
        reduction = self.plan.reduction if reduction is None else reduction
        if scaled and reduction not in (Reduction.SUM, Reduction.REDUCE_SUM):
            raise CallError(f"{name}: floats by {reduction.name}; expected integers, or SUM")
        if tensor.dtype == np.uint8 and reduction in (Reduction.MAX, Reduction.REDUCE_MAX):
            raise CallError(f"{name}: uint8 by {reduction.name}; expected int8 in the same order")
        if reduction not in OPERATIONS:
            raise CallError(
                f"{name}: reduction {reduction!r}; expected one of "
                f"{', '.join(each.name for each in OPERATIONS)}"
            )
        if reduction not in LANE_REDUCTIONS and not all(
            tree.server in self.plan.workers for tree in self.plan.trees
        ):
            raise CallError(
                f"{name}: {reduction.name} over trees whose roots are not workers; "
                "expected a job whose servers are its workers"
            )
        if self.plan.integrity and reduction is not Reduction.SUM:
            raise CallError(
                f"{name}: {reduction.name} in a job whose check lanes only show that sums are "
                "right; expected SUM"
            )
        if out is None:
            out = np.empty(tensor.shape, tensor.dtype)
        elif out.shape != tensor.shape or out.dtype != tensor.dtype or not out.flags.c_contiguous:
            raise CallError(
                f"{name}: out is {out.dtype} {out.shape}; expected a C-contiguous array like the "
                f"tensor, {tensor.dtype} {tensor.shape}"
            )
        flat = np.ascontiguousarray(tensor).reshape(-1)
        lanes, width = self.plan.values, self._width(name, element, width)
        if ranges is None:
            ranges = self._cut(len(flat), width)
        else:
            _check_ranges(name, ranges, len(flat), len(self._all))
        no_codes = np.zeros(0, dtype=np.uint8)
        codes = [
            exponent_codes(flat[start:stop], lanes * width.per_lane, name, start)
            if scaled
            else no_codes
            for start, stop in ranges
        ]
        call = Call(number, name, out, 0, remark)
        parts = []
        for stream, (start, stop), own in zip(self._all, ranges, codes, strict=True):
            if start < stop:
                source, result = flat[start:stop], out.reshape(-1)[start:stop]
                if not stream.is_root:
                    if reduction is Reduction.BROADCAST:
                        source = np.zeros(stop - start, flat.dtype)
                    elif reduction in ROOT_REDUCTIONS:
                        result = np.empty(stop - start, flat.dtype)
                segment = Segment(
                    call,
                    source,
                    result,
                    start,
                    stream.end,
                    lanes,
                    self.plan.in_flight,
                    own,
                    reduction,
                    width,
                )
                parts.append((stream, segment))
        call.open_parts = len(parts)
        if scaled and len(parts) > 1:
            self._held.append(call)
        self._calls[number] = call
        self._next_call += 1
        for stream, segment in parts:
            stream.submit(segment, now)
        return number

    def _width(self, name: str, element: Element, wanted: Width | None) -> Width:
        """Return the width of elements in packets."""
        possible = widths_of(element)
        if wanted is None:
            wanted = possible[0]
        width = wire_width(
            wanted, self._scale_workers, scaled=element.scaled, integrity=self.plan.integrity
        )
        for each in (wanted, width):
            if each not in possible:
                raise CallError(
                    f"{name}: {element.name.removeprefix('OF_').lower()} in {each.bits} bits; "
                    f"expected {' or '.join(str(one.bits) for one in possible)}"
                )
        return width

    def done(self, call: int) -> bool:
        """Whether a call's result is complete. Raises JobFailed once the job has failed."""
        open_parts = self._call(call).open_parts
        if open_parts and self.failure is not None:
            raise self.failure
        return not open_parts

    def result(self, call: int) -> Tensor | None:
        """Return the sum, or None while it is incomplete; the call is forgotten with its sum.

        Raises JobFailed once the job has failed.
        """
        if not self.done(call):
            return None
        return self._calls.pop(call).result

    def _call(self, call: int) -> Call:
        try:
            return self._calls[call]
        except KeyError:
            raise CallError(
                f"there is no call {call}; open calls: {list(self._calls) or 'none'}"
            ) from None

    @property
    def idle(self) -> bool:
        """Whether every call is complete."""
        return all(not stream.in_flight for stream in self._all)

    @property
    def deferrable(self) -> float:
        """How many results may wait for one another, to be taken in together."""
        return sum(stream.deferrable for stream in self._all)

    @property
    def settled(self) -> bool:
        """Whether there is a call to take the result of, or what is `taken`, or a failure."""
        calls = self._calls.values()
        taken = bool(self._taken.done or self._taken.begun)
        return taken or any(not call.open_parts for call in calls) or self.failure is not None

    @property
    def failure(self) -> JobFailed | None:
        """What ended the job at this worker, if anything."""
        for stream in self._all:
            if stream.failure is not None:
                return stream.failure
        return None

    # -- frames and time

    def receive(self, frames: Frames, now: float) -> None:
        """Process frames (n, length) of any kind and content."""
        if not len(frames) or self.failure is not None:
            return
        if frames.shape[1] < STACK_START:
            self.statistics.foreign += len(frames)
            return
        for tree, of_tree in by_number(frames, TREE_AT, TREE_AT + 1):
            stream = self._streams.get(tree)
            if stream is None:
                self.statistics.foreign += len(of_tree)
            else:
                stream.receive(of_tree, now)
                self._release(now)

    def _release(self, now: float) -> None:
        """Send the first windows of calls whose prologues are all answered."""
        if not all(call.waits for call in self._held):
            self._held = [call for call in self._held if call.waits]
            for each in self._all:
                each.fill_window(now)

    # -- as flows

    def enter(self) -> list[int]:
        """Leave frames and timers to flows until `leave`; return their addresses (flow.h)."""
        pairs = zip(self._all, self._calls_by_tree(), strict=True)
        return [flow for stream, calls in pairs for flow in stream.enter(calls)]

    def _calls_by_tree(self) -> list[SureCalls | None]:
        """Return for each tree the process's calls that its flow may take."""
        found: list[SureCalls | None] = [None] * len(self._all)
        calls = self._expected
        if calls is not None and not self._calls and calls.left:
            found[calls.tree] = calls
        return found

    def leave(self, now: float) -> int:
        """Take over what the flows have done; return the bytes that they have sent."""
        if self._expected is not None:
            self._take_over(self._expected)
        sent = sum([stream.leave(now) for stream in self._all])
        self._release(now)
        return sent

    def give_back(self, tree: int, frames: Sequence[Frames]) -> None:
        """Send frames that the flow of a tree has made, with what the worker makes next."""
        self._outputs[tree] += frames

    def expect(self, calls: SureCalls | None) -> None:
        """Let flows take calls of a process while no other call is open; see `taken`."""
        self._expected = calls

    def only_tree(self, elements: int) -> int | None:
        """Return the index in `plan.trees` of the tree that sums all of a tensor, if one does."""
        places = [place for place, (start, stop) in enumerate(self._cut(elements)) if start < stop]
        return places[0] if len(places) == 1 else None

    def taken(self) -> FlowCalls:
        """Return what flows have done with expected calls since."""
        taken, self._taken = self._taken, FlowCalls([], None)
        return taken

    def _take_over(self, calls: SureCalls) -> None:
        """Count what flows have done with expected calls, and go on with the last one."""
        done, begun = calls.collect(), calls.give_up()
        self._next_call += len(done)
        self._taken.done.extend(done)
        if begun is None:
            return
        number = self._next_call
        self._next_call += 1
        self._calls[number] = call = Call(
            number, f"tensor of call {number}", begun.values, 1, begun.remark
        )
        self._taken = FlowCalls(self._taken.done, (number, begun))
        self._all[calls.tree].take_over(call, begun.expected.combined)

    # -- time

    def tick(self, now: float) -> None:
        """Do what is due: send again, or give up (`failure`)."""
        for stream in self._all:
            stream.tick(now)

    def postpone(self, now: float) -> None:
        """Let the deadlines of what is in flight count from now: the job is known to wait."""
        for stream in self._all:
            stream.postpone(now)

    def resume(self, now: float) -> None:
        """Send what is in flight again at once: what the job has waited for is back."""
        for stream in self._all:
            stream.resume(now)

    def take_output(self) -> list[Frames]:
        """Return the frames to send, in order; each batch has one length.

        Trees take turns, so that none waits for the whole windows of the others.
        """
        return in_turns([self._take_tree(tree) for tree, out in self._outputs.items() if out])

    def _take_tree(self, tree: int) -> list[Frames]:
        """Return a tree's frames to send."""
        output = self._outputs[tree]
        taken = output[:]
        output.clear()
        return taken

    @property
    def deadline(self) -> float | None:
        """Latest time to call `tick`; None: no timer."""
        return earliest(*[stream.deadline for stream in self._all])

    def mark(self, tos: int) -> None:
        """Give frames another IP ToS byte from now on, see `hopsum.protocol.tos.tos_of_level`."""
        for stream in self._all:
            stream.mark(tos)

    # -- epochs

    def cut_as(self, plan: JobPlan) -> None:
        """From the next call on, divide tensors among the trees by the shares of this plan.

        A new epoch does not do that: workers adopt it at different calls.
        """
        self._cut = lru_cache(CUTS)(partial(tensor_ranges, plan))
        self._expected = None

    def adopt(self, plan: JobPlan, now: float) -> None:
        """Go on under a newer epoch of the plan; an older or the same one is ignored.

        What is in flight is sent again, and the last window of results is handed to the server,
        which may be a new one without history. Raises PlanError for a plan that changes what is
        fixed for a job's life, or leaves this host out.
        """
        if not serial_newer(plan.epoch, self.plan.epoch, 16):
            return
        check_same_job(self.plan, plan)
        if self.host not in plan.workers:
            raise PlanError(
                f"job {plan.job}, epoch {plan.epoch}: {self.host} is no longer one of its workers"
            )
        self._check_scale(plan)
        self.plan = plan
        self.expect(None)
        index = plan.workers.index(self.host)
        for tree in plan.trees:
            self._streams[tree.tree].adopt(plan, tree, index, self._network, now)

    def _check_scale(self, plan: JobPlan) -> None:
        if len(plan.workers) > self._scale_workers:
            raise PlanError(
                f"job {plan.job}, epoch {plan.epoch}: {len(plan.workers)} workers, but its float32 "
                f"scale was made for {self._scale_workers}; set scale_workers to the most the job "
                f"can have"
            )


def _check_ranges(name: str, ranges: Ranges, length: int, trees: int) -> None:
    """Raise CallError unless there is a range for each tree, disjoint and within the tensor."""
    taken = sorted(each for each in ranges if each[0] != each[1])
    ends = [0, *(stop for _, stop in taken)]
    begins = [*(start for start, _ in taken), length]
    fits = all(end <= begin for end, begin in zip(ends, begins, strict=True))
    if len(ranges) != trees or not fits or any(start > stop for start, stop in ranges):
        raise CallError(
            f"{name}: ranges {list(ranges)} of {length} elements; expected one for each of the "
            f"{trees} trees, none overlapping another"
        )
