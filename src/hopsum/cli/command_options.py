"""Shared by commands: options, and output as tables or JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from hopsum.cli.console import standard_output
from hopsum.collectives.choices import (
    MOST_WINDOW,
    PLANNER_NAMES,
    Algorithm,
    Collective,
    Coordination,
    DataType,
    Engine,
    FormOptions,
    Results,
    Shape,
    Siblings,
)
from hopsum.collectives.workload import MOST_RANKS_OF_HOST, MOST_WORKERS
from hopsum.network.units import has_unit, parse_count, parse_rate, parse_share, parse_time
from hopsum.protocol.errors import InputError
from hopsum.protocol.lanes import LANES_MAX, LANES_STEP
from hopsum.protocol.web_address import WEB_ADDRESS, WebAddress, web_address

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hopsum.controller.api.client import ControllerClient

_T = TypeVar("_T")


def _parser(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Return a parser of an option whose error says what was expected."""

    @wraps(parse)
    def parse_option(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse_option


_TOPOLOGY = "Name (star:8, leaf-spine:4x4, fat-tree:4, ...) or file."


def _given_once(context: typer.Context, value: str) -> str:
    if context.params.get("topology") not in (None, value):
        raise typer.BadParameter("the network is given twice, as an argument and by --topology")
    return value


TopologyArgument = Annotated[str, typer.Argument(callback=_given_once, help=_TOPOLOGY)]
TopologyOption = Annotated[str, typer.Option(help=_TOPOLOGY)]


def _take_as_network(context: typer.Context, value: str | None) -> str | None:
    if value is not None:
        context.default_map = {**(context.default_map or {}), "network": value}
    return value


NetworkOption = Annotated[
    str | None,
    typer.Option(
        "--topology",
        # Before the argument that it stands for is missed.
        is_eager=True,
        callback=_take_as_network,
        help="The same as NETWORK.",
    ),
]
"""Beside a `TopologyArgument` named `network`, so that `--topology` names it in every command."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ControllerOption = Annotated[
    str | None,
    typer.Option("--controller", help="Address of the controller; default: the running one."),
]
DashboardOption = Annotated[
    bool, typer.Option("--dashboard", help=f"Show it on a web page, at {WEB_ADDRESS} or --web.")
]
WebOption = Annotated[
    str | None,
    typer.Option(
        "--web",
        help="Serve page, state and metrics at HOST:PORT. Beyond loopback readers need a token: "
        "HOPSUM_WEB_TOKEN, or one that is printed.",
    ),
]
WorkersOption = Annotated[int | None, typer.Option(help="Number of workers; default: all hosts.")]
ServersOption = Annotated[int, typer.Option(help="Parameter servers; each roots a tree.")]
NamedWorkersOption = Annotated[
    str | None,
    typer.Option(
        "--workers",
        help="Number of workers, or their names: h1,h2. Default: all hosts but the servers.",
    ),
]
NamedServersOption = Annotated[
    str | None,
    typer.Option(
        help="Number of parameter servers, or their names: ps1,ps2. Each is the root of a tree; "
        "with the planner embedding they are the hosts that may help. 0: each worker is a "
        "server. Default: 1; 0 for collectives other than all-reduce.",
    ),
]
CollectiveOption = Annotated[
    Collective, typer.Option(help="Collective operation on the workers' tensors.")
]
IntegrityOption = Annotated[
    bool,
    typer.Option(
        "--integrity",
        help="Use 3 lanes of each packet as check lanes: silent bit flips, and sums forged without "
        "the job's key, are detected.",
    ),
]
AlgorithmOption = Annotated[Algorithm, typer.Option(help="Which algorithm sums.")]
WindowOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_WINDOW,
        help="Slots of a tree at a switch, a power of two; half as many fragments are in flight. "
        "Default: what keeps the links busy, as far as slots and engine allow.",
    ),
]
LanesOption = Annotated[int, typer.Option(min=LANES_STEP, max=LANES_MAX, help="Values per packet.")]
EngineOption = Annotated[Engine, typer.Option(help="Switch that runs the P4 program.")]
MaxHopsOption = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Entries of a packet's hop stack, one more than switches on a path. Default: 10, or "
        "more if the network needs it and --lanes leaves room.",
    ),
]
LossOption = Annotated[
    float,
    typer.Option(
        parser=_parser(parse_share),
        metavar="SHARE",
        help="Probability that a packet is lost, on each link: 0 to below 1, or e.g. 1%.",
    ),
]
RateOption = Annotated[str | None, typer.Option(help="Rate of every link, e.g. 100M.")]
LinkRateOption = Annotated[
    str | None,
    typer.Option(
        help="Rate of every link, e.g. 100M. `none`: unlimited, or as the file has it. Default: "
        "as the file has it; 25Mbit in a network by name."
    ),
]
UplinkOption = Annotated[str | None, typer.Option(help="Rate of links between switches.")]
LatencyOption = Annotated[
    str | None, typer.Option(help="Latency of every link, e.g. 20us; Mininet has none.")
]
PlainOption = Annotated[
    list[str] | None,
    typer.Option(help="A switch that only forwards (repeatable), or `all`."),
]
LargestPieceOption = Annotated[
    bool,
    typer.Option(
        "--largest-piece", help="If the file's network is in several pieces, take the largest one."
    ),
]
HostsOption = Annotated[
    int, typer.Option(help="Hosts attached to each switch of a GraphML file without hosts.")
]

MOST = 0xFFFF
"""Maximum number of links of a path."""
PlannerOption = Annotated[
    str | None,
    typer.Option(
        help=f"One of {', '.join(PLANNER_NAMES)}; default: multi-hop in switches, multi-tree "
        "among hosts."
    ),
]
PlannerOptionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--planner-option",
        "-O",
        metavar="NAME=VALUE",
        help="Option of the planner (repeatable); --planner NAME --help lists them.",
    ),
]
ResultsOption = Annotated[
    Results | None,
    typer.Option(
        help="How results return to workers; default: replicated, but unicast with algorithm "
        "server."
    ),
]
ElementsOption = Annotated[
    int,
    typer.Option(
        parser=_parser(parse_count), metavar="COUNT", help="Elements of a tensor, e.g. 1e6 or 1M."
    ),
]
RoundsOption = Annotated[int, typer.Option(min=1, help="All-reduces, or epochs with --train.")]
DataTypeOption = Annotated[DataType, typer.Option(help="Element type.")]
WireBitsOption = Annotated[
    int | None,
    typer.Option(
        help="Bits of a value in the switches' packets: 32, 16 or 8; default: those of the type."
    ),
]
TrainOption = Annotated[str | None, typer.Option(help="Train on a data set (`digits`) instead.")]
SeedOption = Annotated[int, typer.Option(help="Seed of all random choices.")]
RanksPerHostOption = Annotated[
    int,
    typer.Option(
        "--ranks-per-host",
        "--nproc-per-node",
        min=1,
        max=MOST_RANKS_OF_HOST,
        help="Number of ranks on each of the hosts.",
    ),
]
CoordinateOption = Annotated[
    bool,
    typer.Option(
        help="Sum the gradients of a training step one by one, in an order that the workers "
        "agree on, or as one tensor."
    ),
]
CoordinationOption = Annotated[
    Coordination,
    typer.Option(help="Where the workers' bit vectors of ready operators are combined."),
]
CoordinationHeightOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST,
        help="Maximum number of edges from a worker to the root of the tree by which workers agree "
        "on an order; default: the least possible.",
    ),
]
CoordinationFanOutOption = Annotated[
    int | None,
    typer.Option(
        min=2, max=MOST, help="Maximum number of children of a worker in that tree; default: 4."
    ),
]
CoordinationDistanceOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST,
        help="Neighbours in that tree are less than this many links apart; a small number needs "
        "more height. Default: any.",
    ),
]
ELEMENTS, ROUNDS, SEED = 1_000_000, 3, 1
"""Defaults of jobs, for all commands."""

LevelWiseFormOption = Annotated[
    Shape,
    typer.Option(help="Form of level-wise: by levels, flat (one level), or what suits the links."),
]
SiblingsOption = Annotated[
    Siblings | None,
    typer.Option(help="How siblings exchange in level-wise; default: what suits the links."),
]


def rate(option: str, text: str | None) -> float | None:
    """Return the rate of links in bit/s; None if absent or `none`. InputError if invalid.

    A number needs a unit: `--link-rate 100` meant 100 Mbit/s to all who wrote it.
    """
    if text is None or text == "none":
        return None
    found = parsed(option, text, parse_rate)
    if not has_unit(text):
        raise InputError(f"{option} {text}: expected a unit, such as {text}Mbit or {text}bit")
    return found


def link_rate_of(topology: str, text: str | None) -> float | None:
    """Return the rate of a `LinkRateOption` in bit/s; None: as a file says, or unlimited.

    InputError if invalid.
    """
    from hopsum.network.topologies import is_topology

    return rate("link-rate", "25Mbit" if text is None and is_topology(topology) else text)


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """Return the options of a planner from texts NAME=VALUE. InputError if invalid."""
    options: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (equals and name and value):
            raise InputError(f"planner-option {text!r:.80}: expected NAME=VALUE, as max-trees=3")
        if name in options:
            raise InputError(f"planner-option {name:.80}: given twice; expected one value")
        options[name] = value
    return options


def seconds(option: str, text: str | None) -> float | None:
    """Return a time in seconds; None if absent. InputError if invalid, or a number without unit."""
    found = parsed(option, text, parse_time)
    if text is not None and found and not has_unit(text):
        raise InputError(f"{option} {text}: expected a unit, such as {text}us, {text}ms or {text}s")
    return found


PcapOption = Annotated[
    Path | None,
    typer.Option(help="Folder for a capture file of each port and direction of every switch."),
]


def web_option(dashboard: bool, web: str | None) -> WebAddress | None:
    """Return the address for HTTP; None if absent. InputError if invalid."""
    if web is None and not dashboard:
        return None
    return web_address("web", WEB_ADDRESS if web is None else web)


def parsed(option: str, text: str | None, parse: Callable[[str], _T]) -> _T | None:
    """Return the value of an option; None if absent. InputError if invalid."""
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


def workers_of(text: str | None) -> int | tuple[str, ...] | None:
    """Return the number of workers, or their names; None: all hosts. InputError if invalid."""
    return None if text is None else hosts("workers", text)


def servers_of(text: str | None, collective: Collective) -> int | tuple[str, ...]:
    """Return the number of servers, or their names; 0: the workers. InputError if invalid."""
    if text is None:
        return int(collective is Collective.ALL_REDUCE)
    return 0 if text.strip() == "0" else hosts("servers", text)


def hosts(role: str, text: str) -> int | tuple[str, ...]:
    """Return a number of hosts, or their names. InputError if invalid."""
    if re.fullmatch("[+-]?[0-9]+", text.strip()):
        # Python refuses to make a number of thousands of digits.
        number = int(text) if len(text) < 9 else MOST_WORKERS + 1
        if not 1 <= number <= MOST_WORKERS:
            raise InputError(f"{role} {text:.40}: expected 1 to {MOST_WORKERS}, or names of hosts")
        return number
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise InputError(f"{role} {text!r:.40}: expected a number, or names of hosts as h1,h2")
    return names


def form_options(form: Shape, siblings: Siblings | None, *, level_wise: bool) -> FormOptions:
    """Return the level-wise options. Raises InputError with another algorithm."""
    options = FormOptions(form, siblings)
    if options != FormOptions() and not level_wise:
        raise InputError(
            "level-wise-form and siblings: options of the algorithm level-wise; use --algorithm "
            "level-wise, or omit them"
        )
    return options


def connect(controller: str | None) -> ControllerClient:
    """Return a client of the controller at an address; None: of the running one.

    Raises ControllerError.
    """
    from hopsum.controller.api.client import ControllerClient

    return ControllerClient(controller)


def print_json(value: object) -> None:
    """Write a value as JSON on standard output."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    console: Console | None = None,
) -> None:
    """Print rows as a table on standard output, or a console; columns of numbers to the right."""
    console = console or standard_output()
    console.print(f"[bold]{title}[/]", highlight=False)
    console.print(make_table(columns, rows))


