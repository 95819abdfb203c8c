"""`torchrun --max-restarts`: ranks that are started again go on with another job."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

from tests.support.agents import Agents
from tests.support.ranks import COMMON, PATIENCE, SUPPORT, free_port


@pytest.mark.slow
@pytest.mark.long
def test_a_rank_that_dies_is_started_again_with_all_others() -> None:
    agents = Agents(2)
    port = free_port()
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--max-restarts", "1"),
                *("--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1"),
                *("--master-addr", "127.0.0.1", "--master-port", str(port)),
                str(SUPPORT / "restarting.py"),
            ],
            env={**os.environ, **COMMON, "HOPSUM_AGENT": name},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, name in enumerate(agents.names.values())
    ]
    printed = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    agents.close()
    assert len(agents.submitted) == 2
    assert "GroupLost" in printed[0]
    assert "the process on h2 disconnected without leaving (h2 is rank 1)" in printed[0]
    for rank, text in enumerate(printed):
        assert f"rank {rank}, attempt 1: 4 sums, [0, 1]" in text
        assert "attempt 0" not in text
