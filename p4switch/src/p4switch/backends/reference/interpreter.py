"""The interpreter: the reference for a v1model program's behaviour, written to match P4's text.

`pipeline` takes packets through the program's `blocks`; `parsers`, `statements`, `expressions` and
`operators` define what each construct does, `tables` and `externs` what the architecture adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from p4switch import ir
from p4switch.backends.reference.blocks import ProgramBlocks
from p4switch.backends.reference.code import Code
from p4switch.backends.reference.coverage import Coverage, CoveringCode, CoveringTable
from p4switch.backends.reference.externs import Externs, bits_of
from p4switch.backends.reference.host import BoundExtern
from p4switch.backends.reference.pipeline import Pipeline
from p4switch.backends.reference.psa import PsaPipeline
from p4switch.backends.reference.tables import ProfileRuntime, TableRuntime
from p4switch.backends.reference.trace import (
    TracedPipeline,
    TracedPsaPipeline,
    TracedTable,
    TracedV1modelPipeline,
    Tracer,
)
from p4switch.backends.reference.tracing import TracingCode
from p4switch.backends.reference.v1model import V1modelPipeline
from p4switch.backends.reference.value_sets import ValueSetRuntime
from p4switch.backends.reference.values import from_bits
from p4switch.ir import ActionChoice, ExternInstance, Program
from p4switch.midend.call_graph import bodies, reachable
from p4switch.midend.cycles import multiplies
from p4switch.midend.visit import statements
from p4switch.nesting import deep_recursion
from p4switch.targets.v1model.engine import (
    CloneSession,
    ControlError,
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
from p4switch.targets.v1model.hashes import CrcConfig, make_crc, pack_bits
from p4switch.targets.v1model.state import ControlState, value_set_widths

_PIPELINES: dict[str, tuple[type[Pipeline], type[TracedPipeline]]] = {
    "v1model": (V1modelPipeline, TracedV1modelPipeline),
    "psa": (PsaPipeline, TracedPsaPipeline),
}

DEEP = 100
"""Depth of expressions above which Python's recursion limit is raised."""


