"""The calls of BMv2's run-time interface on a switch's current engine.

They are methods with the names and arguments of the three services (standard.thrift,
simple_pre.thrift and simple_switch.thrift in behavioral-model); `cxt_id` is ignored, as there is
one context. Structs come and go as objects with the fields as attributes (`Record`). Refused calls
raise `Fault`.

Handles of entries, members and nodes belong to a running program: a push ends them, as in BMv2.
"""

# ruff: noqa: D102 - the calls are documented by BMv2's definitions

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from p4switch.bmv2_runtime import records
from p4switch.bmv2_runtime.notifications import Notifications
from p4switch.bmv2_runtime.records import (
    ArrayCode,
    CrcCode,
    Fault,
    MeterCode,
    OtherCode,
    Record,
    TableCode,
    ValueSetCode,
    array_code,
)
from p4switch.bmv2_runtime.replication import Replication
from p4switch.bmv2_runtime.tables import Tables, named, padded, table_faults
from p4switch.targets.v1model.engine import (
    ControlError,
    CounterValue,
    Engine,
    KeyMatch,
    MeterConfig,
)
from p4switch.targets.v1model.hashes import CrcConfig
from p4switch.targets.v1model.state import value_set_widths

RATES = 2
MICRO = 1_000_000
SERVICES = {
    "standard": "bm_",
    "simple_pre": "bm_mc_",
    "simple_pre_lag": "bm_mc_",
    "simple_switch": "",
}
"""The services by the names that clients address them by, with a prefix of their calls."""


class Host(Protocol):
    """The switch whose program is controlled."""

    @property
    def engine(self) -> Engine | None:
        """The current engine, if there is a program."""

    def now_us(self) -> int:
        """Return the data plane's clock in microseconds."""

    def document(self) -> bytes:
        """Return the current program as BMv2's JSON."""

    def ports(self) -> Sequence[tuple[int, str, bool]]:
        """Return number and interface of each port, and whether it has a link."""


@dataclass(frozen=True, slots=True)
class _Session:
    engine: Engine
    tables: Tables
    replication: Replication


