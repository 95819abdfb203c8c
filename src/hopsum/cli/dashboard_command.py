"""`hopsum dashboard`: the web page of a running controller, or of a recorded run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopsum.cli.command_options import ControllerOption, connect
from hopsum.cli.console import notify
from hopsum.protocol.errors import InputError
from hopsum.protocol.web_address import WEB_ADDRESS, web_address

if TYPE_CHECKING:
    from hopsum.controller.web.sources import StateSource


def dashboard(
    controller: ControllerOption = None,
    replay: Annotated[
        Path | None, typer.Option(help="Show this recording of `hopsum run --record` instead.")
    ] = None,
    web: Annotated[
        str,
        typer.Option(
            help="Serve it at HOST:PORT. Beyond loopback readers need a token: "
            "HOPSUM_WEB_TOKEN, or one that is printed."
        ),
    ] = WEB_ADDRESS,
) -> None:
    """Show the running controller, or a recorded run, on a web page, until interrupted."""
    if replay is not None and controller is not None:
        raise InputError("controller and replay: expected one of them")
    address = web_address("web", web)
    source = _source(controller, replay)
    from hopsum.controller.web.server import serve_web

    async def serve() -> None:
        async with serve_web(source, address) as url:
            notify(f"dashboard at {url}")
            await asyncio.Event().wait()

    asyncio.run(serve())


def _source(controller: str | None, replay: Path | None) -> StateSource:
    """Return the source of the page. Raises RecordingError, ControllerError if there is none."""
    if replay is not None:
        from hopsum.controller.web.recording import read_recording

        return read_recording(replay)
    from hopsum.controller.web.sources import RemoteCluster

    client = connect(controller)
    # A page that never fills would not say why.
    client.state()
    return RemoteCluster(client)
