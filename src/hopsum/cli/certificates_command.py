"""`hopsum certificates`: an authority for a cluster's TLS, and certificates for its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopsum.cli.command_options import NetworkOption, ServersOption, TopologyArgument, WorkersOption
from hopsum.cli.console import notify
from hopsum.protocol.errors import InputError
from hopsum.protocol.roles import Role

MOST_DAYS = 36_500


def certificates(
    network: TopologyArgument,
    folder: Annotated[
        Path, typer.Option(help="Folder to write them to, and of an existing authority.")
    ],
    controller: Annotated[
        list[str],
        typer.Option(help="An address or DNS name of the controller (repeatable)."),
    ],
    switch: Annotated[
        list[str] | None,
        typer.Option(help="NAME=ADDRESS: P4Runtime address of a switch (repeatable)."),
    ] = None,
    operator: Annotated[
        list[str] | None, typer.Option(help="Name of a person who may do everything (repeatable).")
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a person who may submit jobs and cancel their own (repeatable)."
        ),
    ] = None,
    viewer: Annotated[
        list[str] | None, typer.Option(help="Name of a person who may only view (repeatable).")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=MOST_DAYS, help="Validity in days.")] = 365,
    workers: WorkersOption = None,
    servers: ServersOption = 1,
    topology: NetworkOption = None,
) -> None:
    """Make an authority, and certificates for controller, hosts, switches and people."""
    from hopsum.controller.api.authority import (
        AUTHORITY,
        CertificateSubject,
        certify,
        open_authority,
    )
    from hopsum.network.loaders import load_network

    loaded = load_network(network, workers=workers, servers=servers)
    wanted = [CertificateSubject("controller", controller)]
    for text in switch or ():
        name, equals, address = text.partition("=")
        if not equals or name not in loaded.switches:
            raise InputError(
                f"switch {text!r:.80}: expected NAME=ADDRESS, with NAME one of "
                f"{', '.join(loaded.switches)}"
            )
        wanted.append(CertificateSubject(name, [address]))
    wanted += [CertificateSubject(host) for host in loaded.hosts]
    for role, people in ((Role.OPERATOR, operator), (Role.USER, user), (Role.VIEWER, viewer)):
        wanted += [CertificateSubject(name, role=role) for name in people or ()]
    names = [each.name for each in wanted] + [AUTHORITY]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"{twice!r:.80}: two certificates would have the same name; choose another"
        )
    authority = open_authority(folder, days)
    made = [each.name for each in wanted if certify(folder, authority, each, days)]
    kept = len(wanted) - len(made)
    notify(f"made in {folder}: {', '.join(made) or 'none'}; {kept} there already")
    notify(f"{folder}/{AUTHORITY}.key makes new ones: keep it off the machines of the cluster")
