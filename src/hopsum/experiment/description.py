"""An experiment as data: every choice that determines its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf

from hopsum.collectives.choices import (
    DEFAULT_FORM,
    DEFAULT_PLANNER,
    EMBEDDING,
    Algorithm,
    Collective,
    Coordination,
    DataType,
    Engine,
    FormOptions,
    Results,
    window_fault,
)
from hopsum.collectives.workload import (
    MOST_ELEMENTS,
    MOST_TENSORS,
    MOST_WORKERS,
    check_wire_bits,
    is_for_trees,
)
from hopsum.coordination.tree import DEFAULT_LIMITS, TreeLimits
from hopsum.planning.model.forest import MOST_SEED
from hopsum.planning.registry import HOST_PLANNERS, find_planner
from hopsum.protocol.errors import InputError
from hopsum.protocol.extras import require
from hopsum.protocol.wire import LANES_DEFAULT, LayoutError, check_lanes
from hopsum.simulation.faults import Outage


class WorldKind(StrEnum):
    """World of the run."""

    SIMULATION = "simulation"
    """Virtual time, one process, no root."""
    MININET = "mininet"
    """Real processes and links on this machine, as root."""


class PacketIo(StrEnum):
    """Packet path of agents."""

    FAST = "fast"
    SCAPY = "scapy"


class ExperimentError(InputError):
    """An experiment that cannot be run; the message names the option and what was expected."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One all-reduce experiment. Rates in bits per second, times in seconds.

    `worker_names`, `server_names`: chosen hosts. 0 `workers`: all hosts but the servers, which
    `prepare` counts; 0 `servers`: each worker is one. `integrity`: with check lanes. `train`: train
    on this data set instead of summing random tensors; `rounds` is then
    the number of epochs, and with `coordinate` a step's gradients are several operators, summed in
    an order that the workers agree on (else all in one tensor), by `coordination`. `results` None:
    replicated, but unicast for the parameter server. `window` None:
    `default_window`. `max_hops`: entries of a hop stack, None: what the network needs. `link_rate`
    (of every link) and `uplink_rate` (of links between switches) override those of a file; None:
    those of the file, else unlimited. `largest_piece`: of a file's network in several pieces take
    the largest one. `planner_options`: of the planner, by name, as texts; `form`: of the
    algorithm level-wise; `coordination_limits`: of the tree by which workers agree. `outages`:
    failures, in seconds after the job is submitted (simulation only). `limit`: give up after this
    many seconds (virtual ones in simulation).
    """

    topology: str = "fat-tree:4"
    workers: int = 0
    elements: int = 1_000_000
    rounds: int = 3
    algorithm: Algorithm = Algorithm.IN_NETWORK
    world: WorldKind = WorldKind.SIMULATION
    engine: Engine = Engine.EMBEDDED
    dtype: DataType = DataType.FLOAT32
    wire_bits: int = 0
    results: Results | None = None
    link_rate: float | None = 25e6
    uplink_rate: float | None = None
    latency: float | None = None
    largest_piece: bool = False
    loss: float = 0.0
    outages: tuple[Outage, ...] = ()
    seed: int = 1
    lanes: int = LANES_DEFAULT
    window: int | None = None
    max_hops: int | None = None
    worker_names: tuple[str, ...] = ()
    servers: int = 1
    server_names: tuple[str, ...] = ()
    collective: Collective = Collective.ALL_REDUCE
    planner: str = DEFAULT_PLANNER
    planner_options: Mapping[str, str] = field(default_factory=dict, hash=False)
    form: FormOptions = DEFAULT_FORM
    packet_io: PacketIo = PacketIo.FAST
    train: str | None = None
    coordinate: bool = True
    coordination: Coordination = Coordination.AUTO
    coordination_limits: TreeLimits = DEFAULT_LIMITS
    integrity: bool = False
    limit: float = 600.0

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_algorithm()
        self._check_training()
        self._check_world()

    def _check_numbers(self) -> None:
        for name, least, most in (
            ("workers", 0, MOST_WORKERS),
            ("elements", 0, MOST_ELEMENTS),
            ("rounds", 1, MOST_TENSORS),
            ("servers", 0, MOST_WORKERS),
            ("seed", 0, MOST_SEED),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ExperimentError(f"{name} {value}: expected {least} to {most}")
        for role, count, names in (
            ("workers", self.workers, self.worker_names),
            ("servers", self.servers, self.server_names),
        ):
            if names and (len(names) != count or len(set(names)) != count):
                raise ExperimentError(
                    f"{role} {', '.join(names)}: expected {count} different hosts"
                )
        if not 0 < self.limit < inf:
            raise ExperimentError(f"limit {self.limit}: expected seconds, above 0 and finite")
        if not 0 <= self.loss < 1:
            raise ExperimentError(f"loss {self.loss}: expected a probability from 0 to below 1")
        if self.window is not None and (fault := window_fault(self.window)):
            raise ExperimentError(fault)
        try:
            check_lanes(self.lanes)
        except LayoutError as error:
            raise ExperimentError(str(error)) from None

    def _check_algorithm(self) -> None:
        find_planner(self.planner)
        own = {Algorithm.EMBEDDING: (EMBEDDING,), Algorithm.MULTI_TREE: HOST_PLANNERS}
        alone = self.algorithm in own or self.algorithm.among_hosts
        if alone and self.planner not in (DEFAULT_PLANNER, *own.get(self.algorithm, ())):
            raise ExperimentError(
                f"algorithm {self.algorithm} with planner {self.planner}, which would not be used; "
                "omit the planner or the algorithm"
            )
        if self.collective is not Collective.ALL_REDUCE and (
            self.servers
            or self.planner != DEFAULT_PLANNER
            or self.algorithm not in (Algorithm.IN_NETWORK, Algorithm.SERVER)
        ):
            raise ExperimentError(
                f"collective {self.collective}: takes a tree for each worker, with its root there; "
                "use --servers 0, and algorithm in-network or server without --planner"
            )
        by_hosts = self.algorithm.among_hosts or EMBEDDING in (self.algorithm, self.planner)
        check_wire_bits(self.dtype, self.wire_bits)
        if by_hosts and is_for_trees(self.dtype, self.wire_bits):
            values = f"{self.wire_bits} bits of" if self.wire_bits else "dtype"
            raise ExperimentError(
                f"{values} {self.dtype} with algorithm {self.algorithm}: only switches and servers "
                "can sum that; use algorithm in-network or server, or float32 or int32 as they are"
            )
        if self.form != DEFAULT_FORM and self.algorithm is not Algorithm.LEVEL_WISE:
            raise ExperimentError(
                f"level-wise-form and siblings with algorithm {self.algorithm}: options of "
                "level-wise; use --algorithm level-wise, or omit them"
            )
        if self.integrity and self.algorithm.among_hosts:
            raise ExperimentError(
                f"integrity with algorithm {self.algorithm}: integrity protects sums of switches "
                "and servers, and here hosts sum among themselves over TCP; omit one of the two"
            )

    def _check_training(self) -> None:
        if self.train not in (None, "digits"):
            raise ExperimentError(f"train {self.train!r}: expected `digits`")
        if self.train and self.collective is not Collective.ALL_REDUCE:
            raise ExperimentError(
                f"train with collective {self.collective}: gradients are summed for all; omit one"
            )
        if self.train and self.dtype is not DataType.FLOAT32:
            raise ExperimentError("train: gradients are float32; omit --dtype")
        if self.train:
            require("sklearn", f"train {self.train}")

    def _check_world(self) -> None:
        if self.outages and self.world is not WorldKind.SIMULATION:
            raise ExperimentError(
                "outage: available in virtual time only; omit --world, or kill a switch process of "
                "`hopsum cluster`"
            )
        if self.engine is Engine.BMV2 and self.world is WorldKind.SIMULATION:
            raise ExperimentError(
                "engine bmv2: BMv2 runs in real time only; use --world mininet, or the embedded "
                "engine in simulation"
            )
        if self.packet_io is PacketIo.SCAPY and self.world is WorldKind.SIMULATION:
            raise ExperimentError("packet-io scapy: the simulator has no sockets; use mininet")
        if self.packet_io is PacketIo.SCAPY:
            require("hopsum_scapy", "packet-io scapy")

    @property
    def coordinated(self) -> bool:
        """Whether the workers agree on an order."""
        return self.coordinate and self.train is not None

    @property
    def resolved(self) -> Experiment:
        """The experiment with all defaults resolved."""
        results = self.results or (
            Results.UNICAST if self.algorithm is Algorithm.SERVER else Results.REPLICATED
        )
        return replace(self, results=results)
