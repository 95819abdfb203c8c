"""Workers and servers at the ends of links that lose frames: what they ask for and answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hopsum.collectives.plan import JobPlan, Results
from hopsum.host_agent.codec import Frames
from hopsum.host_agent.options import WorkerOptions
from hopsum.host_agent.server import Server
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network
from hopsum.protocol.tos import URGENT
from hopsum.protocol.wire import QUESTION, REPLICATED_IP, Flag, Kind, Reduction, frame_view
from tests.support.columns import flags_of, sequences_of
from tests.support.protocol_world import (
    LANES,
    Faults,
    Seen,
    World,
    contribution,
    frame,
    seen,
    tree_plan,
)
from tests.support.search import examples

STAR = {"w0": "s", "w1": "s", "ps": "s"}


def star(window: int = 4, **changes: Any) -> tuple[JobPlan, Network]:
    """Two workers whose switch sums."""
    return tree_plan(STAR, {}, ("s",), window=window, **changes)


def busy(window: int = 4) -> tuple[Worker, JobPlan, Network]:
    """A worker that has sent its first window."""
    plan, network = star(window)
    worker = Worker(plan, 0, network)
    worker.submit(np.ones(40 * LANES, dtype=np.int32), 0.0)
    return worker, plan, network


def down(plan: JobPlan, network: Network, fragment: int, sequence: int, flags: int = 0) -> Frames:
    """A result from the switch, under a number."""
    flags |= Flag.SEQUENCED
    return frame(
        plan, network, Kind.REPLICATED, fragment, 2, weight=2, sequence=sequence, flags=flags
    )


def up(plan: JobPlan, network: Network, fragment: int, sequence: int, flags: int = 0) -> Frames:
    """A sum of both workers from the switch, under a number."""
    flags |= Flag.SEQUENCED
    return contribution(plan, network, 0, fragment, 2, weight=2, sequence=sequence, flags=flags)


def asked(plan: JobPlan, network: Network, sequence: int, *, of_worker: bool) -> Frames:
    """A request from the switch."""
    stack = plan.trees[0].up[0] if of_worker else ()
    return frame(
        plan, network, Kind.REQUEST, 0, 0, stack, weight=1, sequence=sequence, flags=Flag.SEQUENCED
    )


def is_urgent(batch: Frames) -> bool:
    return bool((batch[:, 15] & URGENT).all())


# --- workers


def test_a_worker_numbers_its_fragments() -> None:
    worker, _, _ = busy()
    assert [(p.fragment, p.sequence) for p in seen(worker.take_output())] == [
        (n, n) for n in range(4)
    ]


def test_a_worker_sends_again_what_its_neighbour_misses() -> None:
    worker, plan, network = busy()
    [first] = worker.take_output()
    worker.receive(asked(plan, network, 2, of_worker=True), 0.1)
    [repair] = worker.take_output()
    [packet] = seen([repair])
    assert (packet.kind, packet.fragment) == (Kind.CONTRIBUTION, 2)
    assert (packet.sequence, packet.repair, is_urgent(repair)) == (2, True, True)
    assert not is_urgent(first)
    assert worker.statistics.repaired == worker.statistics.retransmissions == 1


@pytest.mark.parametrize("number", [4, 1000, 65535])
def test_a_worker_answers_for_nothing_that_it_has_not_sent(number: int) -> None:
    worker, plan, network = busy()
    worker.take_output()
    worker.receive(asked(plan, network, number, of_worker=True), 0.1)
    assert worker.take_output() == []


def test_a_worker_with_the_result_does_not_send_its_fragment_again() -> None:
    worker, plan, network = busy()
    worker.receive(down(plan, network, 0, 0), 0.1)
    worker.take_output()
    worker.receive(asked(plan, network, 0, of_worker=True), 0.2)
    assert worker.take_output() == []


def test_a_worker_asks_for_a_result_that_was_lost() -> None:
    worker, plan, network = busy()
    worker.take_output()
    worker.receive(np.concatenate([down(plan, network, n, n) for n in (0, 2)]), 0.1)
    request = worker.take_output()[0]
    [packet] = seen([request])
    assert (packet.kind, packet.sequence, packet.hops) == (Kind.REQUEST, 1, 0)
    assert is_urgent(request)
    assert worker.statistics.requests == 1
    worker.receive(down(plan, network, 1, 1, flags=Flag.REPAIR), 0.2)
    assert [p.fragment for p in seen(worker.take_output())] == [5]


def test_a_request_holds_nothing_of_the_workers_memory() -> None:
    worker, plan, network = busy()
    worker.take_output()
    for size in range(100, 2000, 4):
        np.full(size, 0xAB, dtype=np.uint8)
    worker.receive(down(plan, network, 2, 2), 0.1)
    requests = worker.take_output()[0]
    assert [set(packet.lanes) for packet in seen([requests])] == [{0}] * 2


def test_a_tree_in_silence_times_out_while_another_makes_progress() -> None:
    plan, network = star()
    [tree] = plan.trees
    plan = replace(plan, trees=(replace(tree, share=0.5), replace(tree, tree=1, share=0.5)))
    worker = Worker(plan, 0, network)
    worker.submit(np.ones(4000 * LANES, dtype=np.int32), 0.0)
    again: set[int] = set()
    for step in range(1, 500):
        worker.receive(
            frame(plan, network, Kind.REPLICATED, step - 1, 2, weight=2, tree=1), step / 1e3
        )
        worker.tick(step / 1e3)
        again |= {p.fragment for b in worker.take_output() if b[0, 48] == 0 for p in seen([b])}
    assert worker.statistics.timeouts > 0
    assert again >= set(range(4))


def test_a_new_epoch_forgets_how_far_timeouts_had_backed_off() -> None:
    worker, plan, _ = busy(window=16)
    now = 0.0
    while worker.statistics.timeouts < 2 * 12:
        assert worker.deadline is not None
        now = worker.deadline
        worker.tick(now)
    before = worker.statistics.probes
    worker.adopt(replace(plan, epoch=2), now)
    end = now + 5 * WorkerOptions().max_timeout
    while worker.deadline is not None and worker.deadline < end:
        worker.tick(worker.deadline)
    assert worker.statistics.probes - before >= 4 * 4, "at the pace of the first ones"


def test_results_without_numbers_cause_no_requests() -> None:
    worker, plan, network = busy()
    worker.take_output()
    worker.receive(frame(plan, network, Kind.REPLICATED, 2, 2, weight=2, sequence=7), 0.1)
    assert worker.statistics.requests == 0


# --- servers


def served() -> tuple[Server, JobPlan, Network]:
    """A server that has finished fragment 0."""
    plan, network = star()
    server = Server(plan, 0, network)
    server.receive(up(plan, network, 0, 0), 0.0)
    return server, plan, network


def replies(server: Server) -> list[Seen]:
    return seen(server.take_output())


def test_a_server_numbers_its_results() -> None:
    server, plan, network = served()
    server.receive(up(plan, network, 1, 1), 0.0)
    assert [(p.fragment, p.sequence) for p in replies(server)] == [(0, 0), (1, 1)]


def test_a_server_asks_for_a_sum_that_was_lost() -> None:
    server, plan, network = served()
    replies(server)
    server.receive(up(plan, network, 2, 2), 0.1)
    request, result = replies(server)
    assert (request.kind, request.sequence, request.hops) == (Kind.REQUEST, 1, 1)
    assert (result.kind, result.fragment) == (Kind.REPLICATED, 2)


def test_a_server_sends_a_lost_result_again_to_who_asks() -> None:
    server, plan, network = served()
    [first] = replies(server)
    server.receive(asked(plan, network, 0, of_worker=False), 0.1)
    [again] = replies(server)
    assert again == first
    assert (again.sequence, again.repair) == (0, True)
    server.receive(asked(plan, network, 1, of_worker=False), 0.1)
    assert replies(server) == []


def test_a_server_answers_a_sum_that_comes_again_by_the_result_for_all() -> None:
    server, plan, network = served()
    replies(server)
    server.receive(up(plan, network, 0, 1), 0.1)
    [again] = replies(server)
    assert (again.destination, again.sequence, again.repair) == (REPLICATED_IP, 0, True)


def test_a_server_does_not_answer_a_copy_that_is_late_on_the_link() -> None:
    server, plan, network = served()
    server.receive(up(plan, network, 1, 1), 0.0)
    replies(server)
    server.receive(up(plan, network, 0, 0), 0.1)
    assert replies(server) == []


def test_a_server_does_not_answer_what_it_has_asked_for_twice() -> None:
    server, plan, network = served()
    replies(server)
    server.receive(up(plan, network, 0, 0, flags=Flag.REPAIR), 0.1)
    assert replies(server) == []


@pytest.mark.parametrize("first", [0, (1 << 32) - 4])
def test_a_new_epoch_begins_with_what_some_may_have_missed(first: int) -> None:
    plan, network = star()
    server = Server(plan, 0, network)
    fragments = [(first + n) & 0xFFFFFFFF for n in range(6)]
    for number, fragment in enumerate(fragments):
        server.receive(up(plan, network, fragment, number), 0.0)
    server.take_output()
    server.adopt(replace(plan, epoch=2))
    received = replies(server)
    assert [(p.fragment, p.epoch, p.sequence, p.repair) for p in received] == [
        (fragment, 2, number, False) for number, fragment in enumerate(fragments[2:])
    ]


def test_a_worker_without_a_result_continues_in_a_new_epoch_without_a_timeout() -> None:
    access = {"w0": "a", "w1": "b", "ps": "r"}
    plan, network = tree_plan(access, {"a": "r", "b": "r"}, ("a", "b", "r"), window=4)
    workers = [Worker(plan, w, network) for w in range(2)]
    world = World(network, plan, workers)
    world.filter = lambda node, peer, frames: (node, peer) != ("b", "w1")
    values = np.arange(4 * LANES, dtype=np.int32)
    calls = [worker.submit(values, 0.0) for worker in workers]
    world.run_for(0.02)
    assert workers[0].idle
    assert not workers[1].idle
    world.filter = lambda node, peer, frames: True
    world.adopt(replace(plan, epoch=2), spread=0.0)
    world.run(1.0)
    for worker, call in zip(workers, calls, strict=True):
        np.testing.assert_array_equal(worker.result(call), 2 * values)
        assert worker.statistics.timeouts == 0


def test_an_answer_to_one_worker_clears_nothing_where_results_are_replicated() -> None:
    for results, clears in ((Results.REPLICATED, False), (Results.UNICAST, True)):
        plan, network = star(results=results)
        server = Server(plan, 0, network)
        server.receive(up(plan, network, 0, 0), 0.0)
        server.take_output()
        question = contribution(plan, network, 1, 0, 1, flags=Flag.STALE)
        server.receive(question, 0.1)
        [answer] = server.take_output()
        assert bool(answer[0, 62] & 0x40) == clears


# --- unicast results


def to_one(plan: JobPlan, network: Network, fragment: int, sequence: int) -> Frames:
    """A result for worker 0, past a switch, which removes the flags of its link."""
    return frame(plan, network, Kind.RESULT, fragment, 2, weight=2, sequence=sequence)


def question(
    plan: JobPlan, network: Network, sequence: int, worker: int = 1, **fields: Any
) -> Frames:
    """A worker's question for a result, as it arrives at the server."""
    fields = {"flags": QUESTION, "reduction": Reduction.NONE, "sequence": sequence, **fields}
    return contribution(plan, network, worker, 0, 0, weight=1, **fields)


