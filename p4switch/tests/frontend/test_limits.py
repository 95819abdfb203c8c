"""Programs that are too large in some way: one clear error, at once."""

from __future__ import annotations

import pytest

from p4switch.backends.native.generate import generate
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.ir import Program
from p4switch.nesting import MOST_TERMS
from p4switch.position import P4Error, UnsupportedError
from tests.frontend.test_errors import PROGRAM


def program_of(body: str = "", line: str = "", top: str = "") -> Program:
    return compile_program(parse_text(top + PROGRAM.format(body=body, line=line), "test.p4"))


DOUBLING = "#define A0 m.i = 1;\n" + "".join(
    f"#define A{i} A{i - 1} A{i - 1}\n" for i in range(1, 28)
)
CALLS = "#define A0(x) x x\n" + "".join(
    f"#define A{i}(x) A{i - 1}(x) A{i - 1}(x)\n" for i in range(1, 28)
)
BRANCHES = "else if (m.i == 1) { m.i = 2; }"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "line", "top", "message"),
    [
        (f"m.i = {' + '.join(['m.i'] * 5000)};", "", "", "more than 2000 operators in a row"),
        (f"m.i = {'(' * 5000}m.i{')' * 5000};", "", "", "the program is nested too deeply here"),
        (f"if (m.i == 0) {{ }} {BRANCHES * 5000}", "", "", "more than 2000 'else if' in a row"),
        ("", "h_t[1000000] s;", "", "a stack of 1000000 elements is larger than any packet"),
        ("", "varbit<4294967295> v;", "", "varbit<4294967295> is larger than any packet"),
        ("A27", "", DOUBLING, "the macro expands to more than 1048576 tokens"),
        ("A27(m.i = 1;)", "", CALLS, "the macro expands to more than 1048576 tokens"),
    ],
    ids=["terms", "brackets", "else if", "stack", "varbit", "macro", "macro with arguments"],
)
def test_too_large_to_compile(body: str, line: str, top: str, message: str) -> None:
    with pytest.raises(P4Error) as caught:
        program_of(body, line, top)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("register<bit<32>>(32w0xffffffff) r;", "r.write(0, 1);"),
        ("counter(32w0xffffffff, CounterType.packets) r;", "r.count(0);"),
        ("meter(32w0xffffffff, MeterType.packets) r;", "bit<2> x; r.execute_meter(0, x);"),
    ],
)
def test_arrays_too_large_to_run(line: str, body: str) -> None:
    with pytest.raises(UnsupportedError, match=r"'C\.r' has 4294967295 cells of \d+ bytes"):
        Interpreter(program_of(body, line))


@pytest.mark.slow
def test_the_largest_allowed_program_runs() -> None:
    terms = " + ".join(["m.i"] * MOST_TERMS)
    program = program_of(
        f"m.i = {terms}; if (m.i == 0) {{ }} {BRANCHES * 500} r.write(0, 1);",
        "register<bit<32>>(32w0x0fffffff) r;",
    )
    engine = Interpreter(program)
    assert engine.process([(1, b"frame")]) == [(0, b"frame")]
    assert generate(program).text
