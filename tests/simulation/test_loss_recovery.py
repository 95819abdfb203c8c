"""What loss costs in virtual time: losses are repaired without waiting for timeouts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import median

import pytest

from cli.experiment.description import Experiment
from cli.experiment.prepare import prepare
from cli.experiment.simulated import run_simulated
from collectives.choices import Algorithm


@cache
def spent(experiment: Experiment) -> tuple[float, int]:
    """Seconds and retransmissions."""
    outcome = run_simulated(prepare(experiment), lambda done, of: None)
    return outcome.seconds, outcome.retransmissions


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "most"), [(0.01, 1.5), (0.1, 6.0)])
def test_loss_costs_a_small_multiple(loss: float, most: float) -> None:
    base = Experiment("star:4", workers=4, elements=40_000, rounds=1)
    seconds, again = spent(base)
    assert again == 0
    # A fragment that is lost several times makes a run much longer than others.
    lossy = [spent(replace(base, loss=loss, seed=seed)) for seed in range(1, 6)]
    assert all(again > 0 for _, again in lossy)
    assert median(seconds for seconds, _ in lossy) <= most * seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    "experiment",
    [
        Experiment("star:24", workers=24, algorithm=Algorithm.SERVER, elements=20_000, rounds=1),
        Experiment(
            "leaf-spine:2x4", workers=8, algorithm=Algorithm.SERVER, elements=60_000, rounds=1
        ),
        Experiment("fat-tree:4", workers=8, servers=2, elements=100_000, rounds=1),
    ],
)
def test_queues_alone_cause_no_retransmission(experiment: Experiment) -> None:
    assert spent(experiment)[1] == 0
