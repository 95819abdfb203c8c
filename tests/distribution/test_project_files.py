"""Files about the project: licence, version, citation, completion."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

from hopsum.cli.main import app
from tests.support.paths import ROOT, package_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LICENSE = PROJECT["license"]


def test_each_distribution_has_one_licence_and_its_text() -> None:
    rules = tomllib.loads((ROOT / "REUSE.toml").read_text())["annotations"]
    licences = {rule["path"]: rule["SPDX-License-Identifier"] for rule in rules}
    # A part of Scapy's layers, and under Scapy's licence.
    assert licences == {"**": LICENSE, "hopsum_scapy/**": "GPL-2.0-only"}
    text = (ROOT / "LICENSE").read_text()
    assert text.split()[:2] == ["Apache", "License"]
    for folder in (".", "p4switch", "hopsum_torch", "hopsum_scapy"):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        gnu = folder == "hopsum_scapy"
        assert project["license"] == licences["hopsum_scapy/**" if gnu else "**"]
        given = (ROOT / folder / "LICENSE").read_text()
        assert (
            given.split()[:5] == ["GNU", "GENERAL", "PUBLIC", "LICENSE", "Version"]
            if gnu
            else (given == text)
        )


def test_no_file_names_another_licence() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout")
    named = re.compile(rb"SPDX-License-Identifier: *([A-Za-z0-9.+-]+)")
    wrong = {
        path: found
        for path in filter(None, listed.stdout.decode().split("\0"))
        if (ROOT / path).is_file()
        for found in named.findall((ROOT / path).read_bytes())
        if found.decode() != LICENSE
    }
    assert wrong == {"hopsum_scapy/src/hopsum_scapy/__init__.py": b"GPL-2.0-only"}


def test_only_the_scapy_layer_imports_scapy() -> None:
    imports = re.compile(r"^\s*(from|import) scapy\b", re.MULTILINE)
    found = {
        str(path.relative_to(ROOT))
        for path in (*package_files(".py"), *(ROOT / "hopsum_scapy" / "src").rglob("*.py"))
        if imports.search(path.read_text())
    }
    assert found == {"hopsum_scapy/src/hopsum_scapy/__init__.py"}


def test_all_that_make_run_installs_is_locked() -> None:
    """The lock is a constraint there: what is not in it would come in any version."""
    locked = {
        canonicalize_name(line.partition("==")[0])
        for line in (ROOT / "requirements.lock").read_text().splitlines()
    }
    found: set[tuple[str, str]] = set()
    open_ = [("hopsum", "demo"), ("grpcio-tools", ""), ("setuptools", "")]
    while open_:
        name, extra = entry = open_.pop()
        if entry in found:
            continue
        found.add(entry)
        for requirement in map(Requirement, metadata.requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                needed = canonicalize_name(requirement.name)
                open_ += [(needed, other) for other in ("", *requirement.extras)]
    assert {name for name, _ in found} - {"hopsum", "p4switch"} <= locked


def test_versions_agree() -> None:
    version = PROJECT["version"]
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\nlicense: {LICENSE}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("hopsum why", "why-stuck"),
        ("hopsum run --rec", "--record"),
        ("hopsum run --algorithm ", "ring"),
    ],
)
def test_a_shell_completes(words: str, found: str) -> None:
    environment = {
        "_HOPSUM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = CliRunner().invoke(app, [], env=environment, prog_name="hopsum")
    assert found in done.output.split(), done.output
