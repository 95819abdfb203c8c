"""The worker with scripted packets: what it sends, accepts and refuses, and when it gives up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.collectives.plan import JobPlan, PlanError, Results
from hopsum.host_agent.codec import TREE_AT, reduction_byte
from hopsum.host_agent.failure import CallError, JobFailed
from hopsum.host_agent.numbers import NumbersError, exponent_codes
from hopsum.host_agent.server import Server
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network
from hopsum.protocol.wire import Flag, Kind, Reduction, frame_view, ipv4_checksum
from tests.support.columns import reductions_of, tos_of
from tests.support.protocol_world import (
    LANES,
    Faults,
    World,
    at_server,
    at_worker,
    contribution,
    frame,
    result,
    seen,
    star_plan,
    tree_plan,
)

WINDOW = 4


def alone(**changes: Any) -> tuple[Worker, JobPlan, Network]:
    """The only worker of a job."""
    plan, network = star_plan(1, **changes)
    return Worker(plan, 0, network), plan, network


def ones(count: int) -> NDArray[np.int32]:
    return np.ones(count, dtype=np.int32)


def echo(worker: Worker, server: Server, now: float = 0.0) -> list[int]:
    """Exchange frames without loss until nothing moves; the fragments sent."""
    sent = []
    while batches := worker.take_output():
        for batch in batches:
            sent += [packet.fragment for packet in seen([batch])]
            server.receive(at_server(batch), now)
        for batch in server.take_output():
            worker.receive(batch, now)
    return sent


@pytest.mark.slow
@pytest.mark.parametrize(
    "count", [0, 1, LANES - 1, LANES, LANES + 1, 4 * LANES, 4 * LANES + 1, 17 * LANES - 1, 100_000]
)
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_any_length(count: int, dtype: type) -> None:
    worker, plan, network = alone()
    tensor: NDArray[Any] = np.arange(count).astype(dtype)
    call = worker.submit(tensor, 0.0)
    sent = echo(worker, Server(plan, 0, network))
    total = worker.result(call)
    assert total is not None
    np.testing.assert_allclose(total, tensor, rtol=2.0**-24, atol=1e-4)
    fragments = -(-count // LANES)
    prologue = 1 if count and dtype is np.float32 else 0
    assert sorted(sent) == list(range(fragments + prologue))
    assert worker.idle
    assert worker.deadline is None


def test_shape_and_type_come_back_and_the_call_is_forgotten() -> None:
    worker, plan, network = alone()
    tensor = np.arange(60, dtype=np.float32).reshape(3, 4, 5).transpose(2, 0, 1)
    call = worker.submit(tensor, 0.0)
    assert worker.result(call) is None
    echo(worker, Server(plan, 0, network))
    total = worker.result(call)
    assert total is not None
    np.testing.assert_allclose(total, tensor, atol=1e-4)
    with pytest.raises(CallError, match="there is no call 0"):
        worker.result(call)


def test_a_full_window_defers_a_quarter_of_its_results_and_the_last_ones_half() -> None:
    worker, plan, network = alone()
    server = Server(plan, 0, network)
    worker.submit(ones((plan.in_flight + 4) * LANES), 0.0)
    assert worker.deferrable == plan.in_flight // 4
    [batch] = worker.take_output()
    server.receive(at_server(batch), 0.0)
    [results] = map(at_worker, server.take_output())
    worker.receive(results[:4], 0.0)
    assert worker.deferrable == plan.in_flight // 4
    worker.receive(results[4:6], 0.0)
    assert worker.deferrable == (plan.in_flight - 2) // 2


def test_a_call_is_settled_when_its_last_result_has_come_and_until_it_is_taken() -> None:
    worker, plan, network = alone()
    assert (worker.deferrable, worker.settled) == (0, False)
    call = worker.submit(ones(3 * LANES), 0.0)
    assert (worker.deferrable, worker.settled) == (1, False)
    echo(worker, Server(plan, 0, network))
    assert (worker.deferrable, worker.settled) == (0, True)
    worker.result(call)
    assert not worker.settled


def test_a_failure_is_settled() -> None:
    plan, network = star_plan(1)
    worker = Worker(plan, 0, network, WorkerOptions(initial_timeout=0.01, deadline=0.1))
    worker.submit(ones(3), 0.0)
    for now in (0.05, 0.2, 0.5):
        worker.tick(now)
    assert worker.failure is not None
    assert worker.settled


def test_a_tensor_can_be_summed_in_place() -> None:
    worker, plan, network = alone()
    tensor = np.arange(20 * LANES + 5, dtype=np.int32)
    expected = tensor.copy()
    call = worker.submit(tensor, 0.0, out=tensor)
    echo(worker, Server(plan, 0, network))
    assert worker.result(call) is tensor
    np.testing.assert_array_equal(tensor, expected)


def test_several_tensors_in_flight() -> None:
    worker, plan, network = alone()
    tensors: list[NDArray[Any]] = [
        np.full(n, n, dtype=np.float32 if n % 2 else np.int32) for n in (1, 40, 0, 65, 3, 64, 128)
    ]
    calls = [worker.submit(tensor, 0.0) for tensor in tensors]
    echo(worker, Server(plan, 0, network))
    for tensor, call in zip(tensors, calls, strict=True):
        total = worker.result(call)
        assert total is not None
        np.testing.assert_allclose(total, tensor, atol=1e-4)


def test_many_small_tensors() -> None:
    worker, plan, network = alone()
    calls = [worker.submit(np.full(3, n, dtype=np.int32), 0.0) for n in range(300)]
    assert echo(worker, Server(plan, 0, network)) == list(range(300))
    for n, call in enumerate(calls):
        total = worker.result(call)
        assert total is not None
        assert total.tolist() == [n] * 3


@pytest.mark.parametrize(
    ("tensor", "options", "message"),
    [
        (np.zeros(3), {}, "type float64; expected float32, int32, float16"),
        (np.zeros(3, np.int32), {"out": np.zeros(4, np.int32)}, r"expected a C-contiguous"),
        (np.zeros(3, np.int32), {"out": np.zeros(3, np.float32)}, r"expected a C-contiguous"),
        (np.zeros(3, np.int32), {"out": np.zeros(6, np.int32)[::2]}, r"expected a C-contiguous"),
    ],
)
def test_unsendable_tensors_are_refused(
    tensor: NDArray[Any], options: dict[str, Any], message: str
) -> None:
    worker, _, _ = alone()
    with pytest.raises(CallError, match=f"weights: .*{message}"):
        worker.submit(tensor, 0.0, name="weights", **options)


def test_float_tensors_cannot_be_anded() -> None:
    worker, _, _ = alone(reduction=Reduction.AND)
    with pytest.raises(CallError, match="floats by AND; expected integers"):
        worker.submit(np.zeros(3, dtype=np.float32), 0.0)


def test_a_nan_stops_its_call_and_no_other() -> None:
    worker, plan, network = alone()
    bad = np.ones(3 * LANES, dtype=np.float32)
    bad[LANES + 5] = np.nan
    with pytest.raises(NumbersError, match=f"gradient: element {LANES + 5} is nan"):
        worker.submit(bad, 0.0, name="gradient")
    call = worker.submit(ones(5), 0.0)
    assert echo(worker, Server(plan, 0, network)) == [0]
    assert worker.done(call)


def test_the_window_bounds_what_is_in_flight_slot_by_slot() -> None:
    worker, plan, network = alone()
    worker.submit(ones(20 * LANES), 0.0)
    assert [p.fragment for p in seen(worker.take_output())] == [0, 1, 2, 3]
    worker.receive(result(plan, network, 2, 1), 0.0)
    assert [p.fragment for p in seen(worker.take_output())] == [6]
    worker.receive(result(plan, network, 6, 1), 0.0)
    worker.receive(np.concatenate([result(plan, network, f, 1) for f in (3, 1)]), 0.0)
    assert [p.fragment for p in seen(worker.take_output())] == [10, 7, 5]


def test_floats_are_announced_one_window_ahead() -> None:
    worker, plan, network = alone()
    tensor = np.repeat(2.0 ** np.arange(10), LANES).astype(np.float32)
    codes = exponent_codes(tensor, LANES, "t")
    worker.submit(tensor, 0.0)
    [prologue] = seen(worker.take_output())
    assert (prologue.fragment, prologue.lanes) == (0, ())
    assert prologue.exponent == codes[WINDOW - 1]
    # Others have larger values: the maximum of all comes back.
    worker.receive(result(plan, network, 0, 0, exponent=140, reduction=Reduction.NONE), 0.0)
    first = seen(worker.take_output())
    assert sorted(p.fragment for p in first) == [1, 2, 3, 4]
    by_fragment = {p.fragment: p for p in first}
    assert [by_fragment[1 + i].exponent for i in range(4)] == codes[4:8].tolist()
    assert by_fragment[3].value == 4.0 * 2 ** (31 - (140 - 127))
    worker.receive(result(plan, network, 3, 0, exponent=150), 0.0)
    [next_one] = seen(worker.take_output())
    assert (next_one.fragment, next_one.exponent) == (7, 0)
    assert next_one.value == 64.0 * 2 ** (31 - (150 - 127))


def test_contributions_carry_the_plans_header_and_stack() -> None:
    plan, network = tree_plan({"w0": "a", "w1": "b", "ps": "b"}, {"a": "b"}, ("a", "b"), job=7)
    worker = Worker(plan, 1, network)
    worker.submit(ones(3), 0.0)
    [batch] = worker.take_output()
    record = frame_view(batch, LANES, 2)[0]
    assert record["job"] == 7
    assert [int(word) for word in record["stack"]] == [hop.pack() for hop in plan.trees[0].up[1]]
    assert record["src_mac"].tobytes() == network.hosts["w1"].mac_bytes
    assert record["dst_ip"].tobytes() == network.hosts["ps"].ip_bytes
    [packet] = seen([batch])
    assert (packet.kind, packet.weight, packet.worker) == (Kind.CONTRIBUTION, 1, 1)
    assert packet.lanes[:4] == (1, 1, 1, 0)


def test_workers_of_a_plan_without_sums_flag_everything_bypass() -> None:
    plan, network = star_plan(2, singles=True)
    worker = Worker(plan, 0, network)
    worker.submit(ones(3), 0.0)
    assert [p.flags for p in seen(worker.take_output())] == [Flag.BYPASS]
    worker.adopt(replace(plan, epoch=2), 0.1)
    assert [p.flags for p in seen(worker.take_output())] == [Flag.BYPASS]


@pytest.mark.parametrize(
    ("changes", "counter"),
    [
        ({"job": 2}, "foreign"),
        ({"tree": 1}, "foreign"),
        ({"kind": Kind.CONTRIBUTION}, "foreign"),
        ({"kind": Kind.INSPECT}, "foreign"),
        ({"reduction": Reduction.AND}, "stale_results"),
        ({"reduction": 4}, "foreign"),
        ({"weight": 2}, "refused"),
        ({"fragment": 1}, "stale_results"),
        ({"fragment": 4}, "stale_results"),
    ],
)
def test_foreign_results_change_nothing(changes: dict[str, Any], counter: str) -> None:
    worker, plan, network = alone()
    call = worker.submit(ones(3), 0.0)
    worker.take_output()
    changes = {"kind": Kind.RESULT, "fragment": 0, "weight": 1, **changes}
    kind, fragment = changes.pop("kind"), changes.pop("fragment")
    worker.receive(frame(plan, network, kind, fragment, 9, **changes), 0.0)
    assert not worker.done(call)
    assert getattr(worker.statistics, counter) == 1
    assert worker.take_output() == []


@pytest.mark.parametrize("bits", [0x0000, 0x2000, 0x4001, 0x00B9, 0xC000])
@pytest.mark.parametrize("kind", [Kind.RESULT, Kind.REPLICATED])
def test_ipv4_fragments_are_foreign(kind: Kind, bits: int) -> None:
    """No switch has admitted them."""
    worker, plan, network = alone()
    call = worker.submit(ones(LANES), 0.0)
    forged = frame(plan, network, kind, 0, 9, weight=1)
    frame_view(forged, LANES, 0)["fragment_offset"] = bits
    worker.receive(forged, 0.0)
    assert worker.result(call) is None
    assert worker.statistics.foreign == 1


def test_noise_is_ignored() -> None:
    worker, _, _ = alone()
    call = worker.submit(ones(3), 0.0)
    generator = np.random.default_rng(0)
    for length in (0, 14, 60, 190, 1500):
        worker.receive(generator.integers(0, 256, (5, length)).astype(np.uint8), 0.0)
    assert not worker.done(call)
    assert worker.statistics.foreign == 25


def test_a_result_counts_once_also_within_a_batch() -> None:
    worker, plan, network = alone()
    call = worker.submit(ones(2 * LANES), 0.0)
    both = np.concatenate([result(plan, network, f, 1) for f in (0, 0, 1, 0)])
    worker.receive(both, 0.0)
    worker.receive(both, 0.0)
    assert worker.done(call)
    assert (worker.statistics.accepted, worker.statistics.stale_results) == (2, 6)


def test_good_results_in_a_batch_with_odd_ones_are_taken() -> None:
    worker, plan, network = alone()
    call = worker.submit(ones(2 * LANES), 0.0)
    batch = [
        result(plan, network, 0, 5, flags=Flag.ECN),
        result(plan, network, 1, 5, job=9),
        result(plan, network, 1, 7, epoch=2),
    ]
    worker.receive(np.concatenate(batch), 0.0)
    total = worker.result(call)
    assert total is not None
    assert total[[0, LANES]].tolist() == [5, 7]
    assert (worker.statistics.ecn, worker.statistics.foreign) == (1, 1)


def test_congested_results_are_counted_and_taken_with_the_rest() -> None:
    worker, plan, network = alone()
    call = worker.submit(ones(2 * LANES), 0.0)
    batch = [result(plan, network, 0, 5), result(plan, network, 1, 7, flags=Flag.ECN)]
    worker.receive(np.concatenate(batch), 0.0)
    total = worker.result(call)
    assert total is not None
    assert total[[0, LANES]].tolist() == [5, 7]
    assert (worker.statistics.ecn, worker.statistics.accepted) == (1, 2)


def test_an_overflow_is_refused_with_a_clear_error() -> None:
    worker, plan, network = alone()
    first = worker.submit(ones(LANES), 0.0)
    second = worker.submit(ones(LANES), 0.0, name="layer2")
    worker.receive(result(plan, network, 0, 1), 0.0)
    worker.receive(result(plan, network, 1, 1, flags=Flag.OVERFLOW), 0.0)
    with pytest.raises(JobFailed, match=r"job 1, tree 0, fragment 1: layer2 .*wrapped around"):
        worker.result(second)
    assert worker.result(first) is not None
    assert worker.deadline is None


def test_overflows_of_old_fragments_are_ignored() -> None:
    worker, plan, network = alone()
    worker.submit(ones(LANES), 0.0)
    worker.receive(result(plan, network, 4, 1, flags=Flag.OVERFLOW), 0.0)
    assert worker.failure is None


def test_past_the_deadline_the_error_says_what_is_missing_where() -> None:
    plan, network = star_plan(2)
    worker = Worker(plan, 1, network, WorkerOptions(deadline=3.0))
    worker.submit(ones(LANES), 0.0)
    call = worker.submit(ones(3 * LANES), 0.0, name="layer2")
    worker.receive(result(plan, network, 0, 1), 0.001)
    while worker.failure is None:
        deadline = worker.deadline
        assert deadline is not None
        worker.tick(deadline)
    assert deadline == 3.0
    text = str(worker.failure)
    for part in ("fragment 1", "layer2", "elements 0 to 31", "worker 1", "server ps", "epoch 1"):
        assert part in text
    assert worker.failure.fragment == 1
    with pytest.raises(JobFailed):
        worker.done(call)
    worker.receive(result(plan, network, 1, 1), 4.0)
    worker.take_output()
    worker.tick(9.0)
    assert worker.take_output() == []


def test_a_server_that_never_takes_the_hand_over_ends_the_job() -> None:
    plan, network = star_plan(2)
    worker = Worker(plan, 0, network, WorkerOptions(deadline=3.0))
    worker.submit(ones(LANES), 0.0)
    worker.receive(result(plan, network, 0, 1), 0.0)
    worker.adopt(replace(plan, epoch=2), 10.0)
    while worker.failure is None:
        assert worker.deadline is not None
        worker.tick(worker.deadline)
    assert "has not taken over the last results for 3 s" in str(worker.failure)


def test_while_a_job_waits_its_deadlines_do_not_come() -> None:
    plan, network = star_plan(2)
    worker = Worker(plan, 0, network, WorkerOptions(deadline=3.0))
    worker.submit(ones(LANES), 0.0)
    worker.receive(result(plan, network, 0, 1), 0.0)
    worker.submit(ones(LANES), 0.0)
    worker.adopt(replace(plan, epoch=2), 0.0)

    def pass_time(until: float) -> None:
        while worker.failure is None and worker.deadline is not None and worker.deadline <= until:
            worker.tick(worker.deadline)

    for second in range(1, 20):
        pass_time(second)
        worker.postpone(second)
    pass_time(21.9)
    assert worker.failure is None
    pass_time(22.0)
    assert "for 3 s" in str(worker.failure)
    worker.postpone(22.0)
    assert worker.deadline is None


def test_karn_only_fragments_sent_once_are_round_trips() -> None:
    plan, network = star_plan(1)
    worker = Worker(plan, 0, network, WorkerOptions(min_probe=60.0))
    worker.submit(ones(2 * LANES), 0.0)
    worker.tick(0.25)
    assert worker.deadline == 0.75, "doubled"
    worker.receive(result(plan, network, 0, 1), 0.26)
    worker.submit(ones(LANES), 1.0)
    worker.receive(result(plan, network, 1, 1), 1.0)
    worker.tick(1.0)
    assert worker.deadline == 1.5, "a result of a fragment sent twice says nothing"
    worker.receive(result(plan, network, 2, 1), 1.1)
    worker.submit(ones(LANES), 2.0)
    worker.tick(2.0)
    assert worker.deadline == pytest.approx(2.0 + 0.1 + 4 * 0.05)


def test_h30_the_first_window_is_sent_again_as_it_was() -> None:
    worker, _, _ = alone()
    worker.submit(np.arange(4 * LANES, dtype=np.int32), 0.0)
    first = worker.take_output()
    worker.tick(0.25)
    again = worker.take_output()
    assert seen(first) == seen(again)


@pytest.mark.slow
def test_h27_a_straggler_of_five_seconds_makes_no_storm() -> None:
    plan, network = tree_plan({"w0": "a", "w1": "a", "ps": "a"}, {}, ("a",), window=256)
    workers = [Worker(plan, w, network) for w in range(2)]
    world = World(network, plan, workers, faults=Faults(), latency=1e-4)
    count = 300 * LANES
    calls = [workers[0].submit(ones(count), 0.0)]
    world.at(5.0, lambda: calls.append(workers[1].submit(ones(count), 5.0)))
    while len(calls) == 1:
        world.run_for(0.5)
    world.run()
    total = workers[0].result(calls[0])
    assert total is not None
    assert (total == 2).all()
    statistics = workers[0].statistics
    assert statistics.retransmissions < 3 * 256, "fewer than 3 for each fragment in flight"


def test_two_trees_split_a_tensor_by_share_and_meet_in_one_result() -> None:
    plan, network = star_plan(1)
    tree = plan.trees[0]
    plan = replace(plan, trees=(replace(tree, share=0.25), replace(tree, tree=1, share=0.75)))
    worker = Worker(plan, 0, network)
    servers = [Server(plan, t, network) for t in range(2)]
    tensor = np.arange(8 * LANES + 3, dtype=np.int32)
    call = worker.submit(tensor, 0.0)
    first = worker.take_output()
    assert sorted(int(t) for batch in first for t in batch[:, TREE_AT]) == [0, 0, 1, 1, 1, 1]
    batches = [at_server(np.concatenate(first))]
    while batches:
        for batch in batches:
            for server in servers:
                server.receive(batch, 0.0)
        worker.receive(np.concatenate([b for s in servers for b in s.take_output()]), 0.0)
        batches = [at_server(batch) for batch in worker.take_output()]
    total = worker.result(call)
    assert total is not None
    np.testing.assert_array_equal(total, tensor)


def test_several_trees_begin_a_tensor_of_floats_together() -> None:
    """The first with its exponents would fill the host's link with its window."""
    plan, network = star_plan(1, window=16)
    tree = plan.trees[0]
    plan = replace(plan, trees=(replace(tree, share=0.5), replace(tree, tree=1, share=0.5)))
    worker = Worker(plan, 0, network)
    call = worker.submit(np.ones(32 * LANES, dtype=np.float32), 0.0)
    other = worker.submit(np.ones(2 * LANES, dtype=np.float32), 0.0)
    servers = [Server(plan, t, network) for t in range(2)]
    for batch in worker.take_output():
        for server in servers:
            server.receive(at_server(batch), 0.0)
    late, rest = (at_worker(server.take_output()[0]) for server in servers)
    worker.receive(rest, 0.0)
    assert worker.take_output() == []
    worker.receive(late, 0.0)
    sent = [int(tree) for batch in worker.take_output() for tree in batch[:, TREE_AT]]
    assert sent[:16] == [0] * 8 + [1] * 8
    assert (call, other) == (0, 1)


