"""CONTRIBUTING.md lists the longest functions of the product."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.paths import ROOT

SOURCES = (
    *("controller", "host_agent", "mininet_topos", "src"),
    *("hopsum_scapy/src", "hopsum_torch/src", "p4switch/src"),
)
ROW = re.compile(r"^\| `([\w.]+)` in `([\w./]+)` \|", re.MULTILINE)
LIMIT = re.compile(r"Those of (\d+) lines or more")


def functions(node: ast.AST, within: str = "") -> Iterator[tuple[str, int]]:
    """Yield the functions of a syntax tree, by their qualified names, with their lines."""
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{within}{child.name}."
            assert child.end_lineno is not None
            yield name[:-1], child.end_lineno - child.lineno + 1
        elif isinstance(child, ast.ClassDef):
            name = f"{within}{child.name}."
        yield from functions(child, name)


def test_the_long_functions_are_listed() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (limit,) = map(int, LIMIT.findall(text))
    found = {
        (name, str(path.relative_to(ROOT)))
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*.py")
        if "_pb2" not in path.name
        for name, lines in functions(ast.parse(path.read_text()))
        if lines >= limit
    }
    listed = ROW.findall(text)
    assert set(listed) == found, "shorten what is new, or list it with its reason"
    assert len(listed) >= 10
