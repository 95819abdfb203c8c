"""Pages of the site about commands and configuration files, from the commands' declarations."""

from __future__ import annotations

import re

from hopsum.cli.command_reference import CONFIGURED, command_named, commands_of
from hopsum.files.options_file import keys_of

COMMANDS_HEAD = """\
# Commands

Generated from the commands' own declarations: `--help` prints the same texts. The commands of the
switch are in p4switch's documents. `hopsum manual` prints this page as a man page."""
CONFIGURATION_HEAD = """\
# Configuration files

`hopsum controller serve --config FILE` reads the table `[controller]` of a TOML file,
`hopsum-agent serve --config FILE` the table `[agent]`; both may be in one file. A key is an
option's name without dashes; an option on the command line overrides it. Relative paths start
at the file's folder. `hopsum doctor --config FILE` checks a file on the machine it is for, and
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
    for table, words in CONFIGURED.items():
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
