"""`p4switch demo`: packets through a router, explained."""

from __future__ import annotations

from typing import Annotated

import typer

from p4switch.cli.options import fail


def demo(
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Use no interfaces, also as root.")
    ] = False,
    form: Annotated[str, typer.Option("--format", metavar="text|json")] = "text",
    source: Annotated[
        bool, typer.Option("--source", help="Print the router's P4 program instead.")
    ] = False,
) -> None:
    """Send a few packets through a router and show what happens to each, step by step.

    As root over temporary veth pairs, else in this process.
    """
    from p4switch.backends.reference.trace import PacketTrace, sink_of
    from p4switch.cli import demo as demonstration
    from p4switch.device.device import PortError
    from p4switch.packet_io.sockets import InterfaceError

    if source:
        typer.echo(demonstration.ROUTER.read_text(encoding="utf-8"), nl=False)
        return
    try:
        sink = sink_of(form, typer.echo)
    except ValueError as error:
        fail(f"--format: {error}")

    def show(step: demonstration.Step, trace: PacketTrace) -> None:
        if form == "text":
            typer.echo(f"\n# {step.title}")
        sink(trace)

    reason = "--in-process" if in_process else demonstration.why_in_process()
    where = "on veth pairs" if reason is None else f"in this process ({reason})"
    typer.echo(f"{demonstration.ROUTER}: a router of three ports, {where}", err=True)
    try:
        if reason is None:
            demonstration.run_on_veth(show)
        else:
            demonstration.run_in_process(show)
    except (demonstration.DemoError, PortError, InterfaceError) as error:
        fail(str(error))