def test_a_new_epoch_sends_everything_in_flight_again_on_its_new_path() -> None:
    access = {"w0": "a", "w1": "b", "ps": "b"}
    plan, network = tree_plan(access, {"a": "b"}, ("a", "b"))
    other, _ = tree_plan(access, {"a": "b"}, ("b",), epoch=5)
    worker = Worker(plan, 0, network)
    worker.submit(np.arange(3 * LANES, dtype=np.int32), 0.0)
    before = seen(worker.take_output())
    worker.adopt(other, 1.0)
    after = seen(worker.take_output())
    assert [(p.fragment, p.lanes, p.epoch) for p in after] == [
        (p.fragment, p.lanes, 5) for p in before
    ]
    worker.adopt(replace(other, epoch=4), 2.0)
    assert worker.plan is other
    assert worker.take_output() == []


def test_a_newer_result_in_the_slot_answers_the_hand_over_too() -> None:
    worker, plan, network = alone()
    worker.submit(ones(5 * LANES), 0.0)
    worker.receive(result(plan, network, 0, 1), 0.0)
    worker.adopt(replace(plan, epoch=2), 1.0)
    for fragment in (1, 2, 3, 4):
        worker.receive(result(plan, network, fragment, 1, epoch=2), 1.0)
    assert worker.deadline is None


