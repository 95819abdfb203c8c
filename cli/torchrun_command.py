"""`hopsum torchrun`: a PyTorch training on a cluster in Mininet, in one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.command_options import (
    JsonOption,
    RateOption,
    UplinkOption,
    print_json,
    print_table,
)
from cli.experiment.description import Engine
from network.units import format_bytes

if TYPE_CHECKING:
    from cli.experiment.prepare import Prepared


def torchrun(
    command: Annotated[
        list[str], typer.Argument(metavar="SCRIPT [ARGS]...", help="A training, and its options.")
    ],
    topology: Annotated[
        str | None,
        typer.Option(
            help="Bring up this network: a name (star:8, fat-tree:4, ...) or file. Default: "
            "the running cluster's (`hopsum cluster`), where none is up fat-tree:4."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=2, help="Ranks, each on a host of its own.")] = 4,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often all ranks start again after one has failed.")
    ] = 0,
    engine: Annotated[Engine, typer.Option(help="Switch that runs the P4.")] = Engine.EMBEDDED,
    link_rate: RateOption = "100Mbit",
    uplink_rate: UplinkOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train with PyTorch on a cluster in Mininet (root): the running one, or one of its own.

    SCRIPT is any that calls `init_process_group`, with the backend hopsum. Engine and rates are
    those of a cluster of its own.
    """
    from dataclasses import asdict

    from cli.experiment.training import Training, check_script, train, train_on_running
    from controller.api.client import ControllerClient
    from controller.api.rendezvous import find_controller

    def show(text: str) -> None:
        typer.echo(text, nl=False)

    check_script(command)
    training = Training(command, max_restarts)
    running = find_controller() if topology is None else None
    if running is not None:
        trained = train_on_running(ControllerClient(running), workers, training, show)
    else:
        prepared = _prepare(topology or "fat-tree:4", workers, engine, link_rate, uplink_rate)
        trained = train(prepared, training, show)
    if as_json:
        print_json(asdict(trained))
    else:
        share = 100 * trained.in_switches / trained.sent if trained.sent else 0.0
        rows = [
            ("time", f"{trained.seconds:.1f} s"),
            ("of it sums in the switches", f"{trained.summing:.2f} s"),
            ("tensors that the switches summed", f"{trained.sums}, checks included"),
            ("sent by its hosts", format_bytes(trained.sent)),
            ("of it for the switches", f"{format_bytes(trained.in_switches)}, {share:.0f} %"),
            ("restarts", str(trained.restarts)),
            ("errors", "\n".join(trained.errors) or "none"),
        ]
        where = topology or ("the running cluster" if running else "fat-tree:4")
        print_table(f"training on {where}, {workers} ranks", ("", ""), rows)
    if trained.errors:
        raise typer.Exit(1)


def _prepare(
    topology: str, workers: int, engine: Engine, link_rate: str | None, uplink_rate: str | None
) -> Prepared:
    """Load the network of a cluster of its own, and choose the ranks' hosts."""
    from cli.command_options import rate
    from cli.experiment.description import Experiment, WorldKind
    from cli.experiment.prepare import prepare

    return prepare(
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
