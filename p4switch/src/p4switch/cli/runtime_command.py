"""`p4switch cli`: a running switch in simple_switch_CLI's commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from p4switch.cli.options import DEFAULT_ADDRESS, fail, print_line


def cli_command(
    commands: Annotated[
        list[str] | None,
        typer.Argument(help="Commands, each in quotes; default: read from standard input."),
    ] = None,
    address: Annotated[
        str, typer.Option("--grpc-server-addr", help="Address of the switch's P4Runtime server.")
    ] = DEFAULT_ADDRESS,
    thrift_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Talk to this Thrift port instead, of p4switch or of BMv2."
        ),
    ] = None,
    cacert: Annotated[
        Path | None, typer.Option(help="Use TLS and verify the switch by this authority (PEM).")
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(help="With TLS: the client's certificate (PEM).")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="With TLS: the private key of that certificate (PEM).")
    ] = None,
) -> None:
    """Talk to a running switch in simple_switch_CLI's commands (`help` lists them)."""
    from p4switch.bmv2_runtime.records import Fault
    from p4switch.cli.client import Client, ClientError, GrpcClient, ThriftConnection
    from p4switch.cli.runtime_cli import RuntimeCli, session
    from p4switch.p4runtime.tls import TlsError, channel_credentials

    if ((cert or key) and cacert is None) or (cert is None) != (key is None):
        fail("TLS: --cert and --key go together, and with --cacert")
    client: Client
    try:
        if thrift_port is not None:
            client = ThriftConnection(thrift_port)
        else:
            tls = None if cacert is None else channel_credentials(cacert, cert, key)
            client = GrpcClient(address, tls)
        cli = RuntimeCli(client, print_line)
    except (ClientError, Fault, TlsError) as error:
        fail(str(error))

    def complain(text: str) -> None:
        typer.echo(text, err=True)

    try:
        lines = commands or _prompted(sys.stdin.isatty())
        if not session(cli, lines, complain):
            raise typer.Exit(1)
    finally:
        client.close()


def _prompted(interactive: bool) -> Iterator[str]:
    """Yield lines of standard input, with a prompt before each on a terminal."""
    while True:
        if interactive:
            typer.echo("RuntimeCmd: ", nl=False)
        line = sys.stdin.readline()
        if not line:
            return
        yield line
