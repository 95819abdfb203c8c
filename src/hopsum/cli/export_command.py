"""`hopsum export`: files of hopsum that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    "hopsum.lua": (ROOT / "protocol" / "hopsum.lua", "wireshark -X lua_script:{} CAPTURE"),
    "hopsum-grafana.json": (
        ROOT / "controller" / "web" / "grafana.json",
        "Grafana: Dashboards, New, Import",
    ),
}
"""By name: where each file is in a checkout and in a wheel, and how it is used."""


def export(
    folder: Annotated[Path, typer.Argument(help="Folder to write them to.")] = Path(),
) -> None:
    """Write what other programs need: Wireshark's dissector, and Grafana's dashboard."""
    from hopsum.files.output import write_file

    for name, (source, use) in FILES.items():
        path = folder / name
        write_file(path, source.read_bytes())
        typer.echo(f"{path}: {use.format(path)}")
