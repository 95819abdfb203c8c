"""Errors of calls reach what waits for them in C++: DistributedDataParallel, its hooks, FSDP."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

from tests.support.agents import Agents
from tests.support.ranks import SUPPORT, start

pytestmark = pytest.mark.slow

RANKS = 3
OTHERS = [pytest.param(kind, marks=pytest.mark.long) for kind in ("hook", "zero")]


def came_of(kind: str, *faults: str) -> list[list[float | str]]:
    """Return by rank what came of each step; none of rank 1's, if it dies."""
    agents = Agents(RANKS)
    processes = start(list(agents.names.values()), SUPPORT / "failing_training.py", kind, *faults)
    printed = [process.communicate() for process in processes]
    agents.close()
    dead = "dead" in faults
    expected = [-9 if rank == 1 and dead else 0 for rank in range(RANKS)]
    assert [process.returncode for process in processes] == expected, printed
    found = [re.search(r"^came (.*)$", text, re.MULTILINE) for text in printed]
    return [json.loads(each[1]) if each is not None else [] for each in found]


@pytest.mark.parametrize("kind", ["ddp", "hook", "zero"])
def test_a_step_that_fails_raises_and_the_next_one_works(kind: str) -> None:
    came = came_of(kind, "none", "nan", "none", "inf", "none", "dead")
    for rank in (0, 2):
        check(came[rank][1], "SumRefused: ", r"rank 1 \(h2\): element \d+ is nan")
        check(came[rank][3], "SumRefused: ", r"rank 1 \(h2\): element \d+ is inf")
        check(came[rank][5], "GroupLost: ", r"the process on h2 disconnected .*\(h2 is rank 1\)")
    worked = [[of_rank[step] for step in (0, 2, 4)] for of_rank in (came[0], came[2])]
    assert all(isinstance(each, float) for each in worked[0])
    assert worked[0] == worked[1]


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ("nan", "SumRefused: ", r"rank 1 \(h2\): element \d+ is nan"),
        ("dead", "GroupLost: ", r"the process on h2 disconnected .*\(h2 is rank 1\)"),
    ],
)
def test_fsdp2_raises(fault: str, error: str, text: str) -> None:
    """It cannot go on afterwards, as its parameters remain unsharded, with any backend."""
    came = came_of("fsdp2", "none", fault)
    for rank in (0, 2):
        check(came[rank][1], error, text)


def check(found: float | str, error: str, text: str) -> None:
    """Check the error that came of a step."""
    assert isinstance(found, str)
    assert error in found
    assert re.search(text, found)


@pytest.mark.parametrize("kind", ["ddp", *OTHERS, pytest.param("fsdp2", marks=pytest.mark.long)])
def test_a_step_that_a_rank_does_not_take_times_out(kind: str) -> None:
    came = came_of(kind, "none", "late")
    errors = [str(came[rank][1]) for rank in (0, 2)]
    # Over gloo the rank that times out first closes its connection to the other.
    assert all(re.search("timed out|closed by peer", each, re.IGNORECASE) for each in errors), came
    assert any(re.search("timed out", each, re.IGNORECASE) for each in errors), came


@pytest.mark.parametrize("kind", ["ddp", *OTHERS])
def test_a_layer_that_a_rank_does_not_use_is_an_error(kind: str) -> None:
    """Or a timeout where the rank calls nothing else."""
    came = came_of(kind, "none", "missing")
    for rank in (0, 2):
        error = str(came[rank][1])
        assert "Timed out" in error or ("SumRefused: " in error and "rank 1 (h2): " in error)
