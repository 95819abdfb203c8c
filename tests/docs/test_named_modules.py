"""Files and modules that documents name exist."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.paths import PACKAGE, ROOT

DECISIONS = sorted((ROOT / "docs/decisions").glob("*.md"))
# Records, which are not rewritten: they name files of earlier versions.
HISTORY = {"CHANGELOG.md", *(path.name for path in DECISIONS)}
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name not in HISTORY
)
FILES = [
    str(path)
    for folder in ROOT.iterdir()
    if folder.is_dir() and folder.name[0] != "." and folder.name not in ("build", "dist", "out")
    for path in folder.rglob("*.*")
]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`((?:\w[\w-]*/)+[\w-]+\.(?:py|p4|proto|js|h|lua))`")
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir())
MODULE = re.compile(rf"`(hopsum\.(?:{'|'.join(ROOMS)})(?:\.\w+)*)(?:\(.*?\))?`")


def is_module_or_inside_one(name: str) -> bool:
    """Return whether a dotted name is a module, or something that one defines."""
    module, rest = name, ""
    while module and not _is_module(module):
        module, _, last = module.rpartition(".")
        rest = last
    if not rest:
        return bool(module)
    spec = find_spec(module)
    source = Path(spec.origin).read_text() if spec is not None and spec.origin else ""
    return re.search(rf"^(?:class |def |async def )?{rest}\b", source, re.MULTILINE) is not None


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_modules_exist(document: Path) -> None:
    text = FENCED.sub("", document.read_text())
    # Some give the end of a path only.
    files = {name for name in FILE.findall(text) if not any(f.endswith(f"/{name}") for f in FILES)}
    modules = {name for name in MODULE.findall(text) if not is_module_or_inside_one(name)}
    assert not files | modules


def test_a_stale_name_is_found() -> None:
    assert is_module_or_inside_one("hopsum.network.loaders.load_network")
    assert is_module_or_inside_one("hopsum.host_agent.io")
    assert not is_module_or_inside_one("hopsum.network.loaders.load_nothing")
    assert not is_module_or_inside_one("hopsum.network.nothing")
