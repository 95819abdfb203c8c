"""Options of a command from a table of a TOML file, with the names and types of its command line.

A command that takes `--config FILE` (`config_option`) reads its own table there: a key is an
option's long name without dashes, or an argument's name. Nothing is declared twice: the file has
all options of the command line, and an option on the command line overrides the file's.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from hopsum.protocol.errors import InputError

NOT_IN_FILES = {"config", "help"}
MOST_BYTES = 1 << 20
KINDS = (
    # Begin of a type's name (Click's), types of TOML, and what to say.
    ("bool", bool, "true or false"),
    ("int", int, "a whole number"),
    ("float", (int, float), "a number"),
    ("", str, "a text in quotes"),
)


class OptionsFileError(InputError):
    """An unusable configuration file; the message names file and key, and what is allowed."""


def config_option(table: str) -> Any:
    """Return the option `--config FILE` of a command that reads one table of it."""

    def read(context: typer.Context, path: Path | None) -> Path | None:
        if path is not None:
            read_before = context.default_map or {}
            context.default_map = {**read_options(path, table, context.command), **read_before}
        return path

    return typer.Option(
        "--config",
        callback=read,
        help=f"Take options from the table [{table}] of this TOML file; those given here override "
        f"it.",
    )


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a TOML file, by name. Raises OptionsFileError."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode()
        if len(text) > MOST_BYTES:
            raise OptionsFileError(f"{path}: expected at most {MOST_BYTES} bytes")
        content = tomllib.loads(text)
    except OSError as error:
        raise OptionsFileError(
            f"{path}: cannot be read: {error.strerror}; expected a TOML file"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise OptionsFileError(f"{path}: no TOML: {' '.join(str(error).split()):.200}") from None
    for key, value in content.items():
        if not isinstance(value, dict):
            raise OptionsFileError(
                f"{path}: {key:.80} is outside of a table; expected it below [controller] or "
                "[agent]"
            )
    return content


def read_options(path: Path, table: str, command: Any) -> dict[str, Any]:
    """Return the values in a table of a file, by the parameter names of a Typer command.

    Values have been checked as those of the command line are. Paths that are not absolute begin at
    the file's folder. Raises OptionsFileError.
    """
    tables = read_tables(path)
    if table not in tables:
        found = ", ".join(f"[{name}]" for name in tables) or "none at all"
        raise OptionsFileError(f"{path}: expected a table [{table}], found {found:.80}")
    known = {
        key: parameter
        for parameter in command.params
        if (key := _key(parameter)) not in NOT_IN_FILES
    }
    return {
        _known(path, table, key, known).name: _value(path, f"[{table}] {key}", known[key], value)
        for key, value in tables[table].items()
    }


def _key(parameter: Any) -> str:
    """Return the key of a parameter in files: its first long name, without dashes."""
    longest = [name for name in parameter.opts if name.startswith("--")]
    return str(longest[0].removeprefix("--") if longest else parameter.name)


def _known(path: Path, table: str, key: str, known: Mapping[str, Any]) -> Any:
    if key in known:
        return known[key]
    near = difflib.get_close_matches(key, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
    raise OptionsFileError(f"{path}: [{table}] has no key {key!r:.80}; {hint}")


def _value(path: Path, where: str, parameter: Any, value: Any) -> Any:
    if parameter.multiple:
        values = value
        if isinstance(value, dict):
            values = [f"{name}={each}" for name, each in value.items()]
        elif not isinstance(value, list):
            values = [value]
        return [_single(path, where, parameter, each) for each in values]
    return _single(path, where, parameter, value)


def _single(path: Path, where: str, parameter: Any, value: Any) -> Any:
    _, kinds, words = next(kind for kind in KINDS if parameter.type.name.startswith(kind[0]))
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise OptionsFileError(f"{path}: {where}: {_shown(value)}: expected {words}")
    if parameter.type.name in ("path", "file") or _names_a_file(path, parameter, value):
        value = str(path.parent / str(value))
    try:
        parameter.type.convert(value, parameter, None)
    except typer.BadParameter as error:
        raise OptionsFileError(f"{path}: {where}: {error.message}") from None
    return value


def _names_a_file(path: Path, parameter: Any, value: Any) -> bool:
    """Return whether the value of an argument, which may also be a name, is a file."""
    try:
        return bool(parameter.param_type_name == "argument") and (path.parent / value).is_file()
    except (OSError, ValueError):
        return False


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def keys_of(command: Any) -> list[tuple[str, str, str]]:
    """Return a command's keys: name, type in words, and help."""
    return [
        (_key(p), _kind(p), (getattr(p, "help", "") or "").strip())
        for p in command.params
        if _key(p) not in NOT_IN_FILES
    ]


def _kind(parameter: Any) -> str:
    name = parameter.type.name
    words = next(words for start, _, words in KINDS if name.startswith(start))
    if name == "choice":
        words = " or ".join(f'"{choice}"' for choice in parameter.type.choices)
    elif name in ("path", "file"):
        words = "a path in quotes"
    return f"{words}, or a list of such" if parameter.multiple else words