def unicast_served(fragments: int = 3) -> tuple[Server, JobPlan, Network]:
    """A server that has sent the results of the first fragments."""
    plan, network = star(results=Results.UNICAST)
    server = Server(plan, 0, network)
    for fragment in range(fragments):
        server.receive(up(plan, network, fragment, fragment), 0.0)
    return server, plan, network


def test_a_server_numbers_unicast_results_alike_for_all_workers() -> None:
    server, _, _ = unicast_served()
    assert [(p.worker, p.fragment, p.sequence) for p in replies(server)] == [
        (worker, fragment, fragment) for fragment in range(3) for worker in (0, 1)
    ]


def test_a_worker_asks_the_server_for_a_unicast_result_that_was_lost() -> None:
    plan, network = star(results=Results.UNICAST)
    worker = Worker(plan, 0, network)
    worker.submit(np.ones(40 * LANES, dtype=np.int32), 0.0)
    worker.take_output()
    worker.receive(np.concatenate([to_one(plan, network, n, n) for n in (0, 2)]), 0.1)
    request = worker.take_output()[0]
    [packet] = seen([request])
    assert (packet.kind, packet.flags, packet.hops) == (Kind.CONTRIBUTION, QUESTION, 2)
    assert sequences_of(request).tolist() == [1]
    assert packet.lanes == (), "short, as no switch has to turn it into its answer"
    assert is_urgent(request)
    assert worker.statistics.requests == 1
    worker.receive(to_one(plan, network, 1, 1), 0.2)
    assert [p.fragment for p in seen(worker.take_output())] == [5]


