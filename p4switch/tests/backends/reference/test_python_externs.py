"""Externs in Python, as docs/externs.md shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.cli.main import app
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.position import P4Error, UnsupportedError
from p4switch.targets.v1model.engine import EngineOptions, ExternError
from tests.support.paths import ROOT

BLOCKS = re.findall(r"```\w+\n(.*?)```", (ROOT / "docs" / "externs.md").read_text(), re.DOTALL)
PROGRAM, PYTHON, STF = BLOCKS[:3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.p4").write_text(PROGRAM)
    (tmp_path / "own.py").write_text(PYTHON)
    (tmp_path / "own.stf").write_text(STF)
    return tmp_path


def engine_of(folder: Path) -> Interpreter:
    program = compile_program(parse_text((folder / "own.p4").read_text(), "own.p4"))
    return Interpreter(program, EngineOptions(externs=folder / "own.py"))


def test_the_example_of_the_document(folder: Path) -> None:
    names = [str(folder / name) for name in ("own.p4", "own.stf", "own.py")]
    result = CliRunner().invoke(app, ["stf", *names[:2], "--externs", names[2]])
    assert (result.exit_code, result.output) == (0, f"{names[1]}: passed\n")


def test_instances_have_their_own_state(folder: Path) -> None:
    engine, other = engine_of(folder), engine_of(folder)
    ten, twenty = bytes.fromhex("0000000a0000"), bytes.fromhex("000000140000")
    assert engine.process([(0, ten), (0, twenty)])[1] == (2, bytes.fromhex("0000000f0002"))
    assert other.process([(0, twenty)]) == [(1, bytes.fromhex("000000140002"))]


def test_undefined_externs_are_reported(folder: Path) -> None:
    (folder / "own.py").write_text("")
    with pytest.raises(UnsupportedError, match=r"own\.p4:\d+:.*not one of v1model, and .*own\.py"):
        engine_of(folder)


def test_undefined_externs_are_reported_in_branches_that_no_packet_takes(folder: Path) -> None:
    (folder / "own.py").write_text(PYTHON.replace("def popcount", "def other"))
    call = "h.number.bits = popcount(h.number.value);"
    (folder / "own.p4").write_text(PROGRAM.replace(call, f"if (h.number.value == 1) {{ {call} }}"))
    with pytest.raises(UnsupportedError, match=r"own\.p4:\d+:.*'popcount' is not one of v1model"):
        engine_of(folder)


def test_a_file_that_fails(folder: Path) -> None:
    (folder / "own.py").write_text("1 / 0")
    with pytest.raises(ExternError, match=r"own\.py: cannot be run: ZeroDivisionError"):
        engine_of(folder)


def test_a_constructor_that_fails(folder: Path) -> None:
    (folder / "own.py").write_text(PYTHON.replace("self.mean = start", "self.mean = 1 // 0"))
    with pytest.raises(P4Error, match=r"extern 'Average' of .* cannot be made: ZeroDivisionError"):
        engine_of(folder)


def test_too_few_values(folder: Path) -> None:
    (folder / "own.py").write_text(PYTHON.replace("return self.mean, ", "return "))
    with pytest.raises(ExternError, match=r"own\.p4:\d+.*'update'.*expected a tuple of 2"):
        engine_of(folder).process([(0, bytes(6))])


def test_python_externs_need_the_interpreter(folder: Path) -> None:
    names = [str(folder / name) for name in ("own.p4", "own.stf", "own.py")]
    arguments = ["stf", *names[:2], "--executor", "native", "--externs", names[2]]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "leave --executor native out" in result.output


def test_constructors_take_tuples_and_structs(folder: Path) -> None:
    text = PROGRAM.replace(
        "Average(bit<32> start)", "Average(range_t start, tuple<bool, int<8>> rest)"
    )
    text = text.replace("Average(0)", "Average({ 3, { 4 } }, { true, -5 })")
    declared = "struct low_t { bit<8> low; } struct range_t { bit<32> first; low_t second; }\n"
    (folder / "own.p4").write_text(text.replace("extern Average", declared + "extern Average"))
    python = PYTHON.replace("self, start):", "self, start, rest):")
    (folder / "own.py").write_text(
        python.replace("self.mean = start", "self.mean = start[0] + rest[1]")
    )
    engine = engine_of(folder)
    [average] = [made for made in engine.program.externs if made.extern == "Average"]
    assert average.arguments == ((3, (4,)), (True, -5))
    assert engine.process([(0, bytes.fromhex("0000000a0000"))])


def test_constructors_take_no_lists(folder: Path) -> None:
    text = PROGRAM.replace("Average(bit<32> start)", "Average(list<bit<8>> start)")
    (folder / "own.p4").write_text(text.replace("Average(0)", "Average({ 1, 2 })"))
    with pytest.raises(UnsupportedError, match=r"only numbers, strings, enums, and tuples and"):
        engine_of(folder)
