"""What the model's switches do, done by hopsum.p4.

A model visits states of a switch, each reached by a way of events. The P4 program goes the same
ways, and must send the same frames at every transition.
"""

from __future__ import annotations

from tests.model.components import Automaton, Event, Sent
from tests.model.protocol_model import Model
from tests.packet.hopsum.switches import Build, EngineSwitch
from tests.support.protocol_world import LANES, grant, withdraw

FIRST = 0
"""The number of an automaton's first state."""


def follow(model: Model, executor: str = "native") -> int:
    """Compare all transitions of a model's switches; return their number.

    Raises AssertionError where the P4 program sends something else.
    """
    return sum(_follow(model, name, automaton, executor) for name, automaton in model.switches)


def _follow(model: Model, name: str, automaton: Automaton, executor: str) -> int:
    before: dict[int, tuple[int, Event, Sent]] = {}
    staying: dict[int, list[tuple[Event, Sent]]] = {}
    going = []
    transitions = list(automaton.transitions)
    for state, event, after, sent in transitions:
        if after == state:
            staying.setdefault(state, []).append((event, sent))
            continue
        going.append((state, event, after, sent))
        if after != FIRST:
            before.setdefault(after, (state, event, sent))
    inner = {state for state, _, _ in before.values()}
    for state, event, after, sent in going:
        if before.get(after) == (state, event, sent) and after in inner:
            # It lies on the way to others.
            continue
        switch = _P4Switch(model, name, executor)
        at = FIRST
        for next_event, next_sent, after_it in [*_way(before, state), (event, sent, after)]:
            # What changes nothing is tried once in each state.
            for what, frames in [*staying.pop(at, ()), (next_event, next_sent)]:
                assert switch.take(what) == sorted(frames), f"{name}: {what}"
            at = after_it
        for what, frames in staying.pop(at, ()):
            assert switch.take(what) == sorted(frames), f"{name}: {what}"
    switch = _P4Switch(model, name, executor)
    for what, frames in staying.pop(FIRST, ()):
        # It has no other state.
        assert switch.take(what) == sorted(frames), f"{name}: {what}"
    assert not staying
    return len(transitions)


def _way(before: dict[int, tuple[int, Event, Sent]], state: int) -> list[tuple[Event, Sent, int]]:
    """Return the events that lead to a state, what is sent at each, and the states after them."""
    way = []
    while state != FIRST:
        after = state
        state, event, sent = before[after]
        way.append((event, sent, after))
    return way[::-1]


class _P4Switch:
    """A switch of a model, as hopsum.p4."""

    def __init__(self, model: Model, name: str, executor: str) -> None:
        self._model = model
        self._name = name
        self._executor = executor
        self._plans = [model.setting.plans[0]]
        self._switch = self._new()

    def _new(self) -> EngineSwitch:
        """Return a switch that has just started, with the rules that it had.

        The replication entries of earlier plans stay.
        """
        switch = EngineSwitch(self._executor, Build(lanes=LANES, slots=self._model.setting.slots))
        for number, plan in enumerate(self._plans):
            for earlier in self._plans[number - 1 : number]:
                withdraw(switch, earlier, self._name)
            grant(switch, plan, self._name)
        return switch

    def take(self, event: Event) -> list[tuple[int, bytes]]:
        """Let something happen; return the frames that are sent, sorted."""
        match event:
            case ("frame", int(port), int(number)):
                return sorted(self._switch.send(port, self._model.content(number)))
            case ("install", int(epoch)):
                withdraw(self._switch, self._plans[-1], self._name)
                self._plans.append(self._model.setting.plans[epoch - 1])
                grant(self._switch, self._plans[-1], self._name)
            case ("reboot",):
                self._switch = self._new()
        return []
