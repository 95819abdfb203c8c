"""Commands that documents show, whether or not a test runs them: each is one that hopsum takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer import Exit
from typer._click.exceptions import ClickException

from hopsum.cli.command_reference import command_named
from tests.support.paths import ROOT

DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*/README.md", "hopsum_*/README.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
PROGRAMS = ("hopsum", "hopsum-agent")
BLOCK = re.compile(r"^```(?:sh)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_OF_THE_COMMAND = re.compile(r"(?:^|\s)#.*|<<\S+|^\|.*|\s--config \S+")
"""Comments, here-documents, rows of tables; and configuration files, which would be read."""
BETWEEN_COMMANDS = re.compile(r"\s*(?:;|&&|\|+|&|>>?\s*\S+)(?:\s+|$)")


def shown(text: str) -> Iterator[list[str]]:
    """The words of each command of ours in a document's blocks of commands."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            for command in BETWEEN_COMMANDS.split(NOT_OF_THE_COMMAND.sub("", line)):
                try:
                    words = shlex.split(command)
                except ValueError:  # not a command
                    continue
                while words and (words[0] == "sudo" or re.fullmatch(r"\w+=\S*", words[0])):
                    words.pop(0)
                if words and (program := words[0].rpartition("/")[2]) in PROGRAMS:
                    yield [program, *(word for word in words[1:] if word != "...")]


def problem(words: list[str]) -> str | None:
    """What is wrong with a command line; None: nothing. Nothing is run."""
    named, *words = words
    command = command_named(named)
    while hasattr(command, "list_commands") and words and not words[0].startswith("-"):
        if words[0] not in command.list_commands(None):
            return f"{named} has no command {words[0]}"
        named += " " + words.pop(0)
        command = command_named(named)
    try:
        command.make_context(named, words)
    except (Exit, SystemExit):  # help, or the version
        return None
    except ClickException as error:
        return error.message
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_exist_with_their_options(document: Path) -> None:
    problems = {
        " ".join(words): found
        for words in shown(document.read_text())
        if (found := problem(words)) is not None
    }
    assert not problems


def test_commands_are_found_as_documents_write_them() -> None:
    lines = [
        "```",
        "A=b sudo .venv/bin/hopsum run \\",
        "  --loss 0.1  # some",
        "hopsum jobs; make x | hopsum top",
        "```",
    ]
    run = ["hopsum", "run", "--loss", "0.1"]
    assert [*shown("\n".join(lines))] == [run, ["hopsum", "jobs"], ["hopsum", "top"]]
    assert problem(run) is None
    assert "--lost" in (problem(["hopsum", "run", "--lost", "0.1"]) or "")
    assert "lots" in (problem(["hopsum", "run", "--loss", "lots"]) or "")
    assert problem(["hopsum", "walk"]) == "hopsum has no command walk"
