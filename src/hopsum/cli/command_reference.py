"""All commands with their options, from their declarations; and man pages of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer.main


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
        from hopsum.cli.main import app
    else:
        from hopsum.host_agent.main import app
    return typer.main.get_command(app)


def _loaded(command: Any, name: str) -> Any:
    """Import a lazily loaded subcommand and return it."""
    entry = getattr(command, "entry", None)
    if entry is None:
        return command
    from hopsum.cli.main import load

    return typer.main.get_command(load(entry.target, name, entry.passes_on))


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


CONFIGURED = {"controller": "hopsum controller serve", "agent": "hopsum-agent serve"}
"""Tables of configuration files, and the commands that read them."""


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
