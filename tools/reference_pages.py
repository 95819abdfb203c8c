"""Hook of mkdocs: pages of the reference that are generated from the code during a build.

Commands and configuration files from the commands' declarations, errors from their classes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from tools.command_pages import commands_page, configuration_page

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "hopsum"
BASE = "HopsumError"
ERRORS = """\
# Errors

A command that fails prints one line, which begins with `error: ` or `failed: `, and exits with
status 2 or 1. The line says what failed, the offending value, what was expected, and what to do;
a traceback is a defect. In Python every error has a class derived from `HopsumError`:
`InputError` (also a `ValueError`; status 2) for invalid or impossible requests, `OperationError`
(also a `RuntimeError`; status 1) for failures during an operation.

| error | module | meaning |
| --- | --- | --- |"""


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """A class of errors: where it is, what it says of itself, and the classes that it is one of."""

    name: str
    module: str
    text: str
    bases: tuple[str, ...]


def error_classes() -> list[ErrorClass]:
    """Return the classes of hopsum's errors, by name."""
    found = {each.name: each for each in _classes()}

    def is_error(name: str) -> bool:
        return name == BASE or (name in found and any(map(is_error, found[name].bases)))

    return sorted((each for each in found.values() if is_error(each.name)), key=lambda e: e.name)


def _classes() -> Iterator[ErrorClass]:
    # `**` follows no links to folders, which the rooms of the root are.
    for path in sorted(path for room in PACKAGE.iterdir() for path in room.rglob("*.py")):
        if "_pb2" in path.name:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
                module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                text = " ".join((ast.get_docstring(node) or "").split())
                yield ErrorClass(node.name, module, text, bases)


def errors_page() -> str:
    """Return all errors as Markdown."""
    lines = [ERRORS]
    for each in error_classes():
        bases = f" ({', '.join(each.bases)})" if each.bases else ""
        text = each.text.replace("|", "\\|")
        lines.append(f"| `{each.name}`{bases} | `{each.module}` | {text} |")
    return "\n".join(lines) + "\n"


PAGES = {
    "reference/commands.md": commands_page,
    "reference/configuration.md": configuration_page,
    "reference/errors.md": errors_page,
}


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages to those of the site."""
    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    return files
