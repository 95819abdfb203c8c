"""Only what belongs to one iteration starts together; else every process gets the same error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hopsum.coordination.events import Start
from hopsum.coordination.failure import IterationMismatch, ProcessLost
from hopsum.coordination.operators import NO_MORE
from hopsum.coordination.participant import Participant
from hopsum.coordination.reduction import ExternalAnd
from tests.coordination.test_negotiation import all_started, begin, group_of, iterate, ready
from tests.support.coordination_world import OPTIONS, costs, operator, random_tree, rough
from tests.support.search import examples
from tests.support.virtual_group import Costs, VirtualGroup

NAMES = ("a", "b", "c", "d")
STALL = OPTIONS.stall


@dataclass(frozen=True)
class Slip:
    """How one process deviates from the others in one iteration."""

    rank: int
    iteration: int
    name: str
    kind: str
    """omit; extra; twice; late: in the next iteration; after: when it has ended this one; leave."""


@dataclass
class Process:
    """Calls for operators iteration after iteration; the next begins when all have started."""

    rank: int
    calls: list[list[str]]
    """By iteration; a name that is doubled is called for twice."""
    after: dict[int, str]
    manner: str
    """begin: the next iteration ends the last; end: once it has called for all; wait: and until the
    iteration is over everywhere, as PyTorch's gradients do."""
    iteration: int = 0
    to_call: int = 0
    waits: int = -1
    made: list[tuple[int, str]] = field(default_factory=list)
    started: list[tuple[int, str]] = field(default_factory=list)


class Group:
    """Processes at work in virtual time, over any tree, ring or all-reduce of others."""

    def __init__(self, random: Random, processes: list[Process], vectors: str, roughness: str):
        self.random = random
        tree = random_tree(random, most=len(processes))
        while len(tree.names) != len(processes) or bool(tree.ring) != (vectors == "ring"):
            tree = random_tree(random, most=len(processes))
        deliver = {
            "smooth": None,
            "slow": rough(random, 0.0, 0.0, 0.2),
            "rough": rough(random, 0.05, 0.1, 0.2),
        }[roughness]
        ends = None
        if vectors == "elsewhere":
            self._submitted: list[list[tuple[int, ...]]] = [[] for _ in processes]
            ends = [ExternalAnd(self._submit(rank)) for rank in range(len(processes))]
            self._ends = ends
        self.processes = processes
        self.group = VirtualGroup(
            tree, costs=costs(random), options=OPTIONS, deliver=deliver, reductions=ends
        )
        for process in processes:
            self._at_random(process, lambda p, process=process: self._next(process, p))

    def _submit(self, rank: int) -> Callable[[tuple[int, ...]], None]:
        def submit(words: tuple[int, ...]) -> None:
            mine = self._submitted[rank]
            mine.append(words)
            if min(map(len, self._submitted)) == len(mine):
                columns = zip(*(theirs[len(mine) - 1] for theirs in self._submitted), strict=True)
                combined = tuple(reduce(and_, column) for column in columns)
                for process in self.processes:
                    self._at_random(process, self._completed(process.rank, combined))

        return submit

    def _completed(self, rank: int, words: tuple[int, ...]) -> Callable[[Participant], None]:
        def completed(participant: Participant) -> None:
            self._ends[rank].completed(words)
            participant.advance(self.group.now)

        return completed

    def _at_random(self, process: Process, action: Callable[[Participant], None]) -> None:
        def act(participant: Participant) -> None:
            # The caller gets the error, and does no more.
            with suppress(IterationMismatch):
                action(participant)

        self.group.call(self.group.now + self.random.random() * 0.1, process.rank, act)

    def _next(self, process: Process, participant: Participant) -> None:
        now = self.group.now
        if process.iteration == len(process.calls):
            participant.leave(now)
            return
        process.iteration += 1
        participant.begin_iteration(process.iteration, now)
        names = process.calls[process.iteration - 1]
        process.to_call = process.waits = len(names)
        self._end(process, participant)
        for name in self.random.sample(names, len(names)):
            self._at_random(process, lambda p, name=name: self._call(process, p, name))

    def _call(self, process: Process, participant: Participant, name: str) -> None:
        process.made.append((process.iteration, name))
        process.to_call -= 1
        participant.ready(operator(name), self.group.now)
        self._end(process, participant)

    def _end(self, process: Process, participant: Participant) -> None:
        if process.to_call == 0 and process.manner != "begin":
            participant.end_iteration(self.group.now)
            late = process.after.pop(process.iteration, None)
            if late is not None:
                process.waits += 1
                self._at_random(process, lambda p: self._call(process, p, late))

    def _look(self, process: Process) -> None:
        participant = self.group.participants[process.rank]
        events = self.group.events[process.rank]
        for _, event in events[len(process.started) :]:
            assert isinstance(event, Start)
            process.started.append((event.iteration, event.operator.name))
            process.waits -= 1
        over = participant.over_everywhere > process.iteration or process.manner != "wait"
        if process.waits == 0 and over and participant.failure is None:
            process.waits = -1
            self._at_random(process, lambda p: self._next(process, p))

    def run(self, limit: float) -> None:
        everyone = self.group.participants
        while self.group.now < limit and not all(p.done or p.failure for p in everyone):
            self.group.step()
            for process in self.processes:
                self._look(process)


