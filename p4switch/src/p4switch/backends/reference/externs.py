"""The externs of v1model and PSA: their state in one engine, and a Python function for each call.

Semantics are BMv2's (targets/simple_switch/primitives.cpp): registers, counters and meters
out of bounds read 0 and change nothing; `hash` gives base + H % max, or base if max is 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from p4switch import ir
from p4switch.backends.reference.host import BoundExtern
from p4switch.backends.reference.packet import CloneRequest, FieldListRequest, PacketState
from p4switch.backends.reference.python_externs import PythonExterns
from p4switch.backends.reference.tables import TableRuntime
from p4switch.backends.reference.values import (
    BitString,
    Shapes,
    bit_width,
    from_bits,
    is_object,
    mask_of,
    to_bits,
)
from p4switch.ir import Bits, ExternInstance, Type, Varbit
from p4switch.midend.architecture import hash_algorithms
from p4switch.position import UnsupportedError
from p4switch.targets.v1model.calculations import custom_calculations
from p4switch.targets.v1model.engine import Digest, EngineOptions, EngineStatistics
from p4switch.targets.v1model.hashes import Hash, csum16, hash_of, pack_bits
from p4switch.targets.v1model.meters import GREEN, Meter

log = logging.getLogger(__name__)


class SplitMix64:
    """The generator behind `random`: the same numbers in every engine for one seed.

    Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
    """

    def __init__(self, seed: int) -> None:
        self._state = seed & mask_of(64)

    def next(self) -> int:
        """Return the next 64-bit number."""
        self._state = self._state + 0x9E3779B97F4A7C15 & mask_of(64)
        number = self._state
        number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & mask_of(64)
        number = (number ^ number >> 27) * 0x94D049BB133111EB & mask_of(64)
        return number ^ number >> 31

    def between(self, low: int, high: int) -> int:
        """Return a number in low..high; `low` if the range is empty."""
        return low + self.next() % (high - low + 1) if low <= high else low


def bits_of(kind: Type) -> Callable[[Any], BitString]:
    """Return a function from a value to its bits, headers that are not valid left out."""
    if is_object(kind):
        return lambda value: value.bits()
    if isinstance(kind, Varbit):
        return lambda value: value
    width = bit_width(kind)
    return lambda value: (to_bits(kind, value), width)


def leaves_of(kind: Type) -> Callable[[Any], tuple[int, ...]]:
    """Return a function from a value of the type to its scalar fields' values, unsigned."""
    if is_object(kind):
        return lambda value: tuple(value.leaves())
    bits = bits_of(kind)
    return lambda value: (bits(value)[0],)


class BudgetSpent(Exception):
    """The current packet has no steps left."""


Cell = TypeVar("Cell")


class Cells(dict[int, Cell]):
    """An array of `size` cells that uses memory only for those that were accessed."""

    def __init__(self, size: int, fresh: Callable[[], Cell]) -> None:
        super().__init__()
        self.size = size
        self._fresh = fresh

    def __missing__(self, index: int) -> Cell:
        cell = self[index] = self._fresh()
        return cell