def test_an_old_unicast_result_that_comes_again_is_no_new_beginning() -> None:
    plan, network = star(window=128, results=Results.UNICAST)
    worker = Worker(plan, 0, network)
    worker.submit(np.ones(400 * LANES, dtype=np.int32), 0.0)
    for first, last in ((0, 64), (64, 128), (3, 4), (128, 140)):
        batch = np.concatenate([to_one(plan, network, n, n) for n in range(first, last)])
        worker.receive(batch, 0.1)
    assert worker.statistics.requests == 0


def test_a_server_answers_the_question_of_one_worker_under_its_number() -> None:
    server, plan, network = unicast_served()
    first = replies(server)
    server.receive(question(plan, network, 1), 0.1)
    [batch] = server.take_output()
    [again] = seen([batch])
    assert again == next(p for p in first if (p.worker, p.fragment) == (1, 1))
    assert (again.sequence, again.repair, is_urgent(batch)) == (1, True, True)
    assert server.statistics.repaired == 1


def test_a_result_that_is_asked_for_by_its_fragment_has_its_number_too() -> None:
    server, plan, network = unicast_served()
    replies(server)
    server.receive(contribution(plan, network, 1, 1, 1, flags=Flag.STALE), 0.1)
    [again] = replies(server)
    assert (again.worker, again.fragment, again.sequence) == (1, 1, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"sequence": 3},
        {"sequence": 65535},
        {"worker": 2},
        {"worker": 65535},
        {"epoch": 2},
        {"epoch": 65535},
    ],
    ids=str,
)
def test_questions_that_a_server_does_not_answer(fields: dict[str, int]) -> None:
    server, plan, network = unicast_served()
    replies(server)
    packet = question(plan, network, **{"sequence": 1, "worker": 0})
    edited = frame_view(packet, 0, 1)
    for name, value in fields.items():
        edited[name] = value
    server.receive(packet, 0.1)
    assert server.take_output() == []