slips = st.lists(
    st.builds(
        Slip,
        st.integers(0, 4),
        st.integers(1, 4),
        st.sampled_from(NAMES),
        st.sampled_from(["omit", "extra", "twice", "late", "after", "leave"]),
    ),
    max_size=2,
)


def processes_with(
    count: int, iterations: list[set[str]], slips: list[Slip], manner: str
) -> list[Process]:
    calls = [sorted(names) for names in iterations]
    processes = [Process(rank, [[*names] for names in calls], {}, manner) for rank in range(count)]
    # Without end_iteration two may wait for each other's operators.
    for slip in slips[: 1 if manner == "begin" else None]:
        process = processes[slip.rank % count]
        if slip.iteration > len(process.calls):
            continue
        names = process.calls[slip.iteration - 1]
        match slip.kind:
            case "omit" | "late" if slip.name in names:
                names.remove(slip.name)
                if slip.kind == "late" and slip.iteration < len(process.calls):
                    process.calls[slip.iteration].append(slip.name)
            case "extra" if slip.name not in names:
                names.append(slip.name)
            case "twice":
                names.append(slip.name)
            case "after" if manner != "begin":
                process.after[slip.iteration] = slip.name
            case "leave":
                del process.calls[slip.iteration - 1 :]
    return processes


def agree(processes: list[Process]) -> bool:
    """Whether all processes request the same operators, once, in every iteration."""
    longest = max(len(process.calls) for process in processes)
    everywhere = [
        tuple(tuple(sorted(names)) for names in [*p.calls, *[[]] * (longest - len(p.calls))])
        for p in processes
    ]
    once = all(len(set(names)) == len(names) for names in everywhere[0])
    reached = any(set(p.after) & set(range(1, len(p.calls) + 1)) for p in processes)
    return once and not reached and len(set(everywhere)) == 1


@pytest.mark.slow
@settings(max_examples=examples(80, of=400))
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.lists(st.sets(st.sampled_from(NAMES)), min_size=1, max_size=4),
    slips,
    st.sampled_from(["begin", "end", "wait"]),
    st.sampled_from(["tree", "ring", "elsewhere"]),
    st.sampled_from(["smooth", "slow", "rough"]),
)
@example(0, 2, [{"a", "b"}] * 4, [Slip(1, 2, "b", "omit")], "begin", "tree", "smooth")
@example(
    *(0, 2, [{"a", "b"}], [Slip(0, 1, "a", "omit"), Slip(1, 1, "b", "omit")]),
    *("end", "ring", "slow"),
)
@example(0, 2, [{"a", "b"}] * 4, [Slip(1, 2, "b", "late")], "wait", "ring", "slow")
@example(0, 3, [{"a", "b"}] * 4, [Slip(1, 3, "b", "twice")], "end", "elsewhere", "rough")
@example(0, 3, [{"a"}], [Slip(2, 1, "a", "after")], "wait", "tree", "rough")
def test_iterations_are_never_mixed(
    seed: int,
    count: int,
    iterations: list[set[str]],
    slips: list[Slip],
    manner: str,
    vectors: str,
    roughness: str,
) -> None:
    processes = processes_with(count, iterations, slips, manner)
    agreed = agree(processes)
    after = [dict(process.after) for process in processes]
    world = Group(Random(seed), processes, vectors, roughness)
    world.run(STALL)
    participants = world.group.participants
    for process in processes:
        # In one order at all, also where it ends by an error, so that no sum waits for ever.
        assert process.started == processes[0].started
        assert set(process.started) <= set(process.made)
        assert len(set(process.started)) == len(process.started)
    if agreed:
        assert [p.failure for p in participants] == [None] * count
        assert all(p.done for p in participants)
        expected = [(i, n) for i, names in enumerate(processes[0].calls, 1) for n in names]
        assert sorted(processes[0].started) == sorted(expected)
        return
    failure = participants[0].failure
    assert isinstance(failure, IterationMismatch)
    assert {str(p.failure) for p in participants} == {str(failure)}
    called = (failure.iteration, failure.operator)
    assert any(called in process.made for process in processes)
    assert failure.processes
    for name in failure.processes:
        process = processes[int(name.removeprefix("w"))]
        counts = Counter(process.made)
        if "without" in failure.reason:
            assert counts[called] == 0
        elif "was already" in failure.reason:
            assert counts[called] >= 2
        else:
            assert after[process.rank][failure.iteration] == failure.operator


