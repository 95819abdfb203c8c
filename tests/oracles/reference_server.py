"""The parameter server of one (job, tree): completes sums, and keeps a window of results."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.plan import JobPlan, PlanError, Results, TreePlan
from hopsum.host_agent.bare_frames import with_lanes, without_lanes
from hopsum.host_agent.check_lanes import is_result, seal_sums
from hopsum.host_agent.codec import (
    Form,
    Frames,
    children_of,
    epochs_of,
    every,
    exponents_of,
    flags_of,
    fragments_of,
    known_reductions,
    mark,
    number,
    reduction_byte,
    reductions_of,
    sent_back,
    sequences_of,
    some,
    tos_of,
    weights_of,
    workers_of,
)
from hopsum.host_agent.counters import ServerStatistics
from hopsum.host_agent.history import EMPTY, History
from hopsum.host_agent.integrity import make_integrity
from hopsum.host_agent.link_repairs import REPAIR, SEQUENCED, LinkRepairs
from hopsum.host_agent.plan_checks import check_job, check_same_job
from hopsum.host_agent.server import Missing
from hopsum.network.model import Network
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import MAX_CHILDREN, QUESTION, Flag, Kind, Reduction, serial_newer
from tests.oracles.reference_open_sums import OpenSums
from tests.oracles.reference_server_forms import ServerForms

_NO_WEIGHT = -1
"""Weight of unused child numbers, which no packet has."""
_OVERFLOW = np.uint8(Flag.OVERFLOW)
_SUMMED = np.uint8(Flag.OVERFLOW | Flag.ECN)
"""Flags that a sum inherits from its contributions."""


class ReferenceServer:
    """The server of one tree of a job: frames in, frames out; it has no timers of its own.

    Results carry the IP ToS byte of the sums that come in: their job's priority.
    Per slot it holds the fragment that is being summed (which children's sums are in, and
    singles of workers that bypassed the switches) and the last one finished, its history.
    """

    def __init__(
        self, plan: JobPlan, tree: int, network: Network, key: bytes | None = None
    ) -> None:
        """`key`: for a plan with integrity."""
        check_job(plan)
        self._key = key
        self._network = network
        self.statistics = ServerStatistics()
        window = plan.in_flight
        self._window = window
        self._output: list[Frames] = []
        self._tos = 0
        self._last = np.zeros(window, dtype=np.intp)

        self._sums = OpenSums(window, plan.lanes)
        self._history = History(window, plan.lanes)
        self._own = np.zeros(window, dtype=np.bool_)  # summed here, not handed over
        self._numbers = np.full(window, EMPTY, dtype=np.int64)
        """Link sequence numbers of results in the history; EMPTY: not sent to all in this epoch."""
        self._links = LinkRepairs(window, MAX_CHILDREN, self._output, self.statistics)
        self._bind(plan, tree)

    def _bind(self, plan: JobPlan, tree_number: int) -> None:
        """Set children, stacks and epoch from a plan."""
        trees = {tree.tree: tree for tree in plan.trees}
        if tree_number not in trees:
            raise PlanError(f"job {plan.job} has no tree {tree_number}; its trees: {sorted(trees)}")
        tree: TreePlan = trees[tree_number]
        self.plan = plan
        self.tree = tree
        self._workers = workers = len(plan.workers)
        self._integrity = make_integrity(plan, tree.tree, self._key)
        groups = [len(group) for group in tree.server_children]
        self._sizes = np.full(max(MAX_CHILDREN, len(groups)), _NO_WEIGHT, dtype=np.int64)
        self._sizes[: len(groups)] = [size or _NO_WEIGHT for size in groups]
        self._all_single = tree.singles
        self._summed = any(hop.aggregate for stack in tree.up for hop in stack[:-1])
        self._numbers[:] = EMPTY
        self._replicates = plan.results is Results.REPLICATED
        self._child_of = np.full(workers, EMPTY, dtype=np.int64)
        for child, covered in enumerate(tree.server_children):
            self._child_of[list(covered)] = child
        if (self._child_of == EMPTY).any() or sum(groups) != workers:
            raise PlanError(
                f"job {plan.job}, tree {tree.tree}: the server's children "
                f"{tree.server_children} do not cover its {workers} workers exactly once"
            )

        self._forms = ServerForms(plan, tree, self._network, self._tos)
        self._forms_to_all = [self._forms.replicated] if self._replicates else self._forms.unicast
        self._matcher, self._up = self._forms.matcher, self._forms.up
        self._links.restart(self._forms.request)
        self._sums.restart(tree.server_children)

    # -- frames and time

    def receive(self, frames: Frames, now: float) -> None:
        """Process frames (n, length) of any kind and content."""
        for batch in with_lanes(frames, self.plan.lanes):
            self.receive_whole(batch, now)

    def receive_whole(self, frames: Frames, now: float) -> None:
        """Process frames that all have lanes, whether or not the wire has any."""
        statistics = self.statistics
        if frames.shape[1] == self._forms.replicated.length:
            self._answer_requests(frames)
            return
        known = known_reductions(frames)
        if not every(known):
            statistics.foreign += len(frames) - int(np.count_nonzero(known))
            frames = frames[known]
            if not len(frames):
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
        finished = self._history.has(slots, fragments)
        if some(finished):
            flags = flags_of(frames)
            again = finished & ((flags & REPAIR) == 0)
            again[copies] = False
            by_links = again & ((flags & SEQUENCED) != 0) & self._replicates
            if some(by_links):
                self._repeat(self._forms.replicated, np.unique(slots[by_links]))
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

    def mark(self, tos: int) -> None:
        """Set the IP ToS byte of results, until contributions arrive with another one."""
        if tos != self._tos:
            self._tos = tos
            self._forms.mark(tos)

    def tick(self, now: float) -> None:
        """Do nothing: a server only answers."""

    @property
    def deadline(self) -> float | None:
        """None: a server only answers."""
        return None

    @property
    def deferrable(self) -> int:
        """0: each answer is awaited."""
        return 0

    def take_output(self) -> list[Frames]:
        """Return the frames to send, in order; each batch has one length."""
        return without_lanes(self.take_whole(), self.plan.lanes)

    def take_whole(self) -> list[Frames]:
        """Return the frames to send, with lanes, whether or not the wire has any."""
        taken = self._output[:]
        self._output.clear()
        return taken

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
        """Add sums of unfinished fragments, each slot once."""
        sums = self._sums
        usable = self._open(fragments, slots, reductions_of(frames), now)
        if self._integrity is not None:
            doubted = usable & sums.doubted[slots]
            if some(doubted):
                usable &= ~doubted | self._alone_and_right(frames, fragments, slots, doubted)
        new = usable & ~sums.held[slots, children]
        if not every(new):
            self.statistics.repeats += int((usable & ~new).sum())
            frames, fragments, slots = frames[new], fragments[new], slots[new]
            children, weights = children[new], weights[new]
            if not len(frames):
                return
        self.statistics.sums += len(frames)
        flags = flags_of(frames) & _SUMMED
        codes = exponents_of(frames)
        if sums.singles:
            sums.drop_covered(slots, children)
        alone = weights == self._workers
        if every(alone):
            reductions = reductions_of(frames)
            self._finish_sums(slots, fragments, self._up.raw(frames), codes, flags, reductions)
            return
        sums.add(slots, children, weights, self._up.values(frames), flags, codes)
        complete = sums.covered[slots] == self._workers
        if some(complete):
            self._complete(slots[complete])

    def _open(
        self,
        fragments: NDArray[np.int64],
        slots: NDArray[np.int64],
        reductions: NDArray[np.uint8],
        now: float,
    ) -> NDArray[np.bool_]:
        """Open slots for newer fragments; return which fragments are those of their slots now.

        Older ones are ignored; one of another reduction than its slot's is refused.
        """
        usable, refused = self._sums.open(fragments, slots, reductions, self._history, now)
        self.statistics.refused += refused
        self.statistics.older += len(slots) - int(np.count_nonzero(usable)) - refused
        return usable

    def _complete(self, slots: NDArray[np.int64]) -> None:
        """Finish slots whose fragments are covered."""
        sums = self._sums
        sums.take_singles(slots)
        self._finish_sums(
            slots,
            sums.fragment[slots],
            sums.raw(slots),
            sums.code[slots],
            sums.flags[slots],
            sums.reduction[slots],
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
        """Finish fragments with complete sums, if their check lanes verify.

        Of the others the workers are asked for their single contributions, which each show by
        themselves that they are right; a sum of these that does not fit has wrapped around.
        """
        integrity = self._integrity
        if integrity is None:
            self._finish(slots, fragments, raw, codes, flags, reductions)
            return
        doubted = self._sums.doubted[slots]
        sealed, wrong = seal_sums(integrity, fragments, raw, codes, flags, doubted)
        for each in sealed:
            rows = each.rows
            self._finish(
                slots[rows], fragments[rows], each.raw, codes[rows], each.flags, reductions[rows]
            )
        self._sums.doubt(slots[wrong])
        for slot in slots[wrong].tolist():
            self.statistics.corrupt += 1
            self._ask_for_singles(slot)

    def _ask_for_singles(self, slot: int) -> None:
        """Ask workers whose contributions to a slot's fragment are missing to send them as singles.

        A RESULT flagged BYPASS, whose lanes show that it is the server's.
        """
        assert self._integrity is not None
        wire = int(self._sums.fragment[slot])
        heard = self._sums.heard(slot)
        for worker, form in enumerate(self._forms.questions):
            if worker not in heard:
                question = form.make(np.array([wire]), 0, Flag.BYPASS)
                self._integrity.question(wire, form.values(question))
                self._output.append(question)
                self.statistics.asked += 1

    def _alone_and_right(
        self,
        frames: Frames,
        fragments: NDArray[np.int64],
        slots: NDArray[np.int64],
        doubted: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Return which doubted frames are valid single contributions; ask workers without one
        again."""
        assert self._integrity is not None
        right = np.zeros(len(frames), dtype=np.bool_)
        for row in np.flatnonzero(doubted).tolist():
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
        """Finish fragments: they replace the history of their slots and are sent to all."""
        self._history.keep(slots, fragments, raw, codes, reductions)
        self._history.flags[slots] = flags
        self._own[slots] = True
        self._sums.close(slots, fragments)
        self.statistics.results += len(slots)
        self.statistics.overflowed += int(np.count_nonzero(flags & _OVERFLOW))
        self._numbers[slots] = numbers = self._links.sent.number(fragments)
        for form in self._forms_to_all:
            frames = form.make(fragments, codes, flags)
            form.raw(frames)[...] = raw
            reductions_of(frames)[...] = reductions
            number(frames, numbers, SEQUENCED)
            self._output.append(frames)
            self.statistics.result_frames += len(frames)

    # -- losses on the link

    def _ask_for_gaps(self, frames: Frames) -> list[int]:
        """Request sums that were lost on the link from children.

        Returns the rows of frames that had come before, under the same number.
        """
        flags = flags_of(frames)
        children = children_of(frames)
        sequenced = ((flags & SEQUENCED) != 0) & (children < self._sums.children)
        if not some(sequenced):
            return []
        if every(sequenced) and every(children == children[0]):
            return self._take_numbers(frames, flags, int(children[0]))
        copies: list[int] = []
        for child in np.unique(children[sequenced]).tolist():
            rows = np.flatnonzero(sequenced & (children == child))
            copies += rows[self._take_numbers(frames[rows], flags[rows], child)].tolist()
        return copies

    def _take_numbers(self, frames: Frames, flags: NDArray[np.uint8], child: int) -> list[int]:
        """Process the numbers of a child's frames, and request missing ones.

        Returns the rows of frames that had come before.
        """
        make_requests = partial(_requests_back, frames[-1:], self._tos)
        return self._links.take(frames, flags, child, make_requests)

    def _answer_requests(self, frames: Frames) -> None:
        """Retransmit results that were lost on the link to the requesting neighbour."""
        _, fragments = self._links.requested(frames)
        self._repair(self._forms.replicated, fragments)

    def _answer_question(self, frame: Frames) -> None:
        """Retransmit the unicast result whose number a worker misses."""
        worker = int(workers_of(frame)[0])
        if self._replicates or worker >= self._workers:
            self.statistics.refused += 1
            return
        _, fragments = self._links.sent.find(sequences_of(frame))
        self._repair(self._forms.unicast[worker], fragments)

    def _repair(self, form: Form, fragments: NDArray[np.int64]) -> None:
        """Retransmit those results of fragments (n,) that the history has."""
        slots = fragments & (self._window - 1)
        held = self._history.has(slots, fragments)
        if some(held):
            self._repeat(form, slots[held])

    def _repeat(self, form: Form, slots: NDArray[np.int64]) -> None:
        """Retransmit finished fragments, urgently; switches that keep replicated ones drop them."""
        self._links.repair(self._history.make(form, slots), self._numbers_of(slots), self._tos)

    def _numbers_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers (n,) under which results of the history are sent in this epoch."""
        first = self._numbers[slots] == EMPTY
        if some(first):  # finished in an earlier epoch
            late = slots[first]
            self._numbers[late] = self._links.sent.number(self._history.fragment[late])
        return self._numbers[slots]

    def _send_history(self) -> None:
        """Send the history to all, under a new epoch: some workers may have missed it.

        Their contributions would wait in the switches for those of others, who have the result
        and send none.
        """
        slots = self._history.oldest_first()
        if not len(slots):
            return
        for form in self._forms_to_all:
            frames = self._history.make(form, slots)
            number(frames, self._numbers_of(slots), SEQUENCED)
            self._output.append(frames)
            self.statistics.answered += len(slots)

    # -- the rest

    def _sift(self, frames: Frames, now: float) -> Frames:
        """Process frames that are not all plain; return the sums to add.

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
        """Process a packet of another epoch, a question, a single, or a total handed over."""
        statistics = self.statistics
        epoch, fragment = int(epochs_of(frame)[0]), int(fragments_of(frame)[0])
        slot = fragment & (self._window - 1)
        if serial_newer(epoch, self.plan.epoch, 16):
            statistics.newer += 1
        elif int(flags_of(frame)[0]) & QUESTION == QUESTION:
            if epoch == self.plan.epoch:
                self._answer_question(frame)
            else:
                statistics.older += 1
        elif int(self._history.fragment[slot]) == fragment:
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
                if self._sums.doubted[slot] and int(self._sums.fragment[slot]) == fragment:
                    self._ask_for_singles(slot)
                return
            total = not right
        if total:
            if not self._history.is_older(slots, fragments)[0]:
                statistics.older += 1
            elif not self._within_window(fragment, slot) or not self._is_result(frame):
                statistics.refused += 1
            else:
                statistics.handed_over += 1
                reductions = reductions_of(frame)
                self._finish(slots, fragments, self._up.raw(frame), codes, flags, reductions)
                self._own[slot] = False
            return
        sums = self._sums
        if not self._open(fragments, slots, reductions_of(frame), now)[0]:
            return
        if worker in sums.heard(slot):
            statistics.repeats += 1
            return
        statistics.singles += 1
        values = self._up.values(frame)[0].astype(np.int32)
        sums.add_single(slot, worker, values, int(flags[0]), int(codes[0]))
        if int(sums.covered[slot]) == self._workers:
            self._complete(slots)

    def _is_result(self, frame: Frames) -> bool:
        """Return whether a total handed over is a server's result."""
        if self._integrity is None:
            return True
        genuine = is_result(self._integrity, self._up, frame)
        self.statistics.corrupt += int(not genuine)
        return genuine

    def _within_window(self, fragment: int, slot: int) -> bool:
        """Return whether a total newer than the history can be a result that some worker has.

        A worker that sends f has the result of f - W, so all workers have sent f - W. Hence no
        worker is more than a window ahead of a fragment that this server has summed, none is ahead
        of the one that is open in its slot, and none is more than two windows behind that one.
        """
        if self._own[slot]:
            return (fragment - int(self._history.fragment[slot])) & 0xFFFFFFFF <= self._window
        opened = int(self._sums.fragment[slot])
        return opened == EMPTY or (opened - fragment) & 0xFFFFFFFF <= 2 * self._window

    def _answer(self, slots: NDArray[np.int64], workers: NDArray[np.int64]) -> None:
        """Answer requests for finished fragments, under this server's epoch and paths."""
        for worker in np.unique(workers):
            if worker >= self._workers:
                self.statistics.refused += int((workers == worker).sum())
                continue
            asked = slots[workers == worker]
            frames = self._history.make(self._forms.unicast[int(worker)], asked)
            if not self._replicates:
                number(frames, self._numbers_of(asked), SEQUENCED)
            self._output.append(frames)
            self.statistics.answered += len(asked)

    def adopt(self, plan: JobPlan) -> None:
        """Continue under a newer epoch: drop unfinished fragments, and send the history again.

        An older or the same epoch is ignored. Raises PlanError for a plan that changes what is
        fixed for a job's life.
        """
        if not serial_newer(plan.epoch, self.plan.epoch, 16):
            return
        check_same_job(self.plan, plan)
        if (plan.epoch - self.plan.epoch) & 0xFFFF != 1:
            self._own[:] = False  # another server may have been at work in between
        self._bind(plan, self.tree.tree)
        if self._replicates or self._summed:
            self._send_history()

    def missing(self) -> Missing | None:
        """Return the missing workers of the oldest unfinished fragment; None if there is none."""
        sums = self._sums
        slot = sums.oldest()
        if slot is None:
            return None
        heard = sums.heard(slot)
        return Missing(
            int(sums.fragment[slot]),
            float(sums.since[slot]),
            tuple(name for w, name in enumerate(self.plan.workers) if w not in heard),
        )


def _requests_back(frame: Frames, tos: int, count: int) -> Frames:
    """Return requests to the sender of a frame (1, length)."""
    requests = sent_back(np.repeat(frame, count, 0), Kind.REQUEST)
    flags_of(requests)[...] = 0
    reductions_of(requests)[...] = reduction_byte(Reduction.SUM)  # they have lanes
    mark(requests, tos | URGENT)
    return requests
