"""The control-plane half of an engine: installed state, with checks common to all executors.

`ControlState` keeps tables, action profiles, multicast groups, clone sessions and value sets, and
refuses illegal requests. An executor derives from it, implements the data plane and the `_on_...`
hooks (called with the lock held, after the check and before the change is recorded; a hook that
raises leaves the state unchanged), and calls `_load_program` when it is ready for the program's own
entries. Its layers: replication_state, table_state and, here, the cells of registers, counters and
meters, and the value sets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache

from p4switch.ir import (
    ExternInstance,
    Header,
    Program,
    Stack,
    Struct,
    Type,
    Union,
    ValueSet,
)
from p4switch.position import UnsupportedError
from p4switch.targets.v1model.calculations import custom_calculations
from p4switch.targets.v1model.engine import (
    ControlError,
    CounterValue,
    EngineOptions,
    KeyMatch,
    MeterConfig,
    TableEntry,
)
from p4switch.targets.v1model.hashes import CrcConfig
from p4switch.targets.v1model.matches import canonical_match, scalar_width
from p4switch.targets.v1model.replication_state import LARGEST_PORT
from p4switch.targets.v1model.table_state import PROFILE_EXTERNS, EntryKey, TablesState

LARGEST_ARRAY = 1 << 30
"""Maximum bytes of one register, counter or meter."""
LARGEST_QUEUE_NUMBER = (1 << 32) - 1
CELL_BYTES = 16
"""Minimum bytes of a cell of a counter or meter."""

_calculations = lru_cache(maxsize=4)(custom_calculations)
"""The switches of one process share them."""

__all__ = ["PROFILE_EXTERNS", "ControlState", "EntryKey", "value_set_widths"]


class ControlState(TablesState):
    """State and checks of the control plane; see the module's docstring for how to derive."""

    def __init__(self, program: Program, options: EngineOptions | None = None) -> None:
        super().__init__(program, options)
        for instance in program.externs:
            _check_size(instance)
        self.value_set_members: list[tuple[tuple[KeyMatch, ...], ...]] = [
            () for _ in program.value_sets
        ]
        self._extern_by_name = {instance.name: instance for instance in program.externs}
        self._meter_configs: dict[tuple[str, int], MeterConfig] = {}
        self._direct_meter_configs: dict[tuple[int, int], MeterConfig] = {}
        self.calculations = _calculations(program)

    @abstractmethod
    def _on_value_set(self, index: int, members: tuple[tuple[KeyMatch, ...], ...]) -> None:
        """React to new members of a parser value set."""

    @abstractmethod
    def _on_queue_depth(self, port: int, priority: int, depth: int) -> None:
        """React to a new depth of an egress queue."""

    @abstractmethod
    def _on_queue_rate(self, port: int, priority: int, rate: int) -> None:
        """React to a new rate of an egress queue."""

    @abstractmethod
    def _on_crc(self, index: int, config: CrcConfig) -> None:
        """React to new parameters of `calculations[index]`."""

    # --- hooks: cells that live in the derived class. Names and indices are checked.

    @abstractmethod
    def _read_register(self, instance: ExternInstance, index: int) -> int: ...

    @abstractmethod
    def _write_register(self, instance: ExternInstance, index: int, value: int) -> None: ...

    @abstractmethod
    def _read_counter(self, instance: ExternInstance, index: int) -> CounterValue: ...

    @abstractmethod
    def _write_counter(self, instance: ExternInstance, index: int, value: CounterValue) -> None: ...

    @abstractmethod
    def _read_direct_counter(self, table: int, handle: int) -> CounterValue: ...

    @abstractmethod
    def _write_direct_counter(self, table: int, handle: int, value: CounterValue) -> None: ...

    @abstractmethod
    def _set_meter(
        self, instance: ExternInstance, index: int, config: MeterConfig | None
    ) -> None: ...

    @abstractmethod
    def _set_direct_meter(self, table: int, handle: int, config: MeterConfig | None) -> None: ...

    def _on_forget(self, table: int, handle: int) -> None:
        self._direct_meter_configs.pop((table, handle), None)

    # --- cells

    def _cell(self, name: str, extern: str, index: int) -> ExternInstance:
        """Return the instance of an extern after checking that `index` is inside it."""
        instance = self._extern_by_name.get(name)
        if instance is None or instance.extern != extern:
            raise ControlError("NOT_FOUND", f"no {extern} {name!r} in the program")
        size = instance.number(0)
        if not 0 <= index < size:
            raise ControlError(
                "OUT_OF_RANGE", f"{extern} {name!r} has {size} cells, there is no cell {index}"
            )
        return instance

    def _register(self, name: str, index: int) -> ExternInstance:
        """Return the register that has a cell; ControlError if it holds no numbers."""
        instance = self._cell(name, "register", index)
        kind = instance.type_arguments[0]
        if isinstance(kind, Struct | Header | Union | Stack):
            raise ControlError(
                "UNIMPLEMENTED",
                f"register {name!r} holds values with fields: the control plane reads and writes "
                "registers of bit<>, int<> and bool only",
            )
        return instance

    def read_register(self, name: str, index: int) -> int:
        """See `Engine`."""
        with self.lock:
            return self._read_register(self._register(name, index), index)

    def write_register(self, name: str, index: int, value: int) -> None:
        """See `Engine`."""
        with self.lock:
            instance = self._register(name, index)
            width = scalar_width(instance.type_arguments[0])
            if not 0 <= value < 1 << width:
                raise ControlError(
                    "INVALID_ARGUMENT",
                    f"register {name!r}: {value:#x} does not fit in {width} bits",
                )
            self._write_register(instance, index, value)

    def read_counter(self, name: str, index: int) -> CounterValue:
        """See `Engine`."""
        with self.lock:
            return self._read_counter(self._cell(name, "counter", index), index)

    def write_counter(self, name: str, index: int, value: CounterValue) -> None:
        """See `Engine`."""
        with self.lock:
            self._write_counter(self._cell(name, "counter", index), index, value)

    def read_direct_counter(self, table: str, entry: TableEntry) -> CounterValue:
        """See `Engine`."""
        with self.lock:
            index, handle = self._direct(table, entry, "counter")
            return self._read_direct_counter(index, handle)

    def write_direct_counter(self, table: str, entry: TableEntry, value: CounterValue) -> None:
        """See `Engine`."""
        with self.lock:
            index, handle = self._direct(table, entry, "counter")
            self._write_direct_counter(index, handle, value)

    def set_meter(self, name: str, index: int, config: MeterConfig | None) -> None:
        """See `Engine`."""
        with self.lock:
            instance = self._cell(name, "meter", index)
            check_meter(f"meter {name!r}", config)
            self._set_meter(instance, index, config)
            if config is None:
                self._meter_configs.pop((name, index), None)
            else:
                self._meter_configs[name, index] = config

    def meter(self, name: str, index: int) -> MeterConfig | None:
        """See `Engine`."""
        with self.lock:
            self._cell(name, "meter", index)
            return self._meter_configs.get((name, index))

    def set_direct_meter(self, table: str, entry: TableEntry, config: MeterConfig | None) -> None:
        """See `Engine`."""
        with self.lock:
            place = self._direct(table, entry, "meter")
            check_meter(f"meter of table {table!r}", config)
            self._set_direct_meter(*place, config)
            if config is None:
                self._direct_meter_configs.pop(place, None)
            else:
                self._direct_meter_configs[place] = config

    def direct_meter(self, table: str, entry: TableEntry) -> MeterConfig | None:
        """See `Engine`."""
        with self.lock:
            return self._direct_meter_configs.get(self._direct(table, entry, "meter"))

    def _direct(self, table: str, entry: TableEntry, what: str) -> tuple[int, int]:
        """Return table index and entry handle, for a table with a direct `what`."""
        index, state = self._table_state(table)
        if not (state.table.counters if what == "counter" else state.table.meters):
            raise ControlError("INVALID_ARGUMENT", f"table {table!r} has no direct {what}")
        return index, state.stored(entry).handle

    def value_set(self, name: str) -> tuple[tuple[KeyMatch, ...], ...]:
        """See `Engine`."""
        with self.lock:
            return self.value_set_members[self._value_set_index(name)]

    def set_value_set(self, name: str, members: Sequence[tuple[KeyMatch, ...]]) -> None:
        """See `Engine`. More members than its size: RESOURCE_EXHAUSTED."""
        with self.lock:
            index = self._value_set_index(name)
            value_set = self.program.value_sets[index]
            if len(members) > value_set.size:
                raise ControlError(
                    "RESOURCE_EXHAUSTED",
                    f"value set {name!r} holds {value_set.size} members, not {len(members)}",
                )
            widths = value_set_widths(value_set)
            checked = tuple(_checked_member(value_set, widths, member) for member in members)
            self._on_value_set(index, checked)
            self.value_set_members[index] = checked

    def _value_set_index(self, name: str) -> int:
        for index, value_set in enumerate(self.program.value_sets):
            if value_set.name == name:
                return index
        raise ControlError("NOT_FOUND", f"no parser value set {name!r} in the program")

    # --- queues and hashes

    def set_queue_depth(
        self, depth: int, port: int | None = None, priority: int | None = None
    ) -> None:
        """See `Engine`."""
        with self.lock:
            for place in self._queues(port, priority, depth):
                self._on_queue_depth(*place, depth)

    def set_queue_rate(
        self, rate: int, port: int | None = None, priority: int | None = None
    ) -> None:
        """See `Engine`."""
        with self.lock:
            for place in self._queues(port, priority, rate):
                self._on_queue_rate(*place, rate)

    def set_crc(self, calculation: str, config: CrcConfig) -> None:
        """See `Engine`."""
        with self.lock:
            for index, each in enumerate(self.calculations):
                if each.name == calculation:
                    if each.default.width != config.width:
                        raise ControlError(
                            "INVALID_ARGUMENT", f"{calculation!r} has {each.default.width} bits"
                        )
                    self._on_crc(index, config)
                    return
        raise ControlError("NOT_FOUND", f"no custom CRC {calculation!r} in the program")

    def _queues(self, port: int | None, priority: int | None, number: int) -> list[tuple[int, int]]:
        """Return port and priority of the queues that a request names."""
        priorities = self.options.priority_queues
        if not 0 <= number <= LARGEST_QUEUE_NUMBER:
            raise ControlError("INVALID_ARGUMENT", f"{number} is not in 0..{LARGEST_QUEUE_NUMBER}")
        if port is not None and not 0 <= port <= LARGEST_PORT:
            raise ControlError("INVALID_ARGUMENT", f"port {port} is not in 0..{LARGEST_PORT}")
        if priority is not None and not 0 <= priority < priorities:
            raise ControlError("INVALID_ARGUMENT", f"priority {priority}: there are {priorities}")
        return [
            (each, queue)
            for each in (range(LARGEST_PORT + 1) if port is None else (port,))
            for queue in (range(priorities) if priority is None else (priority,))
        ]


