"""`hopsum torchrun`: a PyTorch training on a cluster in Mininet, in one command."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.command_options import (
    JsonOption,
    RateOption,
    TopologyOption,
    UplinkOption,
    print_json,
    print_table,
)
from cli.experiment.description import Engine
from network.units import format_bytes


def torchrun(
    command: Annotated[
        list[str], typer.Argument(metavar="SCRIPT [ARGS]...", help="A training, and its options.")
    ],
    topology: TopologyOption = "fat-tree:4",
    workers: Annotated[int, typer.Option(min=2, help="Ranks, each on a host of its own.")] = 4,
    engine: Annotated[Engine, typer.Option(help="Switch that runs the P4.")] = Engine.EMBEDDED,
    link_rate: RateOption = "100Mbit",
    uplink_rate: UplinkOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train with PyTorch on a cluster that is brought up in Mininet for it (root).

    SCRIPT is any that calls `init_process_group`, with the backend hopsum.
    """
    from dataclasses import asdict

    from cli.command_options import rate
    from cli.experiment.description import Experiment, WorldKind
    from cli.experiment.prepare import prepare
    from cli.experiment.training import check_script, train

    prepared = prepare(
        Experiment(
            topology=topology,
            workers=workers,
            world=WorldKind.MININET,
            engine=engine,
            link_rate=rate("link-rate", link_rate),
            uplink_rate=rate("uplink-rate", uplink_rate),
            # Only the network and its hosts are used: what is summed is the script's.
            elements=1,
            rounds=1,
        )
    )
    check_script(command)
    trained = train(prepared, command, lambda text: typer.echo(text, nl=False))
    if as_json:
        print_json(asdict(trained))
    else:
        share = 100 * trained.in_switches / trained.sent if trained.sent else 0.0
        rows = [
            ("time", f"{trained.seconds:.1f} s"),
            ("of it sums in the switches", f"{trained.summing:.2f} s"),
            ("tensors that the switches summed", f"{trained.sums}, checks included"),
            ("sent by the ranks' hosts", format_bytes(trained.sent)),
            ("of it for the switches", f"{format_bytes(trained.in_switches)}, {share:.0f} %"),
            ("errors", "\n".join(trained.errors) or "none"),
        ]
        print_table(f"training on {topology}, {workers} ranks", ("", ""), rows)
    if trained.errors:
        raise typer.Exit(1)
