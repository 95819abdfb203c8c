"""Reference of all commands, from their declarations: as pages of the site, and as man pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer.main

from files.options_file import keys_of


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument, or an option with all its names; `kind`: its value's type, '' for a flag."""

    names: tuple[str, ...]
    kind: str
    help: str
    default: str
    required: bool

    @property
    def is_option(self) -> bool:
        """Whether it has a name on the command line."""
        return self.names[0].startswith("-")


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its words on the command line, and its help."""

    words: str
    help: str
    parameters: tuple[Parameter, ...]

    @property
    def usage(self) -> str:
        """Its usage line."""
        arguments = [
            f"{p.names[0].upper()}" if p.required else f"[{p.names[0].upper()}]"
            for p in self.parameters
            if not p.is_option
        ]
        options = ["[OPTIONS]"] if any(p.is_option for p in self.parameters) else []
        return " ".join((self.words, *options, *arguments))


def commands_of(program: str) -> list[Command]:
    """Return the commands of `hopsum` or `hopsum-agent`, in the order of their help."""
    return list(_below(program, _root(program)))


def command_named(words: str) -> Any:
    """Return a command by its words, such as `hopsum controller serve`, as Typer has made it."""
    program, *rest = words.split()
    command = _root(program)
    for word in rest:
        command = _loaded(command.get_command(None, word), word)
    return command


def _root(program: str) -> Any:
    if program == "hopsum":
        from cli.main import app
    else:
        from host_agent.main import app
    return typer.main.get_command(app)


def _loaded(command: Any, name: str) -> Any:
    """Import a lazily loaded subcommand and return it."""
    entry = getattr(command, "entry", None)
    if entry is None:
        return command
    from cli.main import load

    return typer.main.get_command(load(entry.target, name))


def _below(words: str, command: Any) -> Iterator[Command]:
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            found = _loaded(command.get_command(None, name), name)
            if not getattr(found, "hidden", False):
                yield from _below(f"{words} {name}", found)
        return
    parameters = tuple(
        _parameter(p) for p in command.params if p.name not in ("help", "install_completion")
    )
    yield Command(words, " ".join((command.help or "").split()), parameters)


def _parameter(parameter: Any) -> Parameter:
    option = any(name.startswith("-") for name in parameter.opts)
    names = (*parameter.opts, *parameter.secondary_opts) if option else (parameter.name,)
    switch = getattr(parameter, "is_flag", False)
    default = parameter.default
    shown = default not in (None, False, (), []) and not (switch or callable(default))
    return Parameter(
        tuple(names),
        "" if switch else _kind(parameter),
        " ".join((getattr(parameter, "help", "") or "").split()),
        str(getattr(default, "value", default)) if shown else "",
        bool(parameter.required),
    )


def _kind(parameter: Any) -> str:
    choices = getattr(parameter.type, "choices", None)
    if choices:
        return "|".join(str(getattr(choice, "value", choice)) for choice in choices)
    return {"int": "N", "float": "NUMBER", "path": "PATH"}.get(
        parameter.type.name.split()[0], "TEXT"
    )


# -- A page of the site

CONFIGURED = {"controller": "hopsum controller serve", "agent": "hopsum-agent serve"}
"""Tables of configuration files, and the commands that read them."""
COMMANDS_HEAD = """\
# Commands

From the commands' own declarations; so `--help` prints the same texts. Those of the switch
are in p4switch's documents. `hopsum manual` prints this as a man page."""
CONFIGURATION_HEAD = """\
# Configuration files

`hopsum controller serve --config FILE` reads the table `[controller]` of a TOML file,
`hopsum-agent serve --config FILE` the table `[agent]`; both may be in one file. A key is an
option's name without dashes; what is given on the command line goes before the file. Paths begin
at the file's folder. `hopsum doctor --config FILE` checks it here and now, and
[several machines](../how-to/several-machines.md) uses two."""
CONFIGURATION_LISTS = """
What can be given several times, such as `switch`, is a list; NAME=VALUE also a table:

```toml
[controller.switch]
left = "192.0.2.11:9559"
```"""


def commands_page() -> str:
    """Return all commands as Markdown."""
    lines = [COMMANDS_HEAD]
    for program in ("hopsum", "hopsum-agent"):
        for command in commands_of(program):
            lines += [
                "",
                f"## {command.words}",
                "",
                _escaped(command.help),
                "",
                "```",
                command.usage,
                "```",
            ]
            if command.parameters:
                lines += ["", "| | value | what | default |", "| --- | --- | --- | --- |"]
            for p in command.parameters:
                names = " ".join(f"`{name}`" for name in p.names)
                kind = ", ".join(f"`{each}`" for each in p.kind.split("|")) if p.kind else ""
                default = "required" if p.required else f"`{p.default}`" if p.default else ""
                lines.append(f"| {names} | {kind} | {_escaped(p.help)} | {default} |")
    return "\n".join(lines) + "\n"


def configuration_page() -> str:
    """Return the keys of configuration files as Markdown."""
    lines = [CONFIGURATION_HEAD]
    for table, words in (
        ("controller", "hopsum controller serve"),
        ("agent", "hopsum-agent serve"),
    ):
        lines += ["", f"## [{table}]", "", "| key | value | what |", "| --- | --- | --- |"]
        for name, kind, text in keys_of(command_named(words)):
            lines.append(f"| `{name}` | {kind} | {_escaped(' '.join(text.split()))} |")
        if table == "controller":
            lines.append(CONFIGURATION_LISTS)
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Escape a text for a Markdown table cell, except for code in backticks."""
    parts = text.replace("|", "\\|").split("`")
    return "`".join(
        part if i % 2 else re.sub(r"([<>*_])", r"\\\1", part) for i, part in enumerate(parts)
    )


# -- A man page


def manual(program: str, version: str) -> str:
    """Return the man page of a program, as roff (man(7))."""
    about = {
        "hopsum": "sum gradients inside the network",
        "hopsum-agent": "take a host's part in summing gradients inside the network",
    }[program]
    lines = [
        f'.TH {program.upper()} 1 "" "hopsum {version}" "User Commands"',
        # Options and their values stay together, with one space between them.
        ".nh",
        ".ad l",
        ".SH NAME",
        f"{_roff(program)} \\- {about}",
        ".SH SYNOPSIS",
        f".B {_roff(program)}",
        ".I COMMAND",
        "[OPTIONS] [ARGUMENTS]",
        ".SH COMMANDS",
    ]
    for command in commands_of(program):
        lines += [f".SS {_roff(command.usage)}", _roff(command.help)]
        for p in command.parameters:
            names = ", ".join(f"\\fB{_roff(name)}\\fR" for name in p.names)
            # A line may break between the values of a choice.
            value = _roff(p.kind).replace("|", "|\\:")
            kind = f" \\fI{value}\\fR" if p.kind and p.is_option else ""
            default = f" (default: {_roff(p.default)})" if p.default else ""
            lines += [".TP", names + kind, _roff(p.help) + default or "\\&"]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Escape a text for roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text)
