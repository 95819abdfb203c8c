"""Examples that train with PyTorch, over the switches and over gloo."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsum.controller.api.records import job_dict
from tests.support.emulated_cluster import HOPSUM, emulated_cluster
from tests.support.emulation_turns import run_when_free
from tests.support.machine import PATIENCE
from tests.support.paths import ROOT
from tests.support.torch_extra import NEEDS_TORCH

pytestmark = [
    pytest.mark.network,
    NEEDS_TORCH,
]

README = ROOT / "README.md"
FRAMEWORKS = ROOT / ".venv/frameworks/bin/hopsum"
"""The command of an environment with Accelerate, Lightning and Ray."""
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


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder in which the paths of Ray's sockets are no longer than Unix allows (unix(7))."""
    folder = Path(tempfile.mkdtemp(prefix="hopsum-ray-"))
    yield folder
    # Of Ray's processes those that rename themselves lose their environment, and so the mark by
    # which the cluster would end them. They end by themselves, half a minute later.
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder:
                os.kill(int(process.name), signal.SIGKILL)
    shutil.rmtree(folder)


@pytest.mark.long
@pytest.mark.skipif(not FRAMEWORKS.exists(), reason="needs Ray: make frameworks")
def test_ray_trains_as_with_gloo(short_folder: Path) -> None:
    """By the commands that the example's README has."""
    readme = (ROOT / "examples/ray_cnn/README.md").read_text()
    start, *commands, jobs = re.findall(r"^hopsum .*", readme, re.MULTILINE)
    assert start.startswith("hopsum cluster star:3 ")
    assert jobs == "hopsum jobs"
    (short_folder / "train.py").symlink_to(ROOT / "examples/ray_cnn/train.py")
    environment = {
        **os.environ,
        "PATH": f"{FRAMEWORKS.parent}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # For busy machines, as the document says.
        "RAY_worker_niceness": "0",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": f"{PATIENCE:g}",
    }
    printed = []
    with emulated_cluster(short_folder, "star:3", "--link-rate", "50Mbit") as cluster:
        for command in commands:
            done = subprocess.run(
                shlex.split(command.replace("/tmp/", f"{short_folder}/")),
                cwd=short_folder,
                env={**environment, "XDG_RUNTIME_DIR": str(short_folder)},
                capture_output=True,
                text=True,
                check=False,
                timeout=2 * PATIENCE,
            )
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
            if "train.py" in command:
                printed.append(done.stdout)
                # Through the switches first, then over gloo.
                [job] = map(job_dict, cluster.queries.jobs())
                assert job["state"] == "finished"
                # Four epochs of at least 30 steps.
                assert job["round"] > 4 * 30
    losses = [
        [float(loss) for loss in re.findall(r"^epoch \d: loss ([\d.]+)", text, re.MULTILINE)]
        for text in printed
    ]
    through_switches, over_gloo = losses
    assert len(over_gloo) == 4
    assert through_switches == pytest.approx(over_gloo, rel=0.01)
    assert over_gloo[-1] < 0.5 * over_gloo[0]
    accuracies = [re.findall(r"^accuracy ([\d.]+)$", text, re.MULTILINE) for text in printed]
    [[ours], [theirs]] = accuracies
    assert float(ours) == pytest.approx(float(theirs), abs=0.02)


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