def error_at_all(group: VirtualGroup) -> str:
    """The error with which every process fails; none is left waiting."""
    found = {str(p.failure) for p in group.participants}
    assert len(found) == 1
    assert isinstance(group.participants[0].failure, IterationMismatch)
    return found.pop()


@pytest.mark.parametrize("without", [0, 1, 4])
@pytest.mark.parametrize("first", [True, False])
def test_a_process_that_ends_an_iteration_without_an_operator_is_named(
    without: int, first: bool
) -> None:
    group = group_of(5)
    before = 0 if first else 2
    for number in range(1, before + 1):
        iterate(group, number, "a", "b")
    begin(group, before + 1)
    ready(group, "a")
    ready(group, "b", *[rank for rank in range(5) if rank != without])
    assert [p.failure for p in group.participants] == [None] * 5
    began = group.now
    begin(group, before + 2, without)
    assert error_at_all(group) == (
        f"operator b, iteration {before + 1}: w{without} ended it without being ready for it; "
        f"expected every operator once an iteration at every process, or at none: restart all from "
        f"the last state they have in common"
    )
    assert group.now - began < 1
    assert all_started(group) == [*["a", "b"] * before, "a"]


def test_all_that_ended_without_it_are_named() -> None:
    group = group_of(6)
    begin(group, 1)
    begin(group, 2, 2, 5)
    ready(group, "a", 0, 1, 3, 4)
    failure = group.participants[0].failure
    assert isinstance(failure, IterationMismatch)
    assert (failure.operator, failure.iteration) == ("a", 1)
    assert failure.processes == ("w2", "w5")
    error_at_all(group)


def test_a_process_that_leaves_while_others_go_on_is_named() -> None:
    group = group_of(3)
    iterate(group, 1, "a")
    group.call(group.now, 1, lambda p: p.leave(group.now))
    group.run(group.now + 0.2)
    begin(group, 2, 0, 2)
    ready(group, "a", 0)
    assert "operator a, iteration 2: w1 ended it without" in error_at_all(group)


@pytest.mark.parametrize("waiting", [True, False])
def test_an_operator_twice_in_an_iteration_is_an_error_everywhere(waiting: bool) -> None:
    group = group_of(4)
    iterate(group, 1, "a", "b")
    begin(group, 2)
    ready(group, "a", *([2] if waiting else range(4)))
    ready(group, "a", 2)
    assert "operator a, iteration 2: w2 is ready for it after it was already" in error_at_all(group)


def test_an_operator_after_the_end_is_an_error_everywhere() -> None:
    group = group_of(4)
    iterate(group, 1, "a")
    group.call(group.now, 3, lambda p: p.end_iteration(group.now))
    ready(group, "b", 3)
    assert "operator b, iteration 1: w3 is ready for it after it ended it" in error_at_all(group)


def test_a_slow_process_is_no_error() -> None:
    group = group_of(4)
    iterate(group, 1, "a", "b")
    begin(group, 2, 0, 1, 2)
    ready(group, "a", 0, 1, 2)
    ready(group, "b", 0, 1, 2)
    begin(group, 2, 3)
    ready(group, "b", 3)
    ready(group, "a", 3)
    assert sorted(all_started(group)) == ["a", "a", "b", "b"]
    assert [p.failure for p in group.participants] == [None] * 4


