"""Levels of level-wise all-reduce overlap in packets, between the real agents."""

from __future__ import annotations

import pytest

from hopsum.collectives.algorithms.level_wise import pieces_for
from hopsum.collectives.algorithms.rooted import network_tree
from hopsum.collectives.choices import Algorithm
from hopsum.experiment.description import Experiment
from hopsum.experiment.runner import run_experiment
from hopsum.network.loaders import load_network
from tests.oracles import costs

TOPOLOGY, RATE, UPLINK, ELEMENTS = "leaf-spine:4x2", 1e8, 5e7, 160_000


@pytest.mark.slow
def test_all_levels_take_less_than_one_after_the_other() -> None:
    network = load_network(TOPOLOGY, link_rate=RATE, uplink_rate=UPLINK)
    ranks = [f"h{i + 1}" for i in range(8)]
    assert pieces_for(network_tree(network, ranks), ranks, ELEMENTS) == 4
    report = run_experiment(
        Experiment(
            topology=TOPOLOGY,
            workers=8,
            elements=ELEMENTS,
            rounds=1,
            algorithm=Algorithm.LEVEL_WISE,
            link_rate=RATE,
            uplink_rate=UPLINK,
        )
    )
    assert not report.problems
    assert report.measured is not None
    # Two leaves share an uplink. One after the other, headers would come on top.
    levels = [(costs.AlphaBeta(0, 8 / RATE), 2), (costs.AlphaBeta(0, 2 * 8 / UPLINK), 4)]
    assert report.measured.seconds < costs.level_wise(levels, 4 * ELEMENTS)
