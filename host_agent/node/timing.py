"""Timeouts that suit a plan on its network, where the job does not bring its own."""

from __future__ import annotations

from dataclasses import replace

from collectives.plan import JobPlan
from host_agent.options import WorkerOptions
from network.model import Network
from protocol.wire import HOPS_DEFAULT, frame_bytes

SHARING = 8
"""So many other flows of its kind a job's frames may queue behind before they count as lost.

A fragment sent again too early is no error, but traffic; one sent again late costs its job time.
"""
LEAST_TIMEOUT = 0.25
"""On a busy machine a process may be off the processor for tenths of a second."""


def suitable_options(network: Network, plan: JobPlan) -> WorkerOptions:
    """Options from the rate of the network's slowest link and the windows that may queue there."""
    rates = [link.bandwidth for link in network.links if link.bandwidth]
    hops = max((len(stack) for tree in plan.trees for stack in tree.up), default=0)
    packet = 8 * frame_bytes(plan.lanes, max(HOPS_DEFAULT, hops)) / min(rates) if rates else 0.0
    flows = max((len(plan.workers) for tree in plan.trees if tree.singles), default=1)
    windows = len(plan.trees) * flows * plan.window * packet
    least = max(LEAST_TIMEOUT, SHARING * windows)
    return replace(
        WorkerOptions(),
        initial_timeout=2 * least,
        min_timeout=least,
        max_timeout=8 * least,
        min_probe=least,
    )
