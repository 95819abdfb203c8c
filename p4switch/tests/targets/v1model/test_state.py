"""The control plane's checks, on an engine of the programs of the packet tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_file
from p4switch.ir import ActionChoice, Program
from p4switch.position import UnsupportedError
from p4switch.targets.v1model.engine import (
    CloneSession,
    ControlError,
    CounterValue,
    KeyMatch,
    MeterConfig,
    Replica,
    TableEntry,
)
from p4switch.targets.v1model.matches import DEFAULT_TABLE_SIZE
from tests.support.paths import PROGRAMS

MATCH, POLICING, STATE, ROUTER = "MatchIngress", "PolicingIngress", "StateIngress", "RouterIngress"
SET = ActionChoice(0, (7,))
ANY = KeyMatch(any=True)


@cache
def compiled(name: str) -> Program:
    return compile_file(PROGRAMS / f"{name}.p4")


def engine(name: str) -> Interpreter:
    return Interpreter(compiled(name))


def code_of(call: object, *arguments: object) -> str:
    with pytest.raises(ControlError) as caught:
        call(*arguments)  # type: ignore[operator]
    return caught.value.code


def test_entries_come_change_and_go() -> None:
    e = engine("matches")
    table = f"{MATCH}.exact_table"
    entry = TableEntry((KeyMatch(1), KeyMatch(2)), SET)
    e.insert_entry(table, entry)
    assert code_of(e.insert_entry, table, entry) == "ALREADY_EXISTS"
    changed = TableEntry(entry.matches, ActionChoice(0, (8,)))
    e.modify_entry(table, changed)
    assert e.entries(table) == [changed]
    assert e.installed(table, entry.matches, 0) == changed
    assert e.installed(table, entry.matches, 1) is None
    e.delete_entry(table, entry)
    assert e.entries(table) == []
    assert e.installed(table, entry.matches, 0) is None
    assert code_of(e.modify_entry, table, entry) == "NOT_FOUND"
    assert code_of(e.delete_entry, table, entry) == "NOT_FOUND"
    assert code_of(e.insert_entry, "nothing", entry) == "NOT_FOUND"


@pytest.mark.parametrize(
    ("table", "entry"),
    [
        ("exact_table", TableEntry((KeyMatch(1),), SET)),
        ("exact_table", TableEntry((KeyMatch(1), KeyMatch(0x10000)), SET)),
        ("exact_table", TableEntry((KeyMatch(1), ANY), SET)),
        ("exact_table", TableEntry((KeyMatch(1), KeyMatch(1)), SET, priority=1)),
        ("exact_table", TableEntry((KeyMatch(1), KeyMatch(1)), ActionChoice(0, (256,)))),
        ("exact_table", TableEntry((KeyMatch(1), KeyMatch(1)), ActionChoice(0))),
        ("exact_table", TableEntry((KeyMatch(1), KeyMatch(1)), ActionChoice(9))),
        ("exact_table", TableEntry((KeyMatch(1), KeyMatch(1)), None)),
        ("exact_table", TableEntry((KeyMatch(1), KeyMatch(1)), None, member=1)),
        ("exact_table", TableEntry((KeyMatch(1), KeyMatch(1)), SET, idle_timeout_ns=5)),
        ("lpm_table", TableEntry((KeyMatch(1), KeyMatch(0x1234, prefix_length=8)), SET)),
        ("lpm_table", TableEntry((KeyMatch(1), KeyMatch(0, prefix_length=17)), SET)),
        ("ternary_table", TableEntry((KeyMatch(3, mask=1), ANY), SET, priority=1)),
        ("ternary_table", TableEntry((ANY, ANY), SET)),
        ("range_table", TableEntry((KeyMatch(5, high=4), ANY), SET, priority=1)),
    ],
)
def test_illegal_entries_are_refused(table: str, entry: TableEntry) -> None:
    e = engine("matches")
    assert code_of(e.insert_entry, f"{MATCH}.{table}", entry) == "INVALID_ARGUMENT"
    assert e.entries(f"{MATCH}.{table}") == []


def test_equal_matches_written_differently_are_one_entry() -> None:
    e = engine("matches")
    table = f"{MATCH}.range_table"
    e.insert_entry(table, TableEntry((KeyMatch(0, high=0xFFFF), ANY), SET, priority=3))
    again = TableEntry((ANY, KeyMatch(0, prefix_length=0)), SET, priority=3)
    assert code_of(e.insert_entry, table, again) == "ALREADY_EXISTS"
    e.insert_entry(table, TableEntry((ANY, ANY), SET, priority=4))
    assert [entry.priority for entry in e.entries(table)] == [3, 4]


def test_const_tables_entries_and_defaults_stay() -> None:
    e = engine("matches")
    constant = f"{MATCH}.constant_table"
    entry = TableEntry((ANY, ANY), SET, priority=9)
    assert code_of(e.insert_entry, constant, entry) == "PERMISSION_DENIED"
    assert code_of(e.delete_entry, constant, e.entries(constant)[0]) == "PERMISSION_DENIED"
    assert code_of(e.set_default, constant, SET) == "PERMISSION_DENIED"
    assert [x.priority for x in e.entries(constant)] == [3, 2, 1]
    mixed = f"{MATCH}.priority_table"
    first, second, third = e.entries(mixed)
    # the smallest number wins in the source; in the engine the largest
    assert (first.priority, second.priority, third.priority) == (1, 11, 21)
    assert code_of(e.delete_entry, mixed, first) == "PERMISSION_DENIED"
    e.delete_entry(mixed, second)
    assert e.entries(mixed) == [first, third]


def test_defaults_are_set_and_restored() -> None:
    e = engine("matches")
    table = f"{MATCH}.no_key"
    assert e.default(table) == ActionChoice(0, (0x77,))
    e.set_default(table, ActionChoice(1))
    assert e.default(table) == ActionChoice(1)
    e.set_default(table, None)
    assert e.default(table) == ActionChoice(0, (0x77,))
    assert code_of(e.set_default, table, ActionChoice(0, (256,))) == "INVALID_ARGUMENT"


def test_a_defaultonly_action_is_for_no_entry() -> None:
    e = engine("calls")
    entry = TableEntry((KeyMatch(1),), ActionChoice(1))
    assert code_of(e.insert_entry, "CallIngress.choose", entry) == "INVALID_ARGUMENT"


def test_tables_fill_up() -> None:
    e = engine("router")
    table = f"{ROUTER}.routes"
    for number in range(16):
        e.insert_entry(table, TableEntry((KeyMatch(number, prefix_length=32),), ActionChoice(1)))
    more = TableEntry((ANY,), ActionChoice(1))
    assert code_of(e.insert_entry, table, more) == "RESOURCE_EXHAUSTED"
    e.delete_entry(table, e.entries(table)[3])
    e.insert_entry(table, more)
    handles = [stored.handle for stored in e.table_states[0].entries.values()]
    assert sorted(handles) == list(range(16))


def test_a_table_without_a_size_holds_the_default() -> None:
    e = engine("matches")
    table = f"{MATCH}.exact_table"
    for number in range(DEFAULT_TABLE_SIZE):
        e.insert_entry(table, TableEntry((KeyMatch(0), KeyMatch(number)), SET))
    more = TableEntry((KeyMatch(1), KeyMatch(0)), SET)
    assert code_of(e.insert_entry, table, more) == "RESOURCE_EXHAUSTED"


def test_members_and_groups_in_use_stay() -> None:
    e = engine("policing")
    profile, table = f"{POLICING}.members", f"{POLICING}.balanced"
    assert code_of(e.set_group, profile, 1, [1]) == "NOT_FOUND"
    e.set_member(profile, 1, SET)
    e.set_group(profile, 1, [1])
    entry = TableEntry((KeyMatch(1),), None, group=1)
    e.insert_entry(table, entry)
    assert code_of(e.set_member, profile, 1, None) == "FAILED_PRECONDITION"
    assert code_of(e.set_group, profile, 1, None) == "FAILED_PRECONDITION"
    missing = TableEntry((KeyMatch(2),), None, group=2)
    assert code_of(e.insert_entry, table, missing) == "NOT_FOUND"
    direct = TableEntry((KeyMatch(2),), SET)
    assert code_of(e.insert_entry, table, direct) == "INVALID_ARGUMENT"
    e.delete_entry(table, entry)
    e.set_group(profile, 1, None)
    e.set_member(profile, 1, None)
    assert e.members(profile) == {}
    assert e.groups(profile) == {}
    assert code_of(e.set_member, profile, 1, None) == "NOT_FOUND"
    assert code_of(e.set_group, f"{POLICING}.profile", 1, []) == "INVALID_ARGUMENT"


def test_profiles_fill_up() -> None:
    e = engine("policing")
    profile = f"{POLICING}.profile"
    for number in range(4):
        e.set_member(profile, number, SET)
    assert code_of(e.set_member, profile, 4, SET) == "RESOURCE_EXHAUSTED"
    e.set_member(profile, 3, ActionChoice(0, (9,)))


def sharing(folder: Path, first: str, second: str) -> Program:
    """`policing` with two tables that share a profile; each is given its list of actions."""
    text = (PROGRAMS / "policing.p4").read_text()
    start = text.index("    table indirect {")
    end = text.index("    apply {", start)
    tables = "".join(
        f"""    table {name} {{
        key = {{ hdr.op.index : exact; }}
        actions = {{ {actions} }}
        implementation = profile;
    }}
