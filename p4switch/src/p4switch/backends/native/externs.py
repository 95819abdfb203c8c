"""Calls of the externs of v1model and PSA."""

from __future__ import annotations

from collections.abc import Callable

from p4switch import ir
from p4switch.backends.native.layout import RecordLayout
from p4switch.backends.native.own_externs import c_type
from p4switch.backends.native.types import (
    NARROW,
    is_composite,
    is_scalar,
    is_signed,
    is_wide,
    mask_of,
    scalar_width,
    words,
)
from p4switch.backends.native.wide import known_zeros
from p4switch.backends.native.wire import Item, Wire
from p4switch.midend.architecture import hash_algorithms

HASHES = {
    "crc32": "hash_crc32",
    "crc32_custom": "hash_crc32",
    "crc16": "hash_crc16",
    "crc16_custom": "hash_crc16",
    "csum16": "hash_csum16",
    "xor16": "hash_xor16",
    "identity": "hash_identity",
}
"""C functions by HashAlgorithm member; custom CRCs begin with the standard ones, as in BMv2."""

NO_FIELD_LIST = 0xFFFF


class Externs(Wire):
    """Translates extern calls; `v1model.externs` defines their semantics."""

    def call_extern(self, call: ir.CallExtern) -> None:
        """Translate one call."""
        name = call.method
        if call.instance is not None:
            name = f"{call.instance.extern}_{call.method}"
        method: Callable[[ir.CallExtern], None] | None = getattr(self, f"_extern_{name}", None)
        if method is None and self.unit.own is not None:
            method = self._own_extern
        if method is None:
            raise self.unsupported(
                f"extern {name.replace('_', '.', 1)!r}: it is not one of v1model; "
                "--externs FILE.c may define it"
            )
        with self.block(""):
            method(call)

    def _own_extern(self, call: ir.CallExtern) -> None:
        """Call the program's own extern: `extern_NAME` or `extern_OBJECT_METHOD` in C."""
        own = self.unit.own
        assert own is not None
        name, parameters, arguments = f"extern_{call.method}", [], []
        if call.instance is not None:
            name = f"extern_{call.instance.extern}_{call.method}"
            member = own.member(call.instance)
            self.unit.frame[member] = f"extern_{call.instance.extern}"
            parameters.append(f"extern_{call.instance.extern} *")
            arguments.append(f"&f->{member}")
        changed: list[tuple[ir.Expression, str]] = []
        for argument in call.arguments:
            kind = self._own_type(call, argument.name, argument.value.type)
            if argument.direction in ("out", "inout"):
                variable = self.name("o")
                first = self._own_value(argument.value) if argument.direction == "inout" else "0"
                self.line(f"{kind} {variable} = {first};")
                parameters.append(f"{kind} *")
                arguments.append(f"&{variable}")
                changed.append((argument.value, variable))
            else:
                parameters.append(kind)
                arguments.append(self.temporary(kind, self._own_value(argument.value)))
        text = f"{name}({', '.join(arguments)})"
        if call.result is None:
            own.declare(call, name, "void", parameters)
            self.line(f"{text};")
        else:
            kind = self._own_type(call, "its result", call.result.type)
            own.declare(call, name, kind, parameters)
            variable = self.temporary(kind, text)
            changed.append((ir.Read(call.result.type, call.result), variable))
        for target, variable in changed:
            is_bool = isinstance(target.type, ir.Bool)
            self.store(target, f"({variable} != 0)" if is_bool else f"(u64){variable}")

    def _own_type(self, call: ir.CallExtern, what: str, kind: ir.Type) -> str:
        name = c_type(kind)
        if name is None:
            raise self.unsupported(
                f"extern {call.method!r}, {what}: externs in C take and return numbers of at most "
                "64 bits and Booleans"
            )
        return name

    def _own_value(self, expression: ir.Expression) -> str:
        text = self.scalar(expression)
        if is_signed(expression.type):
            return f"sign_extend({text}, {scalar_width(expression.type)})"
        return f"(u64)({text})"

    def store(self, target: ir.Expression, text: str) -> None:
        """Store the C text of a number of at most 64 bits in an l-value."""
        kind = target.type
        if isinstance(target, ir.Slice):
            width = scalar_width(kind)
            constant = ir.Read(kind, self.unit.scratch(kind))
            self.line(f"{self.place(constant)} = {text} & {mask_of(width):#x}ull;")
            self.store_slice(target, constant)
            return
        place = self.place(target, write=True)
        if is_wide(kind):
            self.line(f"memset(&{place}, 0, sizeof {place});")
            self.line(f"{place}.w[0] = {text};")
        else:
            width = scalar_width(kind)
            c_type = self.unit.types.name(kind)
            self.line(f"{place} = ({c_type})(({text}) & {mask_of(width):#x}ull);")

    # --- state

    def cell(self, call: ir.CallExtern, index: ir.Expression) -> tuple[str, str, bool]:
        """Return C texts of an index into the instance and its check, and whether it may fail."""
        assert call.instance is not None
        size = call.instance.number(0)
        at = self.temporary("u64", self.index(index), "i")
        kind = index.type
        unsigned = isinstance(kind, ir.Bits) and not kind.signed
        safe = unsigned and ~known_zeros(index) & mask_of(scalar_width(kind)) < size
        return at, f"{at} < {size}", not safe

    def _extern_register_read(self, call: ir.CallExtern) -> None:
        assert call.instance is not None
        result, index = call.arguments
        at, inside, may_fail = self.cell(call, index.value)
        cell = f"{self.register(call.instance)}".replace("#", at)
        target = result.value
        if is_scalar(target.type) and not isinstance(target, ir.Slice):
            place = self.place(target, write=True)
            self.line(f"{place} = {f'{inside} ? {cell} : 0' if may_fail else cell};")
        elif is_wide(target.type) and not isinstance(target, ir.Slice):
            place = self.place(target, write=True)
            zero = self.unit.types.zero(target.type)
            source = f"*({inside} ? &{cell} : &{zero})" if may_fail else cell
            self.line(f"{place} = {source};")
        else:
            name = self.name()
            kind = self.unit.types.name(target.type)
            zero = self.unit.types.zero(target.type)
            self.line(f"const {kind} {name} = {inside} ? {cell} : {zero};")
            variable = self.unit.scratch(target.type)
            self.line(f"{self.unit.place(variable)} = {name};")
            self.assign(ir.Assign(target, ir.Read(target.type, variable)))

    def _extern_register_write(self, call: ir.CallExtern) -> None:
        assert call.instance is not None
        index, value = call.arguments
        at, inside, may_fail = self.cell(call, index.value)
        cell = self.register(call.instance).replace("#", at)
        if is_scalar(value.value.type):
            text = self.scalar(value.value)
            kind = self.unit.types.name(value.value.type)
            self.line(f"{f'if ({inside}) ' if may_fail else ''}{cell} = ({kind}){text};")
        elif is_wide(value.value.type):
            with self.block(f"if ({inside})" if may_fail else ""):
                self.wide_into(f"{cell}.w", value.value, fresh=True)
        else:
            place = self.value_place(value.value)
            self.line(f"if ({inside}) {cell} = {place};")

    def register(self, instance: ir.ExternInstance) -> str:
        """Return the C text of a register's cell, with `#` for its index."""
        group, name = self.unit.register(instance)
        self.register_groups.add(group)
        return f"R{group}[#].{name}"

    def _extern_counter_count(self, call: ir.CallExtern) -> None:
        assert call.instance is not None
        at, inside, may_fail = self.cell(call, call.arguments[0].value)
        number = self.unit.layout.counters.index(call.instance.name)
        with self.block(f"if ({inside})" if may_fail else ""):
            self.line(f"counter_cell *const cell = &sw->counters[{number}][{at}];")
            self.line("cell->packets++;")
            self.line("cell->bytes += p->input_length;")

    def _extern_direct_counter_count(self, call: ir.CallExtern) -> None:
        """Do nothing: the table counts each hit once, whether called or not (as in BMv2)."""

    def _extern_meter_execute_meter(self, call: ir.CallExtern) -> None:
        assert call.instance is not None
        at, inside, _ = self.cell(call, call.arguments[0].value)
        number = self.unit.layout.meters.index(call.instance.name)
        amount = "p->input_length" if self.unit.meters_bytes(call.instance) else "1"
        cell = f"&sw->meters[{number}][{at}]"
        run = f"meter_execute({cell}, {amount}, sw->now)"
        if len(call.arguments) > 2:
            color = self.scalar(call.arguments[2].value)
            run = f"meter_execute_aware({cell}, {amount}, sw->now, {color})"
        self.store(call.arguments[1].value, f"({inside} ? {run} : 0)")

    def _extern_direct_meter_read(self, call: ir.CallExtern) -> None:
        tables = self.unit.program.tables
        number = next(i for i, t in enumerate(tables) if call.instance in t.meters)
        self.store(call.arguments[0].value, f"sw->colors[{number}]")

    # --- arithmetic

    def _extern_random(self, call: ir.CallExtern) -> None:
        result, low, high = (argument.value for argument in call.arguments)
        self._narrow(call, result, low, high)
        a, b = self.temporary("u64", self.scalar(low)), self.temporary("u64", self.scalar(high))
        self.store(result, f"random_between(&sw->random, {a}, {b})")

    def _extern_hash(self, call: ir.CallExtern) -> None:
        result, algorithm, base, data, limit = (argument.value for argument in call.arguments)
        self._narrow(call, result, base, limit)
        custom = self.unit.calculations.get(id(call))
        number = self._hash(algorithm, data, with_payload=False, custom=custom)
        modulus = self.temporary("u64", self.scalar(limit))
        self.store(result, f"{self.scalar(base)} + ({modulus} ? {number} % {modulus} : 0)")

    def _narrow(self, call: ir.CallExtern, *values: ir.Expression) -> None:
        for value in values:
            kind = value.type
            if not is_scalar(kind) or (isinstance(kind, ir.Bits) and kind.signed):
                raise self.unsupported(f"{call.method} with other arguments than bit<64> and less")

    def _hash(
        self,
        algorithm: ir.Expression,
        data: ir.Expression,
        with_payload: bool,
        custom: int | None = None,
    ) -> str:
        """Return the C text of the hash, a u64. `custom`: the number of its custom CRC."""
        function = self._hash_function(algorithm)
        if not function:
            return self.temporary("u64", "random_next(&sw->random)")
        array, length = self.packed(data)
        if with_payload:
            array = self.temporary("u8 *", f"with_payload(sw, p, {array}, {length})", "d")
            length = f"{length} + payload_length(p)"
        if custom is not None:
            return self.temporary("u64", f"crc_custom(&sw->crcs[{custom}], {array}, {length})")
        return self.temporary("u64", f"{function}({array}, {length})")

    def _hash_function(self, algorithm: ir.Expression) -> str:
        """Return the C function of an algorithm; empty for `random`, which hashes nothing."""
        if not isinstance(algorithm, ir.Const):
            raise self.unsupported("a hash algorithm that is not constant")
        name = hash_algorithms(self.unit.program).get(int(algorithm.value), "")
        if name == "random":
            return ""
        if name not in HASHES:
            raise self.unsupported(f"hash algorithm {name or algorithm.value!r}")
        return HASHES[name]

    def selector_hash(self, algorithm: ir.Expression, items: list[Item]) -> str:
        """Return the C text of an action selector's hash."""
        function = self._hash_function(algorithm)
        if not function:
            return self.temporary("u64", "random_next(&sw->random)")
        array, length = self.packed_items(items)
        return self.temporary("u64", f"{function}({array}, {length})")

    def packed(self, data: ir.Expression) -> tuple[str, str]:
        """Return a C array of the data's bits, padded to whole bytes, and its length in bytes.

        Invalid headers are omitted.
        """
        parts: list[tuple[str, list[Item]]] = []
        self._collect(data, parts)
        if all(not condition for condition, _ in parts):
            return self.packed_items([item for _, items in parts for item in items])
        most = sum(item.width for _, items in parts for item in items)
        name, at = self.name("b"), self.name("at")
        self.line(f"u8 {name}[{max(1, (most + 7) // 8)}] = {{0}};")
        self.line(f"u32 {at} = 0;")
        for condition, items in parts:
            with self.block(f"if ({condition})" if condition else ""):
                self.write_items(items, name, at)
                for item in items:
                    width = f"{item.text}.width" if item.kind == "varbit" else str(item.width)
                    self.line(f"{at} += {width};")
        return name, f"({at} + 7) / 8"

    def _collect(self, value: ir.Expression, parts: list[tuple[str, list[Item]]]) -> None:
        if isinstance(value, ir.Build) and not isinstance(value.type, ir.Header):
            for inner in value.values:
                self._collect(inner, parts)
        elif is_composite(value.type):
            self._collect_place(self.value_place(value), value.type, parts)
        else:
            parts.append(("", list(self.value_items(value))))

    def _collect_place(
        self, place: str, kind: ir.Type, parts: list[tuple[str, list[Item]]]
    ) -> None:
        if isinstance(kind, ir.Header):
            parts.append((f"{place}.valid", self.place_items(place, kind)))
        elif isinstance(kind, ir.Stack):
            for i in range(kind.size):
                self._collect_place(f"{place}.e[{i}]", kind.element, parts)
        elif isinstance(kind, ir.Struct | ir.Union):
            for member in kind.fields:
                path = f"{place}.f_{member.name}"
                if is_composite(member.type):
                    self._collect_place(path, member.type, parts)
                else:
                    parts.append(("", self.place_items(path, member.type)))

    def _extern_Checksum16_get(self, call: ir.CallExtern) -> None:
        assert call.result is not None
        array, length = self.packed(call.arguments[0].value)
        self.store(ir.Read(call.result.type, call.result), f"hash_csum16({array}, {length})")

    def _extern_verify_checksum(self, call: ir.CallExtern) -> None:
        self._verify(call, with_payload=False)

    def _extern_verify_checksum_with_payload(self, call: ir.CallExtern) -> None:
        self._verify(call, with_payload=True)

    def _verify(self, call: ir.CallExtern, with_payload: bool) -> None:
        condition, data, checksum, algorithm = (argument.value for argument in call.arguments)
        test = self.scalar(condition)
        if isinstance(checksum, ir.Field) and isinstance(checksum.base.type, ir.Header):
            test = f"{test} && {self.is_valid(checksum.base)}"
        self._narrow(call, checksum)
        with self.block(f"if ({test})"):
            number = self._hash(algorithm, data, with_payload)
            mask = mask_of(scalar_width(checksum.type))
            given = self.scalar(checksum)
            self.line(f"if (({number} & {mask:#x}ull) != {given}) p->checksum_error = 1;")

    def _extern_update_checksum(self, call: ir.CallExtern) -> None:
        self._update(call, with_payload=False)

    def _extern_update_checksum_with_payload(self, call: ir.CallExtern) -> None:
        self._update(call, with_payload=True)

    def _update(self, call: ir.CallExtern, with_payload: bool) -> None:
        condition, data, checksum, algorithm = (argument.value for argument in call.arguments)
        self._narrow(call, checksum)
        with self.block(f"if ({self.scalar(condition)})"):
            self.store(checksum, self._hash(algorithm, data, with_payload))

    # --- the packet's fate

    def _extern_mark_to_drop(self, call: ir.CallExtern) -> None:
        place, kind = "p->std", self.unit.standard
        if call.arguments:
            marked = call.arguments[0].value
            place, kind = self.place(marked, write=True), marked.type
        self.line(f"{place}.f_egress_spec = sw->drop_port;")
        assert isinstance(kind, ir.Struct)
        if any(member.name == "mcast_grp" for member in kind.fields):
            self.line(f"{place}.f_mcast_grp = 0;")

    def _extern_clone(self, call: ir.CallExtern) -> None:
        self._clone(call.arguments[1].value, None)

    def _extern_clone_preserving_field_list(self, call: ir.CallExtern) -> None:
        self._clone(call.arguments[1].value, call.arguments[2].value)

    def _clone(self, session: ir.Expression, field_list: ir.Expression | None) -> None:
        self.line("p->clones = 1;")
        self.line(f"p->clone_session = {self.scalar(session)};")
        self.line(f"p->clone_list = {self._field_list(field_list)};")

    def _field_list(self, index: ir.Expression | None) -> str:
        return str(NO_FIELD_LIST) if index is None else f"(u16){self.scalar(index)}"

    def _extern_resubmit_preserving_field_list(self, call: ir.CallExtern) -> None:
        self._again("resubmit", call.arguments[0].value)

    def _extern_recirculate_preserving_field_list(self, call: ir.CallExtern) -> None:
        self._again("recirculate", call.arguments[0].value)

    def _again(self, what: str, field_list: ir.Expression) -> None:
        self.line(f"p->{what}s = 1;")
        self.line(f"p->{what}_list = {self._field_list(field_list)};")

    def _extern_truncate(self, call: ir.CallExtern) -> None:
        self.line(f"packet_limit(p, {self.scalar(call.arguments[0].value)});")

    def _extern_digest(self, call: ir.CallExtern) -> None:
        data = call.arguments[1].value
        kind = data.type
        self._send_digest(data, kind.name if isinstance(kind, ir.Struct | ir.Header) else "")

    def _extern_Digest_pack(self, call: ir.CallExtern) -> None:
        assert call.instance is not None
        self._send_digest(call.arguments[0].value, call.instance.name)

    def _send_digest(self, data: ir.Expression, name: str) -> None:
        texts, widths = self._values([data])
        digests = self.unit.layout.digests
        digests.append(RecordLayout(name, widths))
        self._record("digests", len(digests) - 1, texts)

    def _values(self, data: list[ir.Expression]) -> tuple[list[str], tuple[int, ...]]:
        """Return the C texts of the words of all leaves, and the leaves' widths."""
        texts: list[str] = []
        widths: list[int] = []
        for item in (item for value in data for item in self.value_items(value)):
            if item.kind == "varbit":
                array = self.name("w")
                self.line(f"u64 {array}[{words(item.width)}];")
                self.line(f"varbit_words({array}, {words(item.width)}, &{item.text});")
                texts += [f"{array}[{i}]" for i in range(words(item.width))]
            elif item.width > NARROW:
                texts += [f"{item.text}[{i}]" for i in range(words(item.width))]
            else:
                texts.append(item.text)
            widths.append(item.width)
        return texts, tuple(widths)

    def _record(self, log: str, identity: int, texts: list[str]) -> None:
        self.line(f"u64 *const record = record_new(&sw->{log}, {identity}, {len(texts)});")
        with self.block("if (record)"):
            for i, text in enumerate(texts):
                self.line(f"record[{i}] = {text};")

    # --- assertions and messages

    def _extern_assert(self, call: ir.CallExtern) -> None:
        messages = self.unit.layout.messages
        messages.append(RecordLayout(call.method, (), "", str(call.position)))
        with self.block(f"if (!{self.scalar(call.arguments[0].value)})"):
            self.line("sw->statistics.failed_assertions++;")
            self._record("messages", len(messages) - 1, [])

    _extern_assume = _extern_assert

    def _extern_log_msg(self, call: ir.CallExtern) -> None:
        message = call.arguments[0].value
        if not isinstance(message, ir.Const):
            raise self.unsupported("a message that is not constant")
        with self.block("if (UNLIKELY(sw->logs))"):
            texts, widths = self._values([argument.value for argument in call.arguments[1:]])
            messages = self.unit.layout.messages
            messages.append(
                RecordLayout(call.method, widths, str(message.value), str(call.position))
            )
            self._record("messages", len(messages) - 1, texts)