def test_numbers_may_be_left_out() -> None:
    """An iteration without operators at any process may be left out."""
    group = group_of(3)
    iterate(group, 5, "a")
    for number in (6, 7):
        begin(group, number, 0)
    begin(group, 2**31)
    ready(group, "a")
    assert all_started(group) == ["a", "a"]
    iterate(group, NO_MORE - 1, "a")
    for rank in range(3):
        group.call(group.now, rank, lambda p: p.end_iteration(group.now))
        group.call(group.now, rank, lambda p: p.leave(group.now))
    group.run(group.now + 0.2)
    assert all(p.done for p in group.participants)


def test_processes_that_resume_at_different_iterations_are_an_error() -> None:
    group = group_of(3)
    begin(group, 500, 0, 1)
    begin(group, 400, 2)
    ready(group, "a")
    assert "operator a, iteration 400: w0, w1 ended it without" in error_at_all(group)


def test_processes_that_wait_for_each_others_operators_are_an_error() -> None:
    group = group_of(4)
    iterate(group, 1, "a", "b")
    begin(group, 2)
    ready(group, "a", 0, 1, 3)
    ready(group, "b", 0, 2, 3)
    for rank in range(4):
        group.call(group.now, rank, lambda p: p.end_iteration(group.now))
    group.run(group.now + 0.2)
    assert "iteration 2: w" in error_at_all(group)


def test_waiting_operators_may_start_after_an_iterations_end() -> None:
    group = group_of(4)
    iterate(group, 1, "a", "b")
    begin(group, 2)
    for rank in (0, 1, 2, 3):
        ready(group, "a", rank)
        ready(group, "b", rank)
        group.call(group.now, rank, lambda p: p.end_iteration(group.now))
        group.run(group.now + 0.2)
        assert {p.over_everywhere for p in group.participants} == {3 if rank == 3 else 2}
    assert sorted(all_started(group)) == ["a", "a", "b", "b"]


def test_an_abandoned_operator_may_be_requested_again_by_all() -> None:
    group = group_of(3)
    for number in (1, 2):
        begin(group, number)
        ready(group, "a", 0, shape=(9,))
        ready(group, "a", 1, 2)
        ready(group, "a")
    begin(group, 3)
    assert all_started(group) == ["a", "a"]
    assert {p.over_everywhere for p in group.participants} == {3}
    ready(group, "a", 0, shape=(9,))
    ready(group, "a", 1, 2)
    ready(group, "a", 0, 1)
    begin(group, 4, 2)
    assert "operator a, iteration 3: w2 ended it without" in error_at_all(group)


def test_the_end_of_an_iteration_is_known_when_all_have_ended_it() -> None:
    group = group_of(5)
    iterate(group, 1, "a")
    for rank in (0, 1, 2, 4):
        group.call(group.now, rank, lambda p: p.end_iteration(group.now))
    group.run(group.now + 0.2)
    assert {p.over_everywhere for p in group.participants} == {1}
    begin(group, 2, 3)
    assert {p.over_everywhere for p in group.participants} == {2}


def test_a_report_of_an_iteration_takes_two_messages_an_edge_each_way_at_most() -> None:
    group = group_of(15)
    iterate(group, 1, "a")
    iterate(group, 2, "a")
    before = [p.statistics.sent for p in group.participants]
    for rank in range(15):
        group.call(group.now, rank, lambda p: p.end_iteration(group.now))
    group.run(group.now + 0.2)
    sent = sum(p.statistics.sent - b for p, b in zip(group.participants, before, strict=True))
    assert sent <= 14 * 4
    begin(group, 3)
    again = sum(p.statistics.sent - b for p, b in zip(group.participants, before, strict=True))
    assert again == sent


def test_a_process_that_dies_while_an_operator_is_missing_is_lost() -> None:
    group = group_of(3)
    begin(group, 1)
    ready(group, "a", 0)
    group.kill(2)
    group.run(group.now + 20)
    assert isinstance(group.participants[0].failure, ProcessLost)
    assert isinstance(group.participants[1].failure, ProcessLost)


def test_a_process_that_leaves_after_the_error_is_not_lost() -> None:
    """A process may wait for the last results when another has failed and gone already."""
    group = VirtualGroup(group_of(2).tree, options=OPTIONS, costs=Costs(0.0, 0.001))
    begin(group, 1)
    begin(group, 2, 1)
    ready(group, "a", 0)
    group.call(group.now, 0, lambda p: p.disconnected(1, "it closed", group.now))
    group.run(group.now + 0.1)
    error_at_all(group)