class Interpreter(ControlState):
    """An `Engine` in plain Python."""

    def __init__(
        self,
        program: Program,
        options: EngineOptions | None = None,
        tracer: Tracer | None = None,
        coverage: Coverage | None = None,
    ) -> None:
        """Prepare the program.

        A `tracer` receives the events of packets, `coverage` the points they reach; not both.
        """
        super().__init__(program, options)
        self.tracer = tracer
        self._coverage = coverage
        self._externs = Externs(program, self.options)
        with deep_recursion():
            self._externs.counts_steps = multiplies(program)
            self._bound = {id(call): self._externs.bind(call) for call in _extern_calls(program)}
        self._profiles = [
            ProfileRuntime(
                hash=self._externs.selector_hash(state.instance)
                if state.instance.extern == "action_selector"
                else None
            )
            for state in self.profile_states
        ]
        self._tables = [self._make_table(table) for table in program.tables]
        for runtime, table in zip(self._tables, program.tables, strict=True):
            self._externs.tables[table.name] = runtime
        self._value_sets = [
            ValueSetRuntime(v.match_kinds, value_set_widths(v)) for v in program.value_sets
        ]
        with deep_recursion():
            code = self._code(tracer)
            self._blocks = ProgramBlocks(program, code)
        self._expressions = code.expressions
        plain, traced = _PIPELINES[self._blocks.architecture.name]
        kind = plain if tracer is None else traced
        self._pipeline = kind(self._blocks, self, self._externs, self.options)
        if tracer is not None and isinstance(self._pipeline, TracedPipeline):
            self._pipeline.tracer = tracer
            self._pipeline.errors = program.errors
        self._load_program()

    def _code(self, tracer: Tracer | None) -> Code:
        if tracer is not None:
            return TracingCode(self, tracer, self.program)
        if self._coverage is not None:
            return CoveringCode(self, self._coverage)
        return Code(self)

    def process(self, packets: Sequence[Packet], now_us: int = 0) -> list[Packet]:
        """See `Engine`."""
        deep = self._expressions.deepest > DEEP
        with self.lock, deep_recursion() if deep else nullcontext():
            self.now_us = now_us
            if self.tracer is not None:
                return self._traced(self.tracer, packets, now_us)
            return self._pipeline.run(packets, now_us)

    def _traced(self, tracer: Tracer, packets: Sequence[Packet], now_us: int) -> list[Packet]:
        """Process one packet after the other, so that each has its own events."""
        sent: list[Packet] = []
        for port, frame in packets:
            tracer.begin(port, frame, now_us)
            out = self._pipeline.run([(port, frame)], now_us)
            tracer.end(out)
            sent += out
        return sent

    def set_waiting(self, port: int, packets: Sequence[int]) -> None:
        """See `Engine`."""
        with self.lock:
            self._pipeline.waiting[port] = tuple(packets)

    def _on_queue_depth(self, port: int, priority: int, depth: int) -> None:
        self._pipeline.depths[port, priority] = depth

    def _on_queue_rate(self, port: int, priority: int, rate: int) -> None:
        if rate:
            raise ControlError(
                "UNIMPLEMENTED", "rates of queues need --executor native: the interpreter has none"
            )

    def _on_crc(self, index: int, config: CrcConfig) -> None:
        crc = make_crc(config)
        self._externs.crcs[index] = lambda value, width: crc(pack_bits(value, width))

    def interrupt(self) -> None:
        """See `Engine`."""
        self._externs.interrupted = True

    def take_digests(self) -> list[Digest]:
        """See `Engine`."""
        with self.lock:
            taken = list(self._externs.digests)
            self._externs.digests.clear()
            return taken

    def statistics(self) -> EngineStatistics:
        """See `Engine`."""
        with self.lock:
            now = self._externs.statistics
            return EngineStatistics(now.queue_drops, now.parser_errors, dict(now.extra))

    # --- for the program's code (`host.Host`)

    def bind_extern(self, call: ir.CallExtern) -> BoundExtern:
        """Return the function behind a call of an extern."""
        return self._bound[id(call)]

    def table_runtime(self, table: ir.Table) -> TableRuntime:
        """Return a table's runtime."""
        return self._externs.tables[table.name]

    def value_set_runtime(self, value_set: ir.ValueSet) -> ValueSetRuntime:
        """Return a value set's runtime."""
        number = next(i for i, v in enumerate(self.program.value_sets) if v is value_set)
        return self._value_sets[number]

    def step(self) -> None:
        """Count a step of the current packet; raises BudgetSpent when it has none left."""
        self._externs.step()

    def length_changed(self, bits: int) -> None:
        """Update BMv2's packet length register for a header that became valid or invalid."""
        self._externs.packet.length += bits // 8

    def _make_table(self, table: ir.Table) -> TableRuntime:
        profile = None
        if table.implementation is not None:
            profile = self._profiles[self._profile(table.implementation.name)[0]]
        unit_bytes = bool(table.meters) and self._externs.meters_bytes(table.meters[0])
        rest = (profile, unit_bytes, lambda: self._externs.packet)
        if self.tracer is not None:
            return TracedTable(self.tracer, table, *rest)
        if self._coverage is not None:
            return CoveringTable(self._coverage, table, *rest)
        return TableRuntime(table, *rest)

    # --- hooks of ControlState

    def _on_insert(self, table: int, handle: int, entry: TableEntry) -> None:
        self._tables[table].insert(handle, entry, self.now_us)

    def _on_modify(self, table: int, handle: int, entry: TableEntry) -> None:
        self._tables[table].modify(handle, entry)

    def _on_delete(self, table: int, handle: int, entry: TableEntry) -> None:
        self._tables[table].delete(handle)

    def _on_default(self, table: int, choice: ActionChoice) -> None:
        self._tables[table].default = choice

    def _on_member(self, profile: int, member: int, choice: ActionChoice | None) -> None:
        _put(self._profiles[profile].members, member, choice)

    def _on_group(self, profile: int, group: int, members: tuple[int, ...] | None) -> None:
        _put(self._profiles[profile].groups, group, members)

    def _on_multicast_group(self, group: int, replicas: tuple[Replica, ...] | None) -> None:
        """Do nothing: the pipeline reads `multicast`."""

    def _on_clone_session(self, session: int, value: CloneSession | None) -> None:
        """Do nothing: the pipeline reads `sessions`."""

    def _on_value_set(self, index: int, members: tuple[tuple[KeyMatch, ...], ...]) -> None:
        self._value_sets[index].members = members

    def _read_register(self, instance: ExternInstance, index: int) -> int:
        bits = bits_of(instance.type_arguments[0])
        return bits(self._externs.registers[instance.name][index])[0]

    def _write_register(self, instance: ExternInstance, index: int, value: int) -> None:
        cell = from_bits(instance.type_arguments[0], value)
        self._externs.registers[instance.name][index] = cell

    def _read_counter(self, instance: ExternInstance, index: int) -> CounterValue:
        return CounterValue(*self._externs.counters[instance.name][index])

    def _write_counter(self, instance: ExternInstance, index: int, value: CounterValue) -> None:
        self._externs.counters[instance.name][index][:] = [value.packets, value.bytes]

    def _read_direct_counter(self, table: int, handle: int) -> CounterValue:
        item = self._tables[table].items[handle]
        return CounterValue(item.packets, item.bytes)

    def _write_direct_counter(self, table: int, handle: int, value: CounterValue) -> None:
        item = self._tables[table].items[handle]
        item.packets, item.bytes = value.packets, value.bytes

    def _set_meter(self, instance: ExternInstance, index: int, config: MeterConfig | None) -> None:
        self._externs.meters[instance.name][index].configure(config)

    def _set_direct_meter(self, table: int, handle: int, config: MeterConfig | None) -> None:
        self._tables[table].items[handle].meter.configure(config)

    def _last_hit_us(self, table: int, handle: int) -> int:
        return self._tables[table].items[handle].last_hit_us


def _extern_calls(program: Program) -> Iterator[ir.CallExtern]:
    """Yield the calls of externs in all that packets may reach."""
    for function in reachable(list(program.package.blocks.values())):
        for body in bodies(function):
            for statement in statements(body):
                if isinstance(statement, ir.CallExtern):
                    yield statement


def _put(store: dict[int, Any], key: int, value: Any) -> None:
    """Set a value, or remove it if None."""
    if value is None:
        del store[key]
    else:
        store[key] = value
