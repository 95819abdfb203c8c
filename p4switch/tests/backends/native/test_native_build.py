"""Compiling generated code: the cache, its lock, no compiler, what is not supported."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from p4switch.backends.native import build
from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.native.generate import generate
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.ir import Program
from p4switch.packet_io import compile as cache_module
from p4switch.position import UnsupportedError
from tests.support.paths import ROOT

pytestmark = pytest.mark.usefixtures("cache")

TEXT = """
#include <core.p4>
#include <v1model.p4>
#ifndef PORT
#define PORT 1
#endif
header h_t { bit<8> a; }
struct headers_t { h_t h; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { PARSER transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply { s.egress_spec = PORT; }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


def text_with(parser: str) -> str:
    return TEXT.replace("PARSER", parser)


def program_of(parser: str) -> Program:
    return compile_program(parse_text(text_with(parser), "program.p4"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "program.p4"
    path.write_text(text_with("p.extract(h.h);"), encoding="utf-8")
    return path


STUB_COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo compiled >> {log}
echo object > "$2"
"""


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each run of the compiler, whose objects cannot be loaded."""
    script, log = tmp_path / "compiler", tmp_path / "compiled"
    script.write_text(STUB_COMPILER.format(log=log), encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    return log


def forbid(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError(f"{name} was called")

    monkeypatch.setattr(module, name, refuse)


def test_a_program_is_compiled_once(compiled: Path, cache: Path) -> None:
    first = build.build(program_of("p.extract(h.h);"))
    assert first.is_relative_to(cache)
    assert build.build(program_of("p.extract(h.h);")) == first
    assert compiled.read_text() == "compiled\n"


@pytest.mark.usefixtures("compiled")
def test_another_program_or_flag_is_another_entry() -> None:
    paths = {
        build.build(program_of("p.extract(h.h);")),
        build.build(program_of("")),
        build.build(program_of(""), ["-O1"]),
    }
    assert len(paths) == 3


@pytest.mark.slow
def test_a_second_start_needs_no_front_end(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, path = build.load(source)
    forbid(monkeypatch, build, "build")
    forbid(monkeypatch, cache_module, "_compile")
    again, same = build.load(source)
    assert same == path
    assert pickle.dumps(again) == pickle.dumps(pickle.loads(pickle.dumps(first)))
    assert NativeEngine(again, compiled=same).process([(0, b"ab")]) == [(1, b"ab")]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", ["program.pickle", "layout.pickle", "switch.so"])
def test_a_damaged_cache_file_is_made_again(
    source: Path, cache: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty pickle raises EOFError, which Typer shows as "Aborted!"."""
    _, shared = build.load(source)
    layout = build.read_layout(shared)
    [damaged] = cache.rglob(name)
    damaged.write_bytes(b"")
    program, again = build.load(source)
    assert again == shared
    assert shared.read_text() == "object\n"
    assert build.read_layout(shared) == layout
    assert Interpreter(program).process([(0, b"ab")]) == [(1, b"ab")]
    forbid(monkeypatch, build, "build")
    build.load(source)


@pytest.mark.usefixtures("compiled")
def test_defines_are_part_of_the_entry(source: Path) -> None:
    one, first = build.load(source)
    two, second = build.load(source, defines={"PORT": "2"})
    assert first != second
    assert Interpreter(one).process([(0, b"a")]) == [(1, b"a")]
    assert Interpreter(two).process([(0, b"a")]) == [(2, b"a")]


@pytest.mark.usefixtures("compiled")
def test_a_change_of_an_included_file_is_seen(source: Path, tmp_path: Path) -> None:
    included = tmp_path / "port.p4"
    included.write_text("#define PORT 3\n", encoding="utf-8")
    source.write_text('#include "port.p4"\n' + source.read_text(encoding="utf-8"))
    one, first = build.load(source)
    included.write_text("#define PORT 4\n", encoding="utf-8")
    two, second = build.load(source)
    assert first != second
    assert Interpreter(one).process([(0, b"a")]) == [(3, b"a")]
    assert Interpreter(two).process([(0, b"a")]) == [(4, b"a")]


@pytest.mark.parametrize(
    "name", ["ir.py", "targets/include/v1model.p4", "backends/native/runtime/loop.h"]
)
def test_a_change_of_any_source_file_is_another_version(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    shutil.copytree(build.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(build, "PACKAGE", package)
    before = build.package_hash.__wrapped__()
    changed = package / name
    changed.write_text(changed.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert build.package_hash.__wrapped__() != before


@pytest.mark.slow
def test_processes_that_start_together_compile_once(source: Path, compiled: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from p4switch.backends.native.build import load;"
        "load(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(source)]
    running = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert [process.wait() for process in running] == [0] * 3
    assert compiled.read_text() == "compiled\n"


def test_without_a_compiler_the_error_says_so(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(cache_module.NoCompilerError, match="'cc' is not on PATH"):
        NativeEngine(program_of(""))
    with pytest.raises(cache_module.NoCompilerError, match="install gcc"):
        build.load(source)


def test_a_failed_compile_leaves_no_object(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(cache_module.CompileError, match="defect of p4switch"):
        build.build(program_of(""), ["-no-such-flag"])
    assert not list(cache.rglob("*.so"))


def test_unsupported_constructs_are_refused_with_their_place() -> None:
    ahead = """
    headers_t ahead; ahead = p.lookahead<headers_t>();
    """
    union = "header_union u_t { h_t a; } struct headers_t { u_t h; }"
    text = text_with(ahead).replace("struct headers_t { h_t h; }", union)
    with pytest.raises(UnsupportedError, match="a union on the wire") as caught:
        generate(compile_program(parse_text(text, "program.p4")))
    assert caught.value.position.line == 12
