"""Commands and man pages, from the commands' declarations."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hopsum.cli.command_reference import command_named, commands_of, manual
from hopsum.cli.commands import COMMANDS
from hopsum.cli.main import app
from hopsum.protocol.version import version


def test_every_command_and_option_is_there() -> None:
    commands = {command.words: command for command in commands_of("hopsum")}
    assert {words.split()[1] for words in commands} == set(COMMANDS)
    assert {"hopsum controller serve", "hopsum schedule make"} <= set(commands)
    run = {name: p for p in commands["hopsum run"].parameters for name in p.names}
    assert run["--dtype"].kind == "float32|int32|float16|bfloat16|int8"
    assert run["--dtype"].default == "float32"
    assert run["--rounds"].kind == "N"
    assert run["--json"].kind == ""
    assert run["--no-coordinate"] is run["--coordinate"]
    slots = commands["hopsum slots"]
    assert slots.usage == "hopsum slots [OPTIONS] SWITCH"
    assert commands["hopsum why-stuck"].usage == "hopsum why-stuck [OPTIONS] [JOB]"
    agent = {command.words for command in commands_of("hopsum-agent")}
    assert agent == {"hopsum-agent serve", "hopsum-agent send", "hopsum-agent sniff"}


def test_a_command_is_found_by_its_words() -> None:
    for words in ("hopsum controller serve", "hopsum-agent serve"):
        names = {parameter.name for parameter in command_named(words).params}
        assert "config" in names


@pytest.mark.parametrize("program", ["hopsum", "hopsum-agent"])
def test_roff_takes_the_man_page(program: str) -> None:
    text = manual(program, "1.2")
    assert text.startswith(f'.TH {program.upper()} 1 "" "hopsum 1.2"')
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    command = ["groff", "-man", "-Tutf8", "-Kutf8", "-ww"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    shown = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    for name in {"hopsum": ("--topology", "why-stuck"), "hopsum-agent": ("--interface",)}[program]:
        assert name in shown


def test_the_command_prints_or_writes_it(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["manual"])
    assert printed.stdout == manual("hopsum", version())
    assert CliRunner().invoke(app, ["manual", "--folder", str(tmp_path)]).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"hopsum.1", "hopsum-agent.1"}
