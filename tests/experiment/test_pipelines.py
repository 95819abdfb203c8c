"""hopsum.p4 compiled for either engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hopsum.collectives.choices import Engine
from hopsum.experiment import pipelines
from hopsum.experiment.description import ExperimentError
from hopsum.experiment.p4c import CompiledByP4c, compile_by_p4c
from hopsum.experiment.pipelines import compile_pipeline
from tests.support.paths import HOPSUM_P4INFO


class P4c:
    """In place of p4c: writes what it would."""

    def __init__(self) -> None:
        self.compiled: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "--version" in command:
            return subprocess.CompletedProcess(command, 0, "p4c 1.2.5", "")
        self.compiled.append(command)
        info = Path(command[command.index("--p4runtime-files") + 1])
        info.write_bytes(HOPSUM_P4INFO.read_bytes())
        defines = [word for word in command if word.startswith("-D")]
        made = Path(command[command.index("-o") + 1], Path(command[-1]).stem).with_suffix(".json")
        made.write_text(" ".join(defines))
        return subprocess.CompletedProcess(command, 0, "", "a warning")


@pytest.fixture(autouse=True)
def p4c(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> P4c:
    compiler = P4c()
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("subprocess.run", compiler)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.chdir(tmp_path)
    return compiler


@pytest.mark.slow
@pytest.mark.parametrize("engine", list(Engine))
def test_a_pipeline_depends_on_its_defines_and_leaves_no_files(
    engine: Engine, tmp_path: Path
) -> None:
    first, again = (compile_pipeline(engine, 32, 64) for _ in range(2))
    assert first.p4info == again.p4info
    assert first.p4info.tables
    other = compile_pipeline(engine, 64, 64)
    assert other.config != first.config
    assert other.cookie() != first.cookie()
    assert list(tmp_path.iterdir()) == []


def test_the_embedded_pipeline_is_compiled_once_for_its_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled: list[dict[str, str]] = []

    def compile_embedded(defines: dict[str, str]) -> tuple[bytes, bytes]:
        compiled.append(defines)
        return b"", b"%d" % len(compiled)

    program = tmp_path / "hopsum.p4"
    program.write_text("first")
    monkeypatch.setattr(pipelines, "PROGRAM", program)
    monkeypatch.setattr(pipelines, "_compile_embedded", compile_embedded)
    # As another process would.
    make = pipelines.embedded_pipeline.__wrapped__
    assert [make(32, slots, 10).config for slots in (64, 64, 128)] == [b"1", b"1", b"2"]
    (tmp_path / "other.p4").write_text("included")
    assert make(32, 64, 10).config == b"3"
    program.write_text("second")
    assert make(32, 64, 10).config == b"4"
    monkeypatch.setenv("XDG_CACHE_HOME", str(program))
    assert [make(32, 64, 10).config for _ in range(2)] == [b"5", b"6"]


def test_p4c_compiles_a_program_once_wherever_it_stands(p4c: P4c, tmp_path: Path) -> None:
    def compiled(folder: str, text: str, **defines: str) -> CompiledByP4c:
        program = tmp_path / folder / "program.p4"
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        return compile_by_p4c(program, defines)

    first = compiled("a", "const bit<8> n = N;", N="1")
    assert first.messages == "a warning"
    assert first.json.read_text() == "-DN=1"
    assert compiled("b", "const bit<8> n = N;", N="1") == first
    assert len(p4c.compiled) == 1
    for text, number in (("const bit<8> n = N;", "2"), ("const bit<8> m = N;", "1")):
        assert compiled("a", text, N=number) != first
    assert len(p4c.compiled) == 3


def test_damaged_files_of_the_cache_are_made_again(p4c: P4c, tmp_path: Path) -> None:
    program = tmp_path / "program.p4"
    program.write_text("const bit<8> n = 1;")
    made = compile_by_p4c(program, {})
    for file in (made.json, made.info):
        text = file.read_bytes()
        file.write_bytes(b"cut")
        assert compile_by_p4c(program, {}) == made
        assert file.read_bytes() == text
    assert len(p4c.compiled) == 3


@pytest.mark.slow
def test_a_damaged_p4info_of_the_cache_is_made_again() -> None:
    make = pipelines.embedded_pipeline.__wrapped__
    first = make(32, 64, 10)
    [info] = Path(os.environ["XDG_CACHE_HOME"]).rglob("p4info")
    info.write_bytes(b"")
    assert make(32, 64, 10).p4info == first.p4info


def test_a_compiler_that_fails_says_why(
    p4c: P4c, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "--version" in command:
            return p4c(command, **options)
        return subprocess.CompletedProcess(command, 1, "", "no space left")

    monkeypatch.setattr("subprocess.run", fail)
    with pytest.raises(ExperimentError, match=r"could not compile hopsum\.p4:\nno space left"):
        compile_pipeline(Engine.BMV2, 32, 64)
    monkeypatch.setattr("subprocess.run", p4c)
    assert compile_pipeline(Engine.BMV2, 32, 64).config
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ExperimentError, match="p4c is not on PATH"):
        compile_pipeline(Engine.BMV2, 32, 64)
    assert list(tmp_path.iterdir()) == []


def test_the_switches_program_names_no_folder_of_this_machine() -> None:
    """Its size decides when messages of a simulation arrive: a seed is one history everywhere."""
    config = compile_pipeline(Engine.EMBEDDED, 32, 64).config
    assert b'"hopsum.p4"' in config
    assert str(pipelines.PROGRAM.parent).encode() not in config
