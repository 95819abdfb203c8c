"""The order of reductions is the same at all ranks, and no sum mixes two iterations."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum_torch.agreement import Agreement, Decision, from_tagged_words, tagged_words

NAMES = "abcdefg"
TWICE = "!"
"""In a plan: the gradient before it becomes ready once more."""


@dataclass
class Rank:
    """A rank that does what its plans of iterations say, a step at a time."""

    agreement: Agreement
    plans: Sequence[Sequence[str]]
    steps: int = 0
    sums: list[tuple[int, str, bool]] = field(default_factory=list)
    """Iteration, name, and whether it had the gradient, of reductions in which it took part."""
    came: list[Decision] = field(default_factory=list)
    """How iterations ended."""
    vector: np.ndarray | None = None

    def act(self) -> None:
        """Have the next gradient, or end the iteration."""
        plan = self.plans[len(self.came)]
        if self.steps == len(plan):
            self.agreement.end()
            return
        name = plan[self.steps]
        self.agreement.ready(plan[self.steps - 1] if name == TWICE else name)
        self.steps += 1

    def conclude(self, combined: np.ndarray) -> Decision:
        agreement = self.agreement
        decision = agreement.conclude(combined)
        had = [agreement.holds(name) for name in decision.start]
        assert all(had) or agreement.ended
        numbered = zip(decision.start, had, strict=True)
        self.sums += [(agreement.iteration, *each) for each in numbered]
        self.vector = None
        if decision.over or decision.at_fault:
            while not agreement.ended:
                self.act()
            agreement.begin()
            self.steps = 0
            self.came.append(decision)
        return decision


def run(plans: Sequence[Sequence[Sequence[str]]], random: Random) -> list[Rank]:
    """Run ranks by their plans until all iterations are over; steps come in a random order."""
    ranks = [Rank(Agreement(NAMES, rank, len(plans), 7), own) for rank, own in enumerate(plans)]
    while len(ranks[0].came) < len(plans[0]):
        one = random.choice(ranks)
        if one.vector is None and random.random() < 0.3:
            one.vector = one.agreement.contribution()
        elif not one.agreement.ended:
            one.act()
        if all(each.vector is not None for each in ranks):
            combined = functools.reduce(np.bitwise_and, [each.vector for each in ranks])
            assert len({each.conclude(combined.copy()) for each in ranks}) == 1
    return ranks


def a_plan(random: Random, *, fault: bool) -> list[str]:
    chosen = random.sample(NAMES, random.randint(0, len(NAMES)))
    return [*chosen, TWICE] if fault and chosen else chosen


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.floats(0, 0.2), st.integers(0, 1 << 32))
def test_every_sum_has_one_iteration_and_all_that_have_the_gradient(
    size: int, iterations: int, faults: float, seed: int
) -> None:
    random = Random(seed)
    plans = [
        [a_plan(random, fault=random.random() < faults) for _ in range(iterations)]
        for _ in range(size)
    ]
    ranks = run(plans, random)
    # The same sums in the same order, those of an iteration before those of the next.
    made = [[(number, name) for number, name, _ in each.sums] for each in ranks]
    assert made == [made[0]] * size
    assert len(set(made[0])) == len(made[0])
    assert [number for number, _ in made[0]] == sorted(number for number, _ in made[0])
    for place in range(iterations):
        at_fault = tuple(rank for rank in range(size) if TWICE in plans[rank][place])
        assert all(each.came[place].at_fault for each in ranks) == bool(at_fault)
        assert set(ranks[0].came[place].at_fault) <= set(at_fault)
        summed = {name for number, name in made[0] if number == 7 + place}
        wanted = {name for rank in range(size) for name in plans[rank][place]} - {TWICE}
        assert summed == wanted if not at_fault else summed <= wanted
        for rank, each in enumerate(ranks):
            for number, name, had in each.sums:
                assert number != 7 + place or had == (name in plans[rank][place])
    assert len({each.agreement.table for each in ranks}) == 1
    assert sorted(ranks[0].agreement.table) == sorted(NAMES)


def cycle(*ranks: Agreement) -> Decision:
    vectors = [each.contribution() for each in ranks]
    combined = functools.reduce(np.bitwise_and, vectors)
    [decision] = {each.conclude(combined) for each in ranks}
    return decision


def pair(**iterations: int) -> tuple[Agreement, Agreement]:
    return (
        Agreement("abc", 0, 2, iterations.get("first", 0)),
        Agreement("abc", 1, 2, iterations.get("second", 0)),
    )


def test_a_gradient_starts_once_all_ranks_have_it() -> None:
    first, second = pair()
    first.ready("c")
    assert cycle(first, second) == Decision()
    second.ready("a")
    assert cycle(first, second) == Decision()
    second.ready("c")
    assert cycle(first, second) == Decision(("c",))
    assert cycle(first, second) == Decision()
    assert [first.pending, second.pending] == [False, True]


def test_the_order_of_the_first_iteration_becomes_the_table() -> None:
    first, second = pair()
    for names in ("c", "b"):
        for each in (first, second):
            each.ready(names)
        cycle(first, second)
    for each in (first, second):
        each.end()
    assert cycle(first, second) == Decision(over=True)
    for each in (first, second):
        each.begin()
        for name in "abc":
            each.ready(name)
    assert first.table == second.table == ("c", "b", "a")
    assert cycle(first, second) == Decision(("c", "b", "a"))


def test_a_rank_that_has_ended_takes_part_with_zeros_and_what_all_lack_is_left_out() -> None:
    first, second = pair()
    first.ready("a")
    second.end()
    assert cycle(first, second) == Decision(("a",))
    first.ready("b")
    first.end()
    assert cycle(first, second) == Decision(("b",), over=True)


def test_ranks_in_different_iterations_start_nothing() -> None:
    first, second = pair(second=1)
    for each in (first, second):
        each.ready("a")
        each.end()
    assert cycle(first, second) == Decision(apart=True)


def test_a_fault_of_one_rank_fails_the_iteration_at_all_and_the_next_one_works() -> None:
    first, second = pair()
    for name in "aba":
        second.ready(name)
    assert second.fault.startswith("a became ready twice: a second backward()")
    first.ready("a")
    assert cycle(first, second) == Decision(at_fault=(1,))
    for each in (first, second):
        assert not each.pending
        each.begin()
        each.ready("b")
    assert cycle(first, second) == Decision(("b",))


@pytest.mark.parametrize("length", [1, 32, 33, 100])
def test_words_return_their_bits_unless_iterations_differ(length: int) -> None:
    bits = (1 << length) - 1 ^ 1 << length // 2
    words = tagged_words(length, bits, 5)
    assert (words.dtype, len(words)) == (np.int32, -(-length // 32) + 2)
    assert from_tagged_words(words) == bits
    for other in (4, 1, 7, (1 << 31) - 1):
        assert from_tagged_words(words & tagged_words(length, bits, other)) is None
