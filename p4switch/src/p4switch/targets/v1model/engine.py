"""Interface of an executor of a v1model program: packets in and out, and control-plane state.

The P4Runtime server, the STF runner, the simulator and the tests use executors only through
`Engine`. There are two: `backends.reference.interpreter.Interpreter` and
`backends.native.engine.NativeEngine`. The semantics are those of BMv2's docs/simple_switch.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from p4switch.ir import ActionChoice, ExternInstance, Program, Table
from p4switch.targets.v1model.hashes import CrcConfig

Packet = tuple[int, bytes]
"""A port number (9 bits) and a frame."""


class KeyMatch(NamedTuple):
    """An entry's match on one key.

    exact: `value`. lpm: `value` and `prefix_length`. ternary: `value` and `mask`. range: `value`
    (low) and `high`. optional: `value`, or `any`. A don't-care lpm, ternary, range or
    optional key has `any` True.
    """

    value: int = 0
    mask: int = 0
    prefix_length: int = 0
    high: int = 0
    any: bool = False


class TableEntry(NamedTuple):
    """An entry: a match per key in the table's order, an action with its data, a priority.

    Keys of kind `selector` have no match.

    `priority`: larger wins, as in P4Runtime; 0 if the table has none.
    `member` or `group`: action profile member or group id instead of an action.
    """

    matches: tuple[KeyMatch, ...]
    action: ActionChoice | None
    priority: int = 0
    member: int | None = None
    group: int | None = None
    constant: bool = False
    idle_timeout_ns: int = 0


@dataclass(frozen=True, slots=True)
class Replica:
    """A copy made by the replication engine: to `port`, with `instance` as egress_rid."""

    port: int
    instance: int = 0


@dataclass(frozen=True, slots=True)
class CloneSession:
    """A clone (mirror) session. `length` truncates the copies to this many bytes; 0: no limit.

    `class_of_service`, of PSA only, chooses the queue.
    """

    replicas: tuple[Replica, ...]
    length: int = 0
    class_of_service: int = 0


@dataclass(frozen=True, slots=True)
class MeterConfig:
    """A two-rate three-colour meter: rates in bytes or packets per second, bursts in these."""

    cir: int
    cburst: int
    pir: int
    pburst: int


@dataclass(frozen=True, slots=True)
class CounterValue:
    """Packets and bytes counted."""

    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest message: the type's name and its field values in order."""

    name: str
    values: tuple[int, ...]


class ExternError(Exception):
    """A file of externs, or the result of one, is invalid; the message names the place."""


class ControlError(Exception):
    """A control-plane request cannot be met.

    `code` is the name of the gRPC status code, e.g. `NOT_FOUND`, `ALREADY_EXISTS`,
    `INVALID_ARGUMENT`, `PERMISSION_DENIED`, `OUT_OF_RANGE`, `RESOURCE_EXHAUSTED`.
    """

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass(slots=True)
class EngineOptions:
    """Options of an engine.

    `queue_depth`: packets that an egress queue (a port and priority) holds; further ones are
    dropped. BMv2's 64 are too few for a burst of a hundred sums that a batch can complete for one
    port.

    `packet_budget`: steps that a received packet may take, including its copies, resubmissions and
    recirculations; what remains of it then is dropped and counted. A step is a pass through ingress
    or egress, a copy, an iteration of a loop, or a state of a parser with loops. Steps are not
    counted in programs without `for`, clone, resubmit and recirculate, which always terminate.
    """

    drop_port: int = 511
    cpu_port: int | None = None
    queue_depth: int = 1024
    priority_queues: int = 8
    packet_budget: int = 1 << 17
    send_buffer: int = 1 << 18
    """Bytes that the kernel may hold for a port: some hundred frames. Beyond them the egress queues
    fill. Where the interface's own queues have priorities, it must be more than those may hold: a
    frame that goes before them is of no use while it waits for room."""
    packet_threads: int = 1
    """Threads of the native packet loop, each with ports of its own, assigned in turn."""
    receive_ring: int | None = None
    """Frames that may wait in each port's receive ring, 2 KiB of memory each; None: as many as
    `packet_io.receive_ring.default_frames` says; 0: no rings, the native packet loop receives by
    system calls."""
    seed: int = 0
    """Seed of `random()`."""
    externs: Path | None = None
    """File with externs of the program's own: in Python for the interpreter, in C (FILE.c) for the
    native executor.
    """