def test_a_plan_without_this_host_is_refused() -> None:
    plan, network = star_plan(2)
    worker = Worker(plan, 1, network)
    fewer = replace(plan, epoch=2, workers=("w0",))
    with pytest.raises(PlanError, match="w1 is no longer one of its workers"):
        worker.adopt(fewer, 1.0)


def test_a_job_cannot_outgrow_its_scale() -> None:
    plan, network = star_plan(3)
    small, _ = star_plan(2)
    worker = Worker(small, 0, network)
    with pytest.raises(PlanError, match="3 workers, but its float32 scale was made for 2"):
        worker.adopt(replace(plan, epoch=2), 1.0)
    with pytest.raises(PlanError, match="3 workers"):
        Worker(plan, 0, network, WorkerOptions(scale_workers=2))
    roomy = Worker(small, 0, network, WorkerOptions(scale_workers=3))
    roomy.adopt(replace(plan, epoch=2), 1.0)


def test_a_worker_number_outside_the_plan_is_refused() -> None:
    plan, network = star_plan(2)
    with pytest.raises(PlanError, match="no worker 2; expected 0 to 1"):
        Worker(plan, 2, network)


def test_output_is_the_callers_to_keep() -> None:
    worker, plan, network = alone()
    worker.submit(ones(5 * LANES), 0.0)
    [batch] = worker.take_output()
    copy = batch.copy()
    worker.receive(np.concatenate([result(plan, network, f, 1) for f in range(4)]), 0.0)
    worker.tick(100.0)
    np.testing.assert_array_equal(batch, copy)


