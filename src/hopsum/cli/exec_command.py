"""`hopsum exec`: a command on a host of a cluster in Mininet."""

from __future__ import annotations

import shutil
import signal
import subprocess
from typing import Annotated

import typer

from hopsum.cli.command_options import ControllerOption, connect
from hopsum.protocol.errors import InputError


def execute(
    host: Annotated[str, typer.Argument(help="The host, such as h1; `hopsum nodes` lists all.")],
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND [ARGS]...", help="What to run there.")
    ],
    controller: ControllerOption = None,
) -> None:
    """Run a command on a host of `hopsum cluster` (root), in this folder.

    It has the host's network and agent, and all else of this machine: files, terminal, environment.
    It, and what it leaves running, ends with the cluster at the latest.
    """
    from hopsum.collectives.messages import network_from
    from hopsum.mininet_topos.hosts import hosts_of_controller
    from hopsum.mininet_topos.lifetime import END_WITH_STARTER

    client = connect(controller)
    network = network_from(client.state().network)
    if host not in network.hosts:
        raise InputError(
            f"exec: {host:.50}: no host of {network.name}; expected {', '.join(network.hosts)}"
        )
    if shutil.which(command[0]) is None:
        raise InputError(f"exec: {command[0]:.200}: expected a program that is on your PATH")
    hosts = hosts_of_controller(network, client.address)
    line = [*END_WITH_STARTER, *hosts.command(command, host)]
    # Ctrl-C is for the command, which may have to end its work.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        code = subprocess.run(line, env=hosts.environment(), check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    # As shells say of a command that a signal has ended.
    raise typer.Exit(code if code >= 0 else 128 - code)
