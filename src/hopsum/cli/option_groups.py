"""Options that several commands share, in groups: a dataclass a group, a field an option.

A command decorated with `with_groups` takes a group as one parameter, and its user the options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

from hopsum.cli.command_options import (
    ELEMENTS,
    ROUNDS,
    SEED,
    AlgorithmOption,
    CollectiveOption,
    CoordinateOption,
    CoordinationDistanceOption,
    CoordinationFanOutOption,
    CoordinationHeightOption,
    CoordinationOption,
    DataTypeOption,
    ElementsOption,
    HostsOption,
    IntegrityOption,
    LanesOption,
    LargestPieceOption,
    LatencyOption,
    LevelWiseFormOption,
    LinkRateOption,
    MaxHopsOption,
    NamedServersOption,
    NamedWorkersOption,
    PlainOption,
    PlannerOption,
    PlannerOptionsOption,
    ResultsOption,
    RoundsOption,
    SeedOption,
    SiblingsOption,
    TopologyOption,
    TrainOption,
    UplinkOption,
    WindowOption,
    WireBitsOption,
    link_rate_of,
    parse_assignments,
    rate,
    seconds,
    servers_of,
    workers_of,
)
from hopsum.collectives.choices import (
    Algorithm,
    Collective,
    Coordination,
    DataType,
    FormOptions,
    Shape,
)


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for Typer with an option for each field of its parameters that are groups.

    The help lists them where the group is.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[Any], list[str]]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if not is_dataclass(kind):
            parameters.append(parameter.replace(annotation=kind))
            continue
        assert isinstance(kind, type)
        options = get_type_hints(kind, include_extras=True)
        groups[name] = kind, [each.name for each in fields(kind)]
        parameters += [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=options[each.name],
                default=inspect.Parameter.empty if each.default is MISSING else each.default,
            )
            for each in fields(kind)
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        for name, (kind, names) in groups.items():
            given[name] = kind(**{each: given.pop(each) for each in names})
        command(**given)

    keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    run.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in keyword} | {"return": None}
    # Typer would look at the signature of the command itself.
    del run.__wrapped__
    return run


@dataclass(frozen=True)
class NetworkGroup:
    """The network of a plan, a run or a comparison."""

    topology: TopologyOption = "fat-tree:4"
    link_rate: LinkRateOption = None
    uplink_rate: UplinkOption = None
    latency: LatencyOption = None
    largest_piece: LargestPieceOption = False

    @property
    def link(self) -> float | None:
        """The rate of every link in bit/s; None: as a file says. InputError if invalid."""
        return link_rate_of(self.topology, self.link_rate)

    @property
    def uplink(self) -> float | None:
        """The rate of links between switches in bit/s. InputError if invalid."""
        return rate("uplink-rate", self.uplink_rate)

    @property
    def delay(self) -> float | None:
        """The latency of every link in seconds. InputError if invalid."""
        return seconds("latency", self.latency)


@dataclass(frozen=True)
class ShapeGroup:
    """More about a network from a file."""

    plain: PlainOption = None
    hosts_per_switch: HostsOption = 1


@dataclass(frozen=True)
class JobGroup:
    """Hosts and tensors of a job."""

    workers: NamedWorkersOption = None
    servers: NamedServersOption = None
    collective: CollectiveOption = Collective.ALL_REDUCE
    elements: ElementsOption = ELEMENTS
    rounds: RoundsOption = ROUNDS
    dtype: DataTypeOption = DataType.FLOAT32
    wire_bits: WireBitsOption = None
    results: ResultsOption = None
    window: WindowOption = None
    seed: SeedOption = SEED

    @property
    def placed_workers(self) -> int | tuple[str, ...] | None:
        """The number of workers, or their names; None: all hosts. InputError if invalid."""
        return workers_of(self.workers)

    @property
    def placed_servers(self) -> int | tuple[str, ...]:
        """The number of servers, or their names; 0: the workers. InputError if invalid."""
        return servers_of(self.servers, self.collective)


@dataclass(frozen=True)
class PlannerGroup:
    """The planner and its own options."""

    planner: PlannerOption = None
    planner_option: PlannerOptionsOption = None

    @property
    def options(self) -> dict[str, str]:
        """The planner's options by name. InputError if invalid."""
        return parse_assignments(self.planner_option or ())


@dataclass(frozen=True)
class AlgorithmGroup:
    """The algorithm and its own options."""

    algorithm: AlgorithmOption = Algorithm.IN_NETWORK
    level_wise_form: LevelWiseFormOption = Shape.AUTO
    siblings: SiblingsOption = None

    @property
    def form(self) -> FormOptions:
        """The form of the algorithm level-wise."""
        return FormOptions(self.level_wise_form, self.siblings)


@dataclass(frozen=True)
class TrainingGroup:
    """A training, the order of its gradients, and checks of its sums."""

    train: TrainOption = None
    coordinate: CoordinateOption = True
    coordination: CoordinationOption = Coordination.AUTO
    coordination_height: CoordinationHeightOption = None
    coordination_fan_out: CoordinationFanOutOption = None
    coordination_distance: CoordinationDistanceOption = None
    integrity: IntegrityOption = False


@dataclass(frozen=True)
class PacketGroup:
    """What the switches' program is compiled for."""

    lanes: LanesOption = 256
    max_hops: MaxHopsOption = None
