"""Ranks of PyTorch, processes of their own, whose calls the agents' code takes, in C and Python.

The frames between the hosts and the server, of which some are lost, cross no network.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import own_port
from tests.support.paths import ROOT
from tests.support.process_hosts import ProcessHosts
from tests.support.torch_extra import NEEDS_TORCH

pytestmark = [
    pytest.mark.slow,
    NEEDS_TORCH,
]

SCALING = ROOT / "hopsum_torch/tests/support/scaling.py"
FORKED_RANKS = ROOT / "tests/support/forked_ranks.py"
Step = tuple[float, bool, float, float]
"""Scale, whether it was skipped, and what a rank's parameters are."""


@pytest.fixture(scope="module")
def parent() -> Iterator[subprocess.Popen[str]]:
    """The parent of all ranks."""
    with subprocess.Popen(
        [sys.executable, str(FORKED_RANKS), str(SCALING)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


def start(
    parent: subprocess.Popen[str], folder: Path, kind: str, agents: list[str], job: int
) -> None:
    """Start a rank for each agent, and as many with gloo."""
    ranks = []
    for backend in ("hopsum", "gloo"):
        port = own_port()
        for rank, agent in enumerate(agents):
            environment = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(agents)),
                "HOPSUM_AGENT": agent,
                "HOPSUM_JOB": str(job),
            }
            ranks.append(([backend, kind], environment, str(folder / f"{backend}.{rank}")))
    assert parent.stdin is not None
    print(json.dumps(ranks), file=parent.stdin, flush=True)


def steps(folder: Path, backend: str, ranks: int) -> list[list[Step]]:
    """Return the steps of ranks that have ended."""
    printed = [(folder / f"{backend}.{rank}").read_text() for rank in range(ranks)]
    found = [re.search(r"^steps (.*)$", text, re.MULTILINE) for text in printed]
    assert all(found), printed
    return [json.loads(each[1]) for each in found if each is not None]


@pytest.mark.parametrize(
    ("kind", "rooted", "as_flow", "loss"),
    [
        pytest.param("ddp", False, True, 0.0, marks=pytest.mark.long),
        ("ddp", True, True, 0.02),
        ("hook", False, False, 0.02),
    ],
)
def test_a_loss_scaler_skips_the_steps_that_it_skips_with_gloo(
    kind: str,
    rooted: bool,
    as_flow: bool,
    loss: float,
    parent: subprocess.Popen[str],
    tmp_path: Path,
) -> None:
    hosts = ProcessHosts(as_flow=as_flow, window=16, rooted=rooted, loss=loss, elsewhere=True)
    names = [each.name for each in hosts.sockets.values()]
    try:
        start(parent, tmp_path, kind, names, hosts.plan.job)
        assert parent.stdout is not None
        ended = parent.stdout
        hosts.serve(lambda: bool(select.select([ended], [], [], 0)[0]))
        by_switches, by_gloo = (steps(tmp_path, each, len(names)) for each in ("hopsum", "gloo"))
        assert ended.readline() == "0 0 0 0\n"
        rounds = [member.round for member in hosts.members.values()]
        # Buckets of the gradients, the checks, and the counts.
        assert rounds[0] == rounds[1] > 2 * len(by_switches[0])
    finally:
        hosts.close()
    assert len(by_switches) == len(by_gloo) == 2
    for mine, others in zip(by_switches, by_gloo, strict=True):
        assert [step[:2] for step in mine] == [step[:2] for step in others]
        assert 0 < sum(skipped for _, skipped, *_ in mine) < len(mine)
        tolerance = 1e-2 if kind == "hook" else 1e-4
        for one, other in zip(mine, others, strict=True):
            assert one[2:] == pytest.approx(other[2:], rel=tolerance)
