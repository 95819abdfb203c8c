"""Examples that train with PyTorch, over the switches and over gloo."""

from __future__ import annotations

import json
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.emulated_cluster import HOPSUM
from tests.support.emulation_turns import run_when_free
from tests.support.paths import ROOT

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(
        find_spec("torch") is None, reason="torch is an extra: pip install hopsum[torch]"
    ),
]

README = ROOT / "README.md"
LENGTHS = {"ddp_cnn": ["--epochs", "3"], "fsdp_gpt": ["--steps", "30"]}
"""How long examples are to train."""


@pytest.mark.parametrize(
    "example",
    [
        pytest.param("ddp_cnn", marks=pytest.mark.long),
        pytest.param("fsdp_gpt", marks=pytest.mark.acceptance),
    ],
)
def test_an_example_trains_as_with_gloo(example: str, tmp_path: Path) -> None:
    """By the command that the README of everything has."""
    [line] = [line for line in README.read_text().splitlines() if f"examples/{example}/" in line]
    hopsum, torchrun, *words = shlex.split(line)
    assert (hopsum, torchrun) == (".venv/bin/hopsum", "torchrun")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    options = ["--json", "--link-rate", "50Mbit"]
    options += [] if "--compare-gloo" in words else ["--compare-gloo", "steps.png"]
    printed = run_when_free(tmp_path, [str(HOPSUM), torchrun, *options, *words, *LENGTHS[example]])
    losses = re.findall(r"loss ([\d.]+), [\d.]+ ms a step", printed)
    assert len(losses) % 2 == 0
    through_switches, over_gloo = losses[: len(losses) // 2], losses[len(losses) // 2 :]
    assert len(over_gloo) > 2
    assert float(through_switches[-1]) == pytest.approx(float(over_gloo[-1]), rel=0.01)
    assert float(over_gloo[-1]) < 0.9 * float(over_gloo[0])
    measured = json.loads(printed[printed.index("\n{") :])
    gloo = measured["gloo"]
    assert measured["errors"] == gloo["errors"] == []
    assert len(measured["steps"]) == len(gloo["steps"]) == len(over_gloo)
    assert 0 < measured["summing"] < measured["seconds"]
    assert gloo["sums"] == gloo["in_switches"] == 0
    # Frames of 1 KiB and more for each step's 85,000 and 110,000 parameters.
    assert 20 * 4 * 85_000 < measured["in_switches"] <= measured["sent"]
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_two_trainings_at_once_have_gloos_losses(tmp_path: Path) -> None:
    printed = run_when_free(
        tmp_path, [sys.executable, str(ROOT / "examples/two_trainings/two_trainings.py")]
    )
    losses = dict(re.findall(r"^  (\w+): loss ([\d.]+)", printed.split("over gloo")[0], re.M))
    expected = dict(re.findall(r"^  (\w+): loss ([\d.]+)", printed.split("over gloo")[1], re.M))
    assert set(losses) == set(expected) == {"long", "short"}
    for name, loss in losses.items():
        assert float(loss) == pytest.approx(float(expected[name]), rel=0.01)
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")
