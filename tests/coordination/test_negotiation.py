from __future__ import annotations

import pytest

from hopsum.coordination.events import Rejection, Start
from hopsum.coordination.failure import OperatorError
from hopsum.coordination.master import Master
from hopsum.coordination.messages import OperatorRequest, Variant
from hopsum.coordination.operators import NO_MORE
from hopsum.coordination.participant import Participant
from hopsum.coordination.tree import CoordinationTree, balanced_tree
from tests.support.coordination_world import OPTIONS, operator
from tests.support.virtual_group import Costs, VirtualGroup


def group_of(count: int, **choices: object) -> VirtualGroup:
    tree = balanced_tree([f"w{rank}" for rank in range(count)], fan_out=2)
    return VirtualGroup(tree, options=OPTIONS, costs=Costs(0.0, 0.001), **choices)  # type: ignore[arg-type]


def begin(group: VirtualGroup, number: int, *ranks: int) -> None:
    for rank in ranks or range(len(group.participants)):
        group.call(group.now, rank, lambda p: p.begin_iteration(number, group.now))
    group.run(group.now + 0.2)


def ready(group: VirtualGroup, name: str, *ranks: int, shape: tuple[int, ...] = (8,)) -> None:
    for rank in ranks or range(len(group.participants)):
        group.call(group.now, rank, lambda p: p.ready(operator(name, *shape), group.now))
    group.run(group.now + 0.2)


def started(group: VirtualGroup, rank: int) -> list[str]:
    return [e.operator.name for _, e in group.events[rank] if isinstance(e, Start)]


def all_started(group: VirtualGroup) -> list[str]:
    orders = [started(group, rank) for rank in range(len(group.participants))]
    assert all(order == orders[0] for order in orders)
    return orders[0]


def iterate(group: VirtualGroup, number: int, *operators: str) -> None:
    begin(group, number)
    for name in operators:
        ready(group, name)


def test_nothing_starts_before_all_are_ready() -> None:
    group = group_of(7)
    begin(group, 1)
    ready(group, "a", 0, 1, 2, 3, 4, 6)
    assert all_started(group) == []
    assert group.participants[3].requests == (operator("a"),)
    ready(group, "b")
    assert all_started(group) == ["b"]
    ready(group, "a", 5)
    assert all_started(group) == ["b", "a"]
    assert group.participants[3].requests == ()


def test_the_order_of_responses_becomes_the_table() -> None:
    group = group_of(5)
    begin(group, 1)
    for name in ("c", "a", "b"):
        ready(group, name)
    assert [p.table.version for p in group.participants] == [0] * 5
    begin(group, 2)
    for participant in group.participants:
        assert participant.table.version == 1
        assert [o.name for o in participant.table.operators] == ["c", "a", "b"]


def test_the_table_goes_out_when_the_root_publishes_the_second_iteration() -> None:
    group = group_of(3)
    root = group.tree.root
    others = [rank for rank in range(3) if rank != root]
    iterate(group, 1, "a")
    begin(group, 2, *others)
    assert [p.table.version for p in group.participants] == [0, 0, 0]
    ready(group, "a", *others)
    begin(group, 2, root)
    assert [p.table.version for p in group.participants] == [1, 1, 1]
    ready(group, "a", root)
    # Asked for by negotiation, started by bit vectors.
    assert all_started(group) == ["a", "a"]
    assert [p.vectors > 0 for p in group.participants] == [True] * 3


def test_a_job_that_resumes_records_its_first_iteration() -> None:
    group = group_of(3)
    iterate(group, 500, "b", "a")
    begin(group, 501)
    assert [o.name for o in group.participants[2].table.operators] == ["b", "a"]


def test_without_iterations_everything_is_negotiated() -> None:
    group = group_of(3)
    for _ in range(3):
        ready(group, "a")
    assert all_started(group) == ["a"] * 3
    assert [p.vectors for p in group.participants] == [0, 0, 0]


def test_later_iterations_go_by_vectors_and_not_by_requests() -> None:
    group = group_of(7)
    iterate(group, 1, "a", "b", "c")
    begin(group, 2)
    before = [p.statistics.sent for p in group.participants]
    vectors = [p.vectors for p in group.participants]
    for rank in range(7):
        names = ("c", "a", "b") if rank % 2 else ("b", "a", "c")
        wanted = [operator(name) for name in names]

        def act(p: Participant, wanted: list[object] = wanted) -> None:  # type: ignore[assignment]
            p.ready_together(wanted, group.now)  # type: ignore[arg-type]

        group.call(group.now, rank, act)
    group.run(group.now + 0.2)
    assert all_started(group) == ["a", "b", "c", "a", "b", "c"]
    assert [p.vectors - v for p, v in zip(group.participants, vectors, strict=True)] == [1] * 7
    for rank, participant in enumerate(group.participants):
        edges = len(group.tree.children[rank]) + (rank != group.tree.root)
        assert participant.statistics.sent - before[rank] == edges


