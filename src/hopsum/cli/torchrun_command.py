"""`hopsum torchrun`: a PyTorch training on a cluster in Mininet, in one command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from hopsum.cli.command_options import (
    ControllerOption,
    JsonOption,
    RanksPerHostOption,
    RateOption,
    UplinkOption,
    print_json,
    print_table,
)
from hopsum.collectives.choices import Engine
from hopsum.files.output import check_writable, write_file
from hopsum.network.units import format_bytes
from hopsum.protocol.errors import InputError
from hopsum.protocol.extras import require

if TYPE_CHECKING:
    from hopsum.experiment.prepare import PreparedExperiment
    from hopsum.experiment.training import TrainingResult


def torchrun(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT [ARGS]...",
            help="The training script and its options; with -m a module.",
        ),
    ],
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module, as after `python -m`.")
    ] = False,
    topology: Annotated[
        str | None,
        typer.Option(
            help="Bring up this network: a name (star:8, fat-tree:4, ...) or file. Default: "
            "the running cluster's (`hopsum cluster`), where none is up fat-tree:4."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=2, help="Number of hosts that ranks run on.")] = 4,
    ranks_per_host: RanksPerHostOption = 1,
    max_restarts: Annotated[
        int,
        typer.Option(min=0, help="How many times all ranks are restarted after one has failed."),
    ] = 0,
    compare_gloo: Annotated[
        Path | None,
        typer.Option(
            metavar="PICTURE",
            help="Train again with all calls over gloo, and plot the step times of both (PNG; from "
            "rank 0's lines with `N ms a step`).",
        ),
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="Switch that runs the P4 program.")
    ] = Engine.EMBEDDED,
    link_rate: RateOption = "100Mbit",
    uplink_rate: UplinkOption = None,
    controller: ControllerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train with PyTorch on a cluster in Mininet (root): the running one, or one of its own.

    SCRIPT is any that calls `init_process_group`, with the backend hopsum. Engine and rates are
    those of a cluster of its own.
    """
    from dataclasses import asdict

    from hopsum.controller.api.client import ControllerClient
    from hopsum.controller.api.rendezvous import find_controller
    from hopsum.experiment.training import Training, check_script, train, train_on_running

    def show(text: str) -> None:
        typer.echo(text, nl=False)

    command = ["-m", *command] if module else command
    check_script(command)
    if topology is not None and controller is not None:
        raise InputError(
            "topology and controller: expected one of them, a cluster of its own or a running one"
        )
    if compare_gloo is not None:
        require("matplotlib", "plots")
        check_writable(compare_gloo)
    training = Training(command, max_restarts, compare_gloo is not None, ranks_per_host)
    running = controller or find_controller() if topology is None else None
    if running is not None:
        trained = train_on_running(ControllerClient(running), workers, training, show)
    else:
        prepared = _prepare(topology or "fat-tree:4", workers, engine, link_rate, uplink_rate)
        trained = train(prepared, training, show)
    if trained.gloo is not None and compare_gloo is not None and not trained.errors:
        from hopsum.reports.step_times import step_times_plot

        both = {"switches": trained.steps, "gloo": trained.gloo.steps}
        write_file(compare_gloo, step_times_plot(both))
    if as_json:
        print_json(asdict(trained))
    else:
        where = topology or ("the running cluster" if running else "fat-tree:4")
        _show(trained, where, workers * ranks_per_host)
    if trained.errors or (trained.gloo is not None and trained.gloo.errors):
        raise typer.Exit(1)


def _show(trained: TrainingResult, where: str, ranks: int) -> None:
    """Print a training's measurements, and those of the same training over gloo if it was run."""
    columns = [trained] if trained.gloo is None else [trained, trained.gloo]

    def row(what: str, say: Callable[[TrainingResult], str]) -> tuple[str, ...]:
        return (what, *(say(each) for each in columns))

    def of_switches(say: Callable[[TrainingResult], str]) -> Callable[[TrainingResult], str]:
        return lambda each: "-" if each is trained.gloo else say(each)

    def share(each: TrainingResult) -> str:
        part = 100 * each.in_switches / each.sent if each.sent else 0.0
        return f"{format_bytes(each.in_switches)}, {part:.0f} %"

    rows = [
        row("time", lambda each: f"{each.seconds:.1f} s"),
        row("of it sums in the switches", of_switches(lambda each: f"{each.summing:.2f} s")),
        row(
            "tensors that the switches summed",
            of_switches(lambda each: f"{each.sums}, checks included"),
        ),
        row("sent by its hosts", lambda each: format_bytes(each.sent)),
        row("of it for the switches", of_switches(share)),
        row("restarts", lambda each: str(each.restarts)),
        row("errors", lambda each: "\n".join(each.errors) or "none"),
    ]
    if any(each.steps for each in columns):
        rows.insert(1, row("a step (median)", _median_step))
    heads = ("", "") if trained.gloo is None else ("", "switches", "gloo")
    print_table(f"training on {where}, {ranks} ranks", heads, rows)


def _median_step(trained: TrainingResult) -> str:
    return f"{median(trained.steps):.1f} ms" if trained.steps else "not said"


def _prepare(
    topology: str, workers: int, engine: Engine, link_rate: str | None, uplink_rate: str | None
) -> PreparedExperiment:
    """Load the network of a cluster of its own, and choose the ranks' hosts."""
    from hopsum.cli.command_options import rate
    from hopsum.experiment.description import Experiment, WorldKind
    from hopsum.experiment.prepare import prepare

    return prepare(
        Experiment(
            topology=topology,
            workers=workers,
            world=WorldKind.MININET,
            engine=engine,
            link_rate=rate("link-rate", link_rate),
            uplink_rate=rate("uplink-rate", uplink_rate),
            # Only the network and its hosts are used: the script chooses what is summed.
            elements=1,
            rounds=1,
        )
    )
