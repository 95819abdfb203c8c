"""The parameter server of one (job, tree): completes the sums, answers for a window of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collectives.plan import JobPlan, PlanError, Results, TreePlan
from host_agent.codec import (
    STACK_START,
    UNUSUAL_UPWARD,
    Form,
    Frames,
    Matcher,
    address_of,
    children_of,
    epochs_of,
    every,
    exponents_of,
    flags_of,
    fragments_of,
    mark,
    number,
    raw_lanes,
    reduction_byte,
    reductions_of,
    sent_back,
    sequences_of,
    some,
    tos_of,
    weights_of,
    workers_of,
)
from host_agent.integrity import make_integrity
from host_agent.job import check_job, check_same_job
from host_agent.ordinary import OrdinaryTotals
from host_agent.sequencing import Arrivals, SentLog
from network.model import Network
from protocol.tos import URGENT
from protocol.wire import (
    REPLICATED_IP,
    REPLICATED_MAC,
    Address,
    Flag,
    Header,
    Hop,
    Kind,
    Reduction,
    frame_template,
    serial_newer,
)

_EMPTY = -1
_NO_WEIGHT = -1
"""Of child numbers that no child has: equal to the weight of no packet."""
_OVERFLOW = np.uint8(Flag.OVERFLOW)
_SEQUENCED = np.uint8(Flag.SEQUENCED)
_REPAIR = np.uint8(Flag.REPAIR)
_SUMMED = np.uint8(Flag.OVERFLOW | Flag.ECN)
"""Flags of a contribution that its sum has as well."""
_SUM = np.uint8(reduction_byte(Reduction.SUM))
_COMBINED_BY: dict[int, np.ufunc] = {
    reduction_byte(Reduction.AND): np.bitwise_and,
    reduction_byte(Reduction.MAX): np.maximum,
    reduction_byte(Reduction.XOR): np.bitwise_xor,
}
"""How lanes combine where nothing can wrap around, by the byte in the frame."""


@dataclass(slots=True)
class ServerStatistics:
    """What a server has counted, in packets."""

    received: int = 0
    """Contributions of its job and tree."""
    sums: int = 0
    """Complete sums of a child's subtree taken in."""
    singles: int = 0
    """Bypassed contributions of one worker taken in."""
    repeats: int = 0
    """Contributions held or covered already."""
    handed_over: int = 0
    """Totals taken over from workers' last windows."""
    results: int = 0
    """Fragments finished."""
    result_frames: int = 0
    """Frames sent for them at their completion."""
    answered: int = 0
    """Packets of finished fragments answered from the history."""
    requests: int = 0
    """Sums asked for again, lost on the link from the neighbour."""
    repaired: int = 0
    """Results sent again because the neighbour asked: lost on the link to it."""
    stale: int = 0
    """Questions about fragments that are not finished: ignored."""
    older: int = 0
    """Packets of an older epoch, or of a fragment older than the history: ignored."""
    newer: int = 0
    """Packets of an epoch this server has not adopted yet: dropped."""
    refused: int = 0
    """Packets that do not fit: unknown child or worker, another weight, a total out of window."""
    foreign: int = 0
    """Frames that are no contributions of this job and tree."""
    overflowed: int = 0
    """Fragments finished whose sum wrapped around."""
    corrupt: int = 0
    """Sums, totals and single contributions that check lanes show to be altered or forged."""
    asked: int = 0
    """Questions to workers for their single contributions to such sums."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The oldest unfinished fragment: its number, since when (seconds), and who is missing."""

    fragment: int
    since: float
    workers: tuple[str, ...]