"""
        for name, actions in (("indirect", first), ("other", second))
    )
    text = text[:start] + "    action clear() { hdr.op.member = 0; }\n" + tables + text[end:]
    text = text.replace("indirect.apply();", "indirect.apply(); other.apply();")
    (folder / "no_checksums.p4").write_text((PROGRAMS / "no_checksums.p4").read_text())
    file = folder / "sharing.p4"
    file.write_text(text)
    return compile_file(file)


@pytest.mark.parametrize(
    "actions",
    [
        "clear; set_member; NoAction;",
        "set_member; NoAction; clear;",
        "set_member; clear;",
        "set_member;",
        "set_member; @defaultonly clear; NoAction;",
    ],
)
def test_tables_that_share_a_profile_list_the_same_actions(tmp_path: Path, actions: str) -> None:
    program = sharing(tmp_path, "set_member; NoAction;", actions)
    with pytest.raises(UnsupportedError) as caught:
        Interpreter(program)
    assert caught.value.message == (
        f"tables that share '{POLICING}.profile' must list the same actions in one order"
    )
    [other] = [table for table in program.tables if table.name == f"{POLICING}.other"]
    assert caught.value.position == other.position


def test_tables_that_share_a_profile_may_differ_in_defaults(tmp_path: Path) -> None:
    program = sharing(tmp_path, "set_member; @defaultonly NoAction;", "set_member;")
    e = Interpreter(program)
    profile = f"{POLICING}.profile"
    e.set_member(profile, 1, SET)
    for table in ("indirect", "other"):
        e.insert_entry(f"{POLICING}.{table}", TableEntry((KeyMatch(1),), None, member=1))
    assert e.process([(1, bytes([4, 1, 0, 0, 0, 0]))]) == [(1, bytes([4, 1, 0, 0, 0, 7]))]
    assert code_of(e.set_member, profile, 2, ActionChoice(1)) == "INVALID_ARGUMENT"


def test_replication_is_checked() -> None:
    e = engine("replication")
    assert code_of(e.set_multicast_group, 0, []) == "INVALID_ARGUMENT"
    assert code_of(e.set_multicast_group, 1, [Replica(512)]) == "INVALID_ARGUMENT"
    assert code_of(e.set_multicast_group, 1, [Replica(1), Replica(1)]) == "INVALID_ARGUMENT"
    assert code_of(e.set_multicast_group, 1, None) == "NOT_FOUND"
    e.set_multicast_group(1, [Replica(1, 2), Replica(1, 3)])
    assert e.multicast_groups() == {1: (Replica(1, 2), Replica(1, 3))}
    e.set_multicast_group(1, None)
    assert e.multicast_groups() == {}
    assert code_of(e.set_clone_session, 0x8000, CloneSession(())) == "INVALID_ARGUMENT"
    assert code_of(e.set_clone_session, 1, CloneSession((), -1)) == "INVALID_ARGUMENT"
    e.set_clone_session(1, CloneSession((Replica(1),), 20))
    assert e.clone_sessions() == {1: CloneSession((Replica(1),), 20)}


def test_cells_have_bounds_and_widths() -> None:
    e = engine("state")
    assert code_of(e.read_register, f"{STATE}.sums", 8) == "OUT_OF_RANGE"
    assert code_of(e.read_register, f"{STATE}.sums", -1) == "OUT_OF_RANGE"
    assert code_of(e.write_register, f"{STATE}.seen", 0, 2) == "INVALID_ARGUMENT"
    assert code_of(e.read_register, f"{STATE}.packets", 0) == "NOT_FOUND"
    assert code_of(e.read_counter, f"{STATE}.packets", 4) == "OUT_OF_RANGE"
    e.write_register(f"{STATE}.signs", 1, 0xFF)
    assert e.read_register(f"{STATE}.signs", 1) == 0xFF
    e.write_counter(f"{STATE}.packets", 1, CounterValue(5, 6))
    assert e.read_counter(f"{STATE}.packets", 1) == CounterValue(5, 6)


def test_direct_counters_belong_to_entries_and_survive_a_change() -> None:
    e = engine("state")
    table = f"{STATE}.operation"
    entry = TableEntry((KeyMatch(1),), ActionChoice(0))
    assert code_of(e.read_direct_counter, table, entry) == "NOT_FOUND"
    e.insert_entry(table, entry)
    e.write_direct_counter(table, entry, CounterValue(3, 4))
    e.modify_entry(table, TableEntry(entry.matches, ActionChoice(1)))
    assert e.read_direct_counter(table, entry) == CounterValue(3, 4)
    e.delete_entry(table, entry)
    e.insert_entry(table, entry)
    assert e.read_direct_counter(table, entry) == CounterValue()
    assert code_of(e.direct_meter, table, entry) == "INVALID_ARGUMENT"


def test_meters_are_checked() -> None:
    e = engine("policing")
    name = f"{POLICING}.by_packets"
    assert code_of(e.set_meter, name, 0, MeterConfig(5, 1, 4, 1)) == "INVALID_ARGUMENT"
    assert code_of(e.set_meter, name, 0, MeterConfig(-1, 1, 4, 1)) == "INVALID_ARGUMENT"
    assert code_of(e.set_meter, name, 4, None) == "OUT_OF_RANGE"
    assert e.meter(name, 0) is None


def test_value_sets_are_checked() -> None:
    e = engine("policing")
    name = "PolicingParser.special"
    assert code_of(e.set_value_set, name, [(KeyMatch(1),)] * 5) == "RESOURCE_EXHAUSTED"
    assert code_of(e.set_value_set, name, [(KeyMatch(256),)]) == "INVALID_ARGUMENT"
    assert code_of(e.set_value_set, name, [(KeyMatch(1), KeyMatch(1))]) == "INVALID_ARGUMENT"
    assert code_of(e.set_value_set, "none", []) == "NOT_FOUND"


def test_a_hook_that_raises_leaves_the_state_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    e = engine("matches")

    def refuse(*_: object) -> None:
        raise ControlError("RESOURCE_EXHAUSTED", "no room in the data plane")

    monkeypatch.setattr(e, "_on_insert", refuse)
    table = f"{MATCH}.exact_table"
    entry = TableEntry((KeyMatch(1), KeyMatch(2)), SET)
    assert code_of(e.insert_entry, table, entry) == "RESOURCE_EXHAUSTED"
    assert e.entries(table) == []