@dataclass(slots=True)
class EngineStatistics:
    """Statistics of the engine, in addition to the program's own counters.

    `extra`, without zeros: `over_budget` (packets and copies dropped for lack of steps, see
    `EngineOptions`), `failed_assertions`, `lost_digests`.
    """

    queue_drops: int = 0
    parser_errors: int = 0
    extra: dict[str, int] = field(default_factory=dict)


class Engine(ABC):
    """A v1model program with its state: tables, registers, counters, replication.

    Calls may come from any thread; an engine locks itself, so that control-plane writes are
    atomic with respect to batches of packets.
    """

    program: Program
    options: EngineOptions
    now_us: int
    """The latest known clock; settable, for entries that are added while there are no packets."""

    # --- packets

    @abstractmethod
    def process(self, packets: Sequence[Packet], now_us: int = 0) -> list[Packet]:
        """Process packets; return those that leave, in order per port.

        The batch goes through ingress first and then, queue by queue, through egress.
        `now_us`: the clock for ingress_global_timestamp and meters, microseconds.
        """

    @abstractmethod
    def set_waiting(self, port: int, packets: Sequence[int]) -> None:
        """Set how many packets of each priority wait beyond a port's queues, in its interface.

        `enq_qdepth` counts those that leave before a packet. A packet loop determines it by itself.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Drop the packets in process and all later ones immediately; does not wait."""

    @abstractmethod
    def take_digests(self) -> list[Digest]:
        """Return the digests generated since the last call."""

    # --- tables. `table` is a fully qualified name; ControlError if a request fails.

    @abstractmethod
    def insert_entry(self, table: str, entry: TableEntry) -> None:
        """Add an entry; ALREADY_EXISTS if there is one with these matches and priority."""

    @abstractmethod
    def modify_entry(self, table: str, entry: TableEntry) -> None:
        """Change the action of an entry; NOT_FOUND if there is none."""

    @abstractmethod
    def delete_entry(self, table: str, entry: TableEntry) -> None:
        """Remove the entry with these matches and priority; NOT_FOUND if there is none."""

    @abstractmethod
    def entries(self, table: str) -> list[TableEntry]:
        """Return all entries in order of insertion, those of the program first."""

    @abstractmethod
    def installed(
        self, table: str, matches: tuple[KeyMatch, ...], priority: int
    ) -> TableEntry | None:
        """Return the entry with these matches, in canonical form, and priority; None without."""

    @abstractmethod
    def set_default(self, table: str, action: ActionChoice | None) -> None:
        """Set the default action; None restores the program's."""

    @abstractmethod
    def default(self, table: str) -> ActionChoice:
        """Return the default action."""

    @abstractmethod
    def idle_entries(self, now_us: int) -> Iterator[tuple[str, TableEntry]]:
        """Return entries (with their tables) that matched no packet for their idle timeout."""

    @abstractmethod
    def last_hit_us(self, table: str, entry: TableEntry) -> int:
        """Return the clock when an entry last matched, or was inserted."""

    # --- action profiles

    @abstractmethod
    def set_member(self, profile: str, member: int, action: ActionChoice | None) -> None:
        """Create or change a member (the index is into the actions of the profile's tables).

        None removes it.
        """

    @abstractmethod
    def members(self, profile: str) -> dict[int, ActionChoice]:
        """Return all members."""

    @abstractmethod
    def set_group(self, profile: str, group: int, members: Sequence[int] | None) -> None:
        """Create or change a group; None removes it. A member listed n times has weight n."""

    @abstractmethod
    def groups(self, profile: str) -> dict[int, tuple[int, ...]]:
        """Return all groups."""

    # --- replication

    @abstractmethod
    def set_multicast_group(self, group: int, replicas: Sequence[Replica] | None) -> None:
        """Set or (None) remove a multicast group."""

    @abstractmethod
    def multicast_groups(self) -> dict[int, tuple[Replica, ...]]:
        """Return all multicast groups."""

    @abstractmethod
    def set_clone_session(self, session: int, value: CloneSession | None) -> None:
        """Set or (None) remove a clone session."""

    @abstractmethod
    def clone_sessions(self) -> dict[int, CloneSession]:
        """Return all clone sessions."""

    # --- registers, counters, meters, value sets; by instance name

    @abstractmethod
    def read_register(self, name: str, index: int) -> int:
        """Return a cell, unsigned."""

    @abstractmethod
    def write_register(self, name: str, index: int, value: int) -> None:
        """Set one cell."""

    @abstractmethod
    def read_counter(self, name: str, index: int) -> CounterValue:
        """Return a cell of an indirect counter."""

    @abstractmethod
    def write_counter(self, name: str, index: int, value: CounterValue) -> None:
        """Set one cell of an indirect counter."""

    @abstractmethod
    def read_direct_counter(self, table: str, entry: TableEntry) -> CounterValue:
        """Return the direct counter of an entry (of any counter of the table: they count alike)."""

    @abstractmethod
    def write_direct_counter(self, table: str, entry: TableEntry, value: CounterValue) -> None:
        """Set the direct counter of an entry."""

    @abstractmethod
    def set_meter(self, name: str, index: int, config: MeterConfig | None) -> None:
        """Configure a cell of an indirect meter; None: always green."""

    @abstractmethod
    def meter(self, name: str, index: int) -> MeterConfig | None:
        """Return the configuration of a cell."""

    @abstractmethod
    def set_direct_meter(self, table: str, entry: TableEntry, config: MeterConfig | None) -> None:
        """Configure the direct meter of an entry; None: always green."""

    @abstractmethod
    def direct_meter(self, table: str, entry: TableEntry) -> MeterConfig | None:
        """Return the configuration of an entry's direct meter."""

    @abstractmethod
    def set_value_set(self, name: str, members: Sequence[tuple[KeyMatch, ...]]) -> None:
        """Replace the members of a parser value set."""

    @abstractmethod
    def value_set(self, name: str) -> tuple[tuple[KeyMatch, ...], ...]:
        """Return the members of a parser value set."""

    # --- queues and hashes

    @abstractmethod
    def set_queue_depth(
        self, depth: int, port: int | None = None, priority: int | None = None
    ) -> None:
        """Set how many packets egress queues hold: of a port and priority, or of all."""

    @abstractmethod
    def set_queue_rate(
        self, rate: int, port: int | None = None, priority: int | None = None
    ) -> None:
        """Set how many packets leave egress queues in a second, 0: without limit.

        UNIMPLEMENTED where packets do not wait for a clock: in the interpreter. Batches of
        `process` know no rates either; a packet loop does.
        """

    @abstractmethod
    def set_crc(self, calculation: str, config: CrcConfig) -> None:
        """Set the parameters of a custom CRC (`calculations.custom_calculations`)."""

    @abstractmethod
    def statistics(self) -> EngineStatistics:
        """Return the engine's statistics."""

    # --- look-ups

    def table(self, name: str) -> Table:
        """Return the table of that fully qualified name."""
        for table in self.program.tables:
            if table.name == name:
                return table
        raise ControlError("NOT_FOUND", f"no table {name!r} in the program")

    def extern(self, name: str) -> ExternInstance:
        """Return the extern instance of that fully qualified name."""
        for instance in self.program.externs:
            if instance.name == name:
                return instance
        raise ControlError("NOT_FOUND", f"no extern instance {name!r} in the program")

    def table_names(self) -> Iterator[str]:
        """Return the names of all tables."""
        return (table.name for table in self.program.tables)
