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
FRAMEWORKS = ROOT / ".venv/frameworks/bin/hopsum"
"""The command of an environment with Accelerate and Lightning."""
LENGTHS = {"ddp_cnn": ["--epochs", "3"], "fsdp_gpt": ["--steps", "30"]}
"""How long examples are to train."""


@pytest.mark.parametrize(
    ("example", "more"),
    [
        pytest.param("ddp_cnn", [], marks=pytest.mark.long),
        pytest.param("fsdp_gpt", [], marks=pytest.mark.acceptance),
        pytest.param("ddp_cnn", ["--bfloat16", "--epochs", "4"], marks=pytest.mark.long),
        pytest.param("fsdp_gpt", ["--bfloat16"], marks=pytest.mark.long),
    ],
)
def test_an_example_trains_as_with_gloo(example: str, more: list[str], tmp_path: Path) -> None:
    """By the command that the README of everything has."""
    [line] = [line for line in README.read_text().splitlines() if f"examples/{example}/" in line]
    hopsum, torchrun, *words = shlex.split(line)
    assert (hopsum, torchrun) == (".venv/bin/hopsum", "torchrun")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    options = ["--json", "--link-rate", "50Mbit"]
    options += [] if "--compare-gloo" in words else ["--compare-gloo", "steps.png"]
    words += [*LENGTHS[example], *more]
    printed = run_when_free(tmp_path, [str(HOPSUM), torchrun, *options, *words])
    losses = re.findall(r"loss ([\d.]+), [\d.]+ ms a step", printed)
    assert len(losses) % 2 == 0
    through_switches, over_gloo = losses[: len(losses) // 2], losses[len(losses) // 2 :]
    assert len(over_gloo) > 1
    assert float(through_switches[-1]) == pytest.approx(float(over_gloo[-1]), rel=0.01)
    assert float(over_gloo[-1]) < 0.9 * float(over_gloo[0])
    measured = json.loads(printed[printed.index("\n{") :])
    gloo = measured["gloo"]
    assert measured["errors"] == gloo["errors"] == []
    assert len(measured["steps"]) == len(gloo["steps"]) == len(over_gloo)
    assert 0 < measured["summing"] < measured["seconds"]
    assert gloo["sums"] == gloo["in_switches"] == 0
    # Frames of 1 KiB and more for each step's 85,000 and 110,000 parameters.
    assert 20 * (2 if more else 4) * 85_000 < measured["in_switches"] <= measured["sent"]
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_ordered_gradients_train_as_with_gloo(tmp_path: Path) -> None:
    """By the command that the example's README has."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    readme = (ROOT / "examples/ordered_experts/README.md").read_text()
    [line] = [line for line in readme.splitlines() if line.startswith("hopsum torchrun")]
    _, torchrun, *words = shlex.split(line)
    options = ["--json", "--link-rate", "50Mbit", "--compare-gloo", "steps.png"]
    printed = run_when_free(tmp_path, [str(HOPSUM), torchrun, *options, *words])
    losses = [float(each) for each in re.findall(r"loss ([\d.]+), [\d.]+ ms a step", printed)]
    through_switches, over_gloo = losses[: len(losses) // 2], losses[len(losses) // 2 :]
    assert len(through_switches) == 4
    assert through_switches == pytest.approx(over_gloo, rel=0.01)
    assert over_gloo[-1] < 0.3 * over_gloo[0]
    measured = json.loads(printed[printed.index("\n{") :])
    assert measured["errors"] == measured["gloo"]["errors"] == []
    # Of each rank, the gradients of 70,000 parameters in four epochs of 15 steps.
    assert 60 * 4 * 70_000 < measured["in_switches"] <= measured["sent"]
    assert measured["gloo"]["in_switches"] == 0


@pytest.mark.long
@pytest.mark.skipif(not FRAMEWORKS.exists(), reason="needs Accelerate, Lightning: make frameworks")
@pytest.mark.parametrize(
    "script", ["accelerate_text/train", "lightning_cnn/trainer", "lightning_cnn/fabric"]
)
def test_a_framework_trains_as_with_gloo(script: str, tmp_path: Path) -> None:
    """By the command that the example's README has."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    readme = ROOT / "examples" / Path(script).parent / "README.md"
    [line] = [line for line in readme.read_text().splitlines() if line.endswith(f"{script}.py")]
    _, torchrun, *words = shlex.split(line)
    options = ["--json", "--link-rate", "50Mbit", "--compare-gloo", "steps.png"]
    command = [str(FRAMEWORKS), torchrun, *options, *words, "--epochs", "2"]
    printed = run_when_free(tmp_path, command)
    [first, through_switches, over_gloo_first, over_gloo] = map(
        float, re.findall(r"loss ([\d.]+), [\d.]+ ms a step", printed)
    )
    assert through_switches == pytest.approx(over_gloo, rel=0.01)
    assert first == pytest.approx(over_gloo_first, rel=0.01)
    assert over_gloo < 0.9 * over_gloo_first
    results = re.findall(r"^(?:accuracy|held out: loss) ([\d.]+)$", printed, re.MULTILINE)
    assert float(results[0]) == pytest.approx(float(results[1]), abs=0.02)
    measured = json.loads(printed[printed.index("\n{") :])
    assert measured["errors"] == measured["gloo"]["errors"] == []
    # Of each rank, the gradients of 80,000 parameters in two epochs of at least 20 steps.
    assert 40 * 4 * 70_000 < measured["in_switches"] <= measured["sent"]
    assert measured["gloo"]["in_switches"] == 0


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["--bfloat16"]])
def test_two_trainings_at_once_have_gloos_losses(options: list[str], tmp_path: Path) -> None:
    script = str(ROOT / "examples/two_trainings/two_trainings.py")
    printed = run_when_free(tmp_path, [sys.executable, script, *options])
    losses = dict(re.findall(r"^  (\w+): loss ([\d.]+)", printed.split("over gloo")[0], re.M))
    expected = dict(re.findall(r"^  (\w+): loss ([\d.]+)", printed.split("over gloo")[1], re.M))
    assert set(losses) == set(expected) == {"long", "short"}
    for name, loss in losses.items():
        assert float(loss) == pytest.approx(float(expected[name]), rel=0.01)
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")
