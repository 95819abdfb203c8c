"""The fluid model of jobs against packets, with the real P4 program and the real agents."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.job_mix import fluid_job, simulate_jobs
from hopsum.controller.jobs.priorities import ONE_LEVEL, PriorityPolicy
from hopsum.network.loaders import load_network
from hopsum.planning.registry import plan_job
from hopsum.timing.routes import LinkArrays
from tests.simulation.test_all_reduce import LANES
from tests.simulation.test_priorities import LONG, RATE, SHORT, both, requests

WHO_HAS_A_ROUND = PriorityPolicy(early_iterations=1, thresholds=(), starved=None)
"""The long job soon has one, of many; the short one's is its last."""


@pytest.mark.slow
@pytest.mark.parametrize("priorities", [False, True])
def test_a_long_and_a_short_job_take_as_long_in_packets(priorities: bool) -> None:
    network = load_network("star:4", link_rate=RATE, latency=1e-5, slots=1024)
    links = LinkArrays(network)
    long, short = (
        fluid_job(links, plan_job(network, request), start, fragments * LANES, 1)
        for request, start, fragments in zip(
            requests(network, 2, 64).values(), (0.0, 0.005), (LONG, SHORT), strict=True
        )
    )
    policy = WHO_HAS_A_ROUND if priorities else ONE_LEVEL
    fluid = simulate_jobs([replace(long, rounds=LONG), short], links.capacities, policy, 1e-4)
    packets = both((5, 1) if priorities else (None, None))
    # A fluid has no round trips: the short job's are 6 % of its time behind the other's window.
    assert fluid.completion.tolist() == pytest.approx([packets[1], packets[2]], rel=0.07)
