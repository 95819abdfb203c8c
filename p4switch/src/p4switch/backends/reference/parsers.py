"""Execution of parsers: the abstract machine of section 13.3 of the specification 1.2.5."""

from __future__ import annotations

from collections.abc import Callable as Function

from p4switch import ir
from p4switch.backends.reference.statements import Execute, RejectSignal, Statements
from p4switch.backends.reference.values import ParserFault, to_bits
from p4switch.midend.cycles import has_cycle

STATES_LIMIT = 100_000
"""State transitions after which a parser counts as endless and rejects with ParserTimeout."""

Subjects = list[int | bool]
"""Values of a select's expressions."""


class Parsers(Statements):
    """The parsers of one program."""

    def parser(self, block: ir.Block) -> Execute:
        """Run a parser's declarations, then its states from `start` until accept or reject (13.3).

        Reject is an exception: RejectSignal, or ParserFault of core.p4's methods.
        """
        declarations = self.statements(block.body)
        states: dict[str, Function[[], str]] = {"reject": _reject}
        for name, state in block.states.items():
            states[name] = self.state(block, state)
        step = self.host.step if has_cycle(block) else None

        def parse() -> None:
            declarations()
            state = "start"
            for _ in range(STATES_LIMIT):
                if step is not None:
                    step()
                state = states[state]()
                if state == "accept":
                    return
            raise ParserFault("ParserTimeout")

        return parse

    def state(self, block: ir.Block, state: ir.State) -> Function[[], str]:
        """Run a state's statements and transition; return the next state (13.4)."""
        body = self.statements(state.body)
        following = self.transition(block, state)

        def run() -> str:
            body()
            return following()

        return run

    def transition(self, block: ir.Block, state: ir.State) -> Function[[], str]:
        """Return the transition of a state (13.5)."""
        transition = state.transition
        if isinstance(transition, ir.Goto):
            target = transition.state
            return lambda: target
        return self._select(transition)

    def _select(self, select: ir.Select) -> Function[[], str]:
        """Return the state of the first case whose sets contain all subjects, or NoMatch (13.6)."""
        subjects = [self.expressions.evaluator(subject) for subject in select.subjects]
        kinds = [subject.type for subject in select.subjects]
        cases = [(self._case(key_sets, kinds), target) for key_sets, target in select.cases]

        def choose() -> str:
            values = [subject() for subject in subjects]
            for matches, target in cases:
                if matches(values):
                    return target
            raise ParserFault("NoMatch")

        return choose

    def _case(
        self, key_sets: tuple[ir.KeySet, ...], kinds: list[ir.Type]
    ) -> Function[[Subjects], bool]:
        """Return whether the values are all in their key sets: a product of sets (8.15.5)."""
        if len(key_sets) == 1 and isinstance(key_sets[0], ir.InValueSet):
            return self._value_set(key_sets[0].value_set, kinds)
        tests = [
            (place, self._key_set(key_set))
            for place, key_set in enumerate(key_sets)
            if not isinstance(key_set, ir.Anything)  # the universal set (8.15.2)
        ]
        if len(tests) == 1:
            [(place, only)] = tests
            return lambda values: only(values[place])
        return lambda values: all(test(values[place]) for place, test in tests)

    def _key_set(self, key_set: ir.KeySet) -> Function[[int], bool]:
        """Return whether a value is in a set: singleton (8.15.1), mask (8.15.3), range (8.15.4)."""
        evaluator = self.expressions.evaluator
        match key_set:
            case ir.Exactly():
                wanted = evaluator(key_set.value)
                return lambda value: bool(value == wanted())
            case ir.Masked():
                base, mask = evaluator(key_set.value), evaluator(key_set.mask)
                return lambda value: bool(value & mask() == base() & mask())
            case ir.Between():
                low, high = evaluator(key_set.low), evaluator(key_set.high)
                return lambda value: bool(low() <= value <= high())
        raise TypeError(f"{key_set!r} stands for all subjects of a select")

    def _value_set(
        self, value_set: ir.ValueSet, kinds: list[ir.Type]
    ) -> Function[[Subjects], bool]:
        """Return whether the values are a member of a parser value set (13.11)."""
        members = self.host.value_set_runtime(value_set)
        return lambda values: members.contains(
            tuple(to_bits(kind, value) for kind, value in zip(kinds, values, strict=True))
        )


def _reject() -> str:
    """`transition reject`: without an error (13.3)."""
    raise RejectSignal(0)
