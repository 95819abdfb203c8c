"""One process of the group: its request list, its controller, and at the root the master.

Messages and the time in; messages, events and the next deadline out. No thread, socket or clock.

First iteration (004 claims 1-6): a start request goes up the tree, joined at every controller with
those of the other processes below; when the master has it from everybody the response goes down,
and the order of responses becomes the order table. Later (claims 7-12): bit vectors over the table,
combined by an AND all-reduce. What the table does not say, or says wrongly, is negotiated up the
tree again, and the table is amended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collectives.coordination.cycles import Cycles
from collectives.coordination.events import CoordinationOptions, Event, GivenUp, Stalled, Start
from collectives.coordination.failure import (
    CoordinationError,
    OperatorError,
    ProcessLost,
    ProcessRefused,
)
from collectives.coordination.gathering import Gathering
from collectives.coordination.inquiry import Inquiries, Tally
from collectives.coordination.master import Master
from collectives.coordination.messages import (
    Amended,
    Amendment,
    Closed,
    Contest,
    Frame,
    Leave,
    Lost,
    Message,
    Missing,
    Probe,
    Request,
    Response,
    Result,
    Variant,
    Vector,
    Wanted,
)
from collectives.coordination.neighbours import Neighbours
from collectives.coordination.operators import Operator, OrderTable
from collectives.coordination.reduction import AndAllReduce, RingAnd, TreeAnd
from collectives.coordination.tree import CoordinationTree


@dataclass(slots=True)
class _Pending:
    """An entry of the request list."""

    operator: Operator
    since: float
    late_at: float
    asked: bool = False
    contested: bool = False


class Participant:
    """Process `rank` of a tree. `incarnation`: above 0, unlike that of any other process.

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
        """What ended coordination at this process; every later call raises it."""
        self.closed = False
        self.iteration = 0
        self._options = options or CoordinationOptions()
        if reduction is None:
            reduction = RingAnd(tree.ring, rank) if tree.ring else TreeAnd(tree, rank)
        self._cycles = Cycles(reduction, self._options.cycle)
        self._near = Neighbours(
            tree,
            rank,
            incarnation,
            self._options.links,
            now,
            opened=reduction.successors,
            heard=reduction.predecessors,
        )
        self.statistics = self._near.statistics
        self._parent = tree.parents[rank]
        self._members = (rank, *tree.children[rank])
        self._master = Master(tree.names, self._options.forget_after) if self._parent < 0 else None
        self._gathering = Gathering(self._members)
        self._inquiries = Inquiries(self._members)
        self._pending: dict[str, _Pending] = {}
        self._table = OrderTable()
        self._spreading = Tally(())
        self._objections: dict[tuple[str, bool], tuple[int, float]] = {}
        self._leaving = False
        self._left = Tally(self._members)
        self._events: list[Event] = []

    # -- the process

    def begin_iteration(self, number: int, now: float) -> None:
        """Publish the number of the iteration that begins (claim 6); it must grow."""
        self._check_running()
        if number <= self.iteration:
            raise OperatorError(
                f"process {self.name}: iteration {number} after {self.iteration}; expected a "
                f"larger number, from 1"
            )
        self.iteration = number
        if self._master is not None:
            self._master.iteration(number)
            self._amend(now)
        self.advance(now)

    def ready(self, operator: Operator, now: float) -> None:
        """This process is ready for a collective: it goes onto the request list (claim 12).

        Raises OperatorError if one of that name waits already, the failure if the group has failed.
        """
        self.ready_together([operator], now)

    def ready_together(self, operators: Iterable[Operator], now: float) -> None:
        """The same for several that are ready at once: they travel together."""
        self._check_running()
        arisen: list[_Pending] = []
        for operator in operators:
            if self._leaving:
                raise OperatorError(f"process {self.name}: {operator.name} after it has left")
            if operator.name in self._pending:
                raise OperatorError(
                    f"process {self.name}: operator {operator.name} has not started yet; expected "
                    f"another name, or to wait for it"
                )
            arisen.append(_Pending(operator, now, now + self._options.stall))
            self._pending[operator.name] = arisen[-1]
        self._place(arisen, now)
        self.advance(now)

    @property
    def requests(self) -> tuple[Operator, ...]:
        """The request list: what has not started yet, in the order in which it arose."""
        return tuple(self._ready())

    @property
    def table(self) -> OrderTable:
        """The newest order table here."""
        return self._table

    @property
    def vectors(self) -> int:
        """Vectors contributed so far: one a cycle."""
        return self._cycles.vectors

    def leave(self, now: float) -> None:
        """This process needs nothing any more; it stays until `done`."""
        self._check_running()
        if self._pending:
            raise OperatorError(
                f"process {self.name} leaves while {', '.join(self._pending)} have not started"
            )
        if not self._leaving:
            self._leaving = True
            self._take_leave(self.rank, now)

    @property
    def done(self) -> bool:
        """Whether everybody has left and those below know it."""
        return self.closed and self._near.settled

    def _check_running(self) -> None:
        if self.failure is not None:
            raise self.failure

    # -- frames and time

    def receive(self, frame: Frame, now: float) -> None:
        """Take a frame in, of any kind and content."""
        for message in self._near.receive(frame, now):
            if self.failure is None:
                self._obey(frame.source, message, now)
        if self._near.refused is not None and not self.closed:
            self._fail(ProcessRefused(f"process {self.name} is refused: {self._near.refused}"))
        self.advance(now)

    def disconnected(self, rank: int, reason: str, now: float) -> None:
        """The caller knows that the parent or a child is gone, sooner than by its silence."""
        if rank == self._parent or rank in self._members[1:]:
            self._silent(rank, reason, now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        for peer, reason in self._near.tick(now):
            self._silent(peer, reason, now)
        if self.failure is None:
            for pending in [p for p in self._pending.values() if now >= p.late_at]:
                pending.late_at = now + self._options.stall
                name = pending.operator.name
                self._contest(Contest(name, self._table.version, late=True), now)
        self.advance(now)

    def take_output(self) -> list[Frame]:
        """The frames to send, in order."""
        return self._near.take_output()

    def take_events(self) -> list[Event]:
        """What has happened, in order; `Start`s come in the same order at all processes."""
        events, self._events = self._events, []
        return events

    @property
    def deadline(self) -> float | None:
        """When to call `tick`, at the latest; None: nothing waits."""
        deadline = self._near.deadline
        if self.failure is None and self._pending:
            late = min(pending.late_at for pending in self._pending.values())
            deadline = min(deadline, late)
            if not self._withheld:
                deadline = min(deadline, self._cycles.deadline(self._ready()))
        return None if deadline == float("inf") else deadline

    def _obey(self, peer: int, message: Message, now: float) -> None:
        match message:
            case Request(version, wanted):
                self._gather(peer, version, wanted, now)
            case Response():
                self._respond(message, now)
            case Amendment():
                self._take_amendment(message, now)
            case Amended(version):
                self._have_amended(peer, version, now)
            case Contest():
                self._contest(message, now)
            case Probe(name):
                self._probe(name, now)
            case Missing(name, ranks):
                if peer == self._parent:
                    self._tell_missing(name, ranks, now)
                else:
                    self._take_missing(peer, name, ranks, now)
            case Vector() | Result():
                self._reduce(peer, message, now)
            case Lost(rank, reason):
                self._lose(rank, reason, peer, now)
            case Leave():
                self._take_leave(peer, now)
            case Closed():
                self._close(now)
            case _:
                # Greetings and refusals are the links' business.
                pass

    # -- coming and going

    def _silent(self, rank: int, reason: str, now: float) -> None:
        if self.closed or self.failure is not None:
            self._near.forget(rank)
        else:
            self._lose(rank, reason, self.rank, now)

    def _lose(self, rank: int, reason: str, source: int, now: float) -> None:
        """A process is dead: everybody that can be reached hears who."""
        if self._near.is_dead(rank):
            return
        self._near.bury(rank)
        for peer in (self._parent, *self._members[1:]):
            if peer != source:
                self._near.send(peer, Lost(rank, reason), now)
        self._fail(ProcessLost(self.tree.names[rank], reason))

    def _fail(self, error: CoordinationError) -> None:
        if self.failure is None:
            self.failure = error

    def _take_leave(self, member: int, now: float) -> None:
        if not self._left.add(member):
            return
        if self._parent >= 0:
            self._near.send(self._parent, Leave(), now)
        else:
            self._close(now)

    def _close(self, now: float) -> None:
        self.closed = True
        self._near.send_down(Closed(), now)
        self._near.acknowledge_parent(now)

    # -- negotiation

    def _place(self, waiting: Iterable[_Pending], now: float) -> None:
        """Bring requests on their way: the vectors have those of the table, the tree the others."""
        asking: list[Wanted] = []
        for pending in list(waiting):
            operator = pending.operator
            known = self._table.find(operator.name)
            if known is None:
                # Out of the newest table but still in the one in force: wait for the change.
                if not pending.asked and self._cycles.table.find(operator.name) is None:
                    pending.asked = True
                    asking.append(Wanted(operator.name, (Variant(operator, 1, self.rank),)))
            elif known != operator and not pending.contested:
                pending.contested = True
                self._contest(Contest(operator.name, self._table.version, late=False), now)
        if asking:
            self._gather(self.rank, self._table.version, asking, now)

    def _gather(self, member: int, version: int, wanted: Iterable[Wanted], now: float) -> None:
        complete = self._gathering.request(member, version, wanted)
        if not complete:
            return
        if self._master is None:
            self._near.send(self._parent, Request(self._table.version, tuple(complete)), now)
            return
        response = self._master.complete(complete)
        if response is not None:
            self._respond(response, now)
        self._amend(now)

    def _respond(self, response: Response, now: float) -> None:
        self._near.send_down(response, now)
        for name in response.start:
            self._start(name, now)
        for name, reason in response.failed:
            self._events.append(GivenUp(self._pending.pop(name).operator, reason))

    def _start(self, name: str, now: float) -> None:
        pending = self._pending.pop(name)
        self._events.append(Start(pending.operator, now - pending.since))

    # -- the order table

    def _amend(self, now: float) -> None:
        """At the root: hand down the next version of the table, if there is one."""
        assert self._master is not None
        amendment = self._master.amendment(self._cycles.number)
        if amendment is not None:
            self._take_amendment(amendment, now)

    def _take_amendment(self, amendment: Amendment, now: float) -> None:
        self._near.send_down(amendment, now)
        self._table = self._table.amended(amendment.version, amendment.removed, amendment.added)
        self._gathering.adopt(self._table)
        self._objections.clear()
        self._cycles.amend(amendment.cycle, self._table)
        for pending in self._pending.values():
            pending.contested = False
            if self._table.find(pending.operator.name) is not None:
                pending.asked = False
        self._spreading = Tally(self._members)
        self._have_amended(self.rank, amendment.version, now)
        self._place(self._pending.values(), now)

    def _have_amended(self, member: int, version: int, now: float) -> None:
        if version != self._table.version or not self._spreading.add(member):
            return
        if self._master is None:
            self._near.send(self._parent, Amended(version), now)
        else:
            self._master.acknowledged(version)
            self._amend(now)

    def _contest(self, contest: Contest, now: float) -> None:
        """Pass an objection up, once; at the root act on it."""
        key = contest.name, contest.late
        version, passed = self._objections.get(key, (-1, float("-inf")))
        again = contest.late and now >= passed + self._options.stall / 2
        if contest.version <= version and not again:
            return
        self._objections[key] = contest.version, now
        if self._master is None:
            self._near.send(self._parent, contest, now)
        elif self._master.contest(contest.name, contest.version):
            self._amend(now)
        elif contest.late:
            self._probe(contest.name, now)

    def _probe(self, name: str, now: float) -> None:
        """Ask the subtree who has not asked for an operator."""
        if self._inquiries.begin(name):
            self._near.send_down(Probe(name), now)
            own = () if name in self._pending else (self.rank,)
            self._take_missing(self.rank, name, own, now)

    def _take_missing(self, member: int, name: str, ranks: Iterable[int], now: float) -> None:
        missing = self._inquiries.answer(member, name, ranks)
        if missing is None:
            return
        if self._master is None:
            self._near.send(self._parent, Missing(name, missing), now)
        elif missing:
            self._tell_missing(name, missing, now)

    def _tell_missing(self, name: str, ranks: tuple[int, ...], now: float) -> None:
        self._near.send_down(Missing(name, ranks), now)
        pending = self._pending.get(name)
        if pending is not None:
            names = tuple(self.tree.names[rank] for rank in ranks)
            self._events.append(Stalled(pending.operator, names))

    # -- bit vectors

    def advance(self, now: float) -> None:
        """Take the bit vectors as far as they go; the caller of `ExternalAnd` calls this too."""
        if self.failure is not None:
            return
        try:
            while self._cycle(now):
                pass
        except CoordinationError as error:
            self._fail(error)

    def _cycle(self, now: float) -> bool:
        """One step; whether there may be another."""
        chosen = self._cycles.finish()
        if chosen is not None:
            for operator in chosen:
                self._start(operator.name, now)
            if self._master is not None:
                self._master.started(operator.name for operator in chosen)
            return True
        if self._cycles.switch():
            self._place(self._pending.values(), now)
            return True
        if self._withheld:
            return False
        outgoing = self._cycles.contribute(self._ready(), now)
        for peer, message in outgoing or ():
            self._near.send(peer, message, now)
        return outgoing is not None

    @property
    def _withheld(self) -> bool:
        """Everybody gets a new table before the last cycle of the old one can end: at the root."""
        return self._master is not None and self._master.amending

    def _ready(self) -> Iterator[Operator]:
        return (pending.operator for pending in self._pending.values())

    def _reduce(self, peer: int, message: Vector | Result, now: float) -> None:
        try:
            outgoing = self._cycles.reduction.receive(peer, message)
        except CoordinationError as error:
            self._fail(error)
            return
        for target, further in outgoing:
            self._near.send(target, further, now)
