"""PyTorch's own tests of process groups pass with hopsum wherever they pass with gloo."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

from tests.support.agents import Agents
from tests.support.ranks import COMMON, SUPPORT

MONITORED = "PyTorch refuses monitored_barrier for backends that are not named gloo"
EXCEPTIONS = {
    "test_monitored_barrier_gloo": MONITORED,
    "test_monitored_barrier_gloo_subgroup": MONITORED,
}
"""Tests that pass with gloo alone, and why."""

FEWEST = {3: 80, 4: 90}
"""That must pass, by the number of ranks: a suite that skips them all shows nothing."""
PARTS = 3
"""Processes that share the tests, which wait for most of their time."""
LACKING = re.compile("skipped: (?!.*[Gg]loo).*(CUDA|Nccl|NCCL|world size)")
"""Outcomes that name what gloo lacks, too, on this machine and with as many ranks."""


def outcomes(
    results: Path, backend: str, agents: Sequence[str], names: Iterable[str] = ()
) -> dict[str, str]:
    """Run PyTorch's tests of these names, or a part of all; return the outcomes by name."""
    environment = {**os.environ, **COMMON, "HOPSUM_TEST_AGENTS": ",".join(agents)}
    command = [sys.executable, "-m", "tests.support.pytorch_suite"]
    subprocess.run(
        [*command, backend, str(len(agents)), str(results), *names],
        cwd=SUPPORT.parent.parent,
        env=environment,
        check=True,
    )
    found: dict[str, str] = json.loads(results.read_text())
    return found


def check(ranks: int, folder: Path) -> None:
    """Compare what PyTorch's tests find with hopsum and, of those that do not pass, with gloo."""
    agents = Agents(ranks, rooted=True)
    found: dict[str, str] = {}
    with ThreadPoolExecutor(PARTS) as pool:
        runs = [
            pool.submit(
                outcomes, folder / f"{part}", "hopsum", agents.of_ranks, [f"{part}/{PARTS}"]
            )
            for part in range(PARTS)
        ]
        for run in runs:
            found |= run.result()
    agents.close()
    others = [name for name, outcome in found.items() if outcome != "passed"]
    again = [name for name in others if not LACKING.match(found[name])]
    with_gloo = outcomes(folder / "gloo", "gloo", ["none"] * ranks, again)
    worse = {name for name in again if with_gloo[name] == "passed"}
    unexpected = {name: found[name] for name in worse - EXCEPTIONS.keys()}
    assert not unexpected, "\n\n".join(f"{name}: {text}" for name, text in unexpected.items())
    assert worse == EXCEPTIONS.keys() & found.keys(), "remove those that pass from EXCEPTIONS"
    assert len(found) - len(others) >= FEWEST[ranks]


@pytest.mark.acceptance
@pytest.mark.timeout(1800)
def test_passes_where_gloo_passes_with_three_ranks(tmp_path: Path) -> None:
    check(3, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_passes_where_gloo_passes_with_four_ranks(tmp_path: Path) -> None:
    check(4, tmp_path)
