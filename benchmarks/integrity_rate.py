"""The cost of check lanes: processor time of worker and server per fragment, and bytes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.agent_rate import LANES, WINDOW, lone_plan, wire_network
from hopsum.collectives.plan import DataType
from hopsum.host_agent.plan_checks import KEY_BYTES
from hopsum.host_agent.server import Server
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker

BATCH = 32
"""Frames that an agent processes at once, as under load."""


def measure(dtype: DataType, seconds: float, *, integrity: bool) -> dict[str, Any]:
    """Let a worker sum with an adjacent server for some seconds."""
    network, plan = wire_network(), replace(lone_plan(), integrity=integrity)
    key = bytes(KEY_BYTES)
    worker = Worker(plan, 0, network, WorkerOptions(deadline=1e6, initial_timeout=60.0), key)
    server = Server(plan, 0, network, key)
    generator = np.random.default_rng(1)
    elements = 64 * WINDOW * plan.values
    tensor: Any = (
        generator.standard_normal(elements, dtype=np.float32)
        if dtype is DataType.FLOAT32
        else generator.integers(-(2**30), 2**30, elements, dtype=np.int32)
    )
    spent = {worker: 0.0, server: 0.0}
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        started = time.process_time()
        call = worker.submit(tensor, 0.0)
        spent[worker] += time.process_time() - started
        while not worker.done(call):
            for source, target in ((worker, server), (server, worker)):
                for frames in source.take_output():
                    for start in range(0, len(frames), BATCH):
                        started = time.process_time()
                        target.receive(frames[start : start + BATCH], 0.0)
                        spent[target] += time.process_time() - started
        total = worker.result(call)
        assert total is not None
        assert dtype is DataType.FLOAT32 or np.array_equal(total, tensor)
    fragments = worker.statistics.accepted
    return {
        "dtype": dtype.value,
        "integrity": integrity,
        "worker_microseconds": round(1e6 * spent[worker] / fragments, 2),
        "server_microseconds": round(1e6 * spent[server] / fragments, 2),
        "values_of_lanes": f"{plan.values} of {LANES}",
    }
