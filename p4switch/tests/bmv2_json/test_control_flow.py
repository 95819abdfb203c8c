"""Pipelines: graphs of tables and conditions."""

from __future__ import annotations

import pytest

from p4switch.ir import ActionChoice
from p4switch.position import P4Error
from p4switch.targets.v1model.engine import KeyMatch, TableEntry
from tests.bmv2_json.conftest import Run
from tests.bmv2_json.documents import (
    Part,
    action,
    assign,
    document,
    field,
    hexstr,
    operation,
    program,
    table,
)

FIELDS = {"a": 8, "r": 8}
ADD = [
    action(number, f"add{number}", assign("h", "r", operation("+", field("h", "r"), hexstr(add))))
    for number, add in enumerate([1, 2, 4, 8])
]


def adding(number: int, following: str | None) -> Part:
    """Return a table that adds 1 << number to h.r."""
    return table(number, f"t{number}", [ADD[number]], ADD[number], following)


def condition(name: str, bit: int, yes: str | None, no: str | None) -> Part:
    """Return a node that tests a bit of h.a."""
    test = operation("!=", operation("&", field("h", "a"), hexstr(1 << bit)), hexstr(0))
    return {"name": name, "id": bit, "expression": test, "true_next": yes, "false_next": no}


def sums(run: Run, content: Part, count: int = 8) -> list[int]:
    """Return h.r for each h.a."""
    engine = run(program(content))
    return [engine.process([(0, bytes([a, 0]))])[0][1][1] for a in range(count)]


def test_branches_meet_again(run: Run) -> None:
    """The code after an if and its else occurs once."""
    content = document(
        FIELDS,
        ADD,
        tables=[adding(0, "t2"), adding(1, "t2"), adding(2, "c1"), adding(3, None)],
        conditionals=[condition("c0", 0, "t0", "t1"), condition("c1", 1, "t3", None)],
        init_table="c0",
    )
    assert sums(run, content, 4) == [6, 5, 14, 13]
    from tests.support.ir_text import dump

    assert dump(program(content)).count("apply t2") == 1


def test_a_graph_that_is_no_nested_code(run: Run) -> None:
    """A node that two branches share before they meet is in both."""
    content = document(
        FIELDS,
        ADD,
        tables=[adding(0, None), adding(1, "c2"), adding(2, None)],
        conditionals=[
            condition("c0", 0, "c1", "t1"),
            condition("c1", 1, "t1", "t0"),
            condition("c2", 2, "t2", None),
        ],
        init_table="c0",
    )
    assert sums(run, content) == [2, 1, 2, 2, 6, 1, 6, 6]


def test_hit_and_miss(run: Run) -> None:
    """`__HIT__` and `__MISS__` say what follows."""
    keyed = {
        **table(0, "k", [ADD[0]], ADD[0], {"__HIT__": "t1", "__MISS__": "t2"}),
        "key": [{"match_type": "exact", "name": "a", "target": ["h", "a"], "mask": None}],
    }
    content = document(
        FIELDS, ADD, tables=[keyed, adding(1, None), adding(2, None)], init_table="k"
    )
    engine = run(program(content))
    engine.insert_entry("k", TableEntry((KeyMatch(5),), ActionChoice(0)))
    assert engine.process([(0, bytes([5, 0])), (0, bytes([6, 0]))]) == [
        (0, bytes([5, 3])),
        (0, bytes([6, 5])),
    ]


def test_the_action_that_ran(run: Run) -> None:
    """The next node after a table may depend on the action."""
    keyed = {
        **table(0, "k", ADD[:3], ADD[2], {"add0": "t3", "add1": None, "add2": "t3"}),
        "key": [{"match_type": "exact", "name": "a", "target": ["h", "a"], "mask": None}],
    }
    content = document(FIELDS, ADD, tables=[keyed, adding(3, None)], init_table="k")
    engine = run(program(content))
    for value in (0, 1):
        engine.insert_entry("k", TableEntry((KeyMatch(value),), ActionChoice(value)))
    sent = engine.process([(0, bytes([a, 0])) for a in range(3)])
    assert [frame[1] for _, frame in sent] == [9, 2, 12]


def test_a_pipeline_that_comes_back() -> None:
    """A table after itself is an error."""
    content = document(FIELDS, ADD, tables=[adding(0, "t1"), adding(1, "t0")], init_table="t0")
    with pytest.raises(P4Error, match="the pipeline returns to 't0'"):
        program(content)


def test_an_unknown_node_is_refused() -> None:
    """The next node must be in the pipeline."""
    content = document(FIELDS, ADD, tables=[adding(0, "t9")], init_table="t0")
    with pytest.raises(P4Error, match="the pipeline has no node 't9'"):
        program(content)
