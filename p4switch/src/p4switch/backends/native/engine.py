"""The engine that runs a program as native code."""

from __future__ import annotations

import ctypes
import logging
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

from p4switch.backends.native.build import build, read_layout
from p4switch.backends.native.layout import Layout, RecordLayout, pack_words
from p4switch.backends.native.library import BatchResult, Library
from p4switch.backends.native.own_externs import CFile
from p4switch.backends.native.types import scalar_width
from p4switch.ir import ActionChoice, ExternInstance, Program
from p4switch.targets.psa.ports import engine_port
from p4switch.targets.v1model.engine import (
    CloneSession,
    CounterValue,
    Digest,
    EngineOptions,
    EngineStatistics,
    KeyMatch,
    MeterConfig,
    Packet,
    Replica,
    TableEntry,
)
from p4switch.targets.v1model.hashes import CrcConfig
from p4switch.targets.v1model.matches import ternary_form
from p4switch.targets.v1model.replication_state import LARGEST_PORT
from p4switch.targets.v1model.state import ControlState

log = logging.getLogger(__name__)

ENTRY_ACTION, ENTRY_MEMBER, ENTRY_GROUP = range(3)
"""tables.h"""


NO_CPU_PORT = 0xFFFFFFFF
LARGEST_BUDGET = (1 << 32) - 1
PRIORITIES = 8
"""switch.h"""


def c_file(options: EngineOptions | None) -> CFile | None:
    """Return the externs in C that options name, if any. Raises ExternError."""
    if options is None or options.externs is None:
        return None
    return CFile.read(options.externs)


