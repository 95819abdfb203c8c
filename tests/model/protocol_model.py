"""The protocol as a transition system: product workers and server, reference switches, the network.

Frames in flight are a bag: any of them may arrive next, so that every reordering is tried. What is
limited is counted in a budget: losses, copies, sendings that nothing asked for, bypasses,
questions, reboots, plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    rows,
    send_again,
    sent_by,
    set_plan,
    stream_of,
)
from tests.oracles.reference_switch import ReferenceSwitch
from tests.support.protocol_world import SERVER

NO_SERVER = -1
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


@dataclass(frozen=True)
class Setting:
    """A scenario. `plans`: of epochs 1, 2, ...; `new_servers`: epochs whose server is empty.

    If the plans' server is a worker, it is a part of that worker.
    """

    name: str
    network: Network
    plans: tuple[JobPlan, ...]
    tensors: Tensors
    budget: Budget
    new_servers: frozenset[int] = frozenset()

    @property
    def rooted(self) -> bool:
        """Whether the server is at a worker."""
        return self.plans[0].trees[0].server in self.plans[0].workers

    @property
    def slots(self) -> int:
        """Of each switch."""
        return self.plans[0].window


class State(NamedTuple):
    """Numbers of the components' states, frames in flight, and what may still happen.

    `server`: NO_SERVER if it is at a worker; `frames`: sorted (link, frame) numbers; `planned`: the
    epoch of the newest plan.
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
        network, plan = setting.network, setting.plans[0]
        shared = [network, *setting.plans, *(tree for p in setting.plans for tree in p.trees)]
        self._names = [*network.switches]
        self._workers = [Automaton(shared) for _ in plan.workers]
        self._server = Automaton(shared)
        self._switches = [Automaton(shared) for _ in self._names]
        self._frames: dict[bytes, int] = {}
        self._contents: list[bytes] = []
        self._links = [*network.directed_links()]
        self._link_of = {ends: number for number, ends in enumerate(self._links)}
        self._place = {name: number for number, name in enumerate(self._names)}
        self._index = {host: number for number, host in enumerate(plan.workers)}

    # -- states

    def initial(self) -> State:
        """Return the state in which all workers have sent their first fragments."""
        setting, plan = self.setting, self.setting.plans[0]
        frames: list[tuple[int, int]] = []
        workers = []
        for index, automaton in enumerate(self._workers):
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
        """Whether all workers have all results."""
        return all(
            automaton[number].idle
            for automaton, number in zip(self._workers, state.workers, strict=True)
        )

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
                case ("hand",):
                    hand_over(worker)
                case (str(how), int(slot)):
                    send_again(worker, slot, how)
            check_worker(worker, setting.tensors)
            return sent_by(worker)

        after, sent = automaton.step(state.workers[index], event, act)
        workers = (*state.workers[:index], after, *state.workers[index + 1 :])
        host = self.setting.plans[0].workers[index]
        return _sending(state._replace(workers=workers), self._from_host(host, sent))

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
        return _sending(state._replace(server=after), self._from_host(SERVER, sent))

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
        if target in self._index:
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

    def _sendings(self, state: State) -> Iterator[Step]:
        for how in ("again", "bypass", "ask"):
            budget = getattr(state.left, how)
            if not budget:
                continue
            change: dict[str, Any] = {how: budget - 1}
            less = state._replace(left=state.left._replace(**change))
            for index, automaton in enumerate(self._workers):
                for slot in in_flight(automaton[state.workers[index]]):
                    after = self._worker_step(less, index, (how, slot))
                    yield Step(f"worker {index} sends slot {slot}: {how}", after)

    def _plan_steps(self, state: State) -> Iterator[Step]:
        if state.planned < len(self.setting.plans):
            planned = state.planned + 1
            yield Step(f"epoch {planned} is planned", state._replace(planned=planned))
        epoch = state.planned
        for place, name in enumerate(self._names):
            if self._switches[place][state.switches[place]].installed < epoch:
                after = self._switch_step(state, place, ("install", epoch))
                yield Step(f"{name} holds epoch {epoch}", after)
        if state.server != NO_SERVER and self._server[state.server].plan.epoch < epoch:
            yield Step(f"the server is at epoch {epoch}", self._server_at(state, epoch))
        for index, automaton in enumerate(self._workers):
            if automaton[state.workers[index]].plan.epoch < epoch:
                after = self._worker_step(state, index, ("adopt", epoch))
                yield Step(f"worker {index} is at epoch {epoch}", after)

    def _server_at(self, state: State, epoch: int) -> State:
        before = self._server[state.server].plan.epoch
        if any(before < new <= epoch for new in self.setting.new_servers):
            return self._new_server(state, epoch)
        return self._server_step(state, ("adopt", epoch))

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
            for index, automaton in enumerate(self._workers):
                worker = automaton[state.workers[index]]
                if stream_of(worker).hands_over:
                    state = self._worker_step(state, index, ("hand",))
                for slot in in_flight(worker):
                    state = self._worker_step(state, index, (how, slot))
        waits = [
            f"worker {index} has {in_flight(automaton[number])} in flight"
            for index, (automaton, number) in enumerate(
                zip(self._workers, state.workers, strict=True)
            )
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
