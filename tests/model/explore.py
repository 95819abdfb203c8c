"""Explores a model: all states within a budget, breadth first, or random walks beyond."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from tests.model.components import Unsafe
from tests.model.protocol_model import Model, Setting, State


class Violated(AssertionError):
    """The protocol breaks; the message has the shortest way there that was found."""


@dataclass(frozen=True, slots=True)
class Explored:
    """Result of an exploration. `complete`: all states within the budget."""

    model: Model
    states: int
    transitions: int
    complete: bool


def breadth_first(setting: Setting, most: int = 1 << 30) -> Explored:
    """Visit all states, at most so many.

    Raises Violated at one that is unsafe, and at one from which the job does not end.
    """
    model = Model(setting)
    start = model.initial()
    before: dict[State, tuple[State, str] | None] = {start: None}
    live: dict[State, None] = {}
    queue = deque([start])
    transitions = 0
    while queue and len(before) < most:
        state = queue.popleft()
        try:
            live |= dict.fromkeys(model.fair_end(state, live))
        except Unsafe as error:
            raise Violated(_trace(before, state, str(error))) from None
        steps = model.steps(state)
        while True:
            try:
                step = next(steps, None)
            except Unsafe as error:
                raise Violated(_trace(before, state, f"then: {error}")) from None
            if step is None:
                break
            transitions += 1
            if step.after not in before:
                before[step.after] = state, step.what
                queue.append(step.after)
    return Explored(model, len(before), transitions, not queue)


def random_walks(setting: Setting, walks: int, seed: int = 1) -> Explored:
    """Walk at random until all is done, and to a fair end from every hundredth state or so."""
    model = Model(setting)
    rng = random.Random(seed)
    states = transitions = 0
    for _ in range(walks):
        state = model.initial()
        way: list[str] = []
        try:
            while not (model.done(state) and not state.frames):
                steps = [*model.steps(state)]
                if not steps:
                    break
                step = rng.choice(steps)
                state = step.after
                way.append(step.what)
                transitions += 1
                states += 1
                if rng.random() < 0.05:
                    model.fair_end(state, {})
            model.fair_end(state, {})
        except Unsafe as error:
            raise Violated("\n".join([*way, str(error)])) from None
    return Explored(model, states, transitions, False)


def _trace(before: dict[State, tuple[State, str] | None], state: State, end: str) -> str:
    way = [end]
    while (came := before[state]) is not None:
        state, what = came
        way.append(what)
    return "\n".join(reversed(way))
