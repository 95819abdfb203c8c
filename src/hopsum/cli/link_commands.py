"""Commands for the links of a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hopsum.cli.command_options import (
    ControllerOption,
    JsonOption,
    connect,
    print_json,
    print_table,
)
from hopsum.network.units import format_load

if TYPE_CHECKING:
    from hopsum.protocol import hopsum_pb2 as pb

app = typer.Typer(
    help="Links of the running controller: list; cut and restore those of `hopsum cluster`.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)

LinkArgument = Annotated[
    str, typer.Argument(metavar="A-B", help="The two ends of the link, such as l1-s1.")
]


@app.callback()
def link() -> None:
    """List links of the running controller; cut and restore those of `hopsum cluster`."""


@app.command()
def down(name: LinkArgument, controller: ControllerOption = None) -> None:
    """Cut a link of `hopsum cluster`: jobs go on around it, or wait, as `hopsum jobs` says."""
    cut = connect(controller).set_link(name, up=False)
    typer.echo(f"link {cut.a}-{cut.b} is cut; `hopsum link up {cut.a}-{cut.b}` restores it")


@app.command()
def up(name: LinkArgument, controller: ControllerOption = None) -> None:
    """Restore a link of `hopsum cluster`."""
    restored = connect(controller).set_link(name, up=True)
    typer.echo(f"link {restored.a}-{restored.b} is restored")


@app.command("list")
def list_links(controller: ControllerOption = None, as_json: JsonOption = False) -> None:
    """List the links, what each direction carries, and which are out of use."""
    uses = connect(controller).use().links
    if as_json:
        print_json(
            [
                {
                    "link": f"{use.sender}-{use.receiver}",
                    "bit/s": use.used if use.HasField("age") else None,
                    "health": use.health,
                }
                for use in uses
            ]
        )
        return
    rows = [
        (
            f"{there.sender}-{there.receiver}",
            _load(there),
            _load(back),
            there.health or "ok",
        )
        for there, back in zip(uses[::2], uses[1::2], strict=True)
    ]
    print_table("links", ("link", "A to B", "B to A", "health"), rows)


def _load(use: pb.LinkUse) -> str:
    return format_load(use.used) if use.HasField("age") else "not measured"