class Externs:
    """The state of one engine's externs: registers, counters, meters and others."""

    def __init__(self, program: ir.Program, options: EngineOptions) -> None:
        self.options = options
        self.interrupted = False
        """Set when no packet may take further steps."""
        self.counts_steps = True
        """Whether packets have a budget: not in programs that always terminate."""
        self.statistics = EngineStatistics()
        self.packet: PacketState
        """The current packet; set by the pipeline."""
        self.registers: dict[str, Cells[Any]] = {}
        self.counters: dict[str, Cells[list[int]]] = {}
        self.meters: dict[str, Cells[Meter]] = {}
        self.tables: dict[str, TableRuntime] = {}
        """Table runtimes by table name; the engine fills it."""
        self.digests: list[Digest] = []
        self._random = SplitMix64(options.seed)
        self._shapes = Shapes()
        self._program = program
        self._hashes: dict[int, Hash] = {
            value: self._random_hash if name == "random" else hash_of(name)
            for value, name in hash_algorithms(program).items()
        }
        self._calculations = {
            id(each.call): index for index, each in enumerate(custom_calculations(program))
        }
        self.crcs = [hash_of(each.algorithm) for each in custom_calculations(program)]
        """The hash of each custom CRC; the engine changes them."""
        self._own = PythonExterns(options.externs) if options.externs is not None else None
        for instance in program.externs:
            self._make(instance)

    def _make(self, instance: ExternInstance) -> None:
        if instance.extern not in ("register", "counter", "meter"):
            return
        size = instance.number(0)
        if instance.extern == "register":
            kind = instance.type_arguments[0]
            initial = instance.initial
            self.registers[instance.name] = Cells(
                size,
                lambda: self._shapes.fresh(kind) if initial is None else from_bits(kind, initial),
            )
        elif instance.extern == "counter":
            self.counters[instance.name] = Cells(size, lambda: [0, 0])
        elif instance.extern == "meter":
            unit_bytes = self.meters_bytes(instance)
            self.meters[instance.name] = Cells(size, lambda: Meter(unit_bytes))

    def meters_bytes(self, instance: ExternInstance) -> bool:
        """Whether a meter or direct meter counts bytes."""
        kinds = dict(self._program.enums.get("MeterType", ()))
        return instance.number(-1) == kinds.get("bytes", 1)

    def selector_hash(self, instance: ExternInstance) -> Hash:
        """Return the hash of an action selector."""
        return self._hashes[instance.number(0)]

    def _random_hash(self, value: int, width: int) -> int:
        return self._random.next()

    # --- binding

    def bind(self, call: ir.CallExtern) -> BoundExtern:
        """Return the function of a call.

        UnsupportedError for an extern that v1model does not have.
        """
        owner = f"{call.instance.extern}." if call.instance is not None else ""
        name = owner.replace(".", "_") + call.method
        builder: Callable[[ir.CallExtern], BoundExtern] | None = getattr(
            self, f"_bind_{name}", None
        )
        if builder is not None:
            return builder(call)
        if self._own is not None:
            return self._own.bind(call)
        raise UnsupportedError(
            call.position,
            f"extern {owner + call.method!r} is not one of v1model; "
            "--externs FILE.py may define it",
        )

    def _bind_register_read(self, call: ir.CallExtern) -> BoundExtern:
        assert call.instance is not None
        cells = self.registers[call.instance.name]
        kind, size = call.instance.type_arguments[0], cells.size

        def read(index: int) -> Any:
            return cells[index] if 0 <= index < size else self._shapes.fresh(kind)

        if not is_object(kind):
            return BoundExtern(read)
        in_place = isinstance(kind, ir.Header) and not isinstance(call.arguments[0].value, ir.Read)

        def read_object(result: Any, index: int) -> None:
            # As an assignment: see `Statements.store`.
            (result.take if in_place else result.assign)(read(index))

        return BoundExtern(read_object)

    def _bind_register_write(self, call: ir.CallExtern) -> BoundExtern:
        assert call.instance is not None
        cells = self.registers[call.instance.name]
        size = cells.size
        copies = is_object(call.instance.type_arguments[0])

        def write(index: int, value: Any) -> None:
            if 0 <= index < size:
                cells[index] = value.copy() if copies else value

        return BoundExtern(write)

    def _bind_counter_count(self, call: ir.CallExtern) -> BoundExtern:
        assert call.instance is not None
        cells = self.counters[call.instance.name]

        def count(index: int) -> None:
            if 0 <= index < cells.size:
                cells[index][0] += 1
                cells[index][1] += self.packet.ingress_length

        return BoundExtern(count)

    def _bind_direct_counter_count(self, call: ir.CallExtern) -> BoundExtern:
        """Nothing: the table counts each hit once, called or not (as in BMv2)."""
        return BoundExtern(lambda: None)

    def _bind_meter_execute_meter(self, call: ir.CallExtern) -> BoundExtern:
        assert call.instance is not None
        cells = self.meters[call.instance.name]

        def execute(index: int, color: int = GREEN) -> int:
            if not 0 <= index < cells.size:
                return 0
            return cells[index].execute(self.packet.ingress_length, self.packet.now_us, color)

        return BoundExtern(execute)

    def _bind_direct_meter_read(self, call: ir.CallExtern) -> BoundExtern:
        table = next(t for t in self._program.tables if call.instance in t.meters)
        return BoundExtern(lambda: self.tables[table.name].color)

    # --- arithmetic

    def _bind_random(self, call: ir.CallExtern) -> BoundExtern:
        return BoundExtern(self._random.between)

    def _bind_hash(self, call: ir.CallExtern) -> BoundExtern:
        result, _, _, data, _ = call.arguments
        bits = bits_of(data.value.type)
        assert isinstance(result.value.type, Bits)
        mask = mask_of(result.value.type.width)
        hashes, crcs = self._hashes, self.crcs
        custom = self._calculations.get(id(call))

        def hash_data(algorithm: int, base: int, value: Any, maximum: int) -> int:
            function = hashes[algorithm] if custom is None else crcs[custom]
            return base + function(*bits(value)) % (maximum or 1) & mask

        return BoundExtern(hash_data)

    def _bind_Checksum16_get(self, call: ir.CallExtern) -> BoundExtern:
        bits = bits_of(call.arguments[0].value.type)
        return BoundExtern(lambda value: csum16(pack_bits(*bits(value))))

    def _bind_verify_checksum(self, call: ir.CallExtern) -> BoundExtern:
        return self._verify(call, with_payload=False)

    def _bind_verify_checksum_with_payload(self, call: ir.CallExtern) -> BoundExtern:
        return self._verify(call, with_payload=True)

    def _verify(self, call: ir.CallExtern, with_payload: bool) -> BoundExtern:
        """Verify a checksum, unless it is in an invalid header, as in BMv2."""
        _, data, checksum, _ = call.arguments
        compute = self._checksum(data.value.type, checksum.value.type, with_payload)
        extra: tuple[ir.Expression, ...] = ()
        place = checksum.value
        if isinstance(place, ir.Field) and isinstance(place.base.type, ir.Header):
            extra = (ir.IsValid(ir.BOOL, place.base),)

        def verify(
            condition: bool, value: Any, given: int, algorithm: int, valid: bool = True
        ) -> None:
            if condition and valid and compute(value, algorithm) != given:
                self.packet.checksum_error = 1

        return BoundExtern(verify, extra)

    def _bind_update_checksum(self, call: ir.CallExtern) -> BoundExtern:
        return self._update(call, with_payload=False)

    def _bind_update_checksum_with_payload(self, call: ir.CallExtern) -> BoundExtern:
        return self._update(call, with_payload=True)

    def _update(self, call: ir.CallExtern, with_payload: bool) -> BoundExtern:
        _, data, checksum, _ = call.arguments
        compute = self._checksum(data.value.type, checksum.value.type, with_payload)

        def update(condition: bool, value: Any, old: int, algorithm: int) -> int:
            return compute(value, algorithm) if condition else old

        return BoundExtern(update)

    def _checksum(self, data: Type, result: Type, with_payload: bool) -> Callable[[Any, int], int]:
        bits = bits_of(data)
        assert isinstance(result, Bits)
        mask = mask_of(result.width)

        def compute(value: Any, algorithm: int) -> int:
            number, width = bits(value)
            if with_payload:
                packed = pack_bits(number, width) + self.packet.rest.payload_bytes()
                number, width = int.from_bytes(packed, "big"), len(packed) * 8
            return self._hashes[algorithm](number, width) & mask

        return compute

    # --- the packet's fate

    def _bind_mark_to_drop(self, call: ir.CallExtern) -> BoundExtern:
        drop_port = self.options.drop_port

        def drop(standard: Any = None) -> None:
            if standard is None:
                standard = self.packet.standard
            standard.fields["egress_spec"] = drop_port
            if "mcast_grp" in standard.fields:
                standard.fields["mcast_grp"] = 0

        return BoundExtern(drop)

    def _bind_clone(self, call: ir.CallExtern) -> BoundExtern:
        def clone(_: int, session: int) -> None:
            self.packet.clone = CloneRequest(session, None)

        return BoundExtern(clone)

    def _bind_clone_preserving_field_list(self, call: ir.CallExtern) -> BoundExtern:
        def clone(_: int, session: int, field_list: int) -> None:
            self.packet.clone = CloneRequest(session, field_list)

        return BoundExtern(clone)

    def _bind_resubmit_preserving_field_list(self, call: ir.CallExtern) -> BoundExtern:
        def resubmit(field_list: int) -> None:
            self.packet.resubmit = FieldListRequest(field_list)

        return BoundExtern(resubmit)

    def _bind_recirculate_preserving_field_list(self, call: ir.CallExtern) -> BoundExtern:
        def recirculate(field_list: int) -> None:
            self.packet.recirculate = FieldListRequest(field_list)

        return BoundExtern(recirculate)

    def _bind_truncate(self, call: ir.CallExtern) -> BoundExtern:
        return BoundExtern(lambda length: self.packet.limit(length))

    def _bind_digest(self, call: ir.CallExtern) -> BoundExtern:
        kind = call.arguments[1].value.type
        name = kind.name if isinstance(kind, ir.Struct | ir.Header) else ""
        leaves = leaves_of(kind)

        def digest(_: int, value: Any) -> None:
            self.digests.append(Digest(name, leaves(value)))

        return BoundExtern(digest)

    def _bind_Digest_pack(self, call: ir.CallExtern) -> BoundExtern:
        assert call.instance is not None
        name, leaves = call.instance.name, leaves_of(call.arguments[0].value.type)
        return BoundExtern(lambda value: self.digests.append(Digest(name, leaves(value))))

    # --- assertions and messages

    def _bind_assert(self, call: ir.CallExtern) -> BoundExtern:
        """Log and count a failed assertion; the packet continues (BMv2 aborts the switch)."""

        def check(condition: bool) -> None:
            if not condition:
                log.error("%s: %s failed", call.position, call.method)
                self.count("failed_assertions")

        return BoundExtern(check)

    _bind_assume = _bind_assert

    def _bind_log_msg(self, call: ir.CallExtern) -> BoundExtern:
        message = call.arguments[0].value
        assert isinstance(message, ir.Const)
        leaves: Sequence[Callable[[Any], tuple[int, ...]]] = [
            leaves_of(argument.value.type) for argument in call.arguments[1:]
        ]
        text = str(message.value)

        def log_message(_: str, *data: Any) -> None:
            values = [v for read, value in zip(leaves, data, strict=True) for v in read(value)]
            line = text
            for value in values:
                line = line.replace("{}", str(value), 1)
            log.info("%s", line)

        return BoundExtern(log_message)

    def step(self) -> None:
        """Count a step of the current packet; raises BudgetSpent when it has none left."""
        work = self.packet.work
        if self.interrupted or (self.counts_steps and work.steps >= self.options.packet_budget):
            raise BudgetSpent
        work.steps += 1

    def count_over_budget(self) -> None:
        """Drop a packet, or a copy about to be made, for lack of steps."""
        if not self.interrupted:
            self.count("over_budget")

    def count(self, event: str) -> None:
        """Add one to a number in `statistics.extra`."""
        self.statistics.extra[event] = self.statistics.extra.get(event, 0) + 1
