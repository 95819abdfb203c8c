"""Examples: the commands of each one's README are run, and print what it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.documents import check_commands
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
TESTED_ELSEWHERE = dict.fromkeys(
    (
        *("accelerate_text", "ddp_cnn", "fsdp_gpt", "lightning_cnn", "ordered_experts"),
        *("ray_cnn", "two_trainings"),
    ),
    "tests/mininet_topos/test_torch_examples.py",
) | {
    "containers": "tests/machines/test_compose.py",
    "kubernetes": "tests/tools/test_manifests.py",
    "slurm": "tests/machines/test_slurm.py",
}
"""Those that need torch, a scheduler or containers, by their test."""
ALONE = sorted(
    path.parent for path in EXAMPLES.glob("*/README.md") if path.parent.name != "notebooks"
)


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "example",
    [path for path in ALONE if path.name not in TESTED_ELSEWHERE],
    ids=lambda path: path.name,
)
def test_the_commands_print_what_the_readme_says(example: Path, tmp_path: Path) -> None:
    # Away from the checkout, as somebody has it who copied it.
    folder = shutil.copytree(example, tmp_path / example.name)
    check_commands(folder / "README.md", folder)


def test_every_example_is_listed_and_has_a_readme() -> None:
    page = (EXAMPLES / "README.md").read_text()
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)/README\.md\)", page, re.MULTILINE)
    assert {name for name, _ in listed} == {path.name for path in ALONE}
    assert all(name == folder for name, folder in listed)
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()} - {
        "networks",
        "notebooks",
    }
    assert folders - {"__pycache__"} == {path.name for path in ALONE}
    for name, test in TESTED_ELSEWHERE.items():
        assert "examples" in (ROOT / test).read_text()
        assert name in (ROOT / test).read_text()
