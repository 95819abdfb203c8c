"""Externs in C, as docs/externs.md shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.cli.main import app
from p4switch.device.bundle import make_bundle
from p4switch.device.loading import Loader
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.position import UnsupportedError
from p4switch.targets.v1model.engine import Engine, EngineOptions, ExternError
from tests.support.paths import ROOT

DOCUMENT = (ROOT / "docs" / "externs.md").read_text()
BLOCKS = dict(re.findall(r"```(\w+)\n(.*?)```", DOCUMENT, re.DOTALL))
PROGRAM, PYTHON, STF, C = (BLOCKS[name] for name in ("p4", "python", "text", "c"))

TEN, TWENTY = bytes.fromhex("0000000a0000"), bytes.fromhex("000000140000")


def write_example(folder: Path) -> Path:
    for name, text in (("p4", PROGRAM), ("py", PYTHON), ("stf", STF), ("c", C)):
        (folder / f"own.{name}").write_text(text)
    return folder


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The document's files where no test changes them: they are compiled once."""
    return write_example(tmp_path_factory.mktemp("example"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_example(tmp_path)


def engine_of(folder: Path, kind: type[NativeEngine | Interpreter] = NativeEngine) -> Engine:
    program = compile_program(parse_text((folder / "own.p4").read_text(), "own.p4"))
    suffix = "c" if kind is NativeEngine else "py"
    return kind(program, EngineOptions(externs=folder / f"own.{suffix}"))


def stf(folder: Path, externs: str, *options: str) -> tuple[int, str]:
    names = [str(folder / name) for name in ("own.p4", "own.stf", externs)]
    result = CliRunner().invoke(app, ["stf", *names[:2], "--externs", names[2], *options])
    return result.exit_code, result.output


@pytest.mark.slow
def test_the_example_of_the_document(example: Path) -> None:
    assert stf(example, "own.c") == (0, f"{example / 'own.stf'}: passed\n")


def test_both_languages_agree(example: Path) -> None:
    packets = [(0, bytes([0, 0, n * 37 % 256, n]) + bytes(2)) for n in range(50)]
    assert engine_of(example).process(packets) == engine_of(example, Interpreter).process(packets)


def test_instances_have_their_own_state(example: Path) -> None:
    engine, other = engine_of(example), engine_of(example)
    assert engine.process([(0, TEN), (0, TWENTY)])[1] == (2, bytes.fromhex("0000000f0002"))
    assert other.process([(0, TWENTY)]) == [(1, bytes.fromhex("000000140002"))]


@pytest.mark.slow
def test_a_pushed_program_has_them_and_notices_another_file(folder: Path) -> None:
    loader = Loader("native", EngineOptions(externs=folder / "own.c"))
    bundle = make_bundle(folder / "own.p4")
    assert loader(bundle).process([(0, TEN)]) == [(1, bytes.fromhex("0000000a0002"))]
    (folder / "own.c").write_text(C.replace("return (u64)__builtin", "return 1 + (u64)__builtin"))
    assert loader(bundle).process([(0, TEN)]) == [(1, bytes.fromhex("0000000a0003"))]


SIGNED = """
extern int<8> turned(in int<8> value, inout bool flag, out bit<4> rest);
extern Start { Start(int<16> low, bool on, bit<64> high); bit<32> get(); }
"""
SIGNED_BODY = """
        bool flag = h.number.bits[0:0] == 1;
        bit<4> rest = 9;
        int<8> value = turned((int<8>)h.number.value[7:0], flag, rest);
        h.number.value = start.get() ++ 0 | (bit<32>)(bit<8>)value;
        h.number.bits = rest ++ (flag ? 4w1 : 4w0) ++ 8w0;
        s.egress_spec = 1;
"""
SIGNED_C = """
i64 extern_turned(i64 value, u64 *flag, u64 *rest) {
    *flag = *flag ? 0 : 16;
    *rest += 0x1f;
    return value < 0 ? -value : -1;
}
typedef struct { u64 sum; } extern_Start;
void extern_Start_init(extern_Start *self, u64 low, u64 on, u64 high) {
    self->sum = (u64)-(i64)low * 256 + on * 65536 + (high >> 63) * 16777216;
}
u64 extern_Start_get(extern_Start *self) { return self->sum | 1ull << 40; }
"""


@pytest.mark.slow
def test_signs_booleans_and_widths(folder: Path) -> None:
    start = PROGRAM.index("extern bit<16>")
    text = PROGRAM[:start] + SIGNED + PROGRAM[PROGRAM.index("header number_t") :]
    a, b = text.index("        h.number.bits = popcount"), text.index("    }\n}\ncontrol E")
    text = text[:a] + SIGNED_BODY.replace(" ++ 0", "") + text[b:]
    text = text.replace("Average(0) average;", "Start(-3, true, 64w1 << 63) start;")
    (folder / "own.p4").write_text(text)
    (folder / "own.c").write_text(SIGNED_C)
    engine = engine_of(folder)
    minus_5, seven = bytes.fromhex("000000fb0001"), bytes.fromhex("000000070000")
    assert engine.process([(0, minus_5), (0, seven)]) == [
        (1, bytes.fromhex("01010305f000")),
        (1, bytes.fromhex("010103fff100")),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return (u64)__", "return u64 __", r"own\.c:2:\d+: error"),
        ("extern_popcount", "extern_count", r"own\.c: .*undefined .*extern_popcount"),
        ("(u64 value)", "(u64 value, u64 more)", r"own\.c: .*conflicting types.*extern_popcount"),
        ("Average_init(extern", "Average_start(extern", r"own\.c: .*extern_Average_init"),
    ],
    ids=["syntax", "missing", "arguments", "constructor"],
)
def test_errors_of_the_c_compiler_are_reported(folder: Path, old: str, new: str, said: str) -> None:
    (folder / "own.c").write_text(C.replace(old, new))
    with pytest.raises(ExternError, match=f"(?s){said}"):
        engine_of(folder)


def test_a_file_that_is_not_there(folder: Path) -> None:
    code, output = stf(folder, "none.c")
    assert (code, output.count("\n")) == (1, 1)
    assert f"{folder}/none.c: cannot be read" in output


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("in bit<32> value", "in bit<65> value", "value: externs in C take and return numbers"),
        ("Average(bit<32> start)", "Average(string start)", "constructor of 'Average'"),
    ],
    ids=["wide", "string"],
)
def test_constructs_that_only_python_externs_support(
    folder: Path, old: str, new: str, said: str
) -> None:
    text = PROGRAM.replace(old, new)
    text = text.replace("popcount(h.number.value)", "popcount((bit<65>)h.number.value)")
    if "string" in new:
        text = PROGRAM.replace(old, new).replace("Average(0)", 'Average("0")')
    (folder / "own.p4").write_text(text)
    with pytest.raises(UnsupportedError, match=said):
        engine_of(folder)


@pytest.mark.parametrize(
    ("externs", "options", "said"),
    [
        ("own.c", ("--executor", "interpreter"), "leave --executor interpreter out"),
        ("own.c", ("--coverage", "page.html"), "coverage is counted by the interpreter"),
        ("own.py", ("--executor", "native"), "leave --executor native out"),
    ],
)
def test_an_executor_takes_its_own_language(
    folder: Path, externs: str, options: tuple[str, ...], said: str
) -> None:
    code, output = stf(folder, externs, *options)
    assert code == 1
    assert said in output
