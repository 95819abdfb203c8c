"""Each reading of the protocol that a model check found to break, as a test of the agents.

S1 to S10 lead to wrong sums, L1 to L9 to a job that never ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.host_agent.server import Server
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network
from hopsum.protocol.wire import Flag, Kind
from tests.support.protocol_world import (
    LANES,
    SPARE,
    Seen,
    contribution,
    result,
    seen,
    star_plan,
    tree_plan,
)

A, B, C = 0, 1, 2
ACCESS = {"w0": "a", "w1": "a", "w2": "r", "ps": "r", "spare": "r"}
"""A and B at switch a, C and the servers at r."""
WINDOW = 4


def pair_and_one(epoch: int = 1) -> tuple[JobPlan, Network]:
    """Switch a sums A and B; the server gets {A, B} and C."""
    return tree_plan(ACCESS, {"a": "r"}, ("a",), epoch=epoch)


def other_pair(epoch: int = 2) -> tuple[JobPlan, Network]:
    """Now B and C are at a switch that sums: the server gets A and {B, C}."""
    return tree_plan(
        {"w0": "r", "w1": "a", "w2": "a", "ps": "r", "spare": "r"}, {"a": "r"}, ("a",), epoch=epoch
    )


def answers(server: Server) -> list[Seen]:
    return seen(server.take_output())


def test_s1_a_stale_packet_is_a_question_and_no_contribution() -> None:
    plan, network = pair_and_one(epoch=2)
    server = Server(plan, 0, network)
    for worker in (A, B):
        server.receive(contribution(plan, network, worker, 0, 3, flags=Flag.STALE, weight=2), 0.0)
    server.receive(contribution(plan, network, C, 0, 4), 0.0)
    assert answers(server) == []
    assert server.statistics.stale == 2
    server.receive(contribution(plan, network, A, 0, 3, weight=2), 0.0)
    assert [packet.value for packet in answers(server)] == [7]


def test_s2_a_new_epoch_drops_partial_sums() -> None:
    plan, network = pair_and_one()
    server = Server(plan, 0, network)
    server.receive(contribution(plan, network, C, 0, 4), 0.0)
    newer, _ = other_pair()
    server.adopt(newer)
    server.receive(contribution(newer, network, B, 0, 6, weight=2), 0.0)
    assert answers(server) == []
    server.receive(contribution(newer, network, A, 0, 1), 0.0)
    assert [packet.value for packet in answers(server)] == [7]


def test_s3_contributions_of_an_older_epoch_do_not_count() -> None:
    plan, network = pair_and_one()
    newer, _ = other_pair()
    server = Server(newer, 0, network)
    server.receive(contribution(plan, network, C, 0, 4), 0.0)
    server.receive(contribution(newer, network, B, 0, 6, weight=2), 0.0)
    server.receive(contribution(plan, network, C, 0, 4, flags=Flag.BYPASS), 0.0)
    assert answers(server) == []
    assert server.statistics.older == 2
    server.receive(contribution(newer, network, A, 0, 1), 0.0)
    assert [packet.value for packet in answers(server)] == [7]


def test_s4_a_packet_is_read_with_the_plan_of_its_own_epoch_only() -> None:
    plan, network = pair_and_one(epoch=2)
    server = Server(plan, 0, network)
    older = replace(plan, epoch=1)
    newer = replace(plan, epoch=3)
    for other in (older, newer):
        server.receive(contribution(other, network, A, 0, 100, weight=2), 0.0)
    server.receive(contribution(plan, network, C, 0, 4), 0.0)
    assert answers(server) == []
    assert (server.statistics.older, server.statistics.newer) == (1, 1)


def test_s5_a_sum_replaces_the_singles_it_covers_and_later_singles_are_dropped() -> None:
    plan, network = pair_and_one()
    server = Server(plan, 0, network)
    server.receive(contribution(plan, network, A, 0, 1, flags=Flag.BYPASS), 0.0)
    server.receive(contribution(plan, network, A, 0, 3, weight=2), 0.0)
    server.receive(contribution(plan, network, B, 0, 2, flags=Flag.BYPASS), 0.0)
    assert answers(server) == []
    server.receive(contribution(plan, network, C, 0, 4), 0.0)
    assert [packet.value for packet in answers(server)] == [7]


@pytest.mark.parametrize("changes", [{"job": 0}, {"epoch": 0}])
def test_s6_job_0_and_epoch_0_do_not_exist(changes: dict[str, Any]) -> None:
    plan, network = pair_and_one()
    for make in (lambda p: Worker(p, 0, network), lambda p: Server(p, 0, network)):
        with pytest.raises(PlanError, match="from 1 to 65535"):
            make(replace(plan, **changes))


def test_s7_fragment_numbers_run_on_over_tensors_and_an_epoch_is_adopted_once() -> None:
    plan, network = star_plan(1)
    worker = Worker(plan, 0, network)
    server = Server(plan, 0, network)
    numbers = []
    for _ in range(3):
        call = worker.submit(np.ones(2 * LANES, dtype=np.int32), 0.0)
        sent = seen(worker.take_output())
        numbers += [packet.fragment for packet in sent]
        for packet in sent:
            server.receive(contribution(plan, network, 0, packet.fragment, 1), 0.0)
        for frames in server.take_output():
            worker.receive(frames, 0.0)
        assert worker.result(call) is not None
    assert numbers == list(range(6))
    worker.submit(np.ones(1, dtype=np.int32), 0.0)
    worker.take_output()
    worker.adopt(plan, 1.0)
    assert worker.take_output() == []


def late_worker(epoch: int = 2, workers: int = 3) -> tuple[Worker, JobPlan, Network, int]:
    """A worker with fragment 0 in flight that has just moved from epoch 1 to `epoch`."""
    plan, network = star_plan(workers)
    worker = Worker(plan, A, network)
    call = worker.submit(np.ones(LANES, dtype=np.int32), 0.0)
    worker.adopt(replace(plan, epoch=epoch), 1.0)
    worker.take_output()
    return worker, plan, network, call


def test_s8_a_result_of_an_older_epoch_is_refused_and_of_a_newer_one_taken() -> None:
    worker, plan, network, call = late_worker()
    worker.receive(result(plan, network, 0, 9, epoch=1), 1.0)
    assert not worker.done(call)
    assert worker.statistics.stale_results == 1
    worker.receive(result(plan, network, 0, 3, epoch=3), 1.0)
    assert worker.done(call)


def test_s9_after_a_crash_and_a_worker_leaving_all_get_the_same_sum() -> None:
    plan, network = star_plan(3)
    fewer, _ = star_plan(2, epoch=2)
    server = Server(fewer, 0, network)
    workers = [Worker(plan, w, network) for w in (A, B)]
    calls = [w.submit(np.full(LANES, 10**i, dtype=np.int32), 0.0) for i, w in enumerate(workers)]
    for worker in workers:
        worker.take_output()
        worker.adopt(fewer, 1.0)
    workers[A].receive(result(plan, network, 0, 111, epoch=1, weight=3), 1.0)
    for worker in workers:
        for frames in worker.take_output():
            for packet in seen([frames]):
                server.receive(
                    contribution(fewer, network, packet.worker, packet.fragment, packet.value), 1.0
                )
    for frames in server.take_output():
        for worker in workers:
            worker.receive(frames, 1.0)
    sums = [worker.result(call) for worker, call in zip(workers, calls, strict=True)]
    assert all(total is not None and (total == 11).all() for total in sums)


def test_s9_a_total_of_more_workers_than_are_left_is_everybodys_once_one_has_it() -> None:
    plan, network = star_plan(3)
    fewer, _ = star_plan(2, epoch=2)
    first, second = (Worker(plan, w, network) for w in (A, B))
    calls = [w.submit(np.ones(LANES, dtype=np.int32), 0.0) for w in (first, second)]
    first.receive(result(plan, network, 0, 111), 0.5)
    server = Server(fewer, 0, network)
    for worker in (first, second):
        worker.take_output()
        worker.adopt(fewer, 1.0)
    [handed] = seen(first.take_output())
    server.receive(
        contribution(fewer, network, A, 0, handed.value, flags=handed.flags, weight=handed.weight),
        1.0,
    )
    for frames in server.take_output():
        second.receive(frames, 1.0)
    total = second.result(calls[1])
    assert total is not None
    assert (total == 111).all()


def test_s10_results_of_the_old_server_are_refused_though_it_lives() -> None:
    plan, network = star_plan(3)
    worker = Worker(plan, A, network)
    call = worker.submit(np.ones(LANES, dtype=np.int32), 0.0)
    old_server = Server(plan, 0, network)
    moved, _ = star_plan(3, server=SPARE, epoch=2)
    worker.adopt(moved, 1.0)
    for w in (A, B, C):
        old_server.receive(contribution(plan, network, w, 0, 5), 1.0)
    [late] = old_server.take_output()
    worker.receive(late, 1.0)
    assert not worker.done(call)
    [again] = [p for p in seen(worker.take_output()) if p.epoch == 2]
    assert again.destination == network.hosts[SPARE].ip_bytes


def finished(server: Server, plan: JobPlan, network: Network, fragment: int, value: int) -> None:
    """Let the server finish a fragment."""
    for worker in range(len(plan.workers)):
        server.receive(contribution(plan, network, worker, fragment, value), 0.0)
    server.take_output()


def test_l1_the_result_of_f_lives_until_that_of_f_plus_w_is_finished() -> None:
    plan, network = star_plan(2)
    server = Server(plan, 0, network)
    finished(server, plan, network, 0, 5)
    server.receive(contribution(plan, network, A, WINDOW, 1), 0.0)
    server.receive(contribution(plan, network, B, 0, 5), 0.0)
    [answer] = answers(server)
    assert (answer.fragment, answer.value, answer.worker) == (0, 10, B)
    server.receive(contribution(plan, network, B, WINDOW, 2), 0.0)
    assert [packet.value for packet in answers(server)] == [3]
    server.receive(contribution(plan, network, B, 0, 5), 0.0)
    assert answers(server) == []


def test_l2_the_history_survives_epochs() -> None:
    plan, network = star_plan(2)
    server = Server(plan, 0, network)
    finished(server, plan, network, 0, 5)
    server.adopt(replace(plan, epoch=2))
    [received] = answers(server)
    assert (received.kind, received.epoch, received.value) == (Kind.REPLICATED, 2, 10)
    for epoch in (1, 2):
        server.receive(contribution(plan, network, B, 0, 5, epoch=epoch), 0.0)
        [answer] = answers(server)
        assert (answer.value, answer.epoch) == (10, 2)


def test_l3_a_new_server_gets_the_last_window_of_results() -> None:
    plan, network = star_plan(2)
    ahead, behind = (Worker(plan, w, network) for w in (A, B))
    calls = [w.submit(np.full(LANES, 5, dtype=np.int32), 0.0) for w in (ahead, behind)]
    ahead.receive(result(plan, network, 0, 10), 0.1)
    moved, _ = star_plan(2, server=SPARE, epoch=2)
    server = Server(moved, 0, network)
    for worker in (ahead, behind):
        worker.take_output()
        worker.adopt(moved, 1.0)
    [asked] = seen(behind.take_output())
    server.receive(contribution(moved, network, B, asked.fragment, asked.value), 1.0)
    [handed] = seen(ahead.take_output())
    assert (handed.flags, handed.weight) == (Flag.BYPASS, 2)
    server.receive(
        contribution(moved, network, A, 0, handed.value, flags=handed.flags, weight=2), 1.0
    )
    [frames] = server.take_output()
    for worker in (ahead, behind):
        worker.receive(frames, 1.0)
    assert behind.done(calls[1])
    assert ahead.deadline is None, "the result is the answer to the hand-over"


def test_l3_a_hand_over_is_repeated_until_the_new_server_answers() -> None:
    plan, network = star_plan(2)
    worker = Worker(plan, A, network)
    worker.submit(np.full(LANES, 5, dtype=np.int32), 0.0)
    worker.receive(result(plan, network, 0, 10), 0.1)
    worker.take_output()
    worker.adopt(replace(plan, epoch=2), 1.0)
    for _ in range(3):
        assert [packet.weight for packet in seen(worker.take_output())] == [2]
        assert worker.deadline is not None
        worker.tick(worker.deadline)
    worker.receive(result(plan, network, 0, 10, epoch=1), 2.0)
    assert worker.deadline is not None, "an answer of the old epoch is none"
    worker.receive(result(plan, network, 0, 10, epoch=2), 2.0)
    assert worker.deadline is None


@pytest.mark.parametrize(
    "changes", [{"window": 2}, {"window": 16}, {"lanes": 64}, {"job": 2}, {"trees": ()}]
)
def test_l4_what_is_fixed_for_a_jobs_life_cannot_change(changes: dict[str, Any]) -> None:
    plan, network = star_plan(2)
    newer = replace(plan, epoch=2, **changes)
    with pytest.raises(PlanError, match="fixed for the life of a job"):
        Worker(plan, 0, network).adopt(newer, 1.0)
    with pytest.raises(PlanError, match="fixed for the life of a job"):
        Server(plan, 0, network).adopt(newer)


@pytest.mark.parametrize(
    "first", [1 << 31, (1 << 31) + WINDOW, (1 << 32) - WINDOW, (1 << 32) - 1, WINDOW + 1]
)
def test_l5_an_empty_server_takes_any_fragment_and_numbers_wrap(first: int) -> None:
    plan, network = star_plan(1)
    worker = Worker(plan, 0, network, WorkerOptions(first_fragment=first))
    server = Server(plan, 0, network)
    tensor = np.arange(3 * WINDOW * LANES, dtype=np.int32)
    call = worker.submit(tensor, 0.0)
    numbers: list[int] = []
    while not worker.done(call):
        sent = seen(worker.take_output())
        assert sent, "the worker waits"
        for packet in sent:
            numbers.append(packet.fragment)
            frames = contribution(plan, network, 0, packet.fragment, 0)
            frames[:, -4 * LANES :] = np.array(packet.lanes, dtype=">i4").view(np.uint8)
            server.receive(frames, 0.0)
        for frames in server.take_output():
            worker.receive(frames, 0.0)
    total = worker.result(call)
    assert total is not None
    assert (total == tensor).all()
    assert numbers == [(first + i) % (1 << 32) for i in range(3 * WINDOW)]


def test_l6_trees_do_not_share_fragments() -> None:
    plan, network = star_plan(1)
    tree = plan.trees[0]
    two = replace(plan, trees=(replace(tree, share=0.5), replace(tree, tree=1, share=0.5)))
    worker = Worker(two, 0, network)
    call = worker.submit(np.ones(4 * LANES, dtype=np.int32), 0.0)
    assert [packet.fragment for packet in seen(worker.take_output())] == [0, 1, 0, 1]
    for fragment in (0, 1):
        worker.receive(result(two, network, fragment, 1, tree=0), 0.0)
    assert not worker.done(call)
    for fragment in (0, 1):
        worker.receive(result(two, network, fragment, 1, tree=1), 0.0)
    assert worker.done(call)


@pytest.mark.parametrize("flags", [Flag(0), Flag.STALE, Flag.BYPASS])
def test_l7_any_packet_of_a_finished_fragment_is_answered(flags: Flag) -> None:
    plan, network = pair_and_one()
    server = Server(plan, 0, network)
    server.receive(contribution(plan, network, A, 0, 3, weight=2), 0.0)
    server.receive(contribution(plan, network, C, 0, 4), 0.0)
    server.take_output()
    weight = 1 if flags is Flag.BYPASS else 2
    server.receive(contribution(plan, network, B, 0, 3, flags=flags, weight=weight), 0.0)
    [answer] = answers(server)
    assert (answer.kind, answer.worker, answer.value) == (Kind.RESULT, B, 7)
    assert answer.hops == len(plan.trees[0].down[B])
    assert answer.destination == network.hosts["w1"].ip_bytes


def test_l8_l9_after_r_tries_a_fragment_bypasses_the_switches_until_a_new_epoch() -> None:
    plan, network = pair_and_one()
    worker = Worker(plan, B, network, WorkerOptions(bypass_after=3))
    worker.submit(np.ones(LANES, dtype=np.int32), 0.0)
    flags = []
    for _ in range(6):
        flags += [packet.flags for packet in seen(worker.take_output())]
        assert worker.deadline is not None
        worker.tick(worker.deadline)
    assert flags == [Flag(0)] * 3 + [Flag.BYPASS] * 3
    worker.take_output()
    worker.adopt(replace(plan, epoch=2), 100.0)
    assert [packet.flags for packet in seen(worker.take_output())] == [Flag(0)]


def test_l8_l9_singles_complete_a_fragment_that_no_switch_sums() -> None:
    plan, network = pair_and_one()
    server = Server(plan, 0, network)
    for worker, value in ((A, 1), (B, 2), (C, 4)):
        server.receive(contribution(plan, network, worker, 0, value, flags=Flag.BYPASS), 0.0)
        server.receive(contribution(plan, network, worker, 0, value, flags=Flag.BYPASS), 0.0)
    values = [packet.value for packet in answers(server)]
    assert values == [7, 7], "the result, and the answer to the last repetition"
    assert server.statistics.repeats == 2