def test_results_that_switches_copy_are_not_asked_for_at_the_server() -> None:
    server, plan, network = served()
    replies(server)
    server.receive(question(plan, network, 0), 0.1)
    assert server.take_output() == []
    assert server.statistics.refused == 1


def test_unicast_results_of_a_new_epoch_count_from_0() -> None:
    server, plan, _ = unicast_served(fragments=6)
    replies(server)
    server.adopt(replace(plan, epoch=2))
    assert [(p.worker, p.fragment, p.sequence) for p in replies(server)] == [
        (worker, 2 + number, number) for worker in (0, 1) for number in range(4)
    ]


# --- contributions past all switches


def direct(singles: bool = False, **changes: Any) -> tuple[JobPlan, Network]:
    """Two workers whose contributions no switch sums."""
    fields = {"window": 4, "results": Results.UNICAST, "singles": singles, **changes}
    return tree_plan(STAR, {}, (), **fields)


def to_server(
    plan: JobPlan, network: Network, fragment: int, sequence: int, worker: int = 0, **fields: Any
) -> Frames:
    """A worker's contribution past switches, which remove the flags of their links."""
    flags = Flag.BYPASS if plan.trees[0].singles else 0
    fields = {"flags": flags, "weight": 1, "sequence": sequence, **fields}
    return contribution(plan, network, worker, fragment, 1, **fields)


