"""Timeouts that suit a plan on its network."""

from __future__ import annotations

import numpy as np
import pytest

from host_agent.node.timing import suitable_options
from host_agent.worker import Worker
from network.loaders import load_network
from network.model import Network
from planning.model.request import PlanRequest
from planning.registry import make_plan


def network_of(rate: float) -> Network:
    return load_network("line:3x2", link_rate=rate, latency=1e-4, slots=256)


@pytest.mark.parametrize("rate", [5e4, 2e5, 1e7, 1e9])
def test_a_fragment_bypasses_the_switches_before_its_job_fails(rate: float) -> None:
    """Whatever the network's rate: a switch that has lost its slots costs time, and not the job."""
    network = network_of(rate)
    plan = make_plan(network, PlanRequest(1, 1, ("h5", "h2"), ("h6",), lanes=32, window=64))
    worker = Worker(plan, 0, network, suitable_options(network, plan))
    worker.submit(np.zeros(32, np.int32), 0.0)
    while not worker.statistics.bypassed:
        worker.take_output()
        assert worker.deadline is not None
        worker.tick(worker.deadline)
        assert worker.failure is None
