"""Files with parts that are missing, or are not what they should be."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.bmv2_json.reader import bundle, read
from p4switch.position import P4Error
from tests.bmv2_json.documents import (
    Part,
    action,
    assign,
    document,
    field,
    hexstr,
    one_action,
    operation,
    primitive,
    program,
    table,
)
from tests.support.search import examples

CHANGES = examples(150, 20_000)
REPLACEMENTS: tuple[object, ...] = (
    *(None, True, -1, 0, 1, 3.5, 1 << 70),
    *("", "x", "0xffff", [], {}, ["a", "b"], {"type": "x", "value": 1}),
)
Path = tuple[str | int, ...]


def example() -> Part:
    """Return a program with most kinds of parts."""
    total = operation("+", field("h", "a"), hexstr(3))
    shown = action(0, "Ing.set", assign("h", "b", {"type": "runtime_data", "value": 0}))
    shown["runtime_data"] = [{"name": "value", "bitwidth": 8}]
    own = action(
        1,
        "act",
        assign("h", "a", operation("?", hexstr(1), hexstr(2), cond=operation("==", total, total))),
        primitive("remove_header", {"type": "header", "value": "h"}),
    )
    entry = {
        "match_key": [{"match_type": "ternary", "key": "0x01", "mask": "0xff"}],
        "action_entry": {"action_id": 0, "action_data": ["0x05"]},
        "priority": 1,
    }
    tables = [
        table(0, "Ing.t", [shown, own], own, "tbl_act", match_type="ternary", entries=[entry]),
        table(1, "tbl_act", [own], own, "node"),
    ]
    tables[0]["key"] = [{"match_type": "ternary", "target": ["h", "a"], "mask": None}]
    condition = {"name": "node", "id": 0, "expression": total, "true_next": None}
    return document(
        {"a": 8, "b": 8},
        [shown, own],
        tables=tables,
        conditionals=[{**condition, "false_next": None}],
        init_table="Ing.t",
    )


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the ways to all parts of a document."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from paths(each, (*path, key))


def part_at(content: Any, path: Path) -> Any:
    """Return the part of a document that a way leads to."""
    for key in path:
        content = content[key]
    return content


def damaged(rng: random.Random) -> Part:
    """Return the example with a part that is missing, or another one in its place."""
    content = deepcopy(example())
    places = list(paths(content))
    *way, last = rng.choice(places)
    parent = part_at(content, tuple(way))
    match rng.randrange(3):
        case 0:
            del parent[last]
        case 1:
            parent[last] = rng.choice(REPLACEMENTS)
        case _:
            parent[last] = deepcopy(part_at(content, rng.choice(places)))
    return content


@pytest.mark.slow
def test_damaged_files_are_refused_or_run() -> None:
    """The only error is one that says what is wrong, and where."""
    rng = random.Random(1)
    refused = 0
    for _ in range(CHANGES):
        content = damaged(rng)
        try:
            Interpreter(program(content))
        except P4Error as error:
            refused += 1
            assert "BMv2 JSON: " in str(error)
    assert CHANGES / 4 < refused < CHANGES


@pytest.mark.parametrize("version", [None, [], {}, 2, "2", [2]])
def test_an_invalid_version_is_ignored(version: object) -> None:
    """Only a number is compared."""
    program({**one_action({"a": 8}), "__meta__": {"version": version}})


def test_bundled_sources_must_be_unchanged() -> None:
    """A file of another tool may have a member of the same name."""
    data = json.dumps({**one_action({"a": 8}), "p4switch": "other"}).encode()
    for each in (read, lambda data: bundle(data, "x.json")):
        with pytest.raises(P4Error, match=r"p4switch: expected what `p4switch compile -o` writes"):
            each(data)


def test_errors_have_small_numbers() -> None:
    """What lies between them would be named too."""
    content = {**one_action({"a": 8}), "errors": [["NoError", 0], ["Mine", 1 << 40]]}
    with pytest.raises(P4Error, match="an error's number: expected 0 to 65535"):
        program(content)


def test_only_headers_become_valid() -> None:
    """Metadata always are."""
    content = one_action({"a": 8}, primitive("add_header", {"type": "header", "value": "meta"}))
    with pytest.raises(P4Error, match="expected a header"):
        program(content)


def test_all_entries_have_a_priority_or_none_has() -> None:
    """They are numbers of one order."""
    content = example()
    entries = content["pipelines"][0]["tables"][0]["entries"]
    entries.append({**deepcopy(entries[0]), "priority": None})
    with pytest.raises(P4Error, match="some entries have a priority, others none"):
        program(content)


def test_jumps_in_a_deparser() -> None:
    """They would leave headers out."""
    content = one_action({"a": 8})
    jump = primitive("_jump_if_zero", field("h", "a"), hexstr(1))
    content["deparsers"][0]["primitives"] = [jump, assign("h", "a", hexstr(1))]
    with pytest.raises(P4Error, match="primitive '_jump_if_zero'"):
        program(content)