def asked_by_server(plan: JobPlan, network: Network, sequence: int, **fields: Any) -> Frames:
    """A server's question for a contribution, as it arrives at worker 0."""
    fields = {"flags": QUESTION, "reduction": Reduction.NONE, "sequence": sequence, **fields}
    return frame(plan, network, Kind.RESULT, 0, 0, weight=2, **fields)


@pytest.mark.parametrize("singles", [False, True])
def test_a_server_asks_a_worker_for_a_contribution_that_was_lost(singles: bool) -> None:
    plan, network = direct(singles)
    server = Server(plan, 0, network)
    server.receive(to_server(plan, network, 0, 0), 0.0)
    server.receive(to_server(plan, network, 1, 0, worker=1), 0.0)
    assert replies(server) == []
    server.receive(to_server(plan, network, 2, 2), 0.1)
    [batch] = server.take_output()
    [question] = seen([batch])
    assert (question.kind, question.flags & QUESTION, question.worker) == (Kind.RESULT, QUESTION, 0)
    assert (question.sequence, question.hops, is_urgent(batch)) == (1, 1, True)
    assert question.lanes == ()
    assert server.statistics.requests == 1
    server.receive(to_server(plan, network, 1, 1), 0.2)
    assert [packet.fragment for packet in replies(server)] == [1, 1]


def test_a_server_follows_the_numbers_of_contributions_of_any_kind() -> None:
    plan, network = direct()
    server = Server(plan, 0, network)
    server.receive(to_server(plan, network, 0, 0), 0.0)
    server.receive(to_server(plan, network, 1, 1, flags=Flag.BYPASS), 0.0)
    server.receive(to_server(plan, network, 0, 2, flags=Flag.BYPASS, weight=2), 0.0)
    server.receive(to_server(plan, network, 2, 3), 0.0)
    assert server.statistics.requests == 0


@pytest.mark.parametrize("singles", [False, True])
def test_a_worker_answers_its_server_under_the_number_asked_for(singles: bool) -> None:
    plan, network = direct(singles)
    worker = Worker(plan, 0, network)
    worker.submit(np.ones(40 * LANES, dtype=np.int32), 0.0)
    assert [p.sequence for p in seen(worker.take_output())] == [0, 1, 2, 3]
    worker.receive(asked_by_server(plan, network, 2), 0.1)
    [batch] = worker.take_output()
    [repair] = seen([batch])
    assert (repair.kind, repair.fragment, repair.sequence) == (Kind.CONTRIBUTION, 2, 2)
    assert bool(repair.flags & Flag.BYPASS) == singles
    assert is_urgent(batch)
    assert worker.statistics.repaired == worker.statistics.retransmissions == 1


@pytest.mark.parametrize(
    "fields",
    [{"sequence": 4}, {"sequence": 65535}, {"epoch": 2}, {"epoch": 65535}, {"weight": 1}],
    ids=str,
)
def test_questions_that_a_worker_does_not_answer(fields: dict[str, int]) -> None:
    plan, network = direct()
    worker = Worker(plan, 0, network)
    worker.submit(np.ones(40 * LANES, dtype=np.int32), 0.0)
    worker.take_output()
    question = asked_by_server(plan, network, 0)
    edited = frame_view(question, 0, 0)
    for name, value in fields.items():
        edited[name] = value
    worker.receive(question, 0.1)
    assert worker.take_output() == []


def test_a_worker_whose_switch_sums_does_not_answer_its_server() -> None:
    worker, plan, network = busy()
    worker.take_output()
    worker.receive(asked_by_server(plan, network, 0), 0.1)
    assert worker.take_output() == []
    assert worker.statistics.refused == 1


