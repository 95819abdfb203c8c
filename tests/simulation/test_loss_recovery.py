"""The cost of loss in virtual time: losses are repaired without waiting for timeouts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import median

import pytest

from hopsum.collectives.choices import Algorithm, DataType, Results
from hopsum.experiment.description import Experiment
from hopsum.experiment.prepare import prepare
from hopsum.experiment.simulated import run_simulated
from hopsum.simulation.faults import Faults
from tests.support.search import examples


@cache
def spent(experiment: Experiment) -> tuple[float, int]:
    """Seconds and retransmissions."""
    outcome = run_simulated(prepare(experiment), lambda done, of: None)
    return outcome.seconds, outcome.retransmissions


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["star:4", "leaf-spine:2x2"])
@pytest.mark.parametrize(("loss", "most"), [(0.01, 1.1), (0.05, 1.3), (0.1, 1.7)])
def test_loss_costs_little_more_than_its_load(topology: str, loss: float, most: float) -> None:
    """The first and the last round trips, where nothing shows a loss, count more in short runs."""
    base = Experiment(topology, workers=4, elements=100_000, rounds=1, link_rate=12.5e6)
    seconds, again = spent(base)
    assert again == 0
    runs = [spent(replace(base, loss=loss, seed=seed)) for seed in range(1, 1 + examples(3, of=5))]
    assert all(again for _, again in runs)
    assert median(lossy for lossy, _ in runs) <= most * seconds + 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "dtype"),
    [
        ("leaf-spine:2x2", DataType.INT32),
        *(("star:4", each) for each in DataType if each.bits != 16),
    ],
)
def test_loss_of_unicast_results_costs_little_too(topology: str, dtype: DataType) -> None:
    """The server sends each worker a result of its own, so that all takes four times as long.

    Floats of 16 bits have several prologues, whose losses timeouts find: up to twice the time.
    """
    elements = 50_000 * 32 // dtype.bits
    base = Experiment(
        topology, workers=4, elements=elements, rounds=1, dtype=dtype, results=Results.UNICAST
    )
    seconds, again = spent(base)
    assert again == 0
    times = [spent(replace(base, loss=0.03, seed=seed))[0] for seed in range(1, 4)]
    assert median(times) <= 1.3 * seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults", [Faults(loss=0.02, burst=4), Faults(loss=0.02, reorder=0.05, hold=0.005)], ids=str
)
def test_bursts_and_reordering_cost_no_more_than_losses_at_random(faults: Faults) -> None:
    assert seconds_under(faults) <= 1.2 * seconds_under(Faults(loss=faults.loss))


@cache
def seconds_under(faults: Faults) -> float:
    prepared = prepare(Experiment("star:4", workers=4, elements=120_000, rounds=1))
    return run_simulated(prepared, lambda done, of: None, faults=faults).seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    "experiment",
    [
        Experiment("star:24", workers=24, algorithm=Algorithm.SERVER, elements=20_000, rounds=1),
        Experiment(
            "leaf-spine:2x4", workers=8, algorithm=Algorithm.SERVER, elements=30_000, rounds=1
        ),
        Experiment("fat-tree:4", workers=8, servers=2, elements=50_000, rounds=1),
        Experiment("star:24", workers=24, results=Results.UNICAST, elements=20_000, rounds=1),
    ],
)
def test_queues_alone_cause_no_retransmission(experiment: Experiment) -> None:
    assert spent(experiment)[1] == 0