def _check_size(instance: ExternInstance) -> None:
    """Raise UnsupportedError for a register, counter or meter that takes too much memory."""
    if instance.extern not in ("register", "counter", "meter"):
        return
    cells = instance.number(0)
    size = CELL_BYTES
    if instance.extern == "register":
        size = max(1, (_bits(instance.type_arguments[0]) + 7) // 8)
    if cells * size > LARGEST_ARRAY:
        raise UnsupportedError(
            instance.position,
            f"{instance.extern} {instance.name!r} has {cells} cells of {size} bytes; an array "
            f"may take at most {LARGEST_ARRAY} bytes",
        )


def _bits(kind: Type) -> int:
    if isinstance(kind, Struct | Header | Union):
        return sum(_bits(member.type) for member in kind.fields)
    if isinstance(kind, Stack):
        return kind.size * _bits(kind.element)
    return scalar_width(kind)


def value_set_widths(value_set: ValueSet) -> tuple[int, ...]:
    """Return the widths in bits of the values of a member."""
    fields = getattr(value_set.type, "fields", None)
    if fields is None:
        return (scalar_width(value_set.type),)
    return tuple(scalar_width(f.type) for f in fields)


def _checked_member(
    value_set: ValueSet, widths: tuple[int, ...], member: Sequence[KeyMatch]
) -> tuple[KeyMatch, ...]:
    if len(member) != len(widths):
        raise ControlError(
            "INVALID_ARGUMENT",
            f"a member of value set {value_set.name!r} has {len(widths)} values, not {len(member)}",
        )
    where = f"value set {value_set.name!r}"
    return tuple(
        canonical_match(match, kind, width, where)
        for match, kind, width in zip(member, value_set.match_kinds, widths, strict=True)
    )


def check_meter(where: str, config: MeterConfig | None) -> None:
    """Raise INVALID_ARGUMENT for a meter's configuration that no meter can have."""
    if config is None:
        return
    if min(config.cir, config.cburst, config.pir, config.pburst) < 0:
        raise ControlError("INVALID_ARGUMENT", f"{where}: rates and bursts must not be negative")
    if config.cir > config.pir:
        raise ControlError(
            "INVALID_ARGUMENT",
            f"{where}: the committed rate {config.cir} exceeds the peak rate {config.pir}",
        )