def print_wide_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], keys: int
) -> None:
    """Print a table as several that fit the width, with its first `keys` columns in each."""
    console = standard_output()
    console.print(f"[bold]{title}[/]", highlight=False)
    for places in column_groups(columns, rows, keys, console.width):
        console.print(
            make_table([columns[i] for i in places], [[row[i] for i in places] for row in rows])
        )


def column_groups(
    columns: Sequence[str], rows: Sequence[Sequence[object]], keys: int, width: int
) -> list[list[int]]:
    """Return the columns of several tables of a width: the keys, and one other at least."""
    widths = [
        max(len(column), *(len(str(row[i])) for row in rows), 0) + len(" │ ")
        for i, column in enumerate(columns)
    ]
    groups = [list(range(keys))]
    used = sum(widths[:keys]) + 1
    left = width - used
    for i in range(keys, len(columns)):
        if widths[i] > left and len(groups[-1]) > keys:
            groups.append(list(range(keys)))
            left = width - used
        groups[-1].append(i)
        left -= widths[i]
    return groups


def make_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Collection[str] = (),
    narrow: bool = False,
) -> Table:
    """Return rows as a table, without a head if all columns are nameless.

    Numbers, and the columns `right`, are aligned to the right. `narrow`: without vertical lines.
    """
    from rich.box import HEAVY_HEAD, SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        show_header=any(columns),
        box=SIMPLE_HEAD if narrow else HEAVY_HEAD,
        padding=(0, 1, 0, 0 if narrow else 1),
        pad_edge=not narrow,
    )
    for i, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[i], (int, float)) for row in rows)
        justify: Literal["left", "right"] = "right" if numeric or column in right else "left"
        # Names are whole in narrow terminals, too.
        table.add_column(column, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    return table
