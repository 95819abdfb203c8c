"""simple_switch_CLI's common commands, over P4Runtime.

P4Runtime lacks BMv2's handles of entries and multicast nodes; they are kept here and count from 0
in each session, in the order in which entries were seen.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from finsy.proto import p4i, p4r

from p4switch.cli.client import DELETE, INSERT, MODIFY, Client, ClientError
from p4switch.p4runtime.bytestrings import encode

Write = Callable[[str], None]
Named = TypeVar("Named", bound=Any)

EXACT, LPM, TERNARY = p4i.MatchField.EXACT, p4i.MatchField.LPM, p4i.MatchField.TERNARY
RANGE, OPTIONAL = p4i.MatchField.RANGE, p4i.MatchField.OPTIONAL
KINDS = {EXACT: "exact", LPM: "lpm", TERNARY: "ternary", RANGE: "range", OPTIONAL: "optional"}

_MAC = re.compile(r"[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}")


class CommandError(Exception):
    """An invalid option."""


def number(text: str) -> int:
    """Parse a number in decimal, 0x, 0o or 0b, or an IPv4, IPv6 or MAC address."""
    if _MAC.fullmatch(text):
        return int(text.replace(":", ""), 16)
    try:
        if "." in text or ":" in text:
            return int(ipaddress.ip_address(text))
        return int(text, 0)
    except ValueError:
        raise CommandError(f"{text!r}: expected a number or an address") from None


class RuntimeCli:
    """Commands for one switch; `write` receives each line of output."""

    def __init__(self, client: Client, write: Write) -> None:
        self._client = client
        self._write = write
        self._info = client.info
        self._handles: dict[tuple[str, bytes], int] = {}
        self._entries: dict[tuple[str, int], p4r.TableEntry] = {}
        self._next_handle: dict[str, int] = {}
        self._nodes: list[tuple[int, list[int]]] = []
        self._groups: dict[int, list[int]] = {}

    def commands(self) -> list[str]:
        """Return the names of all commands."""
        return sorted(name.removeprefix("do_") for name in dir(self) if name.startswith("do_"))

    def run(self, line: str) -> bool:
        """Run a command; False if it ends the session. Raises CommandError and ClientError."""
        words = line.split("#", 1)[0].split()
        if not words:
            return True
        name, arguments = words[0], words[1:]
        if name in ("quit", "exit", "EOF"):
            return False
        command = getattr(self, f"do_{name}", None)
        if command is None:
            raise CommandError(f"no command {name!r}; there are {', '.join(self.commands())}")
        try:
            command(arguments)
        except (IndexError, TypeError, ValueError) as error:
            usage = " ".join((command.__doc__ or "").split("\n")[0].split())
            raise CommandError(f"{name}: {error or 'arguments are missing'}; {usage}") from None
        return True

    # --- names

    def _named(self, items: Iterable[Named], name: str, what: str) -> Named:
        known = list(items)
        for item in known:
            if name in (item.preamble.name, item.preamble.alias):
                return item
        names = ", ".join(item.preamble.name for item in known) or "none"
        raise CommandError(f"no {what} {name!r}; there are {names}")

    def _table(self, name: str) -> p4i.Table:
        return self._named(self._info.tables, name, "table")

    def _action_of(self, table: p4i.Table, name: str) -> p4i.Action:
        ids = {reference.id for reference in table.action_refs}
        listed = [action for action in self._info.actions if action.preamble.id in ids]
        return self._named(listed, name, f"action of {table.preamble.name}")

    # --- entries

    def _matches(self, table: p4i.Table, words: Sequence[str]) -> list[p4r.FieldMatch]:
        if len(words) != len(table.match_fields):
            keys = ", ".join(f"{f.name} ({KINDS[f.match_type]})" for f in table.match_fields)
            raise CommandError(
                f"table {table.preamble.name} has {len(table.match_fields)} keys ({keys}), "
                f"not {len(words)}"
            )
        pairs = zip(table.match_fields, words, strict=True)
        return [match for key, word in pairs if (match := _match(key, word)) is not None]

    def _action(self, table: p4i.Table, name: str, words: Sequence[str]) -> p4r.TableAction:
        action = self._action_of(table, name)
        if len(words) != len(action.params):
            names = ", ".join(f"{p.name} ({p.bitwidth} bits)" for p in action.params) or "none"
            raise CommandError(
                f"action {action.preamble.name} takes {len(action.params)} parameters ({names}), "
                f"not {len(words)}"
            )
        made = p4r.Action(action_id=action.preamble.id)
        for parameter, word in zip(action.params, words, strict=True):
            made.params.add(param_id=parameter.id, value=encode(number(word)))
        return p4r.TableAction(action=made)

    def do_table_add(self, words: Sequence[str]) -> None:
        """table_add TABLE ACTION MATCH... => PARAMETER... [PRIORITY].

        MATCH: `value`, `value/length`, `value&&&mask`, `low->high`; of two matching entries that
        with the smaller PRIORITY wins, as in simple_switch_CLI.
        """
        table = self._table(words[0])
        if "=>" not in words:
            raise CommandError("table_add: expected => between the matches and the parameters")
        place = list(words).index("=>")
        given = list(words[place + 1 :])
        entry = p4r.TableEntry(table_id=table.preamble.id)
        entry.match.extend(self._matches(table, words[2:place]))
        if _ranked(table):
            if len(given) != len(self._action_of(table, words[1]).params) + 1:
                raise CommandError(
                    f"an entry of {table.preamble.name} has a priority, after the parameters"
                )
            entry.priority = _flipped(number(given.pop()))
        entry.action.CopyFrom(self._action(table, words[1], given))
        self._client.write(INSERT, table_entry=entry)
        handle = self._handle(table.preamble.name, entry)
        self._write(f"Entry has been added with handle {handle}")

    def do_table_set_default(self, words: Sequence[str]) -> None:
        """table_set_default TABLE ACTION PARAMETER..."""
        table = self._table(words[0])
        entry = p4r.TableEntry(table_id=table.preamble.id, is_default_action=True)
        entry.action.CopyFrom(self._action(table, words[1], words[2:]))
        self._client.write(MODIFY, table_entry=entry)

    def do_table_reset_default(self, words: Sequence[str]) -> None:
        """table_reset_default TABLE."""
        table = self._table(words[0])
        entry = p4r.TableEntry(table_id=table.preamble.id, is_default_action=True)
        self._client.write(MODIFY, table_entry=entry)

    def do_table_modify(self, words: Sequence[str]) -> None:
        """table_modify TABLE ACTION HANDLE [=>] PARAMETER..."""
        table = self._table(words[0])
        given = [word for word in words[3:] if word != "=>"]
        entry = p4r.TableEntry()
        entry.CopyFrom(self._entry(table, words[2]))
        entry.action.CopyFrom(self._action(table, words[1], given))
        self._client.write(MODIFY, table_entry=entry)
        self._handle(table.preamble.name, entry)

    def do_table_delete(self, words: Sequence[str]) -> None:
        """table_delete TABLE HANDLE."""
        table = self._table(words[0])
        entry = self._entry(table, words[1])
        self._client.write(DELETE, table_entry=_bare(entry))
        self._forget(table.preamble.name, entry)

    def do_table_clear(self, words: Sequence[str]) -> None:
        """table_clear TABLE."""
        table = self._table(words[0])
        for entry in self._read_entries(table):
            if not entry.is_const:
                self._client.write(DELETE, table_entry=_bare(entry))
                self._forget(table.preamble.name, entry)

    def do_table_num_entries(self, words: Sequence[str]) -> None:
        """table_num_entries TABLE."""
        self._write(str(len(self._read_entries(self._table(words[0])))))

    def do_table_dump(self, words: Sequence[str]) -> None:
        """table_dump TABLE."""
        table = self._table(words[0])
        self._write("==========\nTABLE ENTRIES")
        for entry in self._read_entries(table):
            self._write("**********")
            self._write(f"Dumping entry {self._handle(table.preamble.name, entry):#x}")
            self._write("Match key:")
            given = {match.field_id: match for match in entry.match}
            for key in table.match_fields:
                kind = KINDS[key.match_type].upper()
                self._write(f"* {key.name:<20}: {kind:<9} {_shown(key, given.get(key.id))}")
            if entry.priority:
                self._write(f"Priority: {_flipped(entry.priority)}")
            self._write(f"Action entry: {self._shown_action(entry.action)}")
        wanted = p4r.TableEntry(table_id=table.preamble.id, is_default_action=True)
        for entity in self._client.read(table_entry=wanted):
            self._write("==========\nDumping default entry")
            self._write(f"Action entry: {self._shown_action(entity.table_entry.action)}")
        self._write("==========")

    def _shown_action(self, action: p4r.TableAction) -> str:
        kind = action.WhichOneof("type")
        if kind == "action":
            ids = {item.preamble.id: item.preamble.name for item in self._info.actions}
            values = ", ".join(p.value.hex() for p in action.action.params)
            return f"{ids[action.action.action_id]} - {values}"
        if kind == "action_profile_member_id":
            return f"member {action.action_profile_member_id}"
        if kind == "action_profile_group_id":
            return f"group {action.action_profile_group_id}"
        return "none"

    def _read_entries(self, table: p4i.Table) -> list[p4r.TableEntry]:
        wanted = p4r.TableEntry(table_id=table.preamble.id)
        return [entity.table_entry for entity in self._client.read(table_entry=wanted)]

    def _handle(self, table: str, entry: p4r.TableEntry) -> int:
        key = (table, _bare(entry).SerializeToString(deterministic=True))
        if key not in self._handles:
            self._handles[key] = self._next_handle.get(table, 0)
            self._next_handle[table] = self._handles[key] + 1
        self._entries[table, self._handles[key]] = entry
        return self._handles[key]

    def _forget(self, table: str, entry: p4r.TableEntry) -> None:
        key = (table, _bare(entry).SerializeToString(deterministic=True))
        self._entries.pop((table, self._handles.pop(key, -1)), None)

    def _entry(self, table: p4i.Table, handle: str) -> p4r.TableEntry:
        name = table.preamble.name
        if (name, number(handle)) not in self._entries:
            for entry in self._read_entries(table):
                self._handle(name, entry)
        found = self._entries.get((name, number(handle)))
        if found is None:
            raise CommandError(f"no entry {handle} in table {name}; table_dump lists them")
        return found

    # --- objects of the program

    def do_show_tables(self, words: Sequence[str]) -> None:
        """show_tables."""
        for table in self._info.tables:
            self._write(_table_line(table))

    def do_show_actions(self, words: Sequence[str]) -> None:
        """show_actions."""
        for action in self._info.actions:
            self._write(f"{action.preamble.name:<30} [{_parameters(action)}]")

    def do_table_info(self, words: Sequence[str]) -> None:
        """table_info TABLE."""
        table = self._table(words[0])
        self._write(_table_line(table))
        ids = {reference.id for reference in table.action_refs}
        for action in self._info.actions:
            if action.preamble.id in ids:
                self._write(f"  {action.preamble.name:<28} [{_parameters(action)}]")

    def do_help(self, words: Sequence[str]) -> None:
        """help."""
        for name in self.commands():
            self._write((getattr(self, f"do_{name}").__doc__ or "").split("\n")[0].rstrip("."))

    # --- counters, registers, meters

    def do_counter_read(self, words: Sequence[str]) -> None:
        """counter_read COUNTER INDEX."""
        counter = self._named(self._info.counters, words[0], "counter")
        entry = p4r.CounterEntry(
            counter_id=counter.preamble.id, index=p4r.Index(index=number(words[1]))
        )
        for entity in self._client.read(counter_entry=entry):
            data = entity.counter_entry.data
            self._write(
                f"{counter.preamble.name}[{words[1]}]= "
                f"({data.byte_count} bytes, {data.packet_count} packets)"
            )

    def do_counter_write(self, words: Sequence[str]) -> None:
        """counter_write COUNTER INDEX PACKETS BYTES."""
        counter = self._named(self._info.counters, words[0], "counter")
        index, packets, octets = (number(word) for word in words[1:])
        entry = p4r.CounterEntry(
            counter_id=counter.preamble.id,
            index=p4r.Index(index=index),
            data=p4r.CounterData(packet_count=packets, byte_count=octets),
        )
        self._client.write(MODIFY, counter_entry=entry)

    def do_counter_reset(self, words: Sequence[str]) -> None:
        """counter_reset COUNTER."""
        counter = self._named(self._info.counters, words[0], "counter")
        for index in range(counter.size):
            self.do_counter_write([words[0], str(index), "0", "0"])

    def do_register_read(self, words: Sequence[str]) -> None:
        """register_read REGISTER [INDEX]."""
        register = self._named(self._info.registers, words[0], "register")
        entry = p4r.RegisterEntry(register_id=register.preamble.id)
        if len(words) > 1:
            entry.index.index = number(words[1])
        cells = [entity.register_entry for entity in self._client.read(register_entry=entry)]
        values = ", ".join(str(int.from_bytes(c.data.bitstring, "big")) for c in cells)
        index = f"[{words[1]}]" if len(words) > 1 else ""
        self._write(f"{register.preamble.name}{index}= {values}")

    def do_register_write(self, words: Sequence[str]) -> None:
        """register_write REGISTER INDEX VALUE."""
        register = self._named(self._info.registers, words[0], "register")
        index, value = (number(word) for word in words[1:])
        entry = p4r.RegisterEntry(register_id=register.preamble.id, index=p4r.Index(index=index))
        entry.data.bitstring = encode(value)
        self._client.write(MODIFY, register_entry=entry)

    def do_register_reset(self, words: Sequence[str]) -> None:
        """register_reset REGISTER."""
        register = self._named(self._info.registers, words[0], "register")
        for index in range(register.size):
            self.do_register_write([words[0], str(index), "0"])

    def do_meter_set_rates(self, words: Sequence[str]) -> None:
        """meter_set_rates METER INDEX CIR:BURST PIR:BURST.

        Rates are in units (bytes or packets) a microsecond, as in simple_switch_CLI.
        """
        meter = self._named(self._info.meters, words[0], "meter")
        (cir, cburst), (pir, pburst) = (word.split(":") for word in words[2:])
        entry = p4r.MeterEntry(
            meter_id=meter.preamble.id,
            index=p4r.Index(index=number(words[1])),
            config=p4r.MeterConfig(
                cir=round(float(cir) * 1e6),
                cburst=int(cburst),
                pir=round(float(pir) * 1e6),
                pburst=int(pburst),
            ),
        )
        self._client.write(MODIFY, meter_entry=entry)

    def do_meter_get_rates(self, words: Sequence[str]) -> None:
        """meter_get_rates METER INDEX."""
        meter = self._named(self._info.meters, words[0], "meter")
        wanted = p4r.MeterEntry(meter_id=meter.preamble.id, index=p4r.Index(index=number(words[1])))
        for entity in self._client.read(meter_entry=wanted):
            entry = entity.meter_entry
            if not entry.HasField("config"):
                self._write("no rates: always green")
                continue
            config = entry.config
            for rate, burst in ((config.cir, config.cburst), (config.pir, config.pburst)):
                self._write(f"info rate = {rate / 1e6:g}, burst size = {burst}")

    # --- replication

    def do_mirroring_add(self, words: Sequence[str]) -> None:
        """mirroring_add SESSION PORT."""
        session, port = (number(word) for word in words)
        self._replication(INSERT, clone_session_entry=_session(session, [port]))

    def do_mirroring_delete(self, words: Sequence[str]) -> None:
        """mirroring_delete SESSION."""
        self._replication(DELETE, clone_session_entry=_session(number(words[0]), []))

    def do_mirroring_get(self, words: Sequence[str]) -> None:
        """mirroring_get SESSION."""
        wanted = p4r.PacketReplicationEngineEntry(
            clone_session_entry=_session(number(words[0]), [])
        )
        for entity in self._client.read(packet_replication_engine_entry=wanted):
            replicas = entity.packet_replication_engine_entry.clone_session_entry.replicas
            ports = ", ".join(str(_port(replica)) for replica in replicas)
            self._write(f"session {words[0]}: ports {ports}")

    def do_mc_mgrp_create(self, words: Sequence[str]) -> None:
        """mc_mgrp_create GROUP."""
        group = number(words[0])
        self._replication(INSERT, multicast_group_entry=self._group(group, []))
        self._groups[group] = []

    def do_mc_mgrp_destroy(self, words: Sequence[str]) -> None:
        """mc_mgrp_destroy GROUP."""
        group = number(words[0])
        self._replication(DELETE, multicast_group_entry=self._group(group, []))
        self._groups.pop(group, None)

    def do_mc_node_create(self, words: Sequence[str]) -> None:
        """mc_node_create RID PORT..."""
        self._nodes.append((number(words[0]), [number(word) for word in words[1:]]))
        self._write(f"node was created with handle {len(self._nodes) - 1}")

    def do_mc_node_associate(self, words: Sequence[str]) -> None:
        """mc_node_associate GROUP NODE."""
        group, node = number(words[0]), number(words[1])
        if group not in self._groups or node >= len(self._nodes):
            raise CommandError(
                f"no group {group} or no node {node} of this session: mc_mgrp_create and "
                "mc_node_create make them"
            )
        nodes = [*self._groups[group], node]
        self._replication(MODIFY, multicast_group_entry=self._group(group, nodes))
        self._groups[group] = nodes

    def _group(self, group: int, nodes: Sequence[int]) -> p4r.MulticastGroupEntry:
        entry = p4r.MulticastGroupEntry(multicast_group_id=group)
        for rid, ports in (self._nodes[node] for node in nodes):
            for port in ports:
                entry.replicas.add(port=encode(port), instance=rid)
        return entry

    def _replication(self, kind: p4r.Update.Type.ValueType, **entry: Any) -> None:
        made = p4r.PacketReplicationEngineEntry(**entry)
        self._client.write(kind, packet_replication_engine_entry=made)


def _table_line(table: p4i.Table) -> str:
    keys = ", ".join(f"{f.name}({KINDS[f.match_type]}, {f.bitwidth})" for f in table.match_fields)
    return f"{table.preamble.name:<30} [{keys}]"


def _parameters(action: p4i.Action) -> str:
    return ", ".join(f"{p.name}({p.bitwidth})" for p in action.params)


def _session(session: int, ports: Sequence[int]) -> p4r.CloneSessionEntry:
    entry = p4r.CloneSessionEntry(session_id=session)
    for port in ports:
        entry.replicas.add(port=encode(port), instance=1)
    return entry


def _port(replica: p4r.Replica) -> int:
    return int.from_bytes(replica.port, "big") if replica.port else replica.egress_port


def _ranked(table: p4i.Table) -> bool:
    """Return whether entries of a table have priorities."""
    return any(f.match_type in (TERNARY, RANGE, OPTIONAL) for f in table.match_fields)


def _flipped(priority: int) -> int:
    """Convert a priority between P4Runtime (larger wins) and simple_switch_CLI (smaller wins)."""
    if not 0 <= priority < (1 << 31) - 1:
        raise CommandError(f"priority {priority}: expected 0 to {(1 << 31) - 2}")
    return (1 << 31) - 1 - priority


def _bare(entry: p4r.TableEntry) -> p4r.TableEntry:
    """Return what identifies an entry."""
    return p4r.TableEntry(table_id=entry.table_id, match=entry.match, priority=entry.priority)


def _match(key: p4i.MatchField, word: str) -> p4r.FieldMatch | None:
    """Return a match in simple_switch_CLI's form; None if it matches anything."""
    made = p4r.FieldMatch(field_id=key.id)
    kind = key.match_type
    full = (1 << key.bitwidth) - 1
    if kind == EXACT:
        made.exact.value = encode(number(word))
    elif kind == LPM:
        value, slash, length = word.partition("/")
        if not slash:
            raise CommandError(f"{word!r}: key {key.name} is lpm, written value/length")
        if not number(length):
            return None
        mask = full & ~(full >> number(length))
        made.lpm.value, made.lpm.prefix_len = encode(number(value) & mask), number(length)
    elif kind == TERNARY:
        value, sign, mask_text = word.partition("&&&")
        mask = number(mask_text) if sign else full
        if not mask:
            return None
        made.ternary.value, made.ternary.mask = encode(number(value) & mask), encode(mask)
    elif kind == RANGE:
        low, arrow, high = word.partition("->")
        if not arrow:
            raise CommandError(f"{word!r}: key {key.name} is a range, written low->high")
        if (number(low), number(high)) == (0, full):
            return None
        made.range.low, made.range.high = encode(number(low)), encode(number(high))
    else:
        if word == "*":
            return None
        made.optional.value = encode(number(word))
    return made


def _shown(key: p4i.MatchField, match: p4r.FieldMatch | None) -> str:
    if match is None:
        return "*"
    kind = match.WhichOneof("field_match_type")
    if kind == "lpm":
        return f"{match.lpm.value.hex()}/{match.lpm.prefix_len}"
    if kind == "ternary":
        return f"{match.ternary.value.hex()} &&& {match.ternary.mask.hex()}"
    if kind == "range":
        return f"{match.range.low.hex()} -> {match.range.high.hex()}"
    value: bytes = getattr(match, str(kind)).value
    return value.hex()


def session(cli: RuntimeCli, lines: Iterable[str], complain: Write) -> bool:
    """Run all lines until one ends the session; return whether all succeeded."""
    good = True
    for line in lines:
        try:
            if not cli.run(line):
                break
        except (CommandError, ClientError) as error:
            complain(f"Error: {error}")
            good = False
    return good
