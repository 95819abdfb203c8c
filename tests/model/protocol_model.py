"""The protocol as a transition system: product workers and server, reference switches, the network.

Frames in flight are a bag: any of them may arrive next, so that every reordering is tried. What is
limited is counted in a budget: losses, copies, sendings that nothing asked for, bypasses,
questions, reboots, crashes, plans.

A worker may join with the plan of epoch 2, for tensors from one on (`Tensors.grown_from`). If it
crashes, epoch 3 has those workers that were there before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.server import Server
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network
from tests.model.components import (
    Automaton,
    Event,
    Sent,
    Tensors,
    Unsafe,
    check_server,
    check_worker,
    hand_over,
    in_flight,
    new_switch,
    new_worker,
    results_of,
    rows,
    send_again,
    sent_by,
    set_plan,
    stream_of,
    submit,
    submitted,
)
from tests.oracles.reference_switch import ReferenceSwitch
from tests.support.protocol_world import SERVER
from tests.support.server_state import finished_at

NO_SERVER = -1
ABSENT, CRASHED = -1, -2
"""In the place of a worker's state: it has not joined yet; it has crashed."""
FAIR_ROUNDS = 40
"""Deliveries and timeouts within which everything ends once no more faults occur."""


class Budget(NamedTuple):
    """How often each of these may still happen."""

    losses: int = 0
    copies: int = 0
    again: int = 0
    bypass: int = 0
    ask: int = 0
    reboots: int = 0
    crashes: int = 0


@dataclass(frozen=True)
class Setting:
    """A scenario. `plans`: of epochs 1, 2, ...; `new_servers`: epochs whose server is empty.

    If the plans' server is a worker, it is a part of that worker. `boundary`: says whether another
    worker may join, from whether each worker has all results of the tensors before.
    """

    name: str
    network: Network
    plans: tuple[JobPlan, ...]
    tensors: Tensors
    budget: Budget
    new_servers: frozenset[int] = frozenset()
    boundary: Callable[[Iterable[bool]], bool] = all

    @property
    def rooted(self) -> bool:
        """Whether the server is at a worker."""
        return self.plans[0].trees[0].server in self.plans[0].workers

    @property
    def hosts(self) -> tuple[str, ...]:
        """Of all workers that the job ever has; those of each plan are the first of them."""
        return max((plan.workers for plan in self.plans), key=len)

    @property
    def slots(self) -> int:
        """Of each switch."""
        return self.plans[0].window


class State(NamedTuple):
    """Numbers of the components' states, frames in flight, and what may still happen.

    `workers`: or ABSENT, CRASHED; `server`: NO_SERVER if it is at a worker; `frames`: sorted (link,
    frame) numbers; `planned`: the epoch of the newest plan.
    """

    workers: tuple[int, ...]
    server: int
    switches: tuple[int, ...]
    frames: tuple[tuple[int, int], ...]
    planned: int
    left: Budget


class Step(NamedTuple):
    """A transition: what happens, in words, and what follows."""

    what: str
    after: State