class Runtime:
    """BMv2's services for one switch. Calls may come from any thread; they run one by one."""

    def __init__(
        self,
        host: Host,
        device_id: int = 0,
        thrift_port: int = 0,
        notifications: Notifications | None = None,
    ) -> None:
        self._host = host
        self._device_id = device_id
        self.thrift_port = thrift_port
        self._notifications = notifications
        self._lock = threading.RLock()
        self._kept: _Session | None = None

    def call(self, service: str, method: str, arguments: Sequence[Any]) -> Any:
        """Call a method of a service. Raises Fault; LookupError if there is no such call."""
        prefix = SERVICES.get(service)
        if prefix is None or not method.startswith(prefix) or method not in CALLS:
            raise LookupError(f"no call {method!r} in {service!r}")
        with self._lock:
            try:
                return getattr(self, method)(*arguments)
            except ControlError as error:
                raise records.table_fault(error) from error

    def _session(self) -> _Session:
        engine = self._host.engine
        if engine is None:
            raise Fault(records.TABLE, TableCode.ERROR, "the switch has no program yet")
        if self._kept is None or self._kept.engine is not engine:
            self._kept = _Session(engine, Tables(engine), Replication(engine))
        return self._kept

    @property
    def _engine(self) -> Engine:
        return self._session().engine

    @property
    def _tables(self) -> Tables:
        return self._session().tables

    @property
    def _replication(self) -> Replication:
        return self._session().replication

    # --- tables

    def bm_mt_get_num_entries(self, cxt_id: int, table: str) -> int:
        return len(self._tables.entries(table))

    def bm_mt_clear_entries(self, cxt_id: int, table: str, reset_default: bool) -> None:
        self._tables.clear(table)
        if reset_default:
            self._engine.set_default(table, None)

    def bm_mt_add_entry(
        self, cxt_id: int, table: str, match: Any, action: str, data: list[bytes], options: Any
    ) -> int:
        tables = self._tables
        actions = tables.table(table).actions
        return tables.add(table, match, options, tables.choice(table, actions, action, data))

    def bm_mt_set_default_action(
        self, cxt_id: int, table: str, action: str, data: list[bytes]
    ) -> None:
        tables = self._tables
        choice = tables.choice(table, tables.table(table).actions, action, data)
        try:
            self._engine.set_default(table, choice)
        except ControlError as error:
            code = TableCode.DEFAULT_ACTION_IS_CONST
            if error.code != "PERMISSION_DENIED":
                code = TableCode.ERROR
            raise Fault(records.TABLE, code, str(error)) from error

    def bm_mt_reset_default_entry(self, cxt_id: int, table: str) -> None:
        self._tables.table(table)
        self._engine.set_default(table, None)

    def bm_mt_delete_entry(self, cxt_id: int, table: str, handle: int) -> None:
        self._tables.delete(table, handle)

    def bm_mt_modify_entry(
        self, cxt_id: int, table: str, handle: int, action: str, data: list[bytes]
    ) -> None:
        tables = self._tables
        choice = tables.choice(table, tables.table(table).actions, action, data)
        tables.modify(table, handle, action=choice)

    def bm_mt_set_entry_ttl(self, cxt_id: int, table: str, handle: int, timeout_ms: int) -> None:
        self._tables.set_timeout(table, handle, timeout_ms)

    def bm_mt_get_entries(self, cxt_id: int, table: str) -> list[Record]:
        tables, now = self._tables, self._host.now_us()
        return [tables.record(table, handle, e, now) for handle, e in tables.entries(table)]

    def bm_mt_get_entry(self, cxt_id: int, table: str, handle: int) -> Record:
        tables = self._tables
        return tables.record(table, handle, tables.entry(table, handle), self._host.now_us())

    def bm_mt_get_entry_from_key(self, cxt_id: int, table: str, match: Any, options: Any) -> Record:
        return self.bm_mt_get_entry(cxt_id, table, self._tables.find(table, match, options))

    def bm_mt_get_default_entry(self, cxt_id: int, table: str) -> Record:
        actions = self._tables.table(table).actions
        return self._tables.action_record(actions, self._engine.default(table))

    # --- action profiles

    def bm_mt_act_prof_add_member(
        self, cxt_id: int, profile: str, action: str, data: list[bytes]
    ) -> int:
        _, actions = self._tables.profile(profile)
        choice = self._tables.choice(profile, actions, action, data)
        member = _free(self._engine.members(profile))
        self._engine.set_member(profile, member, choice)
        return member

    def bm_mt_act_prof_delete_member(self, cxt_id: int, profile: str, member: int) -> None:
        self._member(profile, member)
        try:
            self._engine.set_member(profile, member, None)
        except ControlError as error:
            raise Fault(records.TABLE, TableCode.MBR_STILL_USED, str(error)) from error

    def bm_mt_act_prof_modify_member(
        self, cxt_id: int, profile: str, member: int, action: str, data: list[bytes]
    ) -> None:
        self._member(profile, member)
        _, actions = self._tables.profile(profile)
        self._engine.set_member(
            profile, member, self._tables.choice(profile, actions, action, data)
        )

    def bm_mt_act_prof_create_group(self, cxt_id: int, profile: str) -> int:
        self._tables.selector(profile)
        group = _free(self._engine.groups(profile))
        self._engine.set_group(profile, group, ())
        return group

    def bm_mt_act_prof_delete_group(self, cxt_id: int, profile: str, group: int) -> None:
        self._group(profile, group)
        try:
            self._engine.set_group(profile, group, None)
        except ControlError as error:
            raise Fault(records.TABLE, TableCode.GRP_STILL_USED, str(error)) from error

    def bm_mt_act_prof_add_member_to_group(
        self, cxt_id: int, profile: str, member: int, group: int
    ) -> None:
        members = self._group(profile, group)
        self._member(profile, member)
        if member in members:
            raise Fault(records.TABLE, TableCode.MBR_ALREADY_IN_GRP)
        self._engine.set_group(profile, group, (*members, member))

    def bm_mt_act_prof_remove_member_from_group(
        self, cxt_id: int, profile: str, member: int, group: int
    ) -> None:
        members = self._group(profile, group)
        if member not in members:
            raise Fault(records.TABLE, TableCode.MBR_NOT_IN_GRP)
        self._engine.set_group(profile, group, [m for m in members if m != member])

    def bm_mt_act_prof_get_members(self, cxt_id: int, profile: str) -> list[Record]:
        self._tables.profile(profile)
        return [self._member(profile, member) for member in sorted(self._engine.members(profile))]

    def bm_mt_act_prof_get_member(self, cxt_id: int, profile: str, member: int) -> Record:
        return self._member(profile, member)

    def bm_mt_act_prof_get_groups(self, cxt_id: int, profile: str) -> list[Record]:
        self._tables.selector(profile)
        groups = sorted(self._engine.groups(profile))
        return [self.bm_mt_act_prof_get_group(cxt_id, profile, group) for group in groups]

    def bm_mt_act_prof_get_group(self, cxt_id: int, profile: str, group: int) -> Record:
        members = list(self._group(profile, group))
        return Record("BmMtActProfGroup", grp_handle=group, mbr_handles=members)

    def _member(self, profile: str, member: int) -> Record:
        _, actions = self._tables.profile(profile)
        choice = self._engine.members(profile).get(member)
        if choice is None:
            raise Fault(records.TABLE, TableCode.INVALID_MBR_HANDLE, f"no member {member}")
        name, data = named(actions, choice)
        return Record("BmMtActProfMember", mbr_handle=member, action_name=name, action_data=data)

    def _group(self, profile: str, group: int) -> tuple[int, ...]:
        self._tables.selector(profile)
        members = self._engine.groups(profile).get(group)
        if members is None:
            raise Fault(records.TABLE, TableCode.INVALID_GRP_HANDLE, f"no group {group}")
        return members

    # --- tables with action profiles

    def bm_mt_indirect_add_entry(
        self, cxt_id: int, table: str, match: Any, member: int, options: Any
    ) -> int:
        self._indirect(table, member=member)
        return self._tables.add(table, match, options, member=member)

    def bm_mt_indirect_modify_entry(
        self, cxt_id: int, table: str, handle: int, member: int
    ) -> None:
        self._indirect(table, member=member)
        self._tables.modify(table, handle, member=member)

    def bm_mt_indirect_delete_entry(self, cxt_id: int, table: str, handle: int) -> None:
        self._tables.delete(table, handle)

    def bm_mt_indirect_set_entry_ttl(
        self, cxt_id: int, table: str, handle: int, timeout_ms: int
    ) -> None:
        self._tables.set_timeout(table, handle, timeout_ms)

    def bm_mt_indirect_set_default_member(self, cxt_id: int, table: str, member: int) -> None:
        raise Fault(records.TABLE, TableCode.ERROR, "a default entry takes no member in p4switch")

    def bm_mt_indirect_reset_default_entry(self, cxt_id: int, table: str) -> None:
        self.bm_mt_reset_default_entry(cxt_id, table)

    def bm_mt_indirect_ws_add_entry(
        self, cxt_id: int, table: str, match: Any, group: int, options: Any
    ) -> int:
        self._indirect(table, group=group)
        return self._tables.add(table, match, options, group=group)

    def bm_mt_indirect_ws_modify_entry(
        self, cxt_id: int, table: str, handle: int, group: int
    ) -> None:
        self._indirect(table, group=group)
        self._tables.modify(table, handle, group=group)

    def bm_mt_indirect_ws_set_default_group(self, cxt_id: int, table: str, group: int) -> None:
        raise Fault(records.TABLE, TableCode.ERROR, "a default entry takes no group in p4switch")

    def _indirect(self, table: str, member: int | None = None, group: int | None = None) -> None:
        """Check that a table takes members or groups, and that there is the one."""
        implementation = self._tables.table(table).implementation
        if implementation is None:
            raise Fault(records.TABLE, TableCode.WRONG_TABLE_TYPE, f"{table!r} has no profile")
        if member is not None:
            self._member(implementation.name, member)
        if group is not None and not self._group(implementation.name, group):
            raise Fault(records.TABLE, TableCode.EMPTY_GRP, f"group {group} is empty")

    # --- counters and meters

    def bm_mt_read_counter(self, cxt_id: int, table: str, handle: int) -> Record:
        return _counted(self._tables.counter(table, handle))

    def bm_mt_reset_counters(self, cxt_id: int, table: str) -> None:
        self._tables.reset_counters(table)

    def bm_mt_write_counter(self, cxt_id: int, table: str, handle: int, value: Any) -> None:
        self._tables.set_counter(table, handle, CounterValue(value.packets, value.bytes))

    def bm_mt_set_meter_rates(
        self, cxt_id: int, table: str, handle: int, rates: Sequence[Any]
    ) -> None:
        try:
            config = _config(rates)
        except ValueError as error:
            raise Fault(records.TABLE, TableCode.INVALID_METER_OPERATION, str(error)) from error
        self._tables.set_meter(table, handle, config)

    def bm_mt_get_meter_rates(self, cxt_id: int, table: str, handle: int) -> list[Record]:
        return _rates(self._tables.meter(table, handle))

    def bm_counter_read(self, cxt_id: int, counter: str, index: int) -> Record:
        return _counted(_array(records.COUNTER, self._engine.read_counter, counter, index))

    def bm_counter_reset_all(self, cxt_id: int, counter: str) -> None:
        for index in range(self._size(records.COUNTER, counter)):
            self._engine.write_counter(counter, index, CounterValue())

    def bm_counter_write(self, cxt_id: int, counter: str, index: int, value: Any) -> None:
        made = CounterValue(value.packets, value.bytes)
        _array(records.COUNTER, self._engine.write_counter, counter, index, made)

    def bm_meter_array_set_rates(self, cxt_id: int, meter: str, rates: Sequence[Any]) -> None:
        for index in range(self._size(records.METER, meter)):
            self.bm_meter_set_rates(cxt_id, meter, index, rates)

    def bm_meter_set_rates(self, cxt_id: int, meter: str, index: int, rates: Sequence[Any]) -> None:
        try:
            config = _config(rates)
        except ValueError as error:
            raise Fault(records.METER, MeterCode.BAD_RATES_LIST, str(error)) from error
        _array(records.METER, self._engine.set_meter, meter, index, config)

    def bm_meter_get_rates(self, cxt_id: int, meter: str, index: int) -> list[Record]:
        return _rates(_array(records.METER, self._engine.meter, meter, index))

    # --- registers

    def bm_register_read(self, cxt_id: int, register: str, index: int) -> int:
        return _signed(_array(records.REGISTER, self._engine.read_register, register, index))

    def bm_register_read_all(self, cxt_id: int, register: str) -> list[int]:
        size = self._size(records.REGISTER, register)
        return [self.bm_register_read(cxt_id, register, index) for index in range(size)]

    def bm_register_write(self, cxt_id: int, register: str, index: int, value: int) -> None:
        _array(records.REGISTER, self._engine.write_register, register, index, value)

    def bm_register_write_range(
        self, cxt_id: int, register: str, start: int, end: int, value: int
    ) -> None:
        for index in range(start, end):
            self.bm_register_write(cxt_id, register, index, value)

    def bm_register_reset(self, cxt_id: int, register: str) -> None:
        self.bm_register_write_range(cxt_id, register, 0, self._size(records.REGISTER, register), 0)

    def _size(self, kind: str, name: str) -> int:
        try:
            return self._engine.extern(name).number(0)
        except ControlError as error:
            raise Fault(kind, ArrayCode.INVALID_NAME, str(error)) from error

    # --- parser value sets

    def bm_parse_vset_add(self, cxt_id: int, value_set: str, value: bytes) -> None:
        members = self._members(value_set)
        member = self._value(value_set, value)
        if member not in members:
            self._set_members(value_set, [*members, member])

    def bm_parse_vset_remove(self, cxt_id: int, value_set: str, value: bytes) -> None:
        members = self._members(value_set)
        member = self._value(value_set, value)
        self._set_members(value_set, [each for each in members if each != member])

    def bm_parse_vset_get(self, cxt_id: int, value_set: str) -> list[bytes]:
        widths = self._value_set_widths(value_set)
        found = []
        for member in self._members(value_set):
            number = 0
            for match, width in zip(member, widths, strict=True):
                number = number << width | match.value
            found.append(padded(number, sum(widths)))
        return found

    def bm_parse_vset_clear(self, cxt_id: int, value_set: str) -> None:
        self._set_members(value_set, [])

    def _value_set_widths(self, name: str) -> tuple[int, ...]:
        for each in self._engine.program.value_sets:
            if each.name == name:
                return value_set_widths(each)
        raise Fault(records.VALUE_SET, ValueSetCode.INVALID_PARSE_VSET_NAME, f"no {name!r}")

    def _value(self, name: str, value: bytes) -> tuple[KeyMatch, ...]:
        number = int.from_bytes(value, "big")
        found = []
        for width in reversed(self._value_set_widths(name)):
            found.append(KeyMatch(number & (1 << width) - 1))
            number >>= width
        return tuple(reversed(found))

    def _members(self, name: str) -> list[tuple[KeyMatch, ...]]:
        self._value_set_widths(name)
        return list(self._engine.value_set(name))

    def _set_members(self, name: str, members: Sequence[tuple[KeyMatch, ...]]) -> None:
        self._value_set_widths(name)
        try:
            self._engine.set_value_set(name, members)
        except ControlError as error:
            raise Fault(records.VALUE_SET, ValueSetCode.ERROR, str(error)) from error

    # --- hashes

    def bm_set_crc16_custom_parameters(self, cxt_id: int, calculation: str, config: Any) -> None:
        self._set_crc(calculation, config, 16)

    def bm_set_crc32_custom_parameters(self, cxt_id: int, calculation: str, config: Any) -> None:
        self._set_crc(calculation, config, 32)

    def _set_crc(self, calculation: str, config: Any, width: int) -> None:
        mask = (1 << width) - 1
        made = CrcConfig(
            width,
            config.polynomial & mask,
            config.initial_remainder & mask,
            config.final_xor_value & mask,
            bool(config.data_reflected),
            bool(config.remainder_reflected),
        )
        try:
            self._engine.set_crc(calculation, made)
        except ControlError as error:
            code = CrcCode.INVALID_CALCULATION_NAME
            if error.code != "NOT_FOUND":
                code = CrcCode.WRONG_TYPE_CALCULATION
            raise Fault(records.CRC, code, str(error)) from error

    # --- multicast: the services simple_pre and simple_pre_lag

    def bm_mc_mgrp_create(self, cxt_id: int, group: int) -> int:
        return self._replication.create_group(group)

    def bm_mc_mgrp_destroy(self, cxt_id: int, group: int) -> None:
        self._replication.destroy_group(group)

    def bm_mc_node_create(self, cxt_id: int, rid: int, ports: str, lags: str = "") -> int:
        return self._replication.create_node(rid, ports, lags)

    def bm_mc_node_associate(self, cxt_id: int, group: int, node: int) -> None:
        self._replication.associate(group, node)

    def bm_mc_node_dissociate(self, cxt_id: int, group: int, node: int) -> None:
        self._replication.dissociate(group, node)

    def bm_mc_node_destroy(self, cxt_id: int, node: int) -> None:
        self._replication.destroy_node(node)

    def bm_mc_node_update(self, cxt_id: int, node: int, ports: str, lags: str = "") -> None:
        self._replication.update_node(node, ports, lags)

    def bm_mc_set_lag_membership(self, cxt_id: int, lag: int, ports: str) -> None:
        self._replication.set_lag(lag, ports)

    def bm_mc_get_entries(self, cxt_id: int) -> str:
        return self._replication.entries()

    # --- the service simple_switch

    def mirroring_mapping_add(self, session: int, port: int) -> int:
        self._replication.mirror(session, port, None)
        return 0

    def mirroring_mapping_delete(self, session: int) -> int:
        self._replication.remove_mirror(session)
        return 0

    def mirroring_mapping_get_egress_port(self, session: int) -> int:
        port, _ = self._replication.mirrored(session)
        return -1 if port is None else port

    def mirroring_session_add(self, session: int, config: Any) -> None:
        self._replication.mirror(
            session, getattr(config, "port", None), getattr(config, "mgid", None)
        )

    def mirroring_session_delete(self, session: int) -> None:
        self._replication.remove_mirror(session)

    def mirroring_session_get(self, session: int) -> Record:
        port, group = self._replication.mirrored(session)
        return Record("MirroringSessionConfig", port=port, mgid=group)

    def set_egress_priority_queue_depth(self, port: int, priority: int, packets: int) -> int:
        self._engine.set_queue_depth(packets, port, priority)
        return 0

    def set_egress_queue_depth(self, port: int, packets: int) -> int:
        self._engine.set_queue_depth(packets, port)
        return 0

    def set_all_egress_queue_depths(self, packets: int) -> int:
        self._engine.set_queue_depth(packets)
        return 0

    def set_egress_priority_queue_rate(self, port: int, priority: int, rate: int) -> int:
        self._engine.set_queue_rate(rate, port, priority)
        return 0

    def set_egress_queue_rate(self, port: int, rate: int) -> int:
        self._engine.set_queue_rate(rate, port)
        return 0

    def set_all_egress_queue_rates(self, rate: int) -> int:
        self._engine.set_queue_rate(rate)
        return 0

    def get_time_elapsed_us(self) -> int:
        return self._host.now_us()

    def get_time_since_epoch_us(self) -> int:
        return time.time_ns() // 1000

    # --- digests: published as they come, so that nothing limits how they are gathered

    def bm_learning_ack(self, cxt_id: int, list_id: int, buffer_id: int, samples: Any) -> None:
        if self._notifications is not None:
            self._notifications.acknowledge(list_id, buffer_id, samples)

    def bm_learning_ack_buffer(self, cxt_id: int, list_id: int, buffer_id: int) -> None:
        self.bm_learning_ack(cxt_id, list_id, buffer_id, None)

    def bm_learning_set_timeout(self, cxt_id: int, list_id: int, timeout_ms: int) -> None:
        pass

    def bm_learning_set_buffer_size(self, cxt_id: int, list_id: int, samples: int) -> None:
        pass

    # --- the switch

    def bm_load_new_config(self, config: str) -> None:
        raise Fault(records.SWAP, OtherCode.ERROR, "push the program over P4Runtime")

    def bm_swap_configs(self) -> None:
        raise Fault(records.SWAP, OtherCode.ERROR, "push the program over P4Runtime")

    def bm_dev_mgr_add_port(self, interface: str, port: int, pcap: str) -> None:
        raise Fault(records.DEVICE, OtherCode.ERROR, "ports are given when the switch starts")

    def bm_dev_mgr_remove_port(self, port: int) -> None:
        raise Fault(records.DEVICE, OtherCode.ERROR, "ports are given when the switch starts")

    def bm_dev_mgr_show_ports(self) -> list[Record]:
        return [
            Record("DevMgrPortInfo", port_num=number, iface_name=name, is_up=up, extra={})
            for number, name, up in self._host.ports()
        ]

    def bm_mgmt_get_info(self) -> Record:
        served = self._notifications
        return Record(
            "BmConfig",
            device_id=self._device_id,
            thrift_port=self.thrift_port,
            notifications_socket=None if served is None else served.address,
        )

    def bm_get_config(self) -> str:
        self._session()
        return self._host.document().decode()

    def bm_get_config_md5(self) -> bytes:
        self._session()
        return hashlib.md5(self._host.document(), usedforsecurity=False).digest()

    def bm_reset_state(self) -> None:
        engine, program = self._engine, self._engine.program
        for table in program.tables:
            with table_faults():
                if not table.entries_constant:
                    self._tables.clear(table.name)
                if not table.default_constant:
                    engine.set_default(table.name, None)
        for instance in program.externs:
            for index in range(
                instance.number(0) if instance.extern in ("register", "counter", "meter") else 0
            ):
                if instance.extern == "register":
                    engine.write_register(instance.name, index, 0)
                elif instance.extern == "counter":
                    engine.write_counter(instance.name, index, CounterValue())
                else:
                    engine.set_meter(instance.name, index, None)
        for group in engine.multicast_groups():
            engine.set_multicast_group(group, None)
        for session in engine.clone_sessions():
            engine.set_clone_session(session, None)


