"""STF, the simple test framework of p4c: input packets, expected packets and table entries.

Commands and semantics are those of p4c's tools/stf and backends/bmv2/bmv2stf.py:

    packet PORT HEX                      send a packet
    expect PORT [HEX]                    expect one; `*` is any nibble; a trailing `$` forbids
                                         further bytes; without HEX any packets may come
    add TABLE [PRIORITY] KEY:VALUE... ACTION(ARG:VALUE, ...) [= ID]
    setdefault TABLE ACTION(ARG:VALUE, ...)
    remove all
    check_counter NAME(INDEX or $ID) [packets|bytes OP NUMBER]
    mirroring_add SESSION PORT           and mirroring_add_mc SESSION GROUP, mirroring_delete
    mc_mgrp_create GROUP, mc_node_create RID PORT..., mc_node_associate GROUP NODE
    register_read|write|reset, counter_write, meter_set_rates, meter_array_set_rates
    wait

and extensions: `check_register NAME(INDEX) == NUMBER`; `member PROFILE NUMBER ACTION(...)` and
`group PROFILE NUMBER MEMBER...`, for entries whose action is `member(NUMBER)` or `group(NUMBER)`.
Names match by unique suffix.
Of two matching entries the one with the larger PRIORITY wins. Values are decimal, 0x, 0b or
0o; `*` digits are don't-care; `V/LENGTH` is a prefix, `V&&&MASK` a ternary and `LOW..HIGH` a
range match. The order of packets matters per port; packets from ports that the file does not
mention are ignored.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from p4switch.bmv2_runtime.records import Fault
from p4switch.bmv2_runtime.replication import Replication, place_map
from p4switch.ir import ActionChoice, ExternInstance, Key, Program, Table
from p4switch.literals import parse_number
from p4switch.targets.v1model.engine import (
    ControlError,
    CounterValue,
    Engine,
    KeyMatch,
    MeterConfig,
    Packet,
    TableEntry,
)
from p4switch.targets.v1model.matches import match_keys, needs_priority

PACKET_GAP_US = 1_000
WAIT_US = 1_000_000

EngineFactory = Callable[[Program], Engine]

COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}


class StfError(Exception):
    """An STF file cannot be run: bad syntax, an unknown name or a refused entry."""


@dataclass(slots=True)
class Line:
    """A command: its words and position."""

    command: str
    rest: str
    where: str


@dataclass(slots=True)
class ActionCall:
    """`action(name: value, ...)`."""

    name: str
    arguments: dict[str, str]


_NUMBER = r"(?:0[xX][0-9a-fA-F*]+|0[bB][01*]+|0[oO][0-7*]+|[0-9]+)"
_VALUE = rf"{_NUMBER}(?:\s*(?:/|&&&|\.\.|->)\s*{_NUMBER})?|\*"
_NAME = r'"[^"]+"|[A-Za-z_$][\w$.\[\]]*'
_CALL = re.compile(rf"(?P<name>{_NAME})\s*\((?P<arguments>[^)]*)\)\s*(?:=\s*(?P<id>\w+))?\s*$")
_ADD = re.compile(rf"(?P<table>{_NAME})\s+(?:(?P<priority>[0-9]+)\s+)?(?P<rest>.*)$")
_KEY = re.compile(rf"(?P<name>{_NAME})\s*:\s*(?P<value>{_VALUE})\s*")
_ARGUMENT = re.compile(rf"\s*(?P<name>{_NAME})\s*:\s*(?P<value>{_NUMBER})\s*$")
_INDIRECT = re.compile(r"(?P<kind>member|group)\((?P<number>[0-9]+)\)\s*$")
_CELL = re.compile(
    rf"(?P<name>{_NAME})\s*\(\s*(?P<index>\$?\w+)\s*\)\s*"
    r"(?:(?P<unit>packets|bytes)?\s*(?P<compare>==|!=|<=|<|>=|>)\s*(?P<number>\w+))?\s*$"
)


def parse_lines(text: str, name: str) -> list[Line]:
    """Return the commands of an STF file; `name` is for messages."""
    lines = []
    for number, raw in enumerate(text.splitlines(), 1):
        words = raw.split("#", 1)[0].strip().split(None, 1)
        if words:
            rest = words[1] if len(words) > 1 else ""
            lines.append(Line(words[0].lower(), rest, f"{name}:{number}"))
    return lines


def _starred(text: str) -> tuple[int, int, int]:
    """Return (value, mask, leading digits' bits) of a number whose `*` digits are don't-care."""
    bits = {"0x": 4, "0b": 1, "0o": 3}.get(text[:2].lower())
    if bits is None:
        return int(text), -1, 0
    digits = text[2:]
    full = (1 << bits) - 1
    value = mask = 0
    for digit in digits:
        value <<= bits
        mask <<= bits
        if digit != "*":
            value |= int(digit, 16)
            mask |= full
    return value, mask, (len(digits) - digits.count("*")) * bits


def parse_match(text: str, key: Key) -> KeyMatch:
    """Return an entry's match on a key; StfError if the match kind does not allow it."""
    full = (1 << key.width) - 1
    kind = key.match_kind
    text = "".join(text.split())
    if text == "*":
        return KeyMatch(any=True)
    parts = re.split(r"(/|&&&|\.\.|->)", text)
    if len(parts) == 3:
        first, second = parse_number(parts[0]), parse_number(parts[2])
        if parts[1] == "/" and kind in ("lpm", "ternary"):
            mask = full & ~(full >> second)
            if kind == "lpm":
                return KeyMatch(first & mask, prefix_length=second)
            return KeyMatch(first & mask, mask=mask)
        if parts[1] == "&&&" and kind == "ternary":
            return KeyMatch(first & second, mask=second)
        if parts[1] in ("..", "->") and kind == "range":
            return KeyMatch(first, high=second)
        raise StfError(f"{text!r} does not fit key {key.name!r}, which is {kind}")
    value, mask, leading = _starred(text)
    if kind == "ternary":
        # Omitted digits are zeros that must match, unless the value has stars.
        mask = full if "*" not in text else mask & full
        return KeyMatch(value & mask, mask=mask)
    if kind == "lpm":
        length = leading if "*" in text else key.width
        return KeyMatch(value, prefix_length=length)
    if "*" in text:
        raise StfError(f"{text!r} does not fit key {key.name!r}, which is {kind}")
    if kind == "range":
        return KeyMatch(value, high=value)
    return KeyMatch(value)


def parse_call(text: str) -> tuple[ActionCall, str | None]:
    """Return an action call and the entry's id, if given."""
    found = _CALL.match(text)
    if found is None:
        raise StfError(f"expected ACTION(ARG:VALUE, ...), found {text!r}")
    arguments = {}
    for part in found["arguments"].split(","):
        if part.strip():
            argument = _ARGUMENT.match(part)
            if argument is None:
                raise StfError(f"expected ARG:VALUE, found {part.strip()!r}")
            arguments[_unquoted(argument["name"])] = argument["value"]
    return ActionCall(_unquoted(found["name"]), arguments), found["id"]


def _unquoted(name: str) -> str:
    return name.strip('"')


def by_suffix(name: str, names: Iterable[str], what: str) -> str:
    """Return the one name that is `name` or ends in it.

    StfError if there is none or more than one.
    """
    known = list(names)
    if name in known:
        return name
    for ending in (f".{name}", name):
        found = [known_name for known_name in known if known_name.endswith(ending)]
        if len(found) == 1:
            return found[0]
        if found:
            raise StfError(f"{what} name {name!r} is ambiguous: {', '.join(found)}")
    raise StfError(f"no {what} {name!r}; there are {', '.join(known) or 'none'}")


def _match_names(key: Key) -> set[str]:
    """Return the names an STF file may use for a key."""
    name = key.name
    names = {name, name.removesuffix("$")}
    for ending in (".isValid()", ".$valid$"):
        if name.endswith(ending):
            stem = name.removesuffix(ending)
            names |= {stem, f"{stem}.valid", f"{stem}.$valid$", f"{stem}.$valid"}
    return names


def find_key(name: str, table: Table) -> int:
    """Return the index of the key `name`; `stack$2.x` is `stack[2].x`."""
    keys = match_keys(table)
    wanted = re.sub(r"\$(\d+)", r"[\1]", name)
    exact = [i for i, key in enumerate(keys) if wanted in _match_names(key)]
    ending = [
        i
        for i, key in enumerate(keys)
        if any(known.endswith(f".{wanted}") for known in _match_names(key))
    ]
    for found in (exact, ending):
        if len(found) == 1:
            return found[0]
        if found:
            raise StfError(f"key {name!r} of table {table.name!r} is ambiguous")
    known = ", ".join(key.name for key in keys) or "none"
    raise StfError(f"table {table.name!r} has no key {name!r}; it has {known}")


def compare_packet(expected: str, received: bytes) -> str | None:
    """Return the difference, or None.

    `expected` is hexadecimal with `*` and perhaps a trailing `$`.
    """
    exact = expected.endswith("$")
    wanted = expected.removesuffix("$").lower()
    got = received.hex()
    if len(got) < len(wanted) or (exact and len(got) > len(wanted)):
        return f"length {len(got) / 2:g} bytes, expected {len(wanted) / 2:g}: got {got}"
    for place, (want, have) in enumerate(zip(wanted, got, strict=False)):
        if want not in ("*", have):
            return f"nibble {place} is {have}, expected {want}:\n  got  {got}\n  want {wanted}"
    return None


@dataclass(slots=True)
class _Expected:
    """Expected output of a port: packets in order or, with `any`, anything."""

    packets: list[tuple[str, str]] = field(default_factory=list)
    any: bool = False


class Session:
    """The commands of STF on one engine; `failures` lists unexpected results."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failures: list[str] = []
        self._now_us = 0
        self._sent: dict[int, list[bytes]] = {}
        self._expected: dict[int, _Expected] = {}
        self._ports: set[int] = set()
        self._entries: dict[str, tuple[str, TableEntry]] = {}
        self._replication = Replication(engine)

    def run(self, lines: Sequence[Line]) -> None:
        """Run all commands, then compare the output; StfError names the line."""
        for line in lines:
            run = getattr(self, f"_do_{line.command}", None)
            if run is None:
                raise StfError(f"{line.where}: unknown command {line.command!r:.80}")
            try:
                run(line)
            except (StfError, ControlError, Fault, ValueError) as error:
                raise StfError(f"{line.where}: {error}") from error
        self._compare()

    # --- packets

    def _do_packet(self, line: Line) -> None:
        port, data = self._port_and_data(line)
        self._now_us += PACKET_GAP_US
        for out_port, frame in self.engine.process([(port, bytes.fromhex(data))], self._now_us):
            self._sent.setdefault(out_port, []).append(frame)

    def _do_expect(self, line: Line) -> None:
        port, data = self._port_and_data(line)
        expected = self._expected.setdefault(port, _Expected())
        if data:
            expected.packets.append((line.where, data))
        else:
            expected.any = True

    def _port_and_data(self, line: Line) -> tuple[int, str]:
        words = line.rest.split()
        if not words:
            raise StfError(f"{line.command} needs a port")
        port = int(words[0])
        self._ports.add(port)
        return port, "".join(words[1:])

    def _do_no_packet(self, line: Line) -> None:
        """Do nothing: unexpected packets are failures anyway."""

    def _do_wait(self, line: Line) -> None:
        self._now_us += WAIT_US

    def _compare(self) -> None:
        for port in sorted(self._ports):
            expected = self._expected.get(port, _Expected())
            if expected.any:
                continue
            sent = self._sent.get(port, [])
            for (where, want), have in zip(expected.packets, sent, strict=False):
                difference = compare_packet(want, have)
                if difference is not None:
                    self.failures.append(f"{where}: port {port}: {difference}")
            if len(sent) != len(expected.packets):
                extra = "".join(f"\n  got {f.hex()}" for f in sent[len(expected.packets) :])
                if len(sent) < len(expected.packets):
                    extra += "".join(
                        f"\n  port {other} got {f.hex()}"
                        for other in sorted(self._sent.keys() - self._ports)
                        for f in self._sent[other]
                    )
                self.failures.append(
                    f"port {port}: {len(sent)} packets, expected {len(expected.packets)}{extra}"
                )

    # --- tables

    def _table(self, name: str) -> Table:
        names = list(self.engine.table_names())
        return self.engine.table(by_suffix(_unquoted(name), names, "table"))

    def _choice(self, table: Table, call: ActionCall) -> ActionChoice:
        names = [action.action.name for action in table.actions]
        index = names.index(by_suffix(call.name, names, f"action of table {table.name!r}"))
        data = table.actions[index].action.data
        unknown = set(call.arguments) - {parameter.name for parameter in data}
        missing = [p.name for p in data if p.name not in call.arguments]
        if unknown or missing:
            raise StfError(
                f"action {names[index]!r}: unknown arguments {sorted(unknown)}, missing {missing}"
            )
        values = (parse_number(call.arguments[parameter.name]) for parameter in data)
        return ActionChoice(index, tuple(values))

    def _do_add(self, line: Line) -> None:
        found = _ADD.match(line.rest)
        if found is None:
            raise StfError("expected add TABLE [PRIORITY] KEY:VALUE... ACTION(...)")
        table = self._table(found["table"])
        keys = match_keys(table)
        matches = [KeyMatch(any=key.match_kind != "exact") for key in keys]
        rest = found["rest"]
        while (pair := _KEY.match(rest)) is not None:
            index = find_key(_unquoted(pair["name"]), table)
            matches[index] = parse_match(pair["value"], keys[index])
            rest = rest[pair.end() :]
        priority = 0
        if needs_priority(table):
            priority = int(found["priority"] or 0) + 1  # STF begins at 0, P4Runtime at 1.
        entry = TableEntry(tuple(matches), None, priority)
        if table.implementation is not None and (indirect := _INDIRECT.match(rest)):
            identifier = None
            number = int(indirect["number"])
            member = indirect["kind"] == "member"
            entry = entry._replace(member=number) if member else entry._replace(group=number)
        else:
            call, identifier = parse_call(rest)
            entry = entry._replace(action=self._choice(table, call))
        self.engine.insert_entry(table.name, entry)
        if identifier is not None:
            self._entries[identifier] = (table.name, entry)

    def _do_member(self, line: Line) -> None:
        name, number, rest = line.rest.split(None, 2)
        profile = self._extern(name, "action_profile", "action_selector")
        tables = self.engine.program.tables
        table = next((each for each in tables if each.implementation is profile), None)
        if table is None:
            raise StfError(f"no table has the action profile {name!r}")
        call, _ = parse_call(rest)
        self.engine.set_member(profile.name, int(number), self._choice(table, call))

    def _do_group(self, line: Line) -> None:
        name, number, *members = line.rest.split()
        profile = self._extern(name, "action_profile", "action_selector")
        self.engine.set_group(profile.name, int(number), [int(member) for member in members])

    def _do_setdefault(self, line: Line) -> None:
        table_name, _, rest = line.rest.partition(" ")
        table = self._table(table_name)
        call, _ = parse_call(rest.strip())
        self.engine.set_default(table.name, self._choice(table, call))

    def _do_remove(self, line: Line) -> None:
        if line.rest.strip().lower() != "all":
            raise StfError("expected remove all")
        for name in self.engine.table_names():
            for entry in self.engine.entries(name):
                if not entry.constant:
                    self.engine.delete_entry(name, entry)

    # --- counters, registers, meters

    def _extern(self, name: str, *kinds: str) -> ExternInstance:
        instances = [x.name for x in self.engine.program.externs if x.extern in kinds]
        return self.engine.extern(by_suffix(_unquoted(name), instances, kinds[0]))

    def _do_check_counter(self, line: Line) -> None:
        found = _CELL.match(line.rest)
        if found is None:
            raise StfError("expected check_counter NAME(INDEX) [packets|bytes == NUMBER]")
        instance = self._extern(found["name"], "counter", "direct_counter")
        index = found["index"]
        if instance.extern == "counter":
            value = self.engine.read_counter(instance.name, parse_number(index))
        elif index.removeprefix("$") in self._entries:
            value = self.engine.read_direct_counter(*self._entries[index.removeprefix("$")])
        else:
            raise StfError(f"no entry {index!r}")
        if found["compare"] is not None:
            number = value.bytes if found["unit"] == "bytes" else value.packets
            self._check(line, found["compare"], number, parse_number(found["number"]))

    def _do_check_register(self, line: Line) -> None:
        found = _CELL.match(line.rest)
        if found is None or found["compare"] is None:
            raise StfError("expected check_register NAME(INDEX) == NUMBER")
        instance = self._extern(found["name"], "register")
        value = self.engine.read_register(instance.name, parse_number(found["index"]))
        self._check(line, found["compare"], value, parse_number(found["number"]))

    def _check(self, line: Line, compare: str, value: int, number: int) -> None:
        if not COMPARISONS[compare](value, number):
            self.failures.append(f"{line.where}: {line.rest.strip()}: it is {value}")

    def _do_register_read(self, line: Line) -> None:
        name, index = line.rest.split()[:2]
        self.engine.read_register(self._extern(name, "register").name, parse_number(index))

    def _do_register_write(self, line: Line) -> None:
        name, index, value = line.rest.split()[:3]
        instance = self._extern(name, "register")
        self.engine.write_register(instance.name, parse_number(index), parse_number(value))

    def _do_register_reset(self, line: Line) -> None:
        instance = self._extern(line.rest.strip(), "register")
        for index in range(instance.number(0)):
            self.engine.write_register(instance.name, index, 0)

    def _do_counter_read(self, line: Line) -> None:
        name, index = line.rest.split()[:2]
        self.engine.read_counter(self._extern(name, "counter").name, parse_number(index))

    def _do_counter_write(self, line: Line) -> None:
        name, *numbers = line.rest.split()
        index, packets, octets = (parse_number(number) for number in numbers)
        instance = self._extern(name, "counter")
        self.engine.write_counter(instance.name, index, CounterValue(packets, octets))

    def _do_meter_get_rates(self, line: Line) -> None:
        name, index = line.rest.split()[:2]
        self.engine.meter(self._extern(name, "meter").name, parse_number(index))

    def _do_meter_set_rates(self, line: Line) -> None:
        name, index, *rates = line.rest.split()
        instance = self._extern(name, "meter")
        self.engine.set_meter(instance.name, parse_number(index), _meter_config(rates))

    def _do_meter_array_set_rates(self, line: Line) -> None:
        name, *rates = line.rest.split()
        instance = self._extern(name, "meter")
        for index in range(instance.number(0)):
            self.engine.set_meter(instance.name, index, _meter_config(rates))

    # --- replication

    def _do_mirroring_add(self, line: Line) -> None:
        session, port = (int(word) for word in line.rest.split())
        self._replication.mirror(session, port, None)

    def _do_mirroring_add_mc(self, line: Line) -> None:
        session, group = (int(word) for word in line.rest.split())
        self._replication.mirror(session, None, group)

    def _do_mirroring_delete(self, line: Line) -> None:
        self._replication.remove_mirror(int(line.rest))

    def _do_mirroring_get(self, line: Line) -> None:
        self._replication.mirrored(int(line.rest))

    def _do_mc_mgrp_create(self, line: Line) -> None:
        self._replication.create_group(int(line.rest))

    def _do_mc_node_create(self, line: Line) -> None:
        instance, *ports = (int(word) for word in line.rest.split())
        self._replication.create_node(instance, place_map(ports))

    def _do_mc_node_update(self, line: Line) -> None:
        node, *ports = (int(word) for word in line.rest.split())
        self._replication.update_node(node, place_map(ports))

    def _do_mc_node_associate(self, line: Line) -> None:
        group, node = (int(word) for word in line.rest.split())
        self._replication.associate(group, node)


def _meter_config(rates: Sequence[str]) -> MeterConfig:
    """Parse `CIR:BURST PIR:BURST`, with rates in units per microsecond as in BMv2's CLI."""
    if len(rates) != 2:
        raise StfError(f"a meter needs two RATE:BURST pairs, not {len(rates)}")
    (cir, cburst), (pir, pburst) = (rate.split(":") for rate in rates)
    return MeterConfig(round(float(cir) * 1e6), int(cburst), round(float(pir) * 1e6), int(pburst))


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StfError(f"{path}: cannot be read: {error}") from None


def run_stf(engine_factory: EngineFactory, program: Program, stf_path: Path) -> list[str]:
    """Run an STF file on a new engine; return a message per failure. StfError if it cannot run."""
    lines = parse_lines(_text_of(stf_path), stf_path.name)
    run = Session(engine_factory(program))
    run.run(lines)
    return run.failures


def prepare(engine: Engine, stf_path: Path) -> list[Packet]:
    """Run the control-plane commands of an STF file; return its packets without sending them."""
    lines = parse_lines(_text_of(stf_path), stf_path.name)
    checks = ("packet", "expect", "check_counter", "check_register")
    Session(engine).run([line for line in lines if line.command not in checks])
    words = [line.rest.split() for line in lines if line.command == "packet"]
    return [(int(port), bytes.fromhex("".join(data))) for port, *data in words]


def engine_factory(executor: str) -> EngineFactory:
    """Return the factory of `interpreter` or `native`; StfError for another name."""
    if executor == "interpreter":
        from p4switch.backends.reference.interpreter import Interpreter

        return Interpreter
    if executor == "native":
        from p4switch.backends.native.engine import NativeEngine

        return NativeEngine
    raise StfError(f"no executor {executor!r}: there are interpreter and native")
