"""Options from a TOML file: the command line's names, types and checks, and its precedence."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from hopsum.files.options_file import OptionsFileError, config_option, keys_of, read_options

seen: dict[str, Any] = {}


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def command() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def serve(
        network: str,
        lanes: Annotated[int, typer.Option(min=1, max=352)] = 256,
        loss: float = 0.0,
        colour: Colour = Colour.RED,
        key: Path | None = None,
        way: Annotated[list[str] | None, typer.Option(help="A way.")] = None,
        priorities: Annotated[bool, typer.Option("--priorities/--no-priorities")] = True,
        words: Annotated[str, typer.Option("--socket")] = "",
        config: Annotated[Path | None, config_option("test")] = None,
    ) -> None:
        seen.clear()
        seen.update(locals())

    return app


def given(folder: Path, text: str, *arguments: str) -> dict[str, Any]:
    """The options that the command gets from a file, and from arguments."""
    path = folder / "options.toml"
    path.write_text(text)
    done = CliRunner().invoke(command(), ["--config", str(path), *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return seen


EVERYTHING = """
[test]
network = "star:2"
lanes = 32
loss = 0.5
colour = "blue"
key = "keys/a.key"
way = ["a", "b"]
priorities = false
socket = "@x"
"""


def test_a_file_gives_what_the_command_line_knows(tmp_path: Path) -> None:
    found = given(tmp_path, EVERYTHING)
    assert (found["network"], found["lanes"], found["loss"]) == ("star:2", 32, 0.5)
    assert found["colour"] is Colour.BLUE
    assert found["key"] == tmp_path / "keys/a.key"
    assert list(found["way"]) == ["a", "b"]
    assert found["priorities"] is False
    assert found["words"] == "@x"


def test_the_command_line_goes_first(tmp_path: Path) -> None:
    found = given(tmp_path, EVERYTHING, "star:9", "--lanes", "64", "--way", "c", "--priorities")
    assert (found["network"], found["lanes"], list(found["way"])) == ("star:9", 64, ["c"])
    assert found["priorities"] is True
    assert found["loss"] == 0.5


def test_a_whole_number_is_a_number_and_a_table_names_things(tmp_path: Path) -> None:
    text = '[test]\nnetwork = "x"\nloss = 0\n[test.way]\ns1 = "a:1"\ns2 = "b:2"'
    found = given(tmp_path, text)
    assert found["loss"] == 0
    assert list(found["way"]) == ["s1=a:1", "s2=b:2"]


def test_a_value_stands_for_a_list_of_one(tmp_path: Path) -> None:
    assert list(given(tmp_path, '[test]\nnetwork = "x"\nway = "a"')["way"]) == ["a"]


def test_a_path_begins_at_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text("{}")
    assert given(tmp_path, '[test]\nnetwork = "net.json"')["network"] == str(tmp_path / "net.json")
    assert given(tmp_path, '[test]\nnetwork = "star:3"')["network"] == "star:3"
    found = given(tmp_path, '[test]\nnetwork = "x"\nkey = "/etc/a.key"')
    assert found["key"] == Path("/etc/a.key")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[test]\nlanse = 3", r"\[test\] has no key 'lanse'; did you mean lanes\?"),
        ("[test]\nzzz = 3", "expected one of network, lanes, loss, colour, key, way, priorities"),
        ("[test]\nconfig = 'x'", "has no key 'config'"),
        ("[test]\nlanes = '32'", r"\[test\] lanes: '32': expected a whole number"),
        ("[test]\nlanes = 1.5", "lanes: 1.5: expected a whole number"),
        ("[test]\nlanes = true", "lanes: True: expected a whole number"),
        ("[test]\nlanes = 353", "lanes: 353 is not in the range 1<=x<=352"),
        ("[test]\nloss = 'much'", "loss: 'much': expected a number"),
        ("[test]\nloss = true", "loss: True: expected a number"),
        ("[test]\nnetwork = 3", "network: 3: expected a text in quotes"),
        ("[test]\npriorities = 1", "priorities: 1: expected true or false"),
        ("[test]\ncolour = 'pink'", "colour: 'pink' is not one of 'red', 'blue'"),
        ("[test]\nway = 3", "way: 3: expected a text in quotes"),
        ("[test]\nway = [3]", "way: 3: expected a text in quotes"),
        ("[other]\nlanes = 3", r"expected a table \[test\], found \[other\]"),
        ("", r"expected a table \[test\], found none at all"),
        ("lanes = 3\n[test]", "lanes is outside of a table"),
        ("[test", "no TOML"),
        ("[test]\nlanes = 3\nlanes = 4", "no TOML"),
        ("x = " + "[" * 5000, "no TOML"),
        ("[test]\nnetwork = '''" + "x" * 2_000_000 + "'''", "expected at most 1048576 bytes"),
    ],
)
def test_invalid_values_are_reported_with_file_and_key(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "options.toml"
    path.write_text(text)
    with pytest.raises(OptionsFileError, match=words) as error:
        read_options(path, "test", typer.main.get_command(command()))
    assert str(error.value).startswith(f"{path}: ")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OptionsFileError, match="No such file or directory; expected a TOML file"):
        given(tmp_path, "[test]", "--config", str(tmp_path / "none.toml"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionsFileError, match="no TOML"):
        read_options(tmp_path / "binary", "test", typer.main.get_command(command()))


def test_keys_are_listed_with_their_types() -> None:
    keys = {name: kind for name, kind, _ in keys_of(typer.main.get_command(command()))}
    assert keys["lanes"] == "a whole number"
    assert keys["way"] == "a text in quotes, or a list of such"
    assert keys["colour"] == '"red" or "blue"'
    assert keys["key"] == "a path in quotes"
    assert keys["priorities"] == "true or false"
    assert "config" not in keys
