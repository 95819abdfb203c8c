"""`hopsum certificates`: one for each part of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from hopsum.protocol.channel import Tls, check_tls, server_credentials


def made(folder: Path, *arguments: str) -> str:
    line = ["certificates", "star:2", "--folder", str(folder), "--controller", "192.0.2.1"]
    done = CliRunner().invoke(app, [*line, *arguments])
    if done.exception is not None:
        raise done.exception
    return done.stderr


def test_every_part_gets_one(tmp_path: Path) -> None:
    said = made(tmp_path, "--switch", "s1=192.0.2.11", "--operator", "alice", "--viewer", "bob")
    parts = {"controller", "s1", "h1", "h2", "ps", "alice", "bob"}
    assert {path.stem for path in tmp_path.glob("*.pem")} == {*parts, "authority"}
    for part in parts:
        check_tls(
            Tls(tmp_path / "authority.pem", tmp_path / f"{part}.pem", tmp_path / f"{part}.key")
        )
    assert server_credentials(Tls(None, tmp_path / "controller.pem", tmp_path / "controller.key"))
    assert "0 there already" in said
    # A host that comes later gets one; the others keep theirs.
    before = (tmp_path / "h1.pem").read_bytes()
    assert "carol; 5 there already" in made(tmp_path, "--user", "carol", "--operator", "alice")
    assert (tmp_path / "h1.pem").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--switch", "s1"], "expected NAME=ADDRESS, with NAME one of s1"),
        (["--switch", "s2=192.0.2.1"], "expected NAME=ADDRESS, with NAME one of s1"),
        (["--operator", "h1"], "'h1': two certificates would have the same name"),
        (["--user", "authority"], "'authority': two certificates would have the same name"),
    ],
)
def test_invalid_values_are_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        made(tmp_path / "new", *arguments)
    assert not (tmp_path / "new").exists()
