"""The check for machines with a GPU, without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="hopsum_torch needs torch")

from tests import gpu_check  # noqa: E402


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu_check", "--output", str(tmp_path / "out")]
    here = Path(gpu_check.__file__).parents[1]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "built without CUDA" in line or "finds no GPU" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_all_of_it_runs_on_another_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu_check.main(["--output", str(tmp_path)], "cpu") == 0
    printed = capsys.readouterr().out
    [text], [file] = tmp_path.glob("*.txt"), tmp_path.glob("*.json")
    assert text.read_text() in printed
    record = json.loads(file.read_text())
    assert record["machine"]["torch"] == torch.__version__
    assert [part["name"] for part in record["parts"]] == [
        "pinned memory",
        "DDP",
        "FSDP",
        "bandwidth",
    ]
    assert [part["problem"] for part in record["parts"]] == [""] * 4
    for part in record["parts"][1:3]:
        assert part["found"]["last"] < 0.9 * part["found"]["first"]
    rows = record["parts"][3]["found"]
    assert [row["bytes"] for row in rows] == [1 << 16, 1 << 20, 1 << 24, 1 << 26]
    assert all(row["all_reduce"] > 0 for row in rows)


def test_a_part_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(device: str) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(gpu_check, "pinned_memory", broken)
    monkeypatch.setattr(gpu_check, "training", lambda device, way: ("losses differ", None))
    monkeypatch.setattr(gpu_check, "bandwidth", lambda device: ("", None))
    assert gpu_check.main(["--output", str(tmp_path)], "cpu") == 1
    [text] = tmp_path.glob("*.txt")
    lines = text.read_text().splitlines()
    assert "       RuntimeError: CUDA error: out of memory" in lines
    assert [line.split(",")[0] for line in lines if line.startswith(("failed", "good"))] == [
        "failed pinned memory",
        "failed DDP",
        "failed FSDP",
        "good   bandwidth",
    ]
