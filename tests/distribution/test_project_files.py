"""Files about the project: licence, version, citation, completion."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LICENSE = PROJECT["license"]


def test_one_licence_covers_all_files() -> None:
    [rule] = tomllib.loads((ROOT / "REUSE.toml").read_text())["annotations"]
    assert (rule["path"], rule["SPDX-License-Identifier"]) == ("**", LICENSE)
    for project in ("pyproject.toml", "p4switch/pyproject.toml"):
        assert tomllib.loads((ROOT / project).read_text())["project"]["license"] == LICENSE
    text = (ROOT / "LICENSE").read_text()
    assert text.split()[:2] == ["Apache", "License"]
    assert (ROOT / "p4switch" / "LICENSE").read_text() == text


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
    # A part of Scapy's layers, and under Scapy's licence; it is loaded by Scapy's users alone.
    assert wrong == {"host_agent/io/scapy_layer.py": b"GPL-2.0-only"}


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
