"""Tables: keys, entries, profiles, direct resources."""

from __future__ import annotations

from typing import Any

import pytest

from p4switch import ir
from p4switch.position import P4Error
from p4switch.targets.v1model.engine import KeyMatch, TableEntry
from tests.bmv2_json.conftest import Run
from tests.bmv2_json.documents import (
    Part,
    action,
    assign,
    document,
    field,
    program,
    table,
)

FIELDS = {"a": 8, "b": 8, "r": 8}
SET = action(0, "set", assign("h", "r", {"type": "runtime_data", "value": 0}), data={"value": 8})
NOTHING = action(1, "NoAction")


def key(kind: str, name: str, mask: str | None = None) -> Part:
    """Return a key of a field of h."""
    return {"match_type": kind, "name": f"h.{name}", "target": ["h", name], "mask": mask}


def entry(value: int, priority: int, *match: Part) -> Part:
    """Return an entry that sets h.r."""
    return {
        "match_key": list(match),
        "action_entry": {"action_id": 0, "action_data": [hex(value)]},
        "priority": priority,
    }


def keyed(
    keys: list[Part], match_type: str, entries: list[Part] | None = None, **more: Any
) -> Part:
    """Return a program with one table."""
    made = table(0, "t", [SET, NOTHING], NOTHING, None, **more)
    made |= {"key": keys, "match_type": match_type}
    if entries is not None:
        made["entries"] = entries
    return document(FIELDS, [SET, NOTHING], tables=[made], init_table="t")


def shown(run: Run, content: Part, *frames: str) -> list[int]:
    """Return h.r of each frame."""
    sent = run(program(content)).process([(0, bytes.fromhex(frame)) for frame in frames])
    return [frame[2] for _, frame in sent]


def test_entries_of_every_kind(run: Run) -> None:
    """Exact, ternary and range; of two that match, the smaller priority wins."""
    content = keyed(
        [key("ternary", "a"), key("range", "b")],
        "range",
        [
            entry(
                2,
                2,
                {"match_type": "ternary", "key": "0x00", "mask": "0x00"},
                {"match_type": "range", "start": "0x00", "end": "0xff"},
            ),
            entry(
                1,
                1,
                {"match_type": "ternary", "key": "0x10", "mask": "0xf0"},
                {"match_type": "range", "start": "0x05", "end": "0x07"},
            ),
        ],
    )
    assert shown(run, content, "110500", "110800", "200600") == [1, 2, 2]


def test_longest_prefix(run: Run) -> None:
    """The longer prefix wins, independently of the priorities written."""
    content = keyed(
        [key("lpm", "a")],
        "lpm",
        [
            entry(1, 1, {"match_type": "lpm", "key": "0xa0", "prefix_length": 4}),
            entry(2, 2, {"match_type": "lpm", "key": "0xab", "prefix_length": 8}),
        ],
    )
    assert shown(run, content, "ab0000", "a10000", "b00000") == [2, 1, 0]


def test_masked_and_valid_keys(run: Run) -> None:
    """A key may be some bits of a field, and whether a header is valid."""
    valid = {"match_type": "valid", "target": "h", "mask": None}
    content = keyed(
        [key("exact", "a", "0x0f"), valid],
        "exact",
        [
            entry(
                9,
                1,
                {"match_type": "exact", "key": "0x05"},
                {"match_type": "valid", "key": True},
            )
        ],
    )
    assert shown(run, content, "750000", "760000") == [9, 0]


def test_entries_of_the_control_plane(run: Run) -> None:
    """A table without entries takes them."""
    engine = run(program(keyed([key("exact", "a")], "exact")))
    engine.insert_entry("t", TableEntry((KeyMatch(3),), ir.ActionChoice(0, (77,))))
    assert engine.process([(0, bytes([3, 0, 0]))]) == [(0, bytes([3, 0, 77]))]


def test_profiles_with_a_selector(run: Run) -> None:
    """A group's member is chosen by the hash of what the selector takes in."""
    content = keyed([key("exact", "a")], "exact", type="indirect_ws", action_profile="ap")
    [pipeline, _] = content["pipelines"]
    [only] = pipeline["tables"]
    del only["default_entry"]
    selector = {"algo": "identity", "input": [field("h", "b")]}
    pipeline["action_profiles"] = [{"name": "ap", "id": 0, "max_size": 8, "selector": selector}]
    engine = run(program(content))
    for member in (0, 1):
        engine.set_member("ap", member, ir.ActionChoice(0, (10 + member,)))
    engine.set_group("ap", 1, (0, 1))
    engine.insert_entry("t", TableEntry((KeyMatch(3),), None, group=1))
    sent = engine.process([(0, bytes([3, b, 0])) for b in (0, 1, 2)] + [(0, bytes(3))])
    assert [frame[2] for _, frame in sent] == [10, 11, 10, 0]


def test_direct_counters_and_meters(run: Run) -> None:
    """A table counts its hits; its meter's colour goes where the file says."""
    content = keyed([key("exact", "a")], "exact", with_counters=True, direct_meters="m")
    content["counter_arrays"] = [{"name": "c", "id": 0, "is_direct": True, "binding": "t"}]
    content["meter_arrays"] = [
        {
            "name": "m",
            "id": 0,
            "type": "packets",
            "is_direct": True,
            "rate_count": 2,
            "binding": "t",
            "result_target": ["h", "b"],
            "size": 16,
        }
    ]
    engine = run(program(content))
    installed = TableEntry((KeyMatch(3),), ir.ActionChoice(0, (1,)))
    engine.insert_entry("t", installed)
    assert engine.process([(0, bytes([3, 9, 0]))]) == [(0, bytes([3, 0, 1]))]
    assert engine.read_direct_counter("t", installed).packets == 1


def test_checksums(run: Run) -> None:
    """A checksum is updated if its condition holds."""
    content = document({"a": 8, "b": 8, "sum": 16})
    content["calculations"] = [
        {"name": "calc", "id": 0, "algo": "csum16", "input": [field("h", "a"), field("h", "b")]}
    ]
    content["checksums"] = [
        {
            "name": "cksum",
            "id": 0,
            "target": ["h", "sum"],
            "type": "generic",
            "calculation": "calc",
            "verify": False,
            "update": True,
            "if_cond": {
                "type": "expression",
                "value": {"op": "d2b", "left": None, "right": field("h", "a")},
            },
        }
    ]
    sent = run(program(content)).process([(0, bytes([1, 2, 0, 0])), (0, bytes([0, 2, 5, 5]))])
    assert sent == [(0, bytes([1, 2, 0xFE, 0xFD])), (0, bytes([0, 2, 5, 5]))]


def test_an_action_that_is_not_there() -> None:
    """A table's action must be one of the file's."""
    content = keyed([], "exact")
    content["pipelines"][0]["tables"][0]["action_ids"] = [0, 7]
    with pytest.raises(P4Error, match="there is no action 7"):
        program(content)


def test_old_files_name_actions_only(run: Run) -> None:
    """Before action_ids, tables named their actions."""
    content = keyed(
        [key("exact", "a")], "exact", [entry(4, 1, {"match_type": "exact", "key": "1"})]
    )
    del content["pipelines"][0]["tables"][0]["action_ids"]
    assert shown(run, content, "010000") == [4]