CALLS = frozenset(
    name for name in vars(Runtime) if not name.startswith("_") and name not in ("call",)
)
"""Names of all calls."""


def _free(taken: Any) -> int:
    number = 0
    while number in taken:
        number += 1
    return number


def _array(kind: str, call: Callable[..., Any], name: str, index: int, *rest: Any) -> Any:
    try:
        return call(name, index, *rest)
    except ControlError as error:
        raise Fault(kind, array_code(error), str(error)) from error


def _counted(value: CounterValue) -> Record:
    return Record("BmCounterValue", bytes=value.bytes, packets=value.packets)


def _signed(value: int) -> int:
    """Return the low 64 bits as Thrift's i64, as BMv2 does."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _config(rates: Sequence[Any]) -> MeterConfig:
    if len(rates) != RATES:
        raise ValueError(f"{len(rates)} rates: expected two, the committed one first")
    committed, peak = rates
    if committed.units_per_micros > peak.units_per_micros:
        raise ValueError("the committed rate exceeds the peak rate")
    return MeterConfig(
        round(committed.units_per_micros * MICRO),
        committed.burst_size,
        round(peak.units_per_micros * MICRO),
        peak.burst_size,
    )


def _rates(config: MeterConfig | None) -> list[Record]:
    if config is None:
        return []
    pairs = ((config.cir, config.cburst), (config.pir, config.pburst))
    return [
        Record("BmMeterRateConfig", units_per_micros=rate / MICRO, burst_size=burst)
        for rate, burst in pairs
    ]
