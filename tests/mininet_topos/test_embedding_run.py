"""Parts of a tensor in the switches and among hosts at once: real processes, packets and TCP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hopsum.collectives.choices import Algorithm
from hopsum.experiment.description import Experiment, WorldKind
from hopsum.experiment.prepare import prepare
from hopsum.network.loaders import save_network
from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.planning.model.demand import Model
from tests.support.data_types import OF_HOSTS
from tests.support.emulated_runs import run_together

pytestmark = pytest.mark.network


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Four workers at 25 Mbit/s; the hosts that could serve them have a fifth of that."""
    monkeypatch.chdir(tmp_path)
    made = make_topology("star:5", TopologyOptions(25e6))
    slow = {"ps": 5e6, "h5": 5e6}
    links = [replace(k, bandwidth=slow.get(k.a, slow.get(k.b, k.bandwidth))) for k in made.links]
    save_network(replace(made, links=tuple(links)), tmp_path / "network.json")
    return str(tmp_path / "network.json")


def test_an_embedding_is_exact(network: str) -> None:
    base = Experiment(
        network,
        workers=4,
        elements=100_003,
        rounds=3,
        algorithm=Algorithm.EMBEDDING,
        world=WorldKind.MININET,
        link_rate=None,
    )
    plan = prepare(base).plan
    assert plan is not None
    assert plan.trees and plan.host_parts, f"expected {Model.IN_NETWORK} and others in {plan}"
    aggregated = [0]
    for report in run_together(*(replace(base, dtype=dtype) for dtype in OF_HOSTS)):
        assert report.problems == []
        assert report.measured is not None
        assert report.measured.verdict.checked == 4 * 3 * 100_003
        # Counters go on from the run before.
        aggregated.append(sum(c["aggregated"] for c in report.measured.switches.values()))
    assert aggregated[0] < aggregated[1] < aggregated[2]
