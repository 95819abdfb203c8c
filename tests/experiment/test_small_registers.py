"""The default window fits the switches' slots, however few these are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.collectives.choices import Algorithm
from hopsum.collectives.plan import PlanError
from hopsum.experiment.description import Experiment
from hopsum.experiment.runner import run_experiment


def star(folder: Path, slots: int) -> str:
    """A file with a switch of so many slots, and five hosts."""
    hosts = [f"h{i}" for i in range(1, 5)] + ["ps"]
    nodes = [{"id": "s1", "kind": "switch", "slots": slots}]
    nodes += [{"id": host, "kind": "host"} for host in hosts]
    edges = [{"source": host, "target": "s1", "bandwidth": 25e6} for host in hosts]
    path = folder / f"star{slots}.json"
    path.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Algorithm.IN_NETWORK, Algorithm.EMBEDDING])
@pytest.mark.parametrize("slots", [1, 100])
def test_runs_with_few_slots_sum_in_the_switch(
    slots: int, algorithm: Algorithm, tmp_path: Path
) -> None:
    experiment = Experiment(
        star(tmp_path, slots), workers=4, elements=2000, rounds=1, lanes=32, algorithm=algorithm
    )
    report = run_experiment(experiment)
    assert not report.problems
    assert report.experiment.window == (32 if slots == 100 else 1)
    assert report.measured is not None
    summed = report.measured.switches["s1"]["completed"]
    assert summed > 0
    if algorithm is Algorithm.IN_NETWORK:
        with pytest.raises(
            PlanError, match=f"its quota at switch s1 is {slots} of {slots}; use a window of"
        ):
            run_experiment(replace(experiment, window=256))


def test_plans_with_few_slots(tmp_path: Path) -> None:
    asked = ["plan", "--topology", star(tmp_path, 100), "--json"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert json.loads(done.stdout)["window"] == 32
    with pytest.raises(PlanError, match="window 3: expected a power of two"):
        CliRunner().invoke(app, [*asked, "--window", "3"], catch_exceptions=False)
