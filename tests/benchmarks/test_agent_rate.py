"""The benchmark of the agents' fast path, without its wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.agent_rate import LANES, lone_plan, result_headers, sum_through, wire_network
from hopsum.host_agent.worker import Worker


class Wire:
    """A port whose frames come in at itself."""

    def __init__(self) -> None:
        self._frames: list[Any] = []

    def send(self, frames: Any) -> int:
        self._frames.append(frames.copy())
        return len(frames)

    def receive(self) -> list[Any]:
        frames, self._frames = self._frames, []
        return frames


@pytest.mark.parametrize(
    ("dtype", "fragments"),
    [(np.int32, 300), (np.float32, 300 + 1), (np.int16, 150), (np.float16, 150 + 32)],
)
def test_every_fragment_is_counted(dtype: type, fragments: int) -> None:
    network, plan = wire_network(), lone_plan()
    worker, wire = Worker(plan, 0, network), Wire()
    tensor = (np.arange(300 * LANES) % 1024).astype(dtype)
    out = np.empty_like(tensor)
    sent: Any = wire
    done = sum_through(worker, tensor, out, sent, sent, result_headers(network, plan), float("inf"))
    assert done == fragments
    np.testing.assert_array_equal(out, tensor)
