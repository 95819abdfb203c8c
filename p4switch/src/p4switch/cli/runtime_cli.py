"""simple_switch_CLI's commands, over BMv2's run-time interface (`bmv2_runtime`).

Handles of entries, members, groups and nodes are the switch's, so they outlive a session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from p4switch.bmv2_runtime.records import Fault, Record
from p4switch.bmv2_runtime.replication import place_map
from p4switch.cli.client import Client, ClientError
from p4switch.cli.runtime_names import (
    RANKED,
    CommandError,
    Names,
    key_name,
    number,
    shown_match,
    value,
)

Write = Callable[[str], None]
TRUTHS = {"true": True, "1": True, "false": False, "0": False}
ARROW = "=>"


class RuntimeCli:
    """Commands for one switch; `write` receives each line of output."""

    def __init__(self, client: Client, write: Write) -> None:
        """Read what can be controlled. Raises Fault and ClientError."""
        self._client = client
        self._write = write
        document = client.call("standard", "bm_get_config", [])
        if not document:
            raise ClientError("the switch has no program yet")
        self._names = Names(json.loads(document))

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
        except Fault as fault:
            detail = "" if str(fault) == fault.code.name else f": {fault}"
            raise CommandError(f"{name}: {fault.kind} ({fault.code.name}){detail}") from None
        except (IndexError, KeyError, TypeError, ValueError) as error:
            usage = " ".join((command.__doc__ or "").split("\n")[0].split())
            raise CommandError(f"{name}: {error or 'arguments are missing'}; {usage}") from None
        return True

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the service `standard` that takes a context."""
        return self._client.call("standard", method, [0, *arguments])

    def _multicast(self, method: str, *arguments: Any) -> Any:
        return self._client.call("simple_pre_lag", method, [0, *arguments])

    def _switch(self, method: str, *arguments: Any) -> Any:
        return self._client.call("simple_switch", method, arguments)

    # --- entries

    def do_table_add(self, words: Sequence[str]) -> None:
        """table_add TABLE ACTION MATCH... => PARAMETER... [PRIORITY].

        MATCH: `value`, `value/length`, `value&&&mask`, `low->high`; of two matching entries that
        with the smaller PRIORITY wins.
        """
        table = self._names.table(words[0])
        action = self._names.action(table["name"], table["actions"], words[1])
        match, given = self._halves(table, words[2:])
        options = self._options(table, given, len(action["runtime_data"]))
        data = self._names.data(action, given)
        handle = self._call("bm_mt_add_entry", table["name"], match, action["name"], data, options)
        self._write(f"Entry has been added with handle {handle}")

    def do_table_indirect_add(self, words: Sequence[str]) -> None:
        """table_indirect_add TABLE MATCH... => MEMBER [PRIORITY]."""
        self._add_indirect("bm_mt_indirect_add_entry", words)

    def do_table_indirect_add_with_group(self, words: Sequence[str]) -> None:
        """table_indirect_add_with_group TABLE MATCH... => GROUP [PRIORITY]."""
        self._add_indirect("bm_mt_indirect_ws_add_entry", words)

    def _add_indirect(self, method: str, words: Sequence[str]) -> None:
        table = self._names.table(words[0])
        match, given = self._halves(table, words[1:])
        options = self._options(table, given, 1)
        [target] = given
        handle = self._call(method, table["name"], match, number(target), options)
        self._write(f"Entry has been added with handle {handle}")

    def _halves(self, table: Any, words: Sequence[str]) -> tuple[list[Record], list[str]]:
        if ARROW not in words:
            raise CommandError("expected => between the matches and the parameters")
        place = list(words).index(ARROW)
        return self._names.match(table, words[:place]), list(words[place + 1 :])

    def _options(self, table: Any, given: list[str], parameters: int) -> Record:
        """Take the priority from the end of the parameters, if there must be one."""
        if table["match_type"] not in RANKED:
            return Record("BmAddEntryOptions")
        if len(given) != parameters + 1:
            raise CommandError(f"an entry of {table['name']} has a priority, after the parameters")
        return Record("BmAddEntryOptions", priority=number(given.pop()))

    def do_table_set_default(self, words: Sequence[str]) -> None:
        """table_set_default TABLE ACTION PARAMETER..."""
        table = self._names.table(words[0])
        action = self._names.action(table["name"], table["actions"], words[1])
        data = self._names.data(action, words[2:])
        self._call("bm_mt_set_default_action", table["name"], action["name"], data)

    def do_table_reset_default(self, words: Sequence[str]) -> None:
        """table_reset_default TABLE."""
        self._call("bm_mt_reset_default_entry", self._names.table(words[0])["name"])

    def do_table_modify(self, words: Sequence[str]) -> None:
        """table_modify TABLE ACTION HANDLE [=>] PARAMETER..."""
        table = self._names.table(words[0])
        action = self._names.action(table["name"], table["actions"], words[1])
        data = self._names.data(action, [word for word in words[3:] if word != ARROW])
        handle = number(words[2])
        self._call("bm_mt_modify_entry", table["name"], handle, action["name"], data)

    def do_table_delete(self, words: Sequence[str]) -> None:
        """table_delete TABLE HANDLE."""
        self._call("bm_mt_delete_entry", self._names.table(words[0])["name"], number(words[1]))

    def do_table_set_timeout(self, words: Sequence[str]) -> None:
        """table_set_timeout TABLE HANDLE MILLISECONDS."""
        handle, milliseconds = (number(word) for word in words[1:])
        table = self._names.table(words[0])["name"]
        self._call("bm_mt_set_entry_ttl", table, handle, milliseconds)

    def do_table_clear(self, words: Sequence[str]) -> None:
        """table_clear TABLE."""
        self._call("bm_mt_clear_entries", self._names.table(words[0])["name"], False)

    def do_table_num_entries(self, words: Sequence[str]) -> None:
        """table_num_entries TABLE."""
        self._write(str(self._call("bm_mt_get_num_entries", self._names.table(words[0])["name"])))

    def do_table_dump_entry(self, words: Sequence[str]) -> None:
        """table_dump_entry TABLE HANDLE."""
        table = self._names.table(words[0])
        self._show_entry(table, self._call("bm_mt_get_entry", table["name"], number(words[1])))

    def do_table_dump(self, words: Sequence[str]) -> None:
        """table_dump TABLE."""
        table = self._names.table(words[0])
        self._write("==========\nTABLE ENTRIES")
        for entry in self._call("bm_mt_get_entries", table["name"]):
            self._write("**********")
            self._show_entry(table, entry)
        default = self._call("bm_mt_get_default_entry", table["name"])
        self._write("==========\nDumping default entry")
        self._write(f"Action entry: {_shown_action(default)}")
        self._write("==========")

    def _show_entry(self, table: Any, entry: Record) -> None:
        self._write(f"Dumping entry {entry.entry_handle:#x}")
        self._write("Match key:")
        for key, match in zip(table["key"], entry.match_key, strict=True):
            kind = key["match_type"].upper()
            self._write(f"* {key_name(key):<20}: {kind:<9} {shown_match(match)}")
        if entry.options.priority >= 0:
            self._write(f"Priority: {entry.options.priority}")
        self._write(f"Action entry: {_shown_action(entry.action_entry)}")

    # --- action profiles

    def do_act_prof_create_member(self, words: Sequence[str]) -> None:
        """act_prof_create_member PROFILE ACTION PARAMETER..."""
        profile, action, data = self._member(words[0], words[1], words[2:])
        handle = self._call("bm_mt_act_prof_add_member", profile, action, data)
        self._write(f"Member has been created with handle {handle}")

    def do_act_prof_modify_member(self, words: Sequence[str]) -> None:
        """act_prof_modify_member PROFILE ACTION MEMBER PARAMETER..."""
        profile, action, data = self._member(words[0], words[1], words[3:])
        member = number(words[2])
        self._call("bm_mt_act_prof_modify_member", profile, member, action, data)

    def _member(self, name: str, action: str, words: Sequence[str]) -> tuple[str, str, list[bytes]]:
        profile = self._names.profile(name)
        found = self._names.action(profile, self._names.profile_actions(profile), action)
        return profile, found["name"], self._names.data(found, words)

    def do_act_prof_delete_member(self, words: Sequence[str]) -> None:
        """act_prof_delete_member PROFILE MEMBER."""
        self._of_profile("bm_mt_act_prof_delete_member", words)

    def do_act_prof_create_group(self, words: Sequence[str]) -> None:
        """act_prof_create_group PROFILE."""
        handle = self._of_profile("bm_mt_act_prof_create_group", words)
        self._write(f"Group has been created with handle {handle}")

    def do_act_prof_delete_group(self, words: Sequence[str]) -> None:
        """act_prof_delete_group PROFILE GROUP."""
        self._of_profile("bm_mt_act_prof_delete_group", words)

    def do_act_prof_add_member_to_group(self, words: Sequence[str]) -> None:
        """act_prof_add_member_to_group PROFILE MEMBER GROUP."""
        self._of_profile("bm_mt_act_prof_add_member_to_group", words)

    def do_act_prof_remove_member_from_group(self, words: Sequence[str]) -> None:
        """act_prof_remove_member_from_group PROFILE MEMBER GROUP."""
        self._of_profile("bm_mt_act_prof_remove_member_from_group", words)

    def _of_profile(self, method: str, words: Sequence[str]) -> Any:
        return self._call(method, self._names.profile(words[0]), *map(number, words[1:]))

    def do_act_prof_dump(self, words: Sequence[str]) -> None:
        """act_prof_dump PROFILE."""
        name = self._names.profile(words[0])
        self._write("==========\nACTION PROFILE MEMBERS")
        for member in self._call("bm_mt_act_prof_get_members", name):
            data = ", ".join(each.hex() for each in member.action_data)
            self._write(f"member {member.mbr_handle}: {member.action_name} - {data}")
        if "selector" in self._names.profiles[name]:
            self._write("==========\nACTION PROFILE GROUPS")
            for group in self._call("bm_mt_act_prof_get_groups", name):
                members = ", ".join(str(member) for member in group.mbr_handles)
                self._write(f"group {group.grp_handle}: members {members}")
        self._write("==========")

    # --- objects of the program

    def do_show_tables(self, words: Sequence[str]) -> None:
        """show_tables."""
        for table in self._names.tables.values():
            self._write(self._table_line(table))

    def do_show_actions(self, words: Sequence[str]) -> None:
        """show_actions."""
        for action in self._names.actions.values():
            self._write(f"{action['name']:<30} [{_parameters(action)}]")

    def do_table_info(self, words: Sequence[str]) -> None:
        """table_info TABLE."""
        table = self._names.table(words[0])
        self._write(self._table_line(table))
        for name in table["actions"]:
            self._write(f"  {name:<28} [{_parameters(self._names.actions[name])}]")

    def _table_line(self, table: Any) -> str:
        keys = ", ".join(
            f"{key_name(key)}({key['match_type']}, {self._names.width(key)})"
            for key in table["key"]
        )
        return f"{table['name']:<30} [{keys}]"

    def do_show_ports(self, words: Sequence[str]) -> None:
        """show_ports."""
        for port in self._client.call("standard", "bm_dev_mgr_show_ports", []):
            self._write(
                f"{port.port_num:>8} {port.iface_name:<20} {'UP' if port.is_up else 'DOWN'}"
            )

    def do_switch_info(self, words: Sequence[str]) -> None:
        """switch_info."""
        info = self._client.call("standard", "bm_mgmt_get_info", [])
        self._write(f"device_id: {info.device_id}\nthrift_port: {info.thrift_port}")

    def do_get_time_elapsed(self, words: Sequence[str]) -> None:
        """get_time_elapsed."""
        self._write(str(self._switch("get_time_elapsed_us")))

    def do_reset_state(self, words: Sequence[str]) -> None:
        """reset_state."""
        self._client.call("standard", "bm_reset_state", [])

    def do_help(self, words: Sequence[str]) -> None:
        """help."""
        for name in self.commands():
            self._write((getattr(self, f"do_{name}").__doc__ or "").split("\n")[0].rstrip("."))

    # --- counters, registers, meters: of direct ones the index is an entry's handle

    def do_counter_read(self, words: Sequence[str]) -> None:
        """counter_read COUNTER INDEX."""
        method, name, shown = self._array("counter", words[0], "bm_mt_read_counter")
        found = self._call(method or "bm_counter_read", name, number(words[1]))
        self._write(f"{shown}[{words[1]}]= ({found.bytes} bytes, {found.packets} packets)")

    def do_counter_write(self, words: Sequence[str]) -> None:
        """counter_write COUNTER INDEX PACKETS BYTES."""
        method, name, _ = self._array("counter", words[0], "bm_mt_write_counter")
        index, packets, octets = (number(word) for word in words[1:])
        made = Record("BmCounterValue", bytes=octets, packets=packets)
        self._call(method or "bm_counter_write", name, index, made)

    def do_counter_reset(self, words: Sequence[str]) -> None:
        """counter_reset COUNTER."""
        method, name, _ = self._array("counter", words[0], "bm_mt_reset_counters")
        self._call(method or "bm_counter_reset_all", name)

    def _array(self, what: str, name: str, direct: str) -> tuple[str, str, str]:
        """Return the method of direct ones, or none, with what it is called for, and the name."""
        items = self._names.counters if what == "counter" else self._names.meters
        found = self._names.find(items, name, what)
        if found.get("is_direct"):
            return direct, found["binding"], found["name"]
        return "", found["name"], found["name"]

    def do_register_read(self, words: Sequence[str]) -> None:
        """register_read REGISTER [INDEX]."""
        register = self._names.find(self._names.registers, words[0], "register")
        name, mask = register["name"], (1 << register["bitwidth"]) - 1
        if len(words) > 1:
            found = self._call("bm_register_read", name, number(words[1]))
            self._write(f"{name}[{words[1]}]= {found & mask}")
            return
        cells = self._call("bm_register_read_all", name)
        self._write(f"{name}= {', '.join(str(cell & mask) for cell in cells)}")

    def do_register_write(self, words: Sequence[str]) -> None:
        """register_write REGISTER INDEX VALUE."""
        name = self._names.find(self._names.registers, words[0], "register")["name"]
        index, cell = (number(word) for word in words[1:])
        self._call("bm_register_write", name, index, cell)

    def do_register_reset(self, words: Sequence[str]) -> None:
        """register_reset REGISTER."""
        name = self._names.find(self._names.registers, words[0], "register")["name"]
        self._call("bm_register_reset", name)

    def do_meter_set_rates(self, words: Sequence[str]) -> None:
        """meter_set_rates METER INDEX CIR:BURST PIR:BURST.

        Rates are in units (bytes or packets) a microsecond.
        """
        method, name, _ = self._array("meter", words[0], "bm_mt_set_meter_rates")
        rates = [_rate(word) for word in words[2:]]
        self._call(method or "bm_meter_set_rates", name, number(words[1]), rates)

    def do_meter_array_set_rates(self, words: Sequence[str]) -> None:
        """meter_array_set_rates METER CIR:BURST PIR:BURST."""
        name = self._names.find(self._names.meters, words[0], "meter")["name"]
        self._call("bm_meter_array_set_rates", name, [_rate(word) for word in words[1:]])

    def do_meter_get_rates(self, words: Sequence[str]) -> None:
        """meter_get_rates METER INDEX."""
        method, name, _ = self._array("meter", words[0], "bm_mt_get_meter_rates")
        rates = self._call(method or "bm_meter_get_rates", name, number(words[1]))
        for rate in rates:
            self._write(f"info rate = {rate.units_per_micros:g}, burst size = {rate.burst_size}")
        if not rates:
            self._write("no rates: always green")

    # --- value sets and hashes

    def do_pvs_add(self, words: Sequence[str]) -> None:
        """pvs_add VALUE_SET VALUE."""
        self._value_set("bm_parse_vset_add", words)

    def do_pvs_remove(self, words: Sequence[str]) -> None:
        """pvs_remove VALUE_SET VALUE."""
        self._value_set("bm_parse_vset_remove", words)

    def do_pvs_clear(self, words: Sequence[str]) -> None:
        """pvs_clear VALUE_SET."""
        self._value_set("bm_parse_vset_clear", words)

    def do_pvs_get(self, words: Sequence[str]) -> None:
        """pvs_get VALUE_SET."""
        for each in self._value_set("bm_parse_vset_get", words):
            self._write(each.hex())

    def _value_set(self, method: str, words: Sequence[str]) -> Any:
        found = self._names.find(self._names.value_sets, words[0], "value set")
        width = found["compressed_bitwidth"]
        values = [value(word, width, found["name"]) for word in words[1:]]
        return self._call(method, found["name"], *values)

    def do_set_crc16_parameters(self, words: Sequence[str]) -> None:
        """set_crc16_parameters NAME POLYNOMIAL INITIAL FINAL_XOR REFLECT_DATA REFLECT_RESULT."""
        self._set_crc("bm_set_crc16_custom_parameters", "BmCrc16Config", 16, words)

    def do_set_crc32_parameters(self, words: Sequence[str]) -> None:
        """set_crc32_parameters NAME POLYNOMIAL INITIAL FINAL_XOR REFLECT_DATA REFLECT_RESULT."""
        self._set_crc("bm_set_crc32_custom_parameters", "BmCrc32Config", 32, words)

    def _set_crc(self, method: str, kind: str, width: int, words: Sequence[str]) -> None:
        name = self._names.find(self._names.calculations, words[0], "custom CRC")["name"]
        polynomial, initial, final = (_signed(number(word), width) for word in words[1:4])
        data, remainder = (TRUTHS[word.lower()] for word in words[4:])
        config = Record(
            kind,
            polynomial=polynomial,
            initial_remainder=initial,
            final_xor_value=final,
            data_reflected=data,
            remainder_reflected=remainder,
        )
        self._call(method, name, config)

    # --- queues

    def do_set_queue_depth(self, words: Sequence[str]) -> None:
        """set_queue_depth PACKETS [PORT [PRIORITY]]."""
        self._set_queues("depth", words)

    def do_set_queue_rate(self, words: Sequence[str]) -> None:
        """set_queue_rate PACKETS_PER_SECOND [PORT [PRIORITY]]."""
        self._set_queues("rate", words)

    def _set_queues(self, what: str, words: Sequence[str]) -> None:
        amount, *place = (number(word) for word in words)
        methods = (f"set_all_egress_queue_{what}s", f"set_egress_queue_{what}")
        method = (*methods, f"set_egress_priority_queue_{what}")[len(place)]
        if self._switch(method, *place, amount):
            raise CommandError("the switch refuses this; its log says why")

    # --- replication

    def do_mirroring_add(self, words: Sequence[str]) -> None:
        """mirroring_add SESSION PORT."""
        session, port = (number(word) for word in words)
        self._switch("mirroring_session_add", session, Record("MirroringSessionConfig", port=port))

    def do_mirroring_add_mc(self, words: Sequence[str]) -> None:
        """mirroring_add_mc SESSION GROUP."""
        session, group = (number(word) for word in words)
        self._switch("mirroring_session_add", session, Record("MirroringSessionConfig", mgid=group))

    def do_mirroring_delete(self, words: Sequence[str]) -> None:
        """mirroring_delete SESSION."""
        self._switch("mirroring_session_delete", number(words[0]))

    def do_mirroring_get(self, words: Sequence[str]) -> None:
        """mirroring_get SESSION."""
        found = self._switch("mirroring_session_get", number(words[0]))
        parts = (("port", found.port), ("multicast group", found.mgid))
        targets = ", ".join(f"{what} {target}" for what, target in parts if target is not None)
        self._write(f"session {words[0]}: {targets or 'nowhere'}")

    def do_mc_mgrp_create(self, words: Sequence[str]) -> None:
        """mc_mgrp_create GROUP."""
        self._multicast("bm_mc_mgrp_create", number(words[0]))

    def do_mc_mgrp_destroy(self, words: Sequence[str]) -> None:
        """mc_mgrp_destroy GROUP."""
        self._multicast("bm_mc_mgrp_destroy", number(words[0]))

    def do_mc_node_create(self, words: Sequence[str]) -> None:
        """mc_node_create RID PORT... [| LAG...]."""
        ports, lags = _places(words[1:])
        node = self._multicast("bm_mc_node_create", number(words[0]), ports, lags)
        self._write(f"node was created with handle {node}")

    def do_mc_node_update(self, words: Sequence[str]) -> None:
        """mc_node_update NODE PORT... [| LAG...]."""
        self._multicast("bm_mc_node_update", number(words[0]), *_places(words[1:]))

    def do_mc_node_destroy(self, words: Sequence[str]) -> None:
        """mc_node_destroy NODE."""
        self._multicast("bm_mc_node_destroy", number(words[0]))

    def do_mc_node_associate(self, words: Sequence[str]) -> None:
        """mc_node_associate GROUP NODE."""
        self._multicast("bm_mc_node_associate", number(words[0]), number(words[1]))

    def do_mc_node_dissociate(self, words: Sequence[str]) -> None:
        """mc_node_dissociate GROUP NODE."""
        self._multicast("bm_mc_node_dissociate", number(words[0]), number(words[1]))

    def do_mc_set_lag_membership(self, words: Sequence[str]) -> None:
        """mc_set_lag_membership LAG PORT..."""
        ports, _ = _places(words[1:])
        self._multicast("bm_mc_set_lag_membership", number(words[0]), ports)

    def do_mc_dump(self, words: Sequence[str]) -> None:
        """mc_dump."""
        found = json.loads(self._multicast("bm_mc_get_entries"))
        rids = {node["handle"]: node["rid"] for node in found["l1_handles"]}
        places = {node["handle"]: node for node in found["l2_handles"]}
        for group in found["mgrps"]:
            self._write(f"group {group['id']}")
            for node in group["l1_handles"]:
                ports, lags = places[node]["ports"], places[node]["lags"]
                self._write(f"  node {node}: rid {rids[node]}, ports {ports}, LAGs {lags}")


def _places(words: Sequence[str]) -> tuple[str, str]:
    """Return the maps of ports, and of LAGs after a `|`."""
    bar = list(words).index("|") if "|" in words else len(words)
    ports, lags = words[:bar], words[bar + 1 :]
    return place_map([number(word) for word in ports]), place_map([number(word) for word in lags])


def _parameters(action: Any) -> str:
    return ", ".join(f"{p['name']}({p['bitwidth']})" for p in action["runtime_data"])


def _shown_action(entry: Record) -> str:
    if entry.action_name is not None:
        return f"{entry.action_name} - {', '.join(each.hex() for each in entry.action_data)}"
    if entry.mbr_handle is not None:
        return f"member {entry.mbr_handle}"
    return "none" if entry.grp_handle is None else f"group {entry.grp_handle}"


def _rate(word: str) -> Record:
    rate, burst = word.split(":")
    return Record("BmMeterRateConfig", units_per_micros=float(rate), burst_size=int(burst))


def _signed(given: int, width: int) -> int:
    """Return a number as Thrift's signed ones are."""
    given &= (1 << width) - 1
    return given - (1 << width) if given >> (width - 1) else given


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
