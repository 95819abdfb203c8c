"""Compiled pipelines in build/: several processes may make and read the same ones at once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.experiment import pipelines
from cli.experiment.description import Engine, ExperimentError
from cli.experiment.pipelines import compile_pipeline


@pytest.fixture(autouse=True)
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pipelines, "BUILD", tmp_path)
    return tmp_path


def p4c(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Writes what p4c does, half of it at first."""
    info = Path(command[command.index("--p4runtime-files") + 1])
    config = Path(command[command.index("-o") + 1]) / "hopsum.json"
    for path in (info, config):
        path.write_text("ha")
        with path.open("a") as file:
            file.write("lf")
    return subprocess.CompletedProcess(command, 0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("engine", list(Engine))
def test_a_pipeline_takes_the_place_of_an_older_one_whole(
    engine: Engine, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has opened the older files reads them to their end."""
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("subprocess.run", p4c)
    first = compile_pipeline(engine, 32, 64)
    (folder,) = build.iterdir()
    files = {path: path.read_bytes() for path in folder.iterdir()}
    opened = [path.open("rb") for path in files]
    for path in files:
        assert path.stat().st_mode & 0o444 == 0o444
    again = compile_pipeline(engine, 32, 64)
    for path, before, content in zip(files, opened, files.values(), strict=True):
        with before:
            assert os.fstat(before.fileno()).st_ino != path.stat().st_ino
            assert before.read() == content
    assert again == first
    assert {path: path.read_bytes() for path in folder.iterdir()} == files


def test_a_compiler_that_fails_leaves_the_older_pipeline(
    build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("subprocess.run", p4c)
    compile_pipeline(Engine.BMV2, 32, 64)
    (folder,) = build.iterdir()
    files = {path: path.read_bytes() for path in folder.iterdir()}

    def fail(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        info = Path(command[command.index("--p4runtime-files") + 1])
        info.write_text("ha")
        return subprocess.CompletedProcess(command, 1, "", "no space left")

    monkeypatch.setattr("subprocess.run", fail)
    with pytest.raises(ExperimentError, match="no space left"):
        compile_pipeline(Engine.BMV2, 32, 64)
    assert {path: path.read_bytes() for path in folder.iterdir()} == files
