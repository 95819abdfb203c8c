"""What docs/life-of-an-expression.md shows of its example is what each step makes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from p4switch import ir
from p4switch.backends.native.generate import generate
from p4switch.cli.main import main
from p4switch.frontend.program import compile_file
from p4switch.frontend.source.preprocessor import preprocess
from p4switch.frontend.syntax import ast
from p4switch.frontend.syntax.parser import parse_program
from tests.support.ir_text import dump_code
from tests.support.paths import ROOT

EXAMPLE = ROOT / "tests" / "programs" / "expression.p4"
PAGE = (ROOT / "docs" / "life-of-an-expression.md").read_text(encoding="utf-8")
SOURCE, TOKENS, TREE, REPRESENTATION, C, COMMAND, SENT = (
    block.strip() for block in re.findall(r"```\w+\n(.*?)```", PAGE, re.S)
)


def tree(node: object) -> str:
    """A node as the page writes it."""
    match node:
        case ast.Assignment():
            return f"Assignment({tree(node.target)}, {tree(node.value)})"
        case ast.Member():
            return f"Member({tree(node.base)}, {node.name})"
        case ast.Cast():
            return f"Cast({tree(node.type)}, {tree(node.operand)})"
        case ast.Binary():
            return f"Binary({node.operator}, {tree(node.left)}, {tree(node.right)})"
        case ast.BitType():
            return f"bit<{tree(node.width)}>"
        case ast.Name():
            return node.name
        case ast.IntLiteral():
            return str(node.value)
    raise TypeError(node)


def test_source_and_tokens() -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    assert lines[19].strip() == SOURCE
    assert "line 20 of" in PAGE
    result = preprocess(EXAMPLE)
    of_line = [
        text
        for text, mark in zip(result.texts, result.marks, strict=True)
        if result.sources.position(mark).line == 20
        and result.sources.position(mark).file == str(EXAMPLE)
    ]
    assert " ".join(of_line) == TOKENS


def test_syntax_tree() -> None:
    [control] = [
        declaration
        for declaration in parse_program(EXAMPLE).declarations
        if isinstance(declaration, ast.ControlDeclaration) and declaration.name == "I"
    ]
    assert tree(control.body.body[0]) == TREE


def test_representation_and_c() -> None:
    program = compile_file(EXAMPLE)
    [ingress] = [block for block in program.blocks if block.name == "I"]
    first = ingress.body[0]
    assert isinstance(first, ir.Assign)
    assert dump_code([first]) == REPRESENTATION
    assert C in generate(program).text


def test_packet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command, *arguments = COMMAND.split()
    assert command == "p4switch"
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code
    assert SENT in capsys.readouterr().out


def test_modules_that_the_page_names_exist() -> None:
    package = Path(ROOT, "src", "p4switch")
    known = {path.name for path in package.rglob("*.py")}
    assert set(re.findall(r"(\w+\.py)", PAGE)) <= known