class Model:
    """The transition system of a setting. Transitions raise Unsafe."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        network = setting.network
        shared = [network, *setting.plans, *(tree for p in setting.plans for tree in p.trees)]
        self._names = [*network.switches]
        self._workers = [Automaton(shared) for _ in setting.hosts]
        self._server = Automaton(shared)
        self._switches = [Automaton(shared) for _ in self._names]
        self._frames: dict[bytes, int] = {}
        self._contents: list[bytes] = []
        self._links = [*network.directed_links()]
        self._link_of = {ends: number for number, ends in enumerate(self._links)}
        self._place = {name: number for number, name in enumerate(self._names)}
        self._index = {host: number for number, host in enumerate(setting.hosts)}
        self._results: dict[tuple[int, int], dict[int, int]] = {}

    # -- states

    def initial(self) -> State:
        """Return the state in which all workers have sent their first fragments."""
        setting, plan = self.setting, self.setting.plans[0]
        frames: list[tuple[int, int]] = []
        workers = []
        for index, automaton in enumerate(self._workers):
            if index >= len(plan.workers):
                workers.append(ABSENT)
                continue
            worker = new_worker(plan, index, setting.network, setting.tensors)
            frames += self._from_host(worker.host, sent_by(worker))
            workers.append(automaton.add(worker))
        server = NO_SERVER
        if not setting.rooted:
            server = self._server.add(Server(plan, 0, setting.network))
        switches = tuple(
            automaton.add(new_switch(plan, name, setting.slots))
            for automaton, name in zip(self._switches, self._names, strict=True)
        )
        return State(
            tuple(workers), server, switches, tuple(sorted(frames)), plan.epoch, setting.budget
        )

    def done(self, state: State) -> bool:
        """Whether all workers have all results, one that is to join among them."""
        if len(state.workers) > len(self.setting.plans[0].workers) and state.planned == 1:
            return False
        tensors = len(self.setting.tensors.reductions)
        return ABSENT not in state.workers and all(
            worker.idle and submitted(worker) == tensors for _, worker in self._present(state)
        )

    def _present(self, state: State) -> Iterator[tuple[int, Worker]]:
        """The workers that are there, with their indices."""
        for index, (automaton, number) in enumerate(zip(self._workers, state.workers, strict=True)):
            if number >= 0:
                yield index, automaton[number]

    # -- frames

    def _number(self, frame: bytes) -> int:
        number = self._frames.setdefault(frame, len(self._contents))
        if number == len(self._contents):
            self._contents.append(frame)
        return number

    def _from_host(self, host: str, sent: Sent) -> list[tuple[int, int]]:
        link = self._link_of[host, self.setting.network.access_switch(host)]
        return [(link, self._number(frame)) for _, frame in sent]

    def _from_switch(self, name: str, sent: Sent) -> list[tuple[int, int]]:
        network = self.setting.network
        return [
            (self._link_of[name, network.neighbour(name, port)], self._number(frame))
            for port, frame in sent
        ]

    # -- what components do

    def _worker_step(self, state: State, index: int, event: Event) -> State:
        automaton, setting = self._workers[index], self.setting

        def act(worker: Worker) -> Sent:
            match event:
                case ("frame", int(number)):
                    worker.receive(rows(self._contents[number]), 0.0)
                case ("adopt", int(epoch)):
                    worker.adopt(setting.plans[epoch - 1], 0.0)
                    submit(worker, index, setting.tensors, None)
                case ("hand",):
                    hand_over(worker)
                case (str(how), int(slot)):
                    send_again(worker, slot, how)
            check_worker(worker, setting.tensors)
            return sent_by(worker)

        after, sent = automaton.step(state.workers[index], event, act)
        return self._with_worker(state, index, after, sent)

    def _with_worker(self, state: State, index: int, after: int, sent: Sent) -> State:
        workers = (*state.workers[:index], after, *state.workers[index + 1 :])
        host = self.setting.hosts[index]
        state = _sending(state._replace(workers=workers), self._from_host(host, sent))
        self._check_sets(state)
        return state

    def _join(self, state: State, index: int, epoch: int) -> State:
        setting = self.setting
        plan, tensors = setting.plans[epoch - 1], setting.tensors
        worker = new_worker(plan, index, setting.network, tensors, tensors.grown_from)
        sent = sent_by(worker)
        return self._with_worker(state, index, self._workers[index].add(worker), sent)

    def _server_step(self, state: State, event: Event) -> State:
        def act(server: Server) -> Sent:
            match event:
                case ("frame", int(number)):
                    server.receive(rows(self._contents[number]), 0.0)
                case ("adopt", int(epoch)):
                    server.adopt(self.setting.plans[epoch - 1])
            check_server(server, self.setting.tensors)
            return sent_by(server)

        after, sent = self._server.step(state.server, event, act)
        state = _sending(state._replace(server=after), self._from_host(SERVER, sent))
        self._check_sets(state)
        return state

    def _new_server(self, state: State, epoch: int) -> State:
        plan = self.setting.plans[epoch - 1]
        return state._replace(server=self._server.add(Server(plan, 0, self.setting.network)))

    def _switch_step(self, state: State, place: int, event: Event) -> State:
        name = self._names[place]

        def act(switch: ReferenceSwitch) -> Sent:
            match event:
                case ("frame", int(port), int(number)):
                    return tuple(switch.send(port, self._contents[number]))
                case ("install", int(epoch)):
                    set_plan(switch, self.setting.plans[epoch - 1], name)
                case ("reboot",):
                    switch.forget()
            return ()

        after, sent = self._switches[place].step(state.switches[place], event, act)
        switches = (*state.switches[:place], after, *state.switches[place + 1 :])
        return _sending(state._replace(switches=switches), self._from_switch(name, sent))

    # -- transitions

    def deliver(self, state: State, at: int, *, keep: bool = False) -> State:
        """Deliver a frame in flight; `keep`: a copy of it stays in flight."""
        link, number = state.frames[at]
        if not keep:
            state = state._replace(frames=(*state.frames[:at], *state.frames[at + 1 :]))
        source, target = self._links[link]
        if target in self._place:
            port = self.setting.network.port(target, source)
            return self._switch_step(state, self._place[target], ("frame", port, number))
        if target == SERVER:
            return self._server_step(state, ("frame", number))
        if target in self._index and state.workers[self._index[target]] >= 0:
            return self._worker_step(state, self._index[target], ("frame", number))
        return state

    def steps(self, state: State) -> Iterator[Step]:
        """All that may happen next."""
        left = state.left
        for at, (link, number) in enumerate(state.frames):
            if at and state.frames[at - 1] == state.frames[at]:
                continue
            name = f"{' > '.join(self._links[link])} {self.describe(number)}"
            yield Step(f"{name} arrives", self.deliver(state, at))
            if left.losses:
                rest = (*state.frames[:at], *state.frames[at + 1 :])
                lost = state._replace(frames=rest, left=left._replace(losses=left.losses - 1))
                yield Step(f"{name} is lost", lost)
            if left.copies:
                copied = state._replace(left=left._replace(copies=left.copies - 1))
                yield Step(f"{name} arrives twice", self.deliver(copied, at, keep=True))
        yield from self._sendings(state)
        if left.reboots:
            rebooted = state._replace(left=left._replace(reboots=left.reboots - 1))
            for place, name in enumerate(self._names):
                yield Step(f"{name} reboots", self._switch_step(rebooted, place, ("reboot",)))
        yield from self._plan_steps(state)
        yield from self._crashes(state)

    def _sendings(self, state: State) -> Iterator[Step]:
        for how in ("again", "bypass", "ask"):
            budget = getattr(state.left, how)
            if not budget:
                continue
            change: dict[str, Any] = {how: budget - 1}
            less = state._replace(left=state.left._replace(**change))
            for index, worker in self._present(state):
                for slot in in_flight(worker):
                    after = self._worker_step(less, index, (how, slot))
                    yield Step(f"worker {index} sends slot {slot}: {how}", after)

    def _plan_steps(self, state: State) -> Iterator[Step]:
        if state.planned < len(self.setting.plans) and self._may_plan(state):
            planned = state.planned + 1
            yield Step(f"epoch {planned} is planned", state._replace(planned=planned))
        epoch = state.planned
        for place, name in enumerate(self._names):
            if self._switches[place][state.switches[place]].installed < epoch:
                after = self._switch_step(state, place, ("install", epoch))
                yield Step(f"{name} holds epoch {epoch}", after)
        if state.server != NO_SERVER and self._server[state.server].plan.epoch < epoch:
            yield Step(f"the server is at epoch {epoch}", self._server_at(state, epoch))
        for index, worker in self._present(state):
            if worker.plan.epoch < epoch:
                after = self._worker_step(state, index, ("adopt", epoch))
                yield Step(f"worker {index} is at epoch {epoch}", after)
        for index in range(len(self.setting.plans[epoch - 1].workers)):
            if state.workers[index] == ABSENT:
                yield Step(f"worker {index} joins", self._join(state, index, epoch))

    def _may_plan(self, state: State) -> bool:
        """Whether the next plan's workers are agreed on: a boundary reached, or the loss of one."""
        now, then = (len(plan.workers) for plan in self.setting.plans[state.planned - 1 :][:2])
        if then > now:
            return self.setting.boundary(worker.idle for _, worker in self._present(state))
        return then == now or CRASHED in state.workers

    def _crashes(self, state: State) -> Iterator[Step]:
        """Who joins may crash, before it has joined too."""
        first = len(self.setting.plans[0].workers)
        if not state.left.crashes or state.planned == 1:
            return
        less = state._replace(left=state.left._replace(crashes=state.left.crashes - 1))
        for index in range(first, len(state.workers)):
            workers = (*state.workers[:index], CRASHED, *state.workers[index + 1 :])
            yield Step(f"worker {index} crashes", less._replace(workers=workers))

    def _server_at(self, state: State, epoch: int) -> State:
        before = self._server[state.server].plan.epoch
        if any(before < new <= epoch for new in self.setting.new_servers):
            return self._new_server(state, epoch)
        return self._server_step(state, ("adopt", epoch))

    # -- sets of workers

    def _check_sets(self, state: State) -> None:
        """Raise Unsafe if two have different sums of a fragment, or a tensor's are of two sets."""
        tensors = self.setting.tensors
        if not tensors.grown_from:
            return
        sums: dict[int, int] = {}
        places = [*enumerate(state.workers), (len(state.workers), state.server)]
        for place, number in places:
            for fragment, count in self._counts(place, number).items() if number >= 0 else ():
                if sums.setdefault(fragment, count) != count:
                    counts = f"{sums[fragment]} and of {count}"
                    raise Unsafe(f"there are sums of fragment {fragment} of {counts} workers")
        largest = len(self.setting.hosts)
        for fragment, count in sums.items():
            joined = fragment >= tensors.grown_from * tensors.fragments
            if joined and count < largest and state.planned < len(tensors.counts) == 3:
                raise Unsafe(f"the sum of fragment {fragment} lacks the worker that has joined")
        by_tensor: dict[int, set[int]] = {}
        for fragment, count in sums.items():
            by_tensor.setdefault(fragment // tensors.fragments, set()).add(count)
        for tensor, found in by_tensor.items():
            if len(found) > 1:
                raise Unsafe(f"tensor {tensor} has sums of {found} workers")

    def _counts(self, place: int, number: int) -> dict[int, int]:
        """Of how many workers the results are that a worker or the server has, by fragment."""
        known = self._results.get((place, number))
        if known is None:
            plan, tensors = self.setting.plans[-1], self.setting.tensors
            found = (
                results_of(self._workers[place][number], tensors)
                if place < len(self._workers)
                else finished_at(self._server[number])
            )
            known = self._results[place, number] = {
                fragment: tensors.totals(plan, fragment)[int(got[0])] for fragment, got in found
            }
        return known

    # -- liveness

    def fair_end(self, state: State, live: Mapping[State, object]) -> list[State]:
        """Let everything happen that must, and nothing go wrong; return the states on the way.

        Raises Unsafe if that does not end with all results at all workers. `live`: states from
        which it is known to.
        """
        way = [state]
        nothing = Budget()
        for turn in range(FAIR_ROUNDS):
            while (planned := next(self._plan_steps(state), None)) is not None:
                state = planned.after
            while state.frames:
                state = self.deliver(state, 0)
            if self.done(state):
                return way
            calm = state._replace(left=nothing)
            if calm in live:
                return way
            way.append(calm)
            how = ("again", "ask", "bypass")[min(turn, 2)]
            for index, worker in self._present(state):
                if stream_of(worker).hands_over:
                    state = self._worker_step(state, index, ("hand",))
                for slot in in_flight(worker):
                    state = self._worker_step(state, index, (how, slot))
        waits = [
            f"worker {index} has {in_flight(worker)} in flight"
            for index, worker in self._present(state)
        ]
        raise Unsafe(f"after {FAIR_ROUNDS} rounds without faults: {', '.join(waits)}")

    # -- switches

    @property
    def switches(self) -> Iterator[tuple[str, Automaton]]:
        """The switches, by name."""
        return zip(self._names, self._switches, strict=True)

    def content(self, number: int) -> bytes:
        """Return a frame by its number."""
        return self._contents[number]

    # -- words

    def describe(self, number: int) -> str:
        """Say what a frame is."""
        frame = self._contents[number]
        kind, flags = frame[42] & 15, frame[43]
        epoch, worker, weight, sequence = (
            int.from_bytes(frame[at : at + 2], "big") for at in (50, 52, 54, 56)
        )
        fragment = int.from_bytes(frame[58:62], "big")
        return (
            f"kind {kind} flags {flags:02x} epoch {epoch} fragment {fragment} worker {worker} "
            f"weight {weight} number {sequence}"
        )

    @property
    def sizes(self) -> str:
        """How many states the components have been in."""
        parts = [*map(len, self._workers), len(self._server), *map(len, self._switches)]
        return "/".join(map(str, parts))


def _sending(state: State, frames: list[tuple[int, int]]) -> State:
    return state._replace(frames=tuple(sorted([*state.frames, *frames]))) if frames else state
