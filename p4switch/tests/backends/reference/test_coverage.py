"""Coverage: what is known beforehand, what is counted, and the page of `p4switch stf`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from p4switch.backends.reference.coverage import Coverage, Point
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.cli.coverage_page import page, summary
from p4switch.cli.main import app
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.ir import ActionChoice
from p4switch.targets.v1model.engine import KeyMatch, TableEntry

TEXT = """#include <core.p4>
#include <v1model.p4>
header h_t { bit<8> kind; bit<8> value; }
struct headers_t { h_t h; h_t more; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        p.extract(h.h);
        transition select(h.h.kind) { 1 : more; _ : accept; }
    }
    state more { p.extract(h.more); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    action to(bit<9> port) { s.egress_spec = port; }
    action drop() { mark_to_drop(s); }
    table t {
        key = { h.h.value : exact; }
        actions = { to; drop; }
        default_action = drop();
    }
    apply {
        if (h.more.isValid()) {
            h.h.value = 9;
        }
        t.apply();
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""
LINES = TEXT.splitlines()


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(LINES, 1) if text in line)


def covered(*frames: str) -> tuple[Coverage, Interpreter]:
    coverage = Coverage()
    program = compile_program(parse_text(TEXT, "c.p4"))
    engine = Interpreter(program, coverage=coverage)
    for value in (5, 6):
        engine.insert_entry("I.t", TableEntry((KeyMatch(value),), ActionChoice(0, (value,))))
    sent = engine.process([(0, bytes.fromhex(frame)) for frame in frames])
    plain = Interpreter(program)
    for value in (5, 6):
        plain.insert_entry("I.t", TableEntry((KeyMatch(value),), ActionChoice(0, (value,))))
    assert sent == plain.process([(0, bytes.fromhex(frame)) for frame in frames])
    return coverage, engine


def labels(points: list[Point]) -> list[str]:
    return [point.label for point in points]


def test_nothing_is_reached_without_packets() -> None:
    coverage, _ = covered()
    assert coverage.totals("branch") == (0, 2)
    assert coverage.totals("transition") == (0, 3)
    assert coverage.totals("entry") == (0, 3)
    assert not any(coverage.counts.values())


def test_coverage_of_one_packet() -> None:
    coverage, _ = covered("0205")
    missed = {point.line for point in coverage.missed("statement")}
    assert missed == {line_of("h.more);"), line_of("value = 9"), line_of("mark_to_drop")}
    assert labels(coverage.missed("branch")) == ["true"]
    assert labels(coverage.missed("transition")) == ["P: start -> more", "P: more -> accept"]
    assert labels(coverage.missed("entry")) == [
        "I.t: h.h.value=0x6",
        "I.t: no entry (default action)",
    ]


def test_packets_add_up() -> None:
    coverage, _ = covered("0205", "0205", "0206", "01050000")
    assert [coverage.totals(k)[0] for k in ("branch", "transition", "entry")] == [2, 3, 3]
    [start] = [p for p in coverage.counts if p.label == "P: start -> accept"]
    assert coverage.counts[start] == 3


def test_the_page() -> None:
    coverage, _ = covered("0205")
    text = page("Coverage of <c.p4>", coverage)
    assert "Coverage of &lt;c.p4&gt;" in text
    assert "<td>branches</td><td>1</td><td>2</td>" in text
    assert "P: start -&gt; more" in text
    assert list(summary(coverage))[1] == "branches: 1 of 2 (50 %)"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "c.p4"
    path.write_text(TEXT)
    return path


def test_the_command_over_several_files(program: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.stf", tmp_path / "b.stf"
    first.write_text("add t h.h.value:5 to(port:1)\npacket 0 0205\nexpect 1 0205\n")
    second.write_text("packet 0 01050000\n")
    target = tmp_path / "coverage.html"
    arguments = ["stf", str(program), str(first), str(second), "--coverage", str(target)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "statements: 8 of 8 (100 %)" in result.output
    lines = target.read_text().splitlines()
    [row] = [line for line in lines if "h.h.value = 9" in line]
    assert 'class="line hit"' in row
    assert '<span class="count">1</span>' in row


def test_coverage_is_the_interpreters(program: Path, tmp_path: Path) -> None:
    arguments = ["stf", str(program), str(program), "--executor", "native"]
    result = CliRunner().invoke(app, [*arguments, "--coverage", str(tmp_path / "x")])
    assert result.exit_code == 1
    assert "leave --executor native out" in result.output
