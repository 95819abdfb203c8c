"""`hopsum simulate`: compare algorithms at flow level, for up to thousands of hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from hopsum.cli.command_options import (
    DataTypeOption,
    JsonOption,
    LanesOption,
    LevelWiseFormOption,
    ServersOption,
    SiblingsOption,
    WindowOption,
    WireBitsOption,
    parsed,
    print_json,
    seconds,
)
from hopsum.cli.console import standard_output
from hopsum.cli.option_groups import NetworkGroup, PlannerGroup, with_groups
from hopsum.collectives.choices import DEFAULT_PLANNER, DataType, FormOptions, Shape
from hopsum.experiment.comparison import (
    ALGORITHMS,
    Comparison,
    ComparisonResult,
    compare,
    parse_background,
)
from hopsum.experiment.description import ExperimentError
from hopsum.files.output import check_writable, write_file
from hopsum.network.units import format_bytes, format_time, parse_size
from hopsum.protocol.extras import require
from hopsum.reports.summary import si

COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("workers", "right"),
    ("size", "right"),
    ("algorithm", "left"),
    ("time", "right"),
    ("bit/s", "right"),
    ("all links", "right"),
    ("hottest", "right"),
)

_T = TypeVar("_T")


@with_groups
def simulate(
    network: NetworkGroup,
    trees: PlannerGroup,
    algorithm: Annotated[
        str | None,
        typer.Option(help=f"Any of {', '.join(ALGORITHMS)}; default: all but embedding."),
    ] = None,
    size: Annotated[str, typer.Option(help="Bytes of the tensor, such as 1GB or 1MB,1GB.")] = "1MB",
    workers: Annotated[
        str | None, typer.Option(help="Numbers of workers, such as 8,16; default all hosts.")
    ] = None,
    servers: ServersOption = 1,
    level_wise_form: LevelWiseFormOption = Shape.AUTO,
    siblings: SiblingsOption = None,
    lanes: LanesOption = 256,
    window: WindowOption = None,
    dtype: DataTypeOption = DataType.FLOAT32,
    wire_bits: WireBitsOption = None,
    block: Annotated[
        str | None, typer.Option(help="Bytes that agents forward at once; default: a TCP segment.")
    ] = None,
    overhead: Annotated[str, typer.Option(help="Time that each message costs its host.")] = "0s",
    background: Annotated[
        list[str] | None,
        typer.Option(help="Other traffic: h1-h5, h1-h5:10Mbit or h1-h5:20MB; may be repeated."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (PNG) to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Time all-reduce algorithms at flow level: max-min fair rates, latency, background traffic."""
    comparison = Comparison(
        topology=network.topology,
        sizes=_each("size", size, parse_size),
        workers=_each("workers", workers, int),
        algorithms=_each("algorithm", algorithm, str),
        link_rate=network.link,
        uplink_rate=network.uplink,
        largest_piece=network.largest_piece,
        latency=network.delay,
        servers=servers,
        planner=DEFAULT_PLANNER if trees.planner is None else trees.planner,
        planner_options=trees.options,
        form=FormOptions(level_wise_form, siblings),
        lanes=lanes,
        window=window,
        dtype=dtype,
        wire_bits=wire_bits or 0,
        block=parsed("block", block, parse_size),
        overhead=seconds("overhead", overhead) or 0.0,
        background=tuple(parse_background(text) for text in background or ()),
    )
    if plot is not None:
        check_writable(plot)
        require("matplotlib", "plot")
    compared = list(compare(comparison))
    if plot is not None:
        from hopsum.reports.comparison_plot import comparison_plot

        write_file(plot, comparison_plot(compared))
    if as_json:
        report = {
            "topology": network.topology,
            "link_rate": comparison.link_rate,
            "uplink_rate": comparison.uplink_rate,
            "latency": comparison.latency,
            "results": [case.to_dict() for case in compared],
        }
        print_json(report)
    else:
        standard_output().print(comparison_table(compared))
        for line in form_lines(compared):
            standard_output().print(line, highlight=False, soft_wrap=True)


def comparison_table(compared: Sequence[ComparisonResult]) -> Table:
    """Return a row per case: time, goodput, bytes on all links and on the busiest one."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for head, side in COLUMNS:
        table.add_column(head, justify=side, no_wrap=True)
    for case, after in zip(compared, [*compared[1:], None], strict=True):
        table.add_row(
            str(case.workers),
            format_bytes(case.size),
            case.algorithm,
            format_time(case.seconds),
            si(case.goodput, ""),
            format_bytes(case.total_bytes),
            format_bytes(case.hottest_bytes),
            end_section=after is not None
            and (after.workers, after.size) != (case.workers, case.size),
        )
    return table


def form_lines(compared: Sequence[ComparisonResult]) -> list[str]:
    """Print the form of level-wise for every number of workers and size."""
    return [
        f"level-wise, {case.workers} workers, {format_bytes(case.size)}: {case.form}"
        for case in compared
        if case.form
    ]


def _each(name: str, text: str | None, parse: Callable[[str], _T]) -> tuple[_T, ...]:
    parts = [] if text is None else _parts(name, text)
    values = (parsed(name, part, parse) for part in parts)
    return tuple(value for value in values if value is not None)


def _parts(name: str, text: str) -> list[str]:
    """Split at commas; ExperimentError for an empty item."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ExperimentError(f"{name} {text!r:.40}: expected one or more, separated by commas")
    return parts
