"""The cache of compiled C."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from p4switch.packet_io import compile as compiler
from p4switch.packet_io.compile import (
    FLAGS,
    SEAL,
    CompileError,
    NoCompilerError,
    compile_shared,
)

pytestmark = pytest.mark.usefixtures("cache")

TEXT = "int answer(void) { return 42; }\n"


def test_a_text_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compile_shared("answer", TEXT)
    assert path.is_relative_to(cache)
    assert ctypes.CDLL(str(path)).answer() == 42
    monkeypatch.delattr(compiler, "_compile")
    assert compile_shared("answer", TEXT) == path


@pytest.mark.slow
def test_cache_keys_contain_all_inputs() -> None:
    paths = [
        compile_shared("answer", TEXT),
        compile_shared("reply", TEXT),
        compile_shared("answer", TEXT + "\n"),
        compile_shared("answer", TEXT, [*compiler.FLAGS, "-g"]),
        compile_shared("answer", TEXT, depends=["a"]),
        compile_shared("answer", TEXT, depends=["a", ""]),
        compile_shared("answer", TEXT, companions={"a": b""}),
        compile_shared("answer", TEXT, companions={"a": b"1"}),
    ]
    assert len(set(paths)) == len(paths)


def test_files_that_belong_to_an_object_are_kept_with_it() -> None:
    path = compile_shared("answer", TEXT, companions={"note": b"hello"})
    assert path.with_name("note").read_bytes() == b"hello"
    assert path.with_suffix(".c").read_text() == TEXT


@pytest.mark.parametrize("damaged", ["answer.so", "note", SEAL])
@pytest.mark.parametrize("damage", [b"", bytes(40)], ids=["empty", "zeros"])
def test_a_damaged_entry_is_made_again(damaged: str, damage: bytes) -> None:
    path = compile_shared("answer", TEXT, companions={"note": b"hello"})
    path.with_name(damaged).write_bytes(damage)
    assert compile_shared("answer", TEXT, companions={"note": b"hello"}) == path
    assert path.with_name("note").read_bytes() == b"hello"
    code = f"import ctypes; print(ctypes.CDLL({str(path)!r}).answer())"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"42\n"


def test_included_text_is_named_by_depends_alone(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "answer.h").write_text(TEXT)
    text = '#include "answer.h"\n'
    paths = {
        compile_shared("answer", text, include_paths=[folder], depends=[TEXT]) for folder in folders
    }
    assert len(paths) == 1


def test_refused_text_leaves_no_object(cache: Path) -> None:
    with pytest.raises(CompileError, match=r"answer\.c:1"):
        compile_shared("answer", "int answer(void) { return }\n")
    assert list(cache.rglob("*.so")) == []


def test_another_compiler_is_another_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_shared("answer", TEXT)
    script = tmp_path / "othercc"
    script.write_text('#!/bin/sh\n[ "$1" = --version ] && echo other 1.0 && exit\nexec cc "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    assert compile_shared("answer", TEXT) != first


def test_own_flags_come_last_and_make_another_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "int answer(void) { return ANSWER; }\n"
    answers = []
    for flags in ("", "-DUNUSED='a b' -UANSWER -DANSWER=2"):
        monkeypatch.setenv("P4SWITCH_CFLAGS", flags)
        shared = compile_shared("answer", text, (*FLAGS, "-DANSWER=1"))
        answers.append(ctypes.CDLL(str(shared)).answer())
    assert answers == [1, 2]


def test_a_missing_compiler_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "nosuchcc")
    with pytest.raises(NoCompilerError, match=r"'nosuchcc' is not on PATH; install"):
        compile_shared("answer", TEXT)
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(NoCompilerError, match="'cc' is not on PATH"):
        compile_shared("answer", TEXT)
