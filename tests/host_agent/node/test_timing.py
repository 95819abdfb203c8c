"""Timeouts that suit a plan on its network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hopsum.collectives.choices import Algorithm, DataType
from hopsum.collectives.plan import Results
from hopsum.collectives.task_messages import workload_message
from hopsum.collectives.workload import WorkloadSpec
from hopsum.host_agent.node.timing import SLACK, suitable_options
from hopsum.host_agent.options import WorkerOptions
from hopsum.host_agent.task import task_from
from hopsum.host_agent.worker import Worker
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.wire import frame_bytes

WORKLOAD = workload_message(WorkloadSpec("random", 2, 32, 1, DataType.INT32, 1))


def network_of(rate: float) -> Network:
    return load_network("line:3x2", link_rate=rate, latency=1e-4, slots=256)


def test_an_option_that_is_given_leaves_the_others_to_the_plan() -> None:
    """Else the timeouts would be shorter than a slow network's round trips."""
    network = network_of(5e4)
    plan = plan_job(network, PlanRequest(1, 1, ("h5", "h2"), ("h6",), lanes=32, window=64))
    chosen = suitable_options(network, plan)
    assert chosen.max_timeout > 10 * WorkerOptions().max_timeout
    given = task_from(pb.Task(workload=WORKLOAD, options=pb.WorkerOptions(first_fragment=64)))
    assert suitable_options(network, plan, given.options) == replace(chosen, first_fragment=64)


def test_a_deadline_that_is_given_leaves_time_for_several_attempts() -> None:
    network = network_of(5e4)
    plan = plan_job(network, PlanRequest(1, 1, ("h5", "h2"), ("h6",), lanes=32, window=64))
    options = suitable_options(network, plan, {"deadline": 8.0})
    assert (options.initial_timeout, options.min_timeout, options.deadline) == (1.0, 1.0, 8.0)
    hasty = suitable_options(network, plan, {"deadline": 0.8})
    assert hasty.initial_timeout == SLACK


@pytest.mark.parametrize("rate", [5e4, 2e5, 1e7, 1e9])
def test_a_fragment_bypasses_the_switches_before_its_job_fails(rate: float) -> None:
    """At any rate of the network, a switch that has lost its slots costs time, and not the job."""
    network = network_of(rate)
    plan = plan_job(network, PlanRequest(1, 1, ("h5", "h2"), ("h6",), lanes=32, window=64))
    worker = Worker(plan, 0, network, suitable_options(network, plan))
    worker.submit(np.zeros(32, np.int32), 0.0)
    while not worker.statistics.bypassed:
        worker.take_output()
        assert worker.deadline is not None
        worker.tick(worker.deadline)
        assert worker.failure is None


def test_results_of_their_own_for_each_worker_share_the_servers_link() -> None:
    network = network_of(1e6)
    request = PlanRequest(1, 1, ("h1", "h2", "h5"), ("h6",), lanes=32, window=64)
    plan = plan_job(network, request)
    copied = suitable_options(network, plan, slack=0.0)
    single = replace(plan, results=Results.UNICAST)
    options = suitable_options(network, single, slack=0.0)
    assert options.min_timeout == 3 * copied.min_timeout


def test_silence_shows_a_loss_of_results_that_take_turns_long_before_a_timeout() -> None:
    """A worker's own results come one after another, whatever queues behind each."""
    network = network_of(1e6)
    request = PlanRequest(1, 1, ("h1", "h2", "h5"), ("h6",), lanes=32, window=64)
    plan = replace(plan_job(network, request), results=Results.UNICAST)
    options = suitable_options(network, plan, sharing=1, slack=0.0)
    turn = 3 * 8 * frame_bytes(32, 10) / 1e6
    assert 2 * turn < options.min_probe < options.min_timeout / 4
    singles = plan_job(network, replace(request, algorithm=Algorithm.SERVER))
    patient = suitable_options(network, singles, sharing=1, slack=0.0)
    assert patient.min_probe == patient.min_timeout, "other workers' windows may go first"