class Slots:
    """Small numbers for objects that the control plane knows by other ids."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._free: list[int] = []

    def take(self, number: int) -> int:
        """Return the slot of an id, a new one if it has none."""
        if number not in self._slots:
            self._slots[number] = self._free.pop() if self._free else len(self._slots)
        return self._slots[number]

    def release(self, number: int) -> None:
        """Give the slot of an id back."""
        self._free.append(self._slots.pop(number))

    def __getitem__(self, number: int) -> int:
        return self._slots[number]


class NativeEngine(ControlState):
    """An `Engine` in C. NoCompilerError without a C compiler, UnsupportedError from `generate`.

    `compiled`: the shared object from `build.load`, else the program is compiled (or found in
    the cache). `extra_flags` are passed to the compiler.
    """

    def __init__(
        self,
        program: Program,
        options: EngineOptions | None = None,
        *,
        compiled: Path | None = None,
        extra_flags: Sequence[str] = (),
    ) -> None:
        super().__init__(program, options)
        if compiled is None:
            compiled = build(program, extra_flags, c_file(self.options))
        self.path = compiled
        self.layout: Layout = read_layout(self.path)
        self.library = Library(self.path)
        self.switch = self.library.create(
            self.options.drop_port,
            NO_CPU_PORT if self.options.cpu_port is None else self.options.cpu_port,
            self.options.queue_depth,
            self.options.priority_queues,
            min(self.options.packet_budget, LARGEST_BUDGET),
            self.options.seed & (1 << 64) - 1,
        )
        if not self.switch:
            raise MemoryError("no memory for the switch")
        self._member_slots = [Slots() for _ in self.profile_states]
        self._group_slots = [Slots() for _ in self.profile_states]
        self._registers = {name: i for i, name in enumerate(self.layout.registers)}
        self._counters = {name: i for i, name in enumerate(self.layout.counters)}
        self._meters = {name: i for i, name in enumerate(self.layout.meters)}
        self.clock: Callable[[], int] | None = None
        """The packet loop's clock while it runs."""
        for index, calculation in enumerate(self.calculations):
            self._on_crc(index, calculation.default)
        for instance in program.externs:
            if instance.initial is not None:
                self._fill_register(instance, instance.initial)
        self._load_program()

    def close(self) -> None:
        """Free the switch; the engine cannot be used afterwards."""
        with self.lock:
            switch, self.switch = self.switch, None
            if switch:
                self.library.destroy(switch)

    def __del__(self) -> None:
        if getattr(self, "switch", None):
            self.close()

    # --- packets

    def functions(self) -> tuple[int, int, int] | None:
        """Return the addresses of the switch, `p4_process` and `p4_set_waiting`, for callers in C.

        None for a program with messages, which are logged after each batch.
        """
        if self.layout.messages or not self.switch:
            return None
        found = [self.library.process, self.library.set_waiting]
        process, set_waiting = [ctypes.cast(each, ctypes.c_void_p).value for each in found]
        return self.switch, process or 0, set_waiting or 0

    def process(self, packets: Sequence[Packet], now_us: int = 0) -> list[Packet]:
        """See `Engine`."""
        if not packets:
            return []
        ports = array("H", [port for port, _ in packets])
        lengths = array("I", [len(data) for _, data in packets])
        offsets = array("Q", accumulate(lengths, initial=0))
        data = b"".join([data for _, data in packets])
        with self.lock:
            return packets_of(
                self._process(
                    len(packets),
                    ports.buffer_info()[0],
                    offsets.buffer_info()[0],
                    lengths.buffer_info()[0],
                    data,
                    now_us,
                )
            )

    def _process(
        self, count: int, ports: int, offsets: int, lengths: int, data: int | bytes, now_us: int
    ) -> BatchResult:
        """Run a batch given by addresses; the result stays in the switch until the next one."""
        self.now_us = now_us
        result = BatchResult()
        failed = self.library.process(
            self.switch,
            count,
            ports,
            offsets,
            lengths,
            data,
            now_us,
            log.isEnabledFor(logging.INFO),
            ctypes.byref(result),
        )
        if failed:
            raise MemoryError("no memory for a batch of packets")
        self.log_messages()
        return result

    def set_waiting(self, port: int, packets: Sequence[int]) -> None:
        """See `Engine`."""
        self.library.set_waiting(self.switch, port, (ctypes.c_uint64 * PRIORITIES)(*packets))

    def _on_queue_depth(self, port: int, priority: int, depth: int) -> None:
        self.library.queue_depth(self.switch, port, priority, depth)

    def _on_queue_rate(self, port: int, priority: int, rate: int) -> None:
        self.library.queue_rate(self.switch, port, priority, rate)

    def _on_crc(self, index: int, config: CrcConfig) -> None:
        self.library.set_crc(
            self.switch,
            index,
            config.width,
            config.polynomial,
            config.initial,
            config.final_xor,
            config.reflect_data,
            config.reflect_remainder,
        )

    def interrupt(self) -> None:
        """See `Engine`."""
        if self.switch:
            self.library.interrupt(self.switch)

    def take_digests(self) -> list[Digest]:
        """See `Engine`."""
        with self.lock:
            records = self._records(self.library.take_digests, self.layout.digests)
            return [Digest(layout.name, values) for layout, values in records]

    def log_messages(self) -> None:
        """Log messages of `log_msg` and failed assertions since the last call."""
        if not self.layout.messages:
            return
        for layout, values in self._records(self.library.take_messages, self.layout.messages):
            if layout.name == "log_msg":
                log.info("%s", fill_in(layout.text, values))
            else:
                log.error("%s: %s failed", layout.position, layout.name)

    def _records(
        self, take: ctypes._NamedFuncPointer, layouts: list[RecordLayout]
    ) -> list[tuple[RecordLayout, tuple[int, ...]]]:
        count = take(self.switch, None, 0)
        room = 0
        words = (ctypes.c_uint64 * room)()
        while count > room:  # A packet loop may add records between these calls.
            room = count
            words = (ctypes.c_uint64 * room)()
            count = take(self.switch, words, room)
        found = []
        at = 0
        while at < count:
            size, identity = words[at], words[at + 1]
            layout = layouts[identity]
            found.append((layout, layout.values(words[at + 2 : at + 2 + size])))
            at += 2 + size
        return found

    def statistics(self) -> EngineStatistics:
        """See `Engine`."""
        values = (ctypes.c_uint64 * 5)()
        with self.lock:
            self.library.statistics(self.switch, values)
        names = ("failed_assertions", "lost_digests", "over_budget")
        extra = {name: value for name, value in zip(names, values[2:], strict=True) if value}
        return EngineStatistics(values[0], values[1], extra)

    # --- hooks of ControlState

    def _action(self, table: int, entry: TableEntry) -> tuple[int, int, int, bytes]:
        """Return kind, reference, action and argument words of an entry."""
        layout = self.layout.tables[table]
        if entry.action is not None:
            words = layout.pack_arguments(entry.action)
            return ENTRY_ACTION, 0, entry.action.index, words
        implementation = self.program.tables[table].implementation
        assert implementation is not None
        profile = self._profile_index[implementation.name]
        nothing = pack_words(0, layout.argument_words)
        if entry.member is not None:
            return ENTRY_MEMBER, self._member_slots[profile][entry.member], 0, nothing
        assert entry.group is not None
        return ENTRY_GROUP, self._group_slots[profile][entry.group], 0, nothing

    def _on_insert(self, table: int, handle: int, entry: TableEntry) -> None:
        values, masks = self.layout.tables[table].pack(entry)
        failed = self.library.table_insert(
            self.switch,
            table,
            handle,
            values,
            masks,
            min(entry.priority, 0xFFFFFFFF),
            *self._action(table, entry),
            self.now_us if self.clock is None else self.clock(),
        )
        _check(failed)

    def _on_modify(self, table: int, handle: int, entry: TableEntry) -> None:
        self.library.table_modify(self.switch, table, handle, *self._action(table, entry))

    def _on_delete(self, table: int, handle: int, entry: TableEntry) -> None:
        self.library.table_delete(self.switch, table, handle)

    def _on_default(self, table: int, choice: ActionChoice) -> None:
        words = self.layout.tables[table].pack_arguments(choice)
        self.library.table_default(self.switch, table, choice.index, words)

    def _on_member(self, profile: int, member: int, choice: ActionChoice | None) -> None:
        slots = self._member_slots[profile]
        if choice is None:
            slots.release(member)
            return
        users = self.profile_states[profile].tables
        layouts = [self.layout.tables[table] for table in users]
        words = max((layout.pack_arguments(choice) for layout in layouts), key=len, default=b"")
        _check(
            self.library.profile_member(
                self.switch, profile, slots.take(member), choice.index, words
            )
        )

    def _on_group(self, profile: int, group: int, members: tuple[int, ...] | None) -> None:
        slots = self._group_slots[profile]
        if members is None:
            slots.release(group)
            return
        places = [self._member_slots[profile][member] for member in members]
        _check(
            self.library.profile_group(
                self.switch,
                profile,
                slots.take(group),
                len(places),
                (ctypes.c_uint32 * len(places))(*places),
            )
        )

    def _pairs(
        self, replicas: Sequence[Replica] | None
    ) -> tuple[int, ctypes.Array[ctypes.c_uint16] | None]:
        """Return ports and instances of the replicas, without those for a CPU port that is not."""
        if replicas is None:
            return 0, None
        flat: list[int] = []
        for replica in replicas:
            port = replica.port
            if port > LARGEST_PORT:  # PSA's ports with names.
                known = engine_port(port, self.options)
                if known is None:
                    continue
                port = known
            flat += (port, replica.instance)
        return len(flat) // 2, (ctypes.c_uint16 * max(len(flat), 1))(*flat)

    def _on_multicast_group(self, group: int, replicas: tuple[Replica, ...] | None) -> None:
        count, pairs = self._pairs(replicas)
        _check(self.library.group(self.switch, group, count, pairs))

    def _on_clone_session(self, session: int, value: CloneSession | None) -> None:
        count, pairs = self._pairs(None if value is None else value.replicas)
        length, service = (0, 0) if value is None else (value.length, value.class_of_service)
        _check(self.library.session(self.switch, session, count, pairs, length, service))

    def _on_value_set(self, index: int, members: tuple[tuple[KeyMatch, ...], ...]) -> None:
        rows = array("Q")
        for member in members:
            rows.extend(self._value_set_row(index, member))
        _check(self.library.value_set(self.switch, index, len(members), rows.tobytes()))

    def _value_set_row(self, index: int, member: tuple[KeyMatch, ...]) -> list[int]:
        """Return low, high, value and mask of each word (actions.h, value_set_has)."""
        row: list[int] = []
        for part in self.layout.value_sets[index]:
            match = member[part.place]
            full = (1 << part.width) - 1
            low, high, value, mask = 0, full, 0, 0
            if part.match_kind == "range" and not match.any:
                low, high = match.value, match.high
            else:
                value, mask = ternary_form(match, part.match_kind, part.width)
            for shift in range(0, max(part.width, 1), 64):
                if part.width > 64:
                    low, high = 0, (1 << 64 * (shift // 64 + 1)) - 1
                row += [x >> shift & (1 << 64) - 1 for x in (low, high, value, mask)]
        return row

    def _read_register(self, instance: ExternInstance, index: int) -> int:
        number = self._registers[instance.name]
        size = self.library.register_bytes(number)
        cell = ctypes.create_string_buffer(size)
        self.library.register_read(self.switch, number, index, 1, cell)
        return int.from_bytes(cell.raw, "little")

    def _write_register(self, instance: ExternInstance, index: int, value: int) -> None:
        number = self._registers[instance.name]
        size = self.library.register_bytes(number)
        self.library.register_write(self.switch, number, index, value.to_bytes(size, "little"))

    def _fill_register(self, instance: ExternInstance, value: int) -> None:
        """Set all cells to a value, which may be negative."""
        number = self._registers[instance.name]
        bits = value & (1 << scalar_width(instance.type_arguments[0])) - 1
        size = self.library.register_bytes(number)
        self.library.register_fill(self.switch, number, bits.to_bytes(size, "little"))

    def _read_counter(self, instance: ExternInstance, index: int) -> CounterValue:
        values = (ctypes.c_uint64 * 2)()
        self.library.counter_read(self.switch, self._counters[instance.name], index, values)
        return CounterValue(*values)

    def _write_counter(self, instance: ExternInstance, index: int, value: CounterValue) -> None:
        number = self._counters[instance.name]
        self.library.counter_write(self.switch, number, index, value.packets, value.bytes)

    def _entry(self, table: int, handle: int) -> list[int]:
        values = (ctypes.c_uint64 * 3)()
        self.library.entry_read(self.switch, table, handle, values)
        return list(values)

    def _read_direct_counter(self, table: int, handle: int) -> CounterValue:
        return CounterValue(*self._entry(table, handle)[:2])

    def _write_direct_counter(self, table: int, handle: int, value: CounterValue) -> None:
        self.library.entry_count(self.switch, table, handle, value.packets, value.bytes)

    def _set_meter(self, instance: ExternInstance, index: int, config: MeterConfig | None) -> None:
        self.library.meter(self.switch, self._meters[instance.name], index, _rates(config))

    def _set_direct_meter(self, table: int, handle: int, config: MeterConfig | None) -> None:
        self.library.entry_meter(self.switch, table, handle, _rates(config))

    def _last_hit_us(self, table: int, handle: int) -> int:
        return self._entry(table, handle)[2]


def fill_in(text: str, values: Sequence[int]) -> str:
    """Return a message with its values in place of each `{}`."""
    pieces = text.split("{}")
    filled = [str(value) for value in values] + ["{}"] * len(pieces)
    return "".join(map("".join, zip(pieces, [*filled[: len(pieces) - 1], ""], strict=True)))


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for a control-plane request")


def _rates(config: MeterConfig | None) -> ctypes.Array[ctypes.c_int64] | None:
    if config is None:
        return None
    return (ctypes.c_int64 * 4)(config.cir, config.cburst, config.pir, config.pburst)


def packets_of(result: BatchResult) -> list[Packet]:
    """Return a copy of frames in the switch's memory as single packets."""
    count = result.count
    if not count:
        return []
    ports = (ctypes.c_uint16 * count).from_address(result.ports)
    offsets = (ctypes.c_uint64 * count).from_address(result.offsets)
    lengths = (ctypes.c_uint32 * count).from_address(result.lengths)
    start = result.data or 0  # The address is null if all frames are empty.
    return [(ports[i], ctypes.string_at(start + offsets[i], lengths[i])) for i in range(count)]
