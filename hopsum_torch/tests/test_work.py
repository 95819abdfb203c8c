"""The end of calls: what gloo's threads still hold when a process ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

from tests.support.agents import Agents
from tests.support.ranks import COMMON, PATIENCE, SUPPORT, free_port, run

from hopsum_torch.work import _gloo_runs


@pytest.mark.slow
def test_a_process_ends_well_while_gloo_gives_back_tensors() -> None:
    port = free_port()
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SUPPORT / "ending_over_gloo.py")],
            env={**os.environ, **COMMON, **world, "RANK": str(rank), "HOPSUM_AGENT": "none"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed


@pytest.mark.slow
def test_results_are_copied_in_inference_mode() -> None:
    agents = Agents(3)
    printed = run(agents.of_ranks, SUPPORT / "inferring.py")
    agents.close()
    assert all("over" in text.splitlines() for text in printed)


def test_threads_may_have_any_names() -> None:
    """The kernel cuts names after 15 bytes, also inside a character."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        Path(f"/proc/self/task/{thread.native_id}/comm").write_bytes(
            "fourteen bytesé".encode()[:15]
        )
        assert not _gloo_runs()
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
def test_delegated_calls_fail_as_gloos() -> None:
    """At once where gloo takes no such type or operation, and after the group's time."""
    agents = Agents(3, rooted=True)
    printed = [
        run(names, SUPPORT / "failing_over_gloo.py", backend)
        for backend, names in (("hopsum", agents.of_ranks), ("gloo", ["none"] * 3))
    ]
    agents.close()
    for found, expected in zip(*printed, strict=True):
        over_gloo = errors_in(expected)
        assert "Float" in over_gloo.pop("all_reduce average int64")
        assert errors_in(found) == over_gloo
    first = errors_in(printed[0][0])
    assert first["reduce_scatter_tensor int16"] == "Invalid scalar type"
    assert "PREMUL_SUM" in first["reduce_scatter factor"]
    assert "imed out" in first["reduce_scatter alone"]


def errors_in(printed: str) -> dict[str, str]:
    """The errors that a rank has printed."""
    [line] = [line for line in printed.splitlines() if line.startswith("errors ")]
    found: dict[str, str] = json.loads(line.removeprefix("errors "))
    return found