def test_a_worker_numbers_all_that_goes_past_the_switches() -> None:
    plan, network = direct(window=2)
    worker = Worker(plan, 0, network)
    worker.submit(np.ones(4 * LANES, dtype=np.int32), 0.0)
    worker.receive(np.concatenate([to_one(plan, network, n, n) for n in (0, 1)]), 0.1)
    worker.take_output()
    worker.adopt(replace(plan, epoch=2), 0.2)
    sent = seen(worker.take_output())
    assert [packet.sequence for packet in sent] == [0, 1, 2, 3]
    assert [packet.weight for packet in sent] == [1, 1, 2, 2], "the last ones are handed over"


# --- together


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sums", "results", "most"),
    [("abr", Results.REPLICATED, 0.15), ("abr", Results.UNICAST, 0.15), ("", Results.UNICAST, 0.3)],
)
@pytest.mark.parametrize("seed", range(examples(1, of=4)))
def test_losses_in_mid_stream_cost_no_timeout(
    seed: int, sums: str, results: Results, most: float
) -> None:
    """Only the neighbours of a lossy link take part; past switches, worker and server.

    `most`: retransmissions, of all fragments. On a path of three links 0.09 are lost.
    """
    access = {"w0": "a", "w1": "a", "w2": "b", "w3": "b", "ps": "r"}
    plan, network = tree_plan(access, {"a": "r", "b": "r"}, tuple(sums), window=64, results=results)
    workers = [Worker(plan, w, network) for w in range(4)]
    world = World(network, plan, workers, seed, Faults(loss=0.03))
    values = np.arange(400 * LANES, dtype=np.int32)
    calls = [worker.submit(values, 0.0) for worker in workers]
    world.run()
    for worker, call in zip(workers, calls, strict=True):
        np.testing.assert_array_equal(worker.result(call), 4 * values)
    assert sum(worker.statistics.timeouts for worker in workers) == 0
    again = sum(worker.statistics.retransmissions for worker in workers)
    assert again < most * 4 * 400


def test_a_result_that_all_others_have_is_asked_for() -> None:
    """A switch loses the result that it kept for one worker, whose contribution then waits there
    for others that are not sent any more: the server has the result, and answers a question."""
    plan, network = star()
    workers = [Worker(plan, w, network, WorkerOptions(deadline=1e6)) for w in range(2)]
    world = World(network, plan, workers)
    calls = [worker.submit(np.ones(8 * LANES, dtype=np.int32), 0.0) for worker in workers]
    world.filter = lambda node, peer, frames: (
        peer != "w0" or all(packet.fragment != 7 for packet in seen([frames]))
    )
    while not workers[1].idle:
        world.run_for(0.001)
    world.filter = lambda node, peer, frames: True
    world.reboot("s")
    world.run()
    assert workers[0].statistics.bypassed == 0
    for worker, call in zip(workers, calls, strict=True):
        total = worker.result(call)
        assert total is not None
        assert (total == 2).all()


def test_one_worker_has_bypassed_the_switch_and_the_other_has_not() -> None:
    """The contribution of one waits at the server, the other's in the switch: a probe of the server
    joins them, long before the other gives the switch up."""
    plan, network = star()
    workers = [Worker(plan, w, network, WorkerOptions(deadline=1e6)) for w in range(2)]
    world = World(network, plan, workers)
    calls = [worker.submit(np.ones(LANES, dtype=np.int32), 0.0) for worker in workers]

    def bypass(node: str, peer: str, frames: Frames) -> bool:
        if node == "w1":
            flags_of(frames)[...] |= np.uint8(Flag.BYPASS)
        return True

    world.filter = bypass
    world.run()
    assert workers[0].statistics.bypassed == 0
    assert workers[0].statistics.timeouts == 0
    for worker, call in zip(workers, calls, strict=True):
        total = worker.result(call)
        assert total is not None
        assert (total == 2).all()