def test_input_may_be_reused_after_the_call() -> None:
    plan, network = star_plan(1)
    server = Server(plan, 0, network)
    frames = contribution(plan, network, 0, 0, 7)
    server.receive(frames, 0.0)
    frames[:] = 0
    [packet] = seen(server.take_output())
    assert packet.value == 7


def test_h13_results_of_one_batch_out_of_order_end_up_in_place() -> None:
    worker, plan, network = alone()
    call = worker.submit(np.repeat(np.arange(8, dtype=np.int32), LANES), 0.0)
    worker.take_output()
    for order in ((0, 2, 1, 3), (4, 6, 5, 7)):
        worker.receive(np.concatenate([result(plan, network, f, f) for f in order]), 0.0)
        sent = seen(worker.take_output())
        assert [(p.fragment, p.value) for p in sent] == [(f + 4, f + 4) for f in order if f < 4]
    total = worker.result(call)
    assert total is not None
    np.testing.assert_array_equal(total, np.repeat(np.arange(8), LANES))


def test_a_priority_is_in_all_frames_from_then_on() -> None:
    """New fragments, those in flight that are sent again, and what a new epoch brings."""
    plan, network = star_plan(1)
    worker = Worker(plan, 0, network, WorkerOptions(initial_timeout=0.5, max_timeout=0.5))

    def priorities() -> set[int]:
        batches = worker.take_output()
        for batch in batches:
            assert all(ipv4_checksum(row[14:34].tobytes()) == 0 for row in batch)
        return {tos for batch in batches for tos in tos_of(batch).tolist()}

    worker.mark(0xE0)
    worker.submit(ones(6 * LANES), 0.0)
    assert priorities() == {0xE0}
    worker.mark(0x40)
    worker.tick(1.0)
    assert priorities() == {0x40}
    worker.receive(result(plan, network, 0, 1), 1.0)
    assert priorities() == {0x40}
    newer = replace(plan, epoch=2)
    worker.adopt(newer, 2.0)
    assert priorities() == {0x40}
    worker.mark(0)
    worker.tick(3.0)
    assert priorities() == {0}
    assert worker.failure is None