@pytest.mark.parametrize("count", [2, 7, 15, 31])
def test_messages_at_each_process_per_operator(count: int) -> None:
    group = group_of(count)
    group.run(0.2)
    before = [(p.statistics.sent, p.statistics.received) for p in group.participants]
    for number in range(5):
        ready(group, f"g{number}")
    for rank, (participant, (sent, received)) in enumerate(
        zip(group.participants, before, strict=True)
    ):
        own = rank != group.tree.root
        children = len(group.tree.children[rank])
        assert participant.statistics.received - received == 5 * (children + own)
        assert participant.statistics.sent - sent == 5 * (children + own)


def test_different_shapes_are_an_error_at_every_caller_and_all_else_goes_on() -> None:
    group = group_of(5)
    begin(group, 1)
    ready(group, "a")
    ready(group, "bad", 0, 1, 3, shape=(8, 4))
    ready(group, "bad", 2, shape=(4, 8))
    ready(group, "late", 0, 1, 2, 3)
    ready(group, "bad", 4, shape=(8, 4))
    ready(group, "late", 4)
    assert all_started(group) == ["a", "late"]
    for events in group.events:
        [failed] = [event for _, event in events if isinstance(event, Rejection)]
        assert failed.operator.name == "bad"
        assert failed.reason == (
            "operator bad: the processes differ: all-reduce of float32 (8, 4) at w0 and 3 more; "
            "all-reduce of float32 (4, 8) at w2; expected the same everywhere"
        )
    ready(group, "bad", shape=(8, 4))
    assert all_started(group) == ["a", "late", "bad"]


def test_an_objection_to_an_older_entry_is_void() -> None:
    def whole(*shape: int) -> list[OperatorRequest]:
        return [OperatorRequest(1, "a", (Variant(operator("a", *shape), 1, 0),))]

    master = Master(["w0"], forget_after=1)
    master.iteration(1)
    assert master.complete(whole(8)) is not None
    master.iteration(2)
    for version, cycle in ((1, 0), (2, 1), (3, 2)):
        amendment = master.amendment(version - 2)
        assert amendment is not None
        assert (amendment.version, amendment.cycle) == (version, cycle)
        assert master.amendment(version) is None
        master.acknowledged(version)
        if version == 1:
            assert master.contest("a", 1)
        elif version == 2:
            assert amendment.removed == ("a",)
            assert not master.contest("a", 2)
            assert master.complete(whole(9)) is None
    assert master.contest("a", 1)
    assert master.amendment(3) is None
    assert master.contest("a", 3)
    assert master.amendment(3) is not None


def test_impossible_calls_are_refused() -> None:
    group = group_of(2)
    participant = group.participants[0]
    with pytest.raises(OperatorError, match="w0 ends an iteration before it has begun one"):
        participant.end_iteration(group.now)
    begin(group, 4)
    ready(group, "a", 0)
    for number in (4, NO_MORE):
        with pytest.raises(OperatorError, match=f"w0: iteration {number} after 4; expected a larg"):
            participant.begin_iteration(number, group.now)
    with pytest.raises(OperatorError, match="w0 begins iteration 5 while a have not started"):
        participant.begin_iteration(5, group.now)
    with pytest.raises(OperatorError, match="w0 leaves while a have not started"):
        participant.leave(group.now)
    ready(group, "a", 1)
    group.call(group.now, 0, lambda p: p.leave(group.now))
    group.run(group.now + 0.2)
    with pytest.raises(OperatorError, match="w0: b after it has left"):
        participant.ready(operator("b"), group.now)
    assert not participant.done
    group.call(group.now, 1, lambda p: p.leave(group.now))
    group.run(group.now + 0.2)
    assert [p.done for p in group.participants] == [True, True]
    assert [p.failure for p in group.participants] == [None, None]


def test_without_iterations_a_name_waits_once() -> None:
    group = group_of(2)
    ready(group, "a", 0)
    with pytest.raises(OperatorError, match="w0: operator a has not started yet"):
        group.participants[0].ready(operator("a"), group.now)
    ready(group, "a", 1)
    ready(group, "a")
    assert all_started(group) == ["a", "a"]


def test_a_process_alone() -> None:
    group = VirtualGroup(CoordinationTree(("w0",), (-1,)), options=OPTIONS)
    iterate(group, 1, "a", "b")
    iterate(group, 2, "b", "c", "a")
    iterate(group, 3, "c")
    assert started(group, 0) == ["a", "b", "b", "c", "a", "c"]
    group.call(group.now, 0, lambda p: p.leave(group.now))
    group.run(group.now + 0.2)
    assert group.participants[0].done


def test_waiting_time_is_separate_from_the_protocols() -> None:
    group = group_of(3)
    root = group.tree.root
    leaf = next(rank for rank in range(3) if rank != root)
    ready(group, "a", *[rank for rank in range(3) if rank != leaf])
    group.run(5.0)
    group.call(5.0, leaf, lambda p: p.ready(operator("a"), group.now))
    group.run(6.0)
    waited = {
        rank: event.waited
        for rank in range(3)
        for _, event in group.events[rank]
        if isinstance(event, Start)
    }
    assert waited[leaf] == pytest.approx(0.002)
    assert waited[root] > 4.5
