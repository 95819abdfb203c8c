"""One process of the group: its request list, its controller, and at the root the master.

Messages and the time in; messages, events and the next deadline out. No thread, socket or clock.

First iteration ([004 claims 1-6][004]): a start request goes up the tree, and every controller
merges it with those of the other processes below; when the master has it from all, the response
goes down, and the order of responses becomes the order table. Later (claims 7-12): bit vectors over
the table, combined by an AND all-reduce. An operator that is not in the
table, or has other details there, is negotiated again, and the table is amended.

Each process numbers its own iterations, and every request, vector and start carries the number:
only operators of one iteration are matched. A process that ends an iteration reports it. If another
waits for an operator that this one has not requested, it reports that, and coordination ends at all
processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hopsum.coordination.cycles import Cycles
from hopsum.coordination.events import CoordinationOptions, Event, Rejection, Stall, Start
from hopsum.coordination.failure import (
    CoordinationError,
    IterationMismatch,
    OperatorError,
    ProcessLost,
    ProcessRefused,
)
from hopsum.coordination.inquiry import Inquiries, Tally
from hopsum.coordination.iterations import Iterations, ProgressTracker
from hopsum.coordination.master import Master
from hopsum.coordination.messages import (
    Amendment,
    AmendmentReceipt,
    Closure,
    Contest,
    Frame,
    Leave,
    LossReport,
    Message,
    Mismatch,
    MissingRanks,
    Misuse,
    OperatorRequest,
    Probe,
    Progress,
    Request,
    Response,
    Result,
    UnmatchedOperator,
    Variant,
    Vector,
)
from hopsum.coordination.neighbours import Neighbours
from hopsum.coordination.operators import NO_MORE, Operator, OrderTable
from hopsum.coordination.reduction import AndAllReduce, RingAnd, TreeAnd
from hopsum.coordination.request_collector import RequestCollector
from hopsum.coordination.tree import CoordinationTree


@dataclass(slots=True)
class _PendingRequest:
    """An entry of the request list."""

    operator: Operator
    since: float
    late_at: float
    asked: bool = False
    contested: bool = False


class Participant:
    """Process `rank` of a tree. `incarnation`: above 0, unique to the process.

    `reduction`: how vectors are combined; by default on the virtual ring if the tree has one, else
    on the tree (claim 11). Times are seconds of one monotonic clock, the caller's.
    """

    def __init__(
        self,
        tree: CoordinationTree,
        rank: int,
        incarnation: int,
        now: float,
        options: CoordinationOptions | None = None,
        reduction: AndAllReduce | None = None,
    ) -> None:
        self.tree = tree
        self.rank = rank
        self.name = tree.names[rank]
        self.failure: CoordinationError | None = None
        """The error that ended coordination at this process; every later call raises it."""
        self.closed = False
        self._options = options or CoordinationOptions()
        if reduction is None:
            reduction = RingAnd(tree.ring, rank) if tree.ring else TreeAnd(tree, rank)
        self._cycles = Cycles(reduction, self._options.cycle)
        self._neighbours = Neighbours(
            tree,
            rank,
            incarnation,
            self._options.links,
            now,
            opened=reduction.successors,
            heard=reduction.predecessors,
        )
        self.statistics = self._neighbours.statistics
        self._parent = tree.parents[rank]
        self._members = (rank, *tree.children[rank])
        self._master = Master(tree.names, self._options.forget_after) if self._parent < 0 else None
        self._collector = RequestCollector(self._members)
        self._inquiries = Inquiries(self._members)
        self._pending: dict[str, _PendingRequest] = {}
        self._table = OrderTable()
        self._amendment_receipts = Tally(())
        self._objections: dict[tuple[str, bool], tuple[int, float]] = {}
        self._iterations = Iterations(rank)
        self._progress = ProgressTracker(self._members)
        self._finished_below = 0
        self._ending: Mismatch | None = None
        self._leaving = False
        self._left = Tally(self._members)
        self._events: list[Event] = []

    # -- the process

    def begin_iteration(self, number: int, now: float) -> None:
        """Publish the number of the iteration that begins (claim 6); it must grow.

        Ends the previous one. Raises OperatorError if operators of that have not started.
        """
        self._check_running()
        if not self.iteration < number < NO_MORE:
            raise OperatorError(
                f"process {self.name}: iteration {number} after {self.iteration}; expected a "
                f"larger number, from 1 to {NO_MORE - 1}"
            )
        self._check_started(f"begins iteration {number}")
        self._iterations.begin(number)
        self._advance_to(number, now)
        if self._master is not None:
            self._master.iteration(number)
            self._amend(now)
        self.advance(now)

    def end_iteration(self, now: float) -> None:
        """Request no more operators of the iteration; pending ones may still start.

        `begin_iteration` implies it. Call it where a process waits for its operators before it
        begins the next iteration: if each waited for an operator that another lacks, none would
        begin the next, and nobody would learn of the error. Raises OperatorError if no iteration
        has begun.
        """
        self._check_running()
        if not self.iteration:
            raise OperatorError(
                f"process {self.name} ends an iteration before it has begun one; expected "
                f"begin_iteration before"
            )
        self._advance_to(self.iteration + 1, now)
        self.advance(now)

    @property
    def iteration(self) -> int:
        """The latest published iteration; 0: none, and operators may recur."""
        return self._iterations.number

    @property
    def over_everywhere(self) -> int:
        """All iterations below this number are over at all processes, with the same operators."""
        return self._iterations.over

    def ready(self, operator: Operator, now: float) -> None:
        """Request a collective: it is added to the request list (claim 12).

        A second request for one name in an iteration, or one after its end, fails the group: see
        `failure`. Raises that failure if the group has failed, OperatorError if this process has
        left, or if it has published no iteration and an operator of that name is pending.
        """
        self.ready_together([operator], now)

    def ready_together(self, operators: Iterable[Operator], now: float) -> None:
        """Request several collectives at once, in one message."""
        self._check_running()
        added: list[_PendingRequest] = []
        for operator in operators:
            if self._leaving:
                raise OperatorError(f"process {self.name}: {operator.name} after it has left")
            if not self.iteration and operator.name in self._pending:
                raise OperatorError(
                    f"process {self.name}: operator {operator.name} has not started yet; expected "
                    f"another name, or to wait for it"
                )
            misuse = self._iterations.call(operator.name)
            if misuse is not None:
                self._misuse(Misuse(self.rank, self.iteration, operator.name, misuse), now)
                continue
            added.append(_PendingRequest(operator, now, now + self._options.stall))
            self._pending[operator.name] = added[-1]
        self._send_requests(added, now)
        self.advance(now)

    @property
    def requests(self) -> tuple[Operator, ...]:
        """The request list: pending operators, in the order of requests."""
        return tuple(self._ready())

    @property
    def table(self) -> OrderTable:
        """The newest order table at this process."""
        return self._table

    @property
    def vectors(self) -> int:
        """Vectors contributed so far: one a cycle."""
        return self._cycles.vectors

    def leave(self, now: float) -> None:
        """Leave the group; the process must run until `done`."""
        self._check_running()
        self._check_started("leaves")
        if not self._leaving:
            self._leaving = True
            self._advance_to(NO_MORE, now)
            self._take_leave(self.rank, now)
            self.advance(now)

    @property
    def done(self) -> bool:
        """Whether all processes have left and the children know it."""
        return self.closed and self._neighbours.settled

    def _check_running(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _check_started(self, what: str) -> None:
        if self._pending:
            raise OperatorError(
                f"process {self.name} {what} while {', '.join(self._pending)} have not started"
            )

    # -- frames and time

    def receive(self, frame: Frame, now: float) -> None:
        """Process a frame of any kind and content."""
        for message in self._neighbours.receive(frame, now):
            if self.failure is None:
                try:
                    self._process(frame.source, message, now)
                except CoordinationError as error:
                    self._fail(error)
        if self._neighbours.refused is not None and not self.closed:
            self.refused(self._neighbours.refused)
        self.advance(now)

    def refused(self, reason: str) -> None:
        """Record that this process is rejected."""
        self._fail(ProcessRefused(f"process {self.name} is refused: {reason}"))

    def disconnected(self, rank: int, reason: str, now: float) -> None:
        """Record that the parent or a child is lost, before its timeout."""
        if rank == self._parent or rank in self._members[1:]:
            self._silent(rank, reason, now)

    def tick(self, now: float) -> None:
        """Run due timers."""
        for peer, reason in self._neighbours.tick(now):
            self._silent(peer, reason, now)
        if self.failure is None:
            for pending in [p for p in self._pending.values() if now >= p.late_at]:
                pending.late_at = now + self._options.stall
                name = pending.operator.name
                contest = Contest(self.iteration, name, self._table.version, late=True)
                self._contest(contest, now)
        self.advance(now)

    def take_output(self) -> list[Frame]:
        """Return the frames to send, in order."""
        return self._neighbours.take_output()

    def take_events(self) -> list[Event]:
        """Return events, in order; `Start`s have the same order at all processes."""
        events, self._events = self._events, []
        return events

    @property
    def deadline(self) -> float | None:
        """Latest time to call `tick`; None: no timer."""
        deadline = self._neighbours.deadline
        if self.failure is None and self._pending:
            late = min(pending.late_at for pending in self._pending.values())
            deadline = min(deadline, late)
            if not self._withheld:
                due = self._cycles.deadline(self._ready(), self.iteration)
                deadline = min(deadline, due)
        return None if deadline == float("inf") else deadline

    def _process(self, peer: int, message: Message, now: float) -> None:
        match message:
            case Request(version, wanted):
                self._gather(peer, version, wanted, now)
            case Response():
                self._respond(message, now)
            case Amendment():
                self._take_amendment(message, now)
            case AmendmentReceipt(version):
                self._take_receipt(peer, version, now)
            case Contest():
                self._contest(message, now)
            case Probe():
                self._probe(message, now)
            case MissingRanks():
                if peer == self._parent:
                    self._tell_missing(message, now)
                else:
                    self._take_missing(peer, message, now)
            case Progress():
                self._take_progress(peer, message, now)
            case UnmatchedOperator():
                self._take_unmatched(message, now)
            case Misuse():
                self._misuse(message, now)
            case Mismatch():
                self._end(message, now)
            case Vector() | Result():
                self._reduce(peer, message, now)
            case LossReport(rank, reason):
                self._report_loss(rank, reason, peer, now)
            case Leave():
                self._take_leave(peer, now)
            case Closure():
                self._close(now)
            case _:
                # `Neighbours` handles Hello, Welcome and Refusal.
                pass

    # -- losses and leaving

    def _silent(self, rank: int, reason: str, now: float) -> None:
        if self.closed or self.failure is not None:
            self._neighbours.drop(rank)
        else:
            self._report_loss(rank, reason, self.rank, now)

    def _report_loss(self, rank: int, reason: str, source: int, now: float) -> None:
        """Notify every reachable process that a process is dead."""
        if self._neighbours.is_dead(rank):
            return
        self._neighbours.mark_dead(rank)
        for peer in (self._parent, *self._members[1:]):
            if peer != source:
                self._neighbours.send(peer, LossReport(rank, reason), now)
        self._fail(ProcessLost(self.tree.names[rank], reason))

    def _fail(self, error: CoordinationError) -> None:
        if self.failure is None:
            # The other processes fail by the same mismatch; no further message is needed.
            self.failure = error if self._ending is None else self._mismatch(self._ending)

    def _mismatch(self, ending: Mismatch) -> IterationMismatch:
        names = tuple(self.tree.names[rank] for rank in ending.ranks)
        return IterationMismatch(ending.name, ending.iteration, names, ending.reason)

    def _take_leave(self, member: int, now: float) -> None:
        if not self._left.add(member):
            return
        if self._parent >= 0:
            self._neighbours.send(self._parent, Leave(), now)
        else:
            self._close(now)

    def _close(self, now: float) -> None:
        self.closed = True
        self._neighbours.send_down(Closure(), now)
        self._neighbours.acknowledge_parent(now)

    # -- negotiation

    def _send_requests(self, waiting: Iterable[_PendingRequest], now: float) -> None:
        """Send requests: those in the table by vectors, others along the tree."""
        requested: list[OperatorRequest] = []
        for pending in list(waiting):
            operator = pending.operator
            known = self._table.find(operator.name)
            if known is None:
                # Not in the newest table, but in the one still in force: wait for the change.
                if not pending.asked and self._cycles.table.find(operator.name) is None:
                    pending.asked = True
                    form = Variant(operator, 1, self.rank)
                    requested.append(OperatorRequest(self.iteration, operator.name, (form,)))
            elif known != operator and not pending.contested:
                pending.contested = True
                self._contest(
                    Contest(self.iteration, operator.name, self._table.version, late=False), now
                )
        if requested:
            self._gather(self.rank, self._table.version, requested, now)

    def _gather(
        self, member: int, version: int, wanted: Iterable[OperatorRequest], now: float
    ) -> None:
        complete = self._collector.request(member, version, wanted)
        if not complete:
            return
        if self._master is None:
            self._neighbours.send(self._parent, Request(self._table.version, tuple(complete)), now)
            return
        if self._ending is not None:
            return
        response = self._master.complete(complete)
        if response is not None:
            self._respond(response, now)
        self._amend(now)

    def _respond(self, response: Response, now: float) -> None:
        self._neighbours.send_down(response, now)
        for iteration, name in response.start:
            self._start(iteration, name, now)
        for iteration, name, reason in response.failed:
            self._events.append(Rejection(self._take_pending(iteration, name).operator, reason))
            # All processes may request it again.
            self._iterations.give_up(name)

    def _start(self, iteration: int, name: str, now: float) -> None:
        pending = self._take_pending(iteration, name)
        self._events.append(Start(pending.operator, now - pending.since, iteration))

    def _take_pending(self, iteration: int, name: str) -> _PendingRequest:
        pending = self._pending.pop(name, None)
        if pending is None or iteration != self.iteration:
            raise CoordinationError(
                f"process {self.name}, iteration {self.iteration}: {name} of iteration {iteration} "
                f"starts without this process, which is a defect of hopsum"
            )
        return pending

    # -- the order table

    def _amend(self, now: float) -> None:
        """At the root: distribute the next version of the table, if there is one."""
        assert self._master is not None
        if self._ending is not None:
            return
        amendment = self._master.amendment(self._cycles.number)
        if amendment is not None:
            self._take_amendment(amendment, now)

    def _take_amendment(self, amendment: Amendment, now: float) -> None:
        self._neighbours.send_down(amendment, now)
        self._table = self._table.amended(amendment.version, amendment.removed, amendment.added)
        self._collector.adopt(self._table)
        self._objections.clear()
        self._cycles.amend(amendment.cycle, self._table)
        for pending in self._pending.values():
            pending.contested = False
            if self._table.find(pending.operator.name) is not None:
                pending.asked = False
        self._amendment_receipts = Tally(self._members)
        self._take_receipt(self.rank, amendment.version, now)
        self._send_requests(self._pending.values(), now)

    def _take_receipt(self, member: int, version: int, now: float) -> None:
        if version != self._table.version or not self._amendment_receipts.add(member):
            return
        if self._master is None:
            self._neighbours.send(self._parent, AmendmentReceipt(version), now)
        else:
            self._master.acknowledged(version)
            self._amend(now)

    def _contest(self, contest: Contest, now: float) -> None:
        """Pass an objection up once; at the root amend the table, or ask who causes the delay."""
        key = contest.name, contest.late
        version, passed = self._objections.get(key, (-1, float("-inf")))
        again = contest.late and now >= passed + self._options.stall / 2
        if contest.version <= version and not again:
            return
        self._objections[key] = contest.version, now
        if self._master is None:
            self._neighbours.send(self._parent, contest, now)
        elif self._master.contest(contest.name, contest.version):
            self._amend(now)
        elif contest.late:
            self._probe(Probe(contest.iteration, contest.name, 0), now)

    def _probe(self, probe: Probe, now: float) -> None:
        """Ask the subtree which processes delay an operator."""
        if self._inquiries.begin(probe):
            self._neighbours.send_down(probe, now)
            if probe.count:
                missing = self._iterations.never_requests(probe)
            else:
                missing = not self._waits_for(probe)
            own = (self.rank,) if missing else ()
            self._take_missing(self.rank, MissingRanks(probe, own), now)

    def _waits_for(self, probe: Probe) -> bool:
        return probe.iteration == self.iteration and probe.name in self._pending

    def _take_missing(self, member: int, answer: MissingRanks, now: float) -> None:
        missing = self._inquiries.answer(member, answer)
        if missing is None:
            return
        if self._master is None:
            self._neighbours.send(self._parent, missing, now)
        elif missing.probe.count:
            reason = "ended it without being ready for it"
            self._end_group(missing.probe.iteration, missing.probe.name, missing.ranks, reason, now)
        elif missing.ranks:
            self._tell_missing(missing, now)

    def _tell_missing(self, missing: MissingRanks, now: float) -> None:
        self._neighbours.send_down(missing, now)
        if self._waits_for(missing.probe):
            names = tuple(self.tree.names[rank] for rank in missing.ranks)
            self._events.append(Stall(self._pending[missing.probe.name].operator, names))

    # -- iterations

    def _advance_to(self, iteration: int, now: float) -> None:
        """Report that this process requests no more operators of lower iterations."""
        ended = self._iterations.advance_to(iteration)
        if ended is not None:
            self._finished_below = self._iterations.finished_below(bool(self._pending))
            self._take_progress(self.rank, replace(ended, over=self._finished_below), now)

    def _report_over(self, now: float) -> None:
        """Report iterations that have ended here and have no pending operator."""
        over = self._iterations.finished_below(bool(self._pending))
        if over > self._finished_below:
            self._finished_below = over
            self._take_progress(self.rank, Progress(over, 0, 0, self.rank, ()), now)

    def _take_progress(self, peer: int, progress: Progress, now: float) -> None:
        if peer == self._parent:
            self._adopt_progress(progress, now)
            return
        passed = self._progress.report(peer, progress)
        if passed is None:
            return
        if self._master is None:
            self._neighbours.send(self._parent, passed, now)
        else:
            self._adopt_progress(passed, now)

    def _adopt_progress(self, progress: Progress, now: float) -> None:
        self._neighbours.send_down(progress, now)
        self._progress.adopt(progress)
        self._iterations.adopt(progress)

    def _take_unmatched(self, unmatched: UnmatchedOperator, now: float) -> None:
        if self._master is None:
            self._neighbours.send(self._parent, unmatched, now)
        else:
            self._probe(Probe(unmatched.iteration, unmatched.name, unmatched.count), now)

    def _misuse(self, misuse: Misuse, now: float) -> None:
        if self._master is None:
            self._neighbours.send(self._parent, misuse, now)
        else:
            self._end_group(misuse.iteration, misuse.name, (misuse.rank,), misuse.reason, now)

    def _end_group(
        self, iteration: int, name: str, ranks: tuple[int, ...], reason: str, now: float
    ) -> None:
        """At the root: end coordination at all processes, after the same starts.

        The root contributes no further vector, so no later cycle can end.
        """
        if self._ending is None:
            self._end(Mismatch(self._cycles.number, iteration, name, ranks, reason), now)

    def _end(self, mismatch: Mismatch, now: float) -> None:
        self._neighbours.send_down(mismatch, now)
        self._ending = mismatch
        self._cycles.until = mismatch.cycle

    # -- bit vectors

    def advance(self, now: float) -> None:
        """Advance the bit vectors as far as possible; users of `ExternalAnd` call this too."""
        if self.failure is not None:
            return
        try:
            while self._cycle(now):
                pass
        except CoordinationError as error:
            self._fail(error)
            return
        ending = self._ending
        if ending is None:
            self._report_over(now)
            unmatched = self._iterations.take_unmatched()
            if unmatched is not None:
                self._take_unmatched(unmatched, now)
        elif self._cycles.finished >= ending.cycle:
            self._fail(self._mismatch(ending))

    def _cycle(self, now: float) -> bool:
        """Advance by one step; return whether another may be possible."""
        chosen = self._cycles.finish()
        if chosen is not None:
            for operator in chosen:
                self._start(self.iteration, operator.name, now)
            if self._master is not None:
                self._master.started(operator.name for operator in chosen)
            return True
        if self._cycles.switch():
            self._send_requests(self._pending.values(), now)
            return True
        if self._withheld:
            return False
        outgoing = self._cycles.contribute(self._ready(), self.iteration, now)
        for peer, message in outgoing or ():
            self._neighbours.send(peer, message, now)
        return outgoing is not None

    @property
    def _withheld(self) -> bool:
        """Whether the root withholds its vector: until all have a new table, or at the end."""
        return self._master is not None and (self._master.amending or self._ending is not None)

    def _ready(self) -> Iterator[Operator]:
        return (pending.operator for pending in self._pending.values())

    def _reduce(self, peer: int, message: Vector | Result, now: float) -> None:
        try:
            outgoing = self._cycles.reduction.receive(peer, message)
        except CoordinationError as error:
            self._fail(error)
            return
        for target, further in outgoing:
            self._neighbours.send(target, further, now)
