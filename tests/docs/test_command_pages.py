"""Pages of the site about commands and configuration files."""

from __future__ import annotations

import re

from hopsum.cli.command_reference import commands_of
from tools.command_pages import commands_page, configuration_page


def test_pages_show_every_command_and_option() -> None:
    page = commands_page()
    for command in (*commands_of("hopsum"), *commands_of("hopsum-agent")):
        assert f"\n## {command.words}\n" in page
    # A bar in a cell would end it.
    for line in page.splitlines():
        if line.startswith("| `"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 5, line
    assert "| `--results` | `replicated`, `unicast` |" in page
    keys = configuration_page()
    assert "| `tls-key` | a path in quotes |" in keys
    assert "| `lanes` | a whole number |" in keys
    assert "`config`" not in keys
