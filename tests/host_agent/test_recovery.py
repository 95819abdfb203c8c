"""A worker's fast loss recovery: what it takes as lost before any timeout, and what not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.options import STEADY_PROBES, WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network
from hopsum.protocol.wire import Flag
from tests.support.protocol_world import LANES, result, seen, star_plan, tree_plan

TRIP = 0.1
OPTIONS = WorkerOptions(initial_timeout=9.0, min_timeout=9.0, max_timeout=9.0, min_probe=5.0)


def busy(
    fragments: int = 100, window: int = 16, index: int = 0, workers: int = 1, **changes: Any
) -> tuple[Worker, JobPlan, Network]:
    """A worker that has sent a window at 0.0, and nothing read from it."""
    plan, network = star_plan(workers, window=window)
    worker = Worker(plan, index, network, replace(OPTIONS, **changes))
    worker.submit(np.ones(fragments * LANES, dtype=np.int32), 0.0)
    worker.take_output()
    return worker, plan, network


def come(worker: Worker, plan: JobPlan, network: Network, now: float, *numbers: int) -> list[int]:
    """Let results come in one batch; the fragments sent then."""
    worker.receive(np.concatenate([result(plan, network, f, 1) for f in numbers]), now)
    return sent(worker)


def sent(worker: Worker) -> list[int]:
    return [packet.fragment for packet in seen(worker.take_output())]


def tick(worker: Worker) -> tuple[float, list[int]]:
    """Let the next deadline pass: when it was, and what was sent."""
    now = worker.deadline
    assert now is not None
    worker.tick(now)
    return now, sent(worker)


def test_a_loss_in_the_middle_of_a_batch_is_repaired_without_a_timeout() -> None:
    worker, plan, network = busy()
    assert come(worker, plan, network, TRIP, 0, 1, 3, 4, 5) == [16, 17, 19, 20, 21]
    assert tick(worker) == (TRIP + TRIP / 4, [2])
    statistics = worker.statistics
    assert (statistics.fast_retransmissions, statistics.retransmissions) == (1, 1)
    assert statistics.timeouts == statistics.probes == 0


def test_reordering_within_the_degree_and_a_round_trip_triggers_nothing() -> None:
    worker, plan, network = busy()
    for now, numbers in ((0.1, (1, 2)), (0.15, (0, 4)), (0.19, (3, 7, 5)), (0.2, (6,))):
        come(worker, plan, network, now, *numbers)
        worker.tick(now)
    while worker.deadline is not None and worker.deadline < 1.0:
        worker.tick(worker.deadline)
    assert worker.statistics.retransmissions == 0


def test_an_overtaken_fragment_near_the_end_is_waited_for_a_round_trip() -> None:
    worker, plan, network = busy(fragments=3)
    come(worker, plan, network, TRIP, 0, 2)
    assert tick(worker) == (2 * TRIP, [1])


def test_a_lost_repetition_is_repeated_when_later_sendings_are_answered() -> None:
    worker, plan, network = busy()
    come(worker, plan, network, TRIP, *(f for f in range(16) if f != 2))
    again, numbers = tick(worker)
    assert numbers == [2]
    come(worker, plan, network, 2 * TRIP, *(f for f in range(16, 32) if f != 18))
    assert worker.statistics.fast_retransmissions == 1, "those were sent before the repetition"
    come(worker, plan, network, 3 * TRIP, *(f for f in range(32, 47) if f != 34))
    assert worker.statistics.fast_retransmissions == 1
    now, numbers = tick(worker)
    assert numbers == [2]
    assert now - again >= TRIP


def test_karn_the_answer_to_a_first_sending_does_not_convict_what_queues() -> None:
    worker, plan, network = busy()
    come(worker, plan, network, TRIP, 0, 6)
    now, numbers = tick(worker)
    assert numbers == [1, 2, 3]
    come(worker, plan, network, now + 0.001, 1, 2, 3, 4, 5)
    while worker.deadline is not None and worker.deadline < 1.0:
        worker.tick(worker.deadline)
    assert worker.statistics.retransmissions == 3, "7 to 15 have not been overtaken"


def test_duplicates_convict_nothing() -> None:
    worker, plan, network = busy()
    come(worker, plan, network, TRIP, 0, 1, 2)
    for _ in range(3):
        assert come(worker, plan, network, TRIP, 0, 1, 2) == []
    assert worker.deadline is not None
    assert worker.deadline > 1.0


def test_a_straggler_gives_no_evidence_and_few_probes() -> None:
    worker, plan, network = busy(window=256, min_probe=0.01, fragments=1000)
    come(worker, plan, network, 0.001, *range(20))
    while worker.deadline is not None and worker.deadline < 8.0:
        worker.tick(worker.deadline)
    assert worker.statistics.fast_retransmissions == worker.statistics.timeouts == 0
    assert 0 < worker.statistics.probes <= 4 * 10


def test_a_lost_tail_is_probed_and_then_repaired() -> None:
    worker, plan, network = busy(fragments=16, min_probe=0.01)
    come(worker, plan, network, TRIP, *range(6))
    now, numbers = tick(worker)
    assert (round(now, 9), numbers) == (0.3, [12, 13, 14, 15])
    come(worker, plan, network, now + 1.5 * TRIP, 12, 13, 14, 15)
    now, numbers = tick(worker)
    assert numbers == [6, 7, 8, 9, 10, 11]
    assert worker.statistics.timeouts == 0


def test_further_probes_wait_for_round_trips_and_not_for_queues() -> None:
    worker, plan, network = busy(fragments=16)
    come(worker, plan, network, TRIP, *range(12))
    probes = [tick(worker) for _ in range(4)]
    assert [numbers for _, numbers in probes] == [[12, 13, 14, 15]] * 4
    times = [round(now, 9) for now, _ in probes]
    assert times == [5.1, 5.6, 6.6, 8.6]
    assert worker.statistics.timeouts == 0


def test_further_probes_come_no_later_where_round_trips_are_long() -> None:
    """Repairs make round trips long: with a loss of 10 % a job took 1.42 times instead of 1.27."""
    worker, plan, network = busy(fragments=16, min_probe=0.01)
    come(worker, plan, network, TRIP, 0)
    come(worker, plan, network, 20 * TRIP, *range(1, 12))
    times = [tick(worker)[0] for _ in range(3)]
    assert [round(b - a, 9) for a, b in pairwise(times)] == [4 * TRIP, 8 * TRIP]


def test_without_a_round_trip_every_third_round_of_timeouts_asks_the_server() -> None:
    worker, plan, _ = busy(initial_timeout=1.0, min_timeout=1.0, max_timeout=8.0)

    def asked(now: float) -> list[int]:
        worker.tick(now)
        packets = seen(worker.take_output())
        assert [p.fragment for p in packets] == [*range(16)]
        return [p.fragment for p in packets if p.flags & Flag.BYPASS]

    times = (1.0, 3.0, 7.0, 15.0, 23.0)
    assert [asked(now) for now in times] == [[], [], [0, 1, 2, 3], [], []]
    worker.adopt(replace(plan, epoch=2), 24.0)
    worker.take_output()
    assert [asked(now) for now in (32.0, 40.0, 48.0)] == [[], [], [0, 1, 2, 3]]
    assert worker.statistics.probes == 0


def test_before_a_round_trip_probes_do_not_wait_for_timeouts_that_backed_off() -> None:
    """Found by the soak (schedule 815414): they came once in minutes, a job took 20."""
    plan, network = tree_plan({"w0": "a", "w1": "a", "ps": "a"}, {}, ("a",), window=16)
    options = replace(
        OPTIONS, initial_timeout=1.0, min_timeout=1.0, max_timeout=16.0, min_probe=0.01
    )
    worker = Worker(plan, 0, network, options)
    worker.submit(np.ones(16 * LANES, dtype=np.int32), 0.0)
    worker.take_output()
    probes = [now for now, numbers in (tick(worker) for _ in range(12)) if len(numbers) == 4]
    assert probes[:STEADY_PROBES] == [*range(1, 1 + STEADY_PROBES)]
    assert probes[STEADY_PROBES:] == [10.0, 12.0], "the first timeouts were at 9.0"


def test_workers_take_turns_at_repairing_what_all_miss() -> None:
    times = []
    for index in range(4):
        worker, plan, network = busy(index=index, workers=4)
        come(worker, plan, network, TRIP, 0, 1, 2, 3, 5, 6, 7)
        now, numbers = tick(worker)
        assert numbers == [4]
        times.append(now)
    assert times == sorted(set(times))
    assert times[-1] <= TRIP + TRIP / 2


def test_results_that_keep_coming_hold_the_timeout_off() -> None:
    worker, plan, network = busy(
        initial_timeout=0.2, min_timeout=0.2, max_timeout=0.2, fragments=16
    )
    for f in range(15):
        come(worker, plan, network, 0.1 * (f + 1), f)
        worker.tick(0.1 * (f + 1))
    assert worker.statistics.retransmissions == 0
    while not worker.statistics.timeouts:
        now, numbers = tick(worker)
    assert (round(now, 9), numbers) == (1.7, [15])


def test_ordinary_loss_is_no_reason_to_bypass_but_timeouts_and_many_tries_are() -> None:
    worker, plan, network = busy(fragments=10_000, bypass_after=2)
    flags: list[int] = []
    lost = 0
    now, start = 0.0, 0
    while len(flags) < 10:
        now += TRIP
        numbers = [f for f in range(start, start + 16) if f % 16 != lost]
        worker.receive(np.concatenate([result(plan, network, f, 1) for f in numbers]), now)
        worker.tick(now + TRIP / 2)
        flags += [p.flags for p in seen(worker.take_output()) if p.fragment == lost]
        start += 16
    assert flags[:7] == [0] * 7
    assert flags[7:] == [Flag.BYPASS] * 3
    slow, _, _ = busy(bypass_after=2, fragments=1)
    timed: list[int] = []
    while len(timed) < 3:
        slow.tick(slow.deadline or 0.0)
        timed += [p.flags for p in seen(slow.take_output())]
    assert timed == [0, Flag.BYPASS, Flag.BYPASS]


ROUNDED = 4.149580931019631
"""A time for which (ROUNDED + 30) - ROUNDED is less than 30."""


@pytest.mark.parametrize("start", [0.0, ROUNDED])
def test_a_worker_without_answers_fails_at_its_deadline(start: float) -> None:
    assert ROUNDED + 30 - ROUNDED < 30
    plan, network = star_plan(1)
    worker = Worker(plan, 0, network, replace(OPTIONS, deadline=30.0))
    worker.submit(np.ones(LANES, dtype=np.int32), start)
    times = ticks_until_failure(worker)
    assert times[-1] == start + 30
    assert len(set(times)) == len(times), "no second look at one time"


def test_a_hand_over_without_answers_fails_at_its_deadline() -> None:
    plan, network = star_plan(1)
    worker = Worker(plan, 0, network, replace(OPTIONS, deadline=30.0))
    worker.submit(np.ones(LANES, dtype=np.int32), 0.0)
    worker.receive(result(plan, network, 0, 1), TRIP)
    worker.adopt(replace(plan, epoch=2), ROUNDED)
    times = ticks_until_failure(worker)
    assert times[-1] == ROUNDED + 30
    assert len(set(times)) == len(times), "no second look at one time"


def ticks_until_failure(worker: Worker) -> list[float]:
    """Let deadlines pass until the worker gives up: their times."""
    times: list[float] = []
    while worker.failure is None:
        assert worker.deadline is not None
        assert len(times) < 100, "never over"
        times.append(worker.deadline)
        worker.tick(worker.deadline)
        worker.take_output()
    return times