class Server:
    """The server of one tree of a job: frames in, frames out; it has no timers of its own.

    Results carry the IP ToS byte of the sums that come in: their job's priority.
    Per slot it holds the fragment that is being summed (which children's sums are in, and
    singles of workers that bypassed the switches) and the last one finished, its history.
    """

    def __init__(
        self, plan: JobPlan, tree: int, network: Network, key: bytes | None = None
    ) -> None:
        """`key`: of a plan with integrity."""
        check_job(plan)
        self._key = key
        self._network = network
        self.statistics = ServerStatistics()
        window = plan.in_flight
        self._window = window
        self._output: list[Frames] = []
        self._tos = 0
        self._last = np.zeros(window, dtype=np.intp)

        self._fragment = np.full(window, _EMPTY, dtype=np.int64)
        self._since = np.zeros(window)
        self._held = np.zeros((window, 0), dtype=np.bool_)
        self._started = np.zeros(window, dtype=np.bool_)
        self._doubted = np.zeros(window, dtype=np.bool_)
        """Whether check lanes have shown the fragment's sum to be wrong: singles alone count."""
        self._covered = np.zeros(window, dtype=np.int64)
        self._flags = np.zeros(window, dtype=np.uint8)
        self._code = np.zeros(window, dtype=np.uint8)
        self._reduction = np.zeros(window, dtype=np.uint8)
        self._sum = np.zeros((window, plan.lanes), dtype=np.int32)
        self._singles: dict[int, dict[int, NDArray[np.int32]]] = {}

        self._done = np.full(window, _EMPTY, dtype=np.int64)
        self._own = np.zeros(window, dtype=np.bool_)  # summed here, not handed over
        self._done_lanes = raw_lanes(plan.lanes, window)
        self._done_code = np.zeros(window, dtype=np.uint8)
        self._done_flags = np.zeros(window, dtype=np.uint8)
        self._done_reduction = np.zeros(window, dtype=np.uint8)
        self._done_number = np.full(window, _EMPTY, dtype=np.int64)
        self._sent_log = SentLog(window)
        self._bind(plan, tree)

    def _bind(self, plan: JobPlan, tree_number: int) -> None:
        """Take children, stacks and epoch from a plan."""
        trees = {tree.tree: tree for tree in plan.trees}
        if tree_number not in trees:
            raise PlanError(f"job {plan.job} has no tree {tree_number}; its trees: {sorted(trees)}")
        tree: TreePlan = trees[tree_number]
        self.plan = plan
        self.tree = tree
        self._workers = workers = len(plan.workers)
        self._integrity = make_integrity(plan, tree.tree, self._key)
        own = address_of(self._network, tree.server)
        self._held = np.zeros((self._window, len(tree.server_children)), dtype=np.bool_)
        groups = [len(group) for group in tree.server_children]
        self._sizes = np.full(max(64, len(groups)), _NO_WEIGHT, dtype=np.int64)
        self._sizes[: len(groups)] = [size or _NO_WEIGHT for size in groups]
        self._all_single = tree.singles
        self._sent_log.restart()
        self._done_number[:] = _EMPTY
        self._arrivals = [Arrivals() for _ in range(64)]
        self._replicates = plan.results is Results.REPLICATED
        self._child_of = np.full(workers, _EMPTY, dtype=np.int64)
        for child, covered in enumerate(tree.server_children):
            self._child_of[list(covered)] = child
        if (self._child_of == _EMPTY).any() or sum(groups) != workers:
            raise PlanError(
                f"job {plan.job}, tree {tree.tree}: the server's children "
                f"{tree.server_children} do not cover its {workers} workers exactly once"
            )

        def header(kind: Kind, worker: int = 0) -> Header:
            return Header(
                kind,
                plan.job,
                tree.tree,
                plan.epoch,
                0,
                worker=worker,
                weight=workers,
                reduction=plan.reduction,
            )

        self._up = Form(own, own, header(Kind.CONTRIBUTION), (Hop(),), plan.lanes)
        if self._all_single:
            single = replace(header(Kind.CONTRIBUTION), weight=1, flags=int(Flag.BYPASS))
            template = frame_template(own, own, single, (Hop(),), plan.lanes)
            self._matcher = Matcher(template, weighed=True, unusual_flags=UNUSUAL_UPWARD)
        else:
            self._matcher = Matcher(self._up.template, unusual_flags=UNUSUAL_UPWARD)

        def unicast(worker: int, stack: tuple[Hop, ...]) -> Form:
            to = address_of(self._network, plan.workers[worker])
            return Form(own, to, header(Kind.RESULT, worker), stack, plan.lanes, self._tos)

        kept = [tuple(replace(hop, clear=False) for hop in stack) for stack in tree.down]
        # Where results are replicated, only those clear.
        down = kept if self._replicates else tree.down
        self._unicast = [unicast(worker, stack) for worker, stack in enumerate(down)]
        self._questions = [unicast(worker, stack) for worker, stack in enumerate(kept)]
        group = Address(REPLICATED_MAC, REPLICATED_IP)
        self._replicated = Form(own, group, header(Kind.REPLICATED), (), plan.lanes, self._tos)
        request = Form(own, own, header(Kind.REQUEST), (), plan.lanes)
        self._asked = Matcher(request.template, unusual_flags=0)
        self._ordinary = OrdinaryTotals()

    # -- frames and time

    def receive(self, frames: Frames, now: float) -> None:
        """Take in frames (n, length), of any kind and content."""
        statistics = self.statistics
        if frames.shape[1] == self._replicated.length:
            self._answer_requests(frames)
            return
        if self._take_ordinary(frames):
            return
        if not self._matcher.all_plain(frames):
            frames = self._sift(frames, now)
            if not len(frames):
                return
        else:
            statistics.received += len(frames)
        self.mark(int(tos_of(frames)[-1]) & ~URGENT)
        copies = self._ask_for_gaps(frames)
        fragments = fragments_of(frames)
        slots = fragments & (self._window - 1)
        finished = self._done[slots] == fragments
        if some(finished):
            flags = flags_of(frames)
            again = finished & ((flags & _REPAIR) == 0)
            again[copies] = False
            by_links = again & ((flags & _SEQUENCED) != 0) & self._replicates
            if some(by_links):
                self._repeat(np.unique(slots[by_links]))
                again &= ~by_links
            self._answer(slots[again], workers_of(frames)[again])
            rest = ~finished
            frames, fragments, slots = frames[rest], fragments[rest], slots[rest]
            if not len(frames):
                return
        weights = weights_of(frames)
        if self._all_single:
            speakers = workers_of(frames)
            fits = speakers < self._workers
            children = self._child_of[np.minimum(speakers, self._workers - 1)]
        else:
            children = children_of(frames)
            fits = self._sizes[children] == weights
        if not every(fits):
            statistics.refused += int((~fits).sum())
            frames, fragments, slots = frames[fits], fragments[fits], slots[fits]
            children, weights = children[fits], weights[fits]
        while len(frames) > 1:
            # A step takes each slot once, so that its array operations do not collide.
            rows = np.arange(len(frames))
            self._last[slots[::-1]] = rows[::-1]
            first = self._last[slots] == rows
            if every(first):
                break
            self._add(
                frames[first], fragments[first], slots[first], children[first], weights[first], now
            )
            rest = ~first
            frames, fragments, slots = frames[rest], fragments[rest], slots[rest]
            children, weights = children[rest], weights[rest]
        if len(frames):
            self._add(frames, fragments, slots, children, weights, now)

    def _take_ordinary(self, frames: Frames) -> bool:
        """Take in ordinary totals, in one pass; whether these are such (`host_agent.ordinary`)."""
        if self._integrity is not None or self._all_single or not self._replicates:
            return False
        if frames.shape[1] != self._up.length:
            return False
        child = int(frames[0, STACK_START]) & 0x3F
        if self._sizes[child] != self._workers:
            return False
        arrivals = self._arrivals[child]
        tos = int(tos_of(frames)[-1]) & ~URGENT
        if self._singles or not arrivals.complete or tos != self._tos:
            return False
        if not self._ordinary.bound:
            self._bind_ordinary()
        taken = self._ordinary.take(
            frames, child=child, arrived=arrivals.newest, log_next=self._sent_log.next
        )
        if taken is None:
            return False
        results, overflowed = taken
        count = len(frames)
        arrivals.newest += count
        self._sent_log.next += count
        self._output.append(results)
        statistics = self.statistics
        statistics.received += count
        statistics.sums += count
        statistics.results += count
        statistics.result_frames += count
        statistics.overflowed += overflowed
        return True

    def _bind_ordinary(self) -> None:
        arrays = {
            "fragment": self._fragment,
            "done": self._done,
            "done_number": self._done_number,
            "last": self._last,
            "own": self._own,
            "done_lanes": self._done_lanes,
            "done_code": self._done_code,
            "done_flags": self._done_flags,
            "done_reduction": self._done_reduction,
            "log": self._sent_log.fragments,
            "plain": self._matcher.plain,
            "expected": self._matcher.expected,
            "prefix": self._replicated.prefix,
        }
        numbers = {
            "window": self._window,
            "lanes": self.plan.lanes,
            "log_size": len(self._sent_log.fragments),
            "prefix_bytes": self._replicated.lanes_start,
            "workers": self._workers,
            "lanes_at": self._up.lanes_start,
        }
        self._ordinary.bind(arrays, numbers)

    def mark(self, tos: int) -> None:
        """Give results another IP ToS byte, until contributions come in with yet another."""
        if tos != self._tos:
            self._tos = tos
            for form in (self._replicated, *self._unicast, *self._questions):
                form.mark(tos)

    def tick(self, now: float) -> None:
        """Nothing: a server only answers."""

    @property
    def deadline(self) -> float | None:
        """None: a server only answers."""
        return None

    @property
    def in_flight(self) -> int:
        """None: a server only answers."""
        return 0

    def take_output(self) -> list[Frames]:
        """Return the frames to send, in order; each batch has one length."""
        output = self._output[:]
        self._output.clear()
        return output

    # -- sums

    def _add(
        self,
        frames: Frames,
        fragments: NDArray[np.int64],
        slots: NDArray[np.int64],
        children: NDArray[np.int64],
        weights: NDArray[np.int64],
        now: float,
    ) -> None:
        """Take in sums of unfinished fragments, each slot once."""
        usable = self._take_over(fragments, slots, reductions_of(frames), now)
        if self._integrity is not None and some(self._doubted[slots]):
            usable &= ~self._doubted[slots] | self._alone_and_right(frames, fragments, slots)
        new = usable & ~self._held[slots, children]
        if not every(new):
            self.statistics.repeats += int((usable & ~new).sum())
            frames, fragments, slots = frames[new], fragments[new], slots[new]
            children, weights = children[new], weights[new]
            if not len(frames):
                return
        self.statistics.sums += len(frames)
        flags = flags_of(frames) & _SUMMED
        codes = exponents_of(frames)
        if self._singles:
            self._drop_covered(slots, children)
        alone = weights == self._workers
        if every(alone):
            reductions = reductions_of(frames)
            self._finish_sums(slots, fragments, self._up.raw(frames), codes, flags, reductions)
            return
        values = self._up.values(frames)
        empty = ~self._started[slots]
        if every(empty):
            self._sum[slots] = values
        elif not some(empty):
            total, wrapped = _combined(
                self._sum[slots], values.astype(np.int32), self._reduction[slots]
            )
            self._sum[slots] = total
            flags |= wrapped
        else:
            into = slots[~empty]
            total, wrapped = _combined(
                self._sum[into], values[~empty].astype(np.int32), self._reduction[into]
            )
            self._sum[into] = total
            flags[~empty] |= wrapped
            self._sum[slots[empty]] = values[empty]
        self._held[slots, children] = True
        self._started[slots] = True
        self._covered[slots] += weights
        self._flags[slots] |= flags
        self._code[slots] = np.maximum(self._code[slots], codes)
        complete = self._covered[slots] == self._workers
        if some(complete):
            self._complete(slots[complete])

    def _take_over(
        self,
        fragments: NDArray[np.int64],
        slots: NDArray[np.int64],
        reductions: NDArray[np.uint8],
        now: float,
    ) -> NDArray[np.bool_]:
        """Open slots for newer fragments; which fragments are those of their slots now.

        One that is not newer than its slot's or than the history is one that somebody has the
        result of, or that this very batch has finished; it is ignored. One of another reduction
        than its slot's is refused.
        """
        held = self._fragment[slots]
        same: NDArray[np.bool_] = held == fragments
        agrees: NDArray[np.bool_] = same & (self._reduction[slots] == reductions)
        if every(agrees):
            return agrees
        done = self._done[slots]
        newer = ~same & ((held == _EMPTY) | _is_newer(fragments, held))
        newer &= (done == _EMPTY) | _is_newer(fragments, done)
        opened = slots[newer]
        self._fragment[opened] = fragments[newer]
        self._since[opened] = now
        self._doubted[opened] = False
        self._reduction[opened] = reductions[newer]
        self._held[opened] = False
        self._started[opened] = False
        self._covered[opened] = 0
        self._flags[opened] = 0
        self._code[opened] = 0
        if self._singles:
            for slot in opened:
                self._singles.pop(int(slot), None)
        usable: NDArray[np.bool_] = agrees | newer
        refused = int((same & ~agrees).sum())
        self.statistics.refused += refused
        self.statistics.older += len(slots) - int(usable.sum()) - refused
        return usable

    def _complete(self, slots: NDArray[np.int64]) -> None:
        """Everything of these slots' fragments is covered."""
        for slot in self._singles.keys() & set(slots.tolist()) if self._singles else ():
            for values in self._singles[slot].values():
                if self._started[slot]:
                    row = slice(slot, slot + 1)
                    total, wrapped = _combined(
                        self._sum[row].copy(), values[None], self._reduction[row]
                    )
                    self._sum[slot] = total[0]
                    self._flags[slot] |= wrapped[0]
                else:
                    self._sum[slot] = values
                self._started[slot] = True
        raw = self._sum[slots].astype(">i4").view(np.uint8)
        fragments = self._fragment[slots]
        self._finish_sums(
            slots,
            fragments,
            raw,
            self._code[slots],
            self._flags[slots],
            self._reduction[slots],
        )

    def _finish_sums(
        self,
        slots: NDArray[np.int64],
        fragments: NDArray[np.int64],
        raw: Frames,
        codes: NDArray[np.uint8],
        flags: NDArray[np.uint8],
        reductions: NDArray[np.uint8],
    ) -> None:
        """Finish fragments whose sums are here, if they are right as far as check lanes say.

        Of the others the workers are asked for their single contributions, which each show by
        themselves that they are right; a sum of these that does not fit has wrapped around.
        """
        integrity = self._integrity
        if integrity is None:
            self._finish(slots, fragments, raw, codes, flags, reductions)
            return
        values = raw.view(">i4").astype(np.int32)
        right, needs = integrity.fits(values, fragments)
        wrapped = ~right & self._doubted[slots] & ((flags & _OVERFLOW) != 0)
        for rows, keep in (
            (right, ~_OVERFLOW),  # it may have wrapped around and back
            (wrapped, np.uint8(0xFF)),
        ):
            if some(rows):
                sealed = values[rows]
                if rows is right:
                    integrity.seal(sealed, fragments[rows], codes[rows], needs[rows])
                else:
                    integrity.seal_overflow(sealed, fragments[rows], codes[rows])
                whole = sealed.astype(">i4").view(np.uint8)
                self._finish(
                    slots[rows],
                    fragments[rows],
                    whole,
                    codes[rows],
                    flags[rows] & keep,
                    reductions[rows],
                )
        for slot in slots[~(right | wrapped)].tolist():
            self.statistics.corrupt += 1
            self._doubted[slot] = True
            self._held[slot] = self._started[slot] = False
            self._covered[slot] = self._flags[slot] = self._code[slot] = 0
            self._singles.pop(slot, None)
            self._ask_for_singles(slot)

    def _ask_for_singles(self, slot: int) -> None:
        """Ask the workers whose contributions to a slot's fragment are not here to send them alone.

        A RESULT flagged BYPASS, whose lanes show that it is the server's.
        """
        assert self._integrity is not None
        wire = int(self._fragment[slot])
        here = self._singles.get(slot, {})
        for worker, form in enumerate(self._questions):
            if worker not in here and not self._held[slot, self._child_of[worker]]:
                question = form.make(np.array([wire]), 0, Flag.BYPASS)
                self._integrity.question(wire, form.values(question))
                self._output.append(question)
                self.statistics.asked += 1

    def _alone_and_right(
        self, frames: Frames, fragments: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which frames are single contributions that are right; who sent no such is asked again."""
        assert self._integrity is not None
        right = np.zeros(len(frames), dtype=np.bool_)
        for row in np.flatnonzero(self._doubted[slots]).tolist():
            if self._all_single:
                one, number = frames[row : row + 1], fragments[row : row + 1]
                worker = int(workers_of(one)[0])
                right[row] = self._integrity.fits_single(self._up.values(one), number, worker)[0]
                self.statistics.corrupt += int(not right[row])
            else:
                self.statistics.repeats += 1
            if not right[row]:
                self._ask_for_singles(int(slots[row]))
        return right

    def _finish(
        self,
        slots: NDArray[np.int64],
        fragments: NDArray[np.int64],
        raw: Frames,
        codes: NDArray[np.uint8],
        flags: NDArray[np.uint8],
        reductions: NDArray[np.uint8],
    ) -> None:
        """Fragments are finished: they replace the history of their slots and go to all."""
        self._done[slots] = fragments
        self._own[slots] = True
        self._done_lanes[slots] = raw
        self._done_code[slots] = codes
        self._done_flags[slots] = flags
        self._doubted[slots] = False
        self._done_reduction[slots] = reductions
        held = self._fragment[slots]
        over = slots[(held != _EMPTY) & ~_is_newer(held, fragments)]
        self._fragment[over] = _EMPTY
        if self._singles:
            for slot in over:
                self._singles.pop(int(slot), None)
        self.statistics.results += len(slots)
        self.statistics.overflowed += int(np.count_nonzero(flags & _OVERFLOW))
        self._done_number[slots] = self._sent_log.number(fragments) if self._replicates else _EMPTY
        for form in [self._replicated] if self._replicates else self._unicast:
            frames = form.make(fragments, codes, flags)
            form.raw(frames)[...] = raw
            reductions_of(frames)[...] = reductions
            if self._replicates:
                number(frames, self._done_number[slots], _SEQUENCED)
            self._output.append(frames)
            self.statistics.result_frames += len(frames)

    # -- losses on the link

    def _ask_for_gaps(self, frames: Frames) -> list[int]:
        """Ask children for sums that were lost on the link from them.

        Returns the rows of frames that had come before, under the same number.
        """
        flags = flags_of(frames)
        sequenced = (flags & _SEQUENCED) != 0
        if not some(sequenced):
            return []
        children = children_of(frames)
        if every(sequenced) and every(children == children[0]):
            return self._take_numbers(frames, flags, int(children[0]))
        copies: list[int] = []
        for child in np.unique(children[sequenced]).tolist():
            rows = np.flatnonzero(sequenced & (children == child))
            copies += rows[self._take_numbers(frames[rows], flags[rows], child)].tolist()
        return copies

    def _take_numbers(self, frames: Frames, flags: NDArray[np.uint8], child: int) -> list[int]:
        """Take in the numbers of a child's frames, and ask it for those that are missing.

        Returns the rows of frames that had come before.
        """
        missing, copies = self._arrivals[child].take(sequences_of(frames), (flags & _REPAIR) != 0)
        if missing:
            requests = sent_back(np.repeat(frames[-1:], len(missing), 0), Kind.REQUEST)
            flags_of(requests)[...] = 0
            number(requests, np.array(missing), _SEQUENCED)
            mark(requests, self._tos | URGENT)
            self.statistics.requests += len(requests)
            self._output.insert(0, requests)
        return copies

    def _answer_requests(self, frames: Frames) -> None:
        """Send results again that were lost on the link to whoever asks."""
        plain, _ = self._asked.sift(frames)
        self.statistics.foreign += len(frames) - int(plain.sum())
        _, fragments = self._sent_log.find(sequences_of(frames[plain]))
        slots = fragments & (self._window - 1)
        held = self._done[slots] == fragments
        if some(held):
            self._repeat(slots[held])

    def _repeat(self, slots: NDArray[np.int64]) -> None:
        """Send finished fragments to all again; who has them drops them."""
        first = self._done_number[slots] == _EMPTY
        if some(first):  # finished in an earlier epoch
            self._done_number[slots[first]] = self._sent_log.number(self._done[slots[first]])
        repairs = self._from_history(slots, _SEQUENCED | _REPAIR)
        mark(repairs, self._tos | URGENT)
        self.statistics.repaired += len(repairs)
        self._output.insert(0, repairs)

    def _tell_history(self) -> None:
        """Send what is finished to all, under a new epoch: some may have missed it.

        Their contributions would wait in the switches for those of others, who have the result
        and send none.
        """
        slots = np.flatnonzero(self._done != _EMPTY)
        if len(slots):
            age = _distance(self._done[slots[0]], self._done[slots])
            slots = slots[np.argsort(-age)]
            self._done_number[slots] = self._sent_log.number(self._done[slots])
            self._output.append(self._from_history(slots, _SEQUENCED))
            self.statistics.answered += len(slots)

    def _from_history(self, slots: NDArray[np.int64], flags: np.uint8) -> Frames:
        """Return the results of these slots as frames for all."""
        frames = self._replicated.make(
            self._done[slots], self._done_code[slots], self._done_flags[slots]
        )
        self._replicated.raw(frames)[...] = self._done_lanes[slots]
        reductions_of(frames)[...] = self._done_reduction[slots]
        number(frames, self._done_number[slots], flags)
        return frames

    # -- the rest

    def _sift(self, frames: Frames, now: float) -> Frames:
        """Return the sums to add, of frames that are not all plain ones.

        What else there is, is done.
        """
        plain, unusual = self._matcher.sift(frames)
        belongs = int(plain.sum()) + int(unusual.sum())
        self.statistics.received += belongs
        self.statistics.foreign += len(frames) - belongs
        for row in np.flatnonzero(unusual):
            self._receive_unusual(frames[row : row + 1], now)
        return frames[plain]

    def _receive_unusual(self, frame: Frames, now: float) -> None:
        """Take in a packet of another epoch, a question, a single, or a total handed over."""
        statistics = self.statistics
        epoch, fragment = int(epochs_of(frame)[0]), int(fragments_of(frame)[0])
        slot = fragment & (self._window - 1)
        if serial_newer(epoch, self.plan.epoch, 16):
            statistics.newer += 1
        elif int(self._done[slot]) == fragment:
            self._answer(np.array([slot]), workers_of(frame))
        elif epoch != self.plan.epoch:
            statistics.older += 1
        elif int(flags_of(frame)[0]) & Flag.STALE:
            statistics.stale += 1
        else:
            self._receive_bypassed(frame, fragment, slot, now)

    def _receive_bypassed(self, frame: Frames, fragment: int, slot: int, now: float) -> None:
        statistics = self.statistics
        worker, weight = int(workers_of(frame)[0]), int(weights_of(frame)[0])
        bypasses = int(flags_of(frame)[0]) & Flag.BYPASS
        if not bypasses or worker >= self._workers or weight not in (1, self._workers):
            statistics.refused += 1
            return
        fragments, slots = np.array([fragment]), np.array([slot])
        flags = flags_of(frame) & _SUMMED
        codes = exponents_of(frame)
        total = weight == self._workers
        if self._integrity is not None and weight == 1:
            right = self._integrity.fits_single(self._up.values(frame), fragments, worker)[0]
            if self._workers > 1 and not right:
                statistics.corrupt += 1
                if self._doubted[slot] and int(self._fragment[slot]) == fragment:
                    self._ask_for_singles(slot)
                return
            total = not right
        if total:
            if self._done[slot] != _EMPTY and not _is_newer(fragments, self._done[slots])[0]:
                statistics.older += 1
            elif not self._within_window(fragment, slot) or not self._is_result(frame):
                statistics.refused += 1
            else:
                statistics.handed_over += 1
                reductions = reductions_of(frame)
                self._finish(slots, fragments, self._up.raw(frame), codes, flags, reductions)
                self._own[slot] = False
            return
        if not self._take_over(fragments, slots, reductions_of(frame), now)[0]:
            return
        held = self._singles.setdefault(slot, {})
        if worker in held or self._held[slot, self._child_of[worker]]:
            statistics.repeats += 1
            return
        statistics.singles += 1
        held[worker] = self._up.values(frame)[0].astype(np.int32)
        self._covered[slot] += 1
        self._flags[slot] |= flags[0]
        self._code[slot] = max(int(self._code[slot]), int(codes[0]))
        if int(self._covered[slot]) == self._workers:
            self._complete(slots)

    def _is_result(self, frame: Frames) -> bool:
        """Whether a total handed over is a result that a server has made."""
        if self._integrity is None:
            return True
        overflow = bool(flags_of(frame)[0] & _OVERFLOW)
        values = self._up.values(frame)
        codes = exponents_of(frame)
        genuine, _ = self._integrity.opened(values, fragments_of(frame), codes, overflow)
        if not genuine[0]:
            self.statistics.corrupt += 1
        return bool(genuine[0])

    def _within_window(self, fragment: int, slot: int) -> bool:
        """Whether a total newer than the history can be one that some worker has the result of.

        Whoever sends f has the result of f - W, and all workers have sent f - W then. So nobody
        is more than a window ahead of a fragment that this server has summed, nor ahead of the
        one that is open in its slot, and none more than two windows behind that one.
        """
        if self._own[slot]:
            return (fragment - int(self._done[slot])) & 0xFFFFFFFF <= self._window
        opened = int(self._fragment[slot])
        return opened == _EMPTY or (opened - fragment) & 0xFFFFFFFF <= 2 * self._window

    def _drop_covered(self, slots: NDArray[np.int64], children: NDArray[np.int64]) -> None:
        """Drop the singles of the workers that sums cover which have arrived."""
        for slot, child in zip(slots.tolist(), children.tolist(), strict=True):
            held = self._singles.get(slot)
            if held is None:
                continue
            for worker in self.tree.server_children[child]:
                if held.pop(worker, None) is not None:
                    self._covered[slot] -= 1

    def _answer(self, slots: NDArray[np.int64], workers: NDArray[np.int64]) -> None:
        """Send finished fragments to those who ask, under this server's epoch and paths."""
        for worker in np.unique(workers):
            if worker >= self._workers:
                self.statistics.refused += int((workers == worker).sum())
                continue
            asked = slots[workers == worker]
            form = self._unicast[int(worker)]
            frames = form.make(self._done[asked], self._done_code[asked], self._done_flags[asked])
            form.raw(frames)[...] = self._done_lanes[asked]
            reductions_of(frames)[...] = self._done_reduction[asked]
            self._output.append(frames)
            self.statistics.answered += len(asked)

    def adopt(self, plan: JobPlan) -> None:
        """Go on under a newer epoch: unfinished fragments are dropped, the history is sent again.

        An older or the same epoch is ignored. Raises PlanError for a plan that changes what is
        fixed for a job's life.
        """
        if not serial_newer(plan.epoch, self.plan.epoch, 16):
            return
        check_same_job(self.plan, plan)
        if (plan.epoch - self.plan.epoch) & 0xFFFF != 1:
            self._own[:] = False  # another server may have been at work in between
        self._bind(plan, self.tree.tree)
        self._fragment[:] = _EMPTY
        self._singles.clear()
        if self._replicates:
            self._tell_history()

    def missing(self) -> Missing | None:
        """Return what the oldest unfinished fragment waits for; None if there is none."""
        open_slots = np.flatnonzero(self._fragment != _EMPTY)
        if not len(open_slots):
            return None
        slot = int(open_slots[np.argmin(self._since[open_slots])])
        here = set(self._singles.get(slot, ()))
        for child, group in enumerate(self.tree.server_children):
            if self._held[slot, child]:
                here.update(group)
        return Missing(
            int(self._fragment[slot]),
            float(self._since[slot]),
            tuple(name for w, name in enumerate(self.plan.workers) if w not in here),
        )


def _combined(
    left: NDArray[np.int32], right: NDArray[np.int32], reductions: NDArray[np.uint8]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Combine rows lane by lane; also return the flags of rows in which a lane wrapped around.

    Row i by `reductions[i]`. Changes `left` and `right`.
    """
    if every(reductions == _SUM):
        total = left + right
        left ^= total
        right ^= total
        left &= right
        wrapped = left.min(axis=1) < 0
        return total, np.where(wrapped, _OVERFLOW, np.uint8(0))
    total, flags = np.empty_like(left), np.zeros(len(left), dtype=np.uint8)
    for each in np.unique(reductions):
        rows = reductions == each
        if each == _SUM:
            total[rows], flags[rows] = _combined(left[rows], right[rows], reductions[rows])
        else:
            total[rows] = _COMBINED_BY[int(each)](left[rows], right[rows])
    return total, flags


def _distance(a: np.int64, b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how much newer a fragment number is than others, as serial numbers of 32 bits."""
    distance: NDArray[np.int64] = ((a - b + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
    return distance


def _is_newer(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether fragment numbers are newer, as serial numbers of 32 bits."""
    distance = (a - b) & 0xFFFFFFFF
    newer: NDArray[np.bool_] = (distance > 0) & (distance < 1 << 31)
    return newer
