"""hopsum.p4 compiled for either engine."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.experiment.description import Engine, ExperimentError
from cli.experiment.pipelines import compile_pipeline
from tests.support.paths import HOPSUM_P4INFO


def p4c(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Writes what p4c would."""
    Path(command[command.index("--p4runtime-files") + 1]).write_bytes(HOPSUM_P4INFO.read_bytes())
    (Path(command[command.index("-o") + 1]) / "hopsum.json").write_text(" ".join(command))
    return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture(autouse=True)
def with_p4c(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("subprocess.run", p4c)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("engine", list(Engine))
def test_a_pipeline_is_of_its_defines_and_leaves_no_files(engine: Engine, tmp_path: Path) -> None:
    first, again = (compile_pipeline(engine, 32, 64) for _ in range(2))
    assert first.p4info == again.p4info
    assert first.p4info.tables
    other = compile_pipeline(engine, 64, 64)
    assert other.config != first.config
    assert other.cookie != first.cookie
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "no space left")

    monkeypatch.setattr("subprocess.run", fail)
    with pytest.raises(ExperimentError, match=r"could not compile hopsum\.p4:\nno space left"):
        compile_pipeline(Engine.BMV2, 32, 64)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ExperimentError, match="p4c is not on PATH"):
        compile_pipeline(Engine.BMV2, 32, 64)
    assert list(tmp_path.iterdir()) == []
