"""Expected calls: what flows are offered, how far ahead, and what ends it."""

from __future__ import annotations

import pytest

from hopsum.host_agent.node.calls import BARRIER, COPY, SUM_FLOAT, SUM_INT, CallSpec
from hopsum.host_agent.node.expected_calls import MOST_AHEAD, ExpectedCalls
from hopsum.host_agent.node.guesses import SURE, Guesses
from hopsum.host_agent.process_calls import Mailbox
from hopsum.host_agent.sure_calls import SureCalls
from hopsum.protocol.wire import Reduction

SMALL = 1000
MAGNITUDE = 120
TREE = 3

FLOATS, INTEGERS, BARRIERS = CallSpec(SUM_FLOAT, 8), CallSpec(SUM_INT, 500), CallSpec(BARRIER, 0)


class Expecting:
    """Expected calls after `steps` of a training, whose calls are the same in each."""

    def __init__(self, *step: CallSpec, steps: int = 2 * SURE) -> None:
        self.mailbox = Mailbox(-1)
        self.guesses = Guesses()
        self.calls = ExpectedCalls(self.guesses, ranks=2, small=SMALL)
        for each in step * steps:
            self.guesses.remember(each, MAGNITUDE)

    def offer(self, trees: dict[int, int | None] | None = None) -> SureCalls | None:
        """What is offered where the elements of `trees` are summed by other trees than TREE."""
        places = trees or {}
        return self.calls.offer(
            self.mailbox, Reduction.SUM, lambda elements: places.get(elements, TREE)
        )

    def elements(self, trees: dict[int, int | None] | None = None) -> list[int]:
        """Those of the calls offered."""
        offered = self.offer(trees)
        return [] if offered is None else [each.elements for each in offered.expected]

    def take(self) -> None:
        """All calls offered come as expected."""
        offered = self.offer()
        assert offered is not None
        for _ in offered.expected:
            following = self.calls.next()
            self.guesses.remember(following.wanted, following.remark)
            offered.skip()


def test_the_offer_grows_as_calls_come_as_expected() -> None:
    expecting = Expecting(FLOATS, INTEGERS, BARRIERS)
    lengths = []
    for _ in range(8):
        lengths.append(len(expecting.elements()))
        expecting.take()
    assert lengths == [1, 2, 4, 8, 16, 32, MOST_AHEAD, MOST_AHEAD]


def test_an_offer_stands_until_its_calls_are_taken() -> None:
    expecting = Expecting(FLOATS, INTEGERS)
    expecting.take()
    offered = expecting.offer()
    assert offered is not None
    assert offered is expecting.offer()
    expecting.calls.skip()
    assert (offered.left, offered) == (1, expecting.offer())
    expecting.calls.skip()
    assert (offered.left, offered is expecting.offer()) == (0, False)


def test_a_scale_goes_with_floats_alone_and_the_tree_with_all() -> None:
    expecting = Expecting(FLOATS, BARRIERS)
    expecting.take()
    offered = expecting.offer()
    assert offered is not None
    assert [each.code for each in offered.expected] == [0, MAGNITUDE]
    assert offered.tree == TREE


@pytest.mark.parametrize("other", [None, TREE + 1], ids=["several trees", "another tree"])
def test_an_offer_ends_where_its_tree_does_not_sum_all(other: int | None) -> None:
    first, second = (Expecting(FLOATS, FLOATS, INTEGERS) for _ in range(2))
    for expecting in (first, second):
        for _ in range(2):
            expecting.take()
    assert first.elements() == [8, 8, 500, 8]
    assert second.elements({INTEGERS.elements: other}) == [8, 8]


@pytest.mark.parametrize(
    "wanted", [CallSpec(COPY, 500), CallSpec(SUM_FLOAT, SMALL + 1)], ids=["copy", "large"]
)
def test_calls_that_flows_cannot_take_are_not_offered(wanted: CallSpec) -> None:
    assert Expecting(wanted).offer() is None


def test_calls_that_are_not_sure_are_not_offered() -> None:
    assert Expecting(FLOATS, steps=SURE).offer() is None
    assert Expecting(FLOATS, steps=SURE + 1).offer() is not None


def test_after_a_surprise_one_call_is_offered() -> None:
    expecting = Expecting(FLOATS, INTEGERS)
    for _ in range(4):
        expecting.take()
    assert len(expecting.elements()) == 16
    expecting.calls.clear()
    assert len(expecting.elements()) == 1
    expecting.take()
    assert len(expecting.elements()) == 2


def test_nothing_is_left_of_an_offer_whose_process_is_gone() -> None:
    expecting = Expecting(FLOATS)
    offered = expecting.offer()
    assert offered is not None
    expecting.mailbox.open = False
    assert offered.left == 0