def test_a_result_that_comes_twice_in_a_batch_fills_no_gap() -> None:
    """Of three in flight the first comes twice and the third once: the second is still missing."""
    plan, network = star_plan(1, window=4, results=Results.UNICAST)
    worker, server = Worker(plan, 0, network), Server(plan, 0, network)
    worker.submit(np.arange(3 * LANES, dtype=np.int32), 0.0)
    [batch] = worker.take_output()
    server.receive(at_server(batch), 0.0)
    [results] = map(at_worker, server.take_output())
    worker.receive(results[[0, 0, 2]], 0.0)
    assert worker.statistics.accepted == 2
    assert not worker.idle
    worker.receive(results[[1]], 0.0)
    assert worker.idle


def test_a_result_of_another_reduction_is_not_taken() -> None:
    plan, network = star_plan(1, window=4, results=Results.UNICAST)
    worker, server = Worker(plan, 0, network), Server(plan, 0, network)
    worker.submit(np.arange(LANES, dtype=np.int32), 0.0, reduction=Reduction.MAX)
    [batch] = worker.take_output()
    server.receive(at_server(batch), 0.0)
    [result] = map(at_worker, server.take_output())
    forged = result.copy()
    reductions_of(forged)[...] = reduction_byte(Reduction.XOR)
    worker.receive(forged, 0.0)
    assert worker.statistics.accepted == 0
    worker.receive(result, 0.0)
    assert worker.idle
