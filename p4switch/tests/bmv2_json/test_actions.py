"""Actions: jumps between their primitives, and primitives that are more than an assignment."""

from __future__ import annotations

import pytest

from p4switch.position import P4Error
from p4switch.targets.v1model.engine import CloneSession, Replica
from tests.bmv2_json.conftest import Run
from tests.bmv2_json.documents import (
    Part,
    assign,
    field,
    hexstr,
    one_action,
    operation,
    primitive,
    program,
)

FIELDS = {"a": 8, "r": 8}
DROP_PORT = 511


def jump(target: int) -> Part:
    """Return a jump to a primitive."""
    return primitive("_jump", hexstr(target))


def unless(condition: Part, target: int) -> Part:
    """Return a jump to a primitive if a condition is false."""
    return primitive("_jump_if_zero", {"type": "expression", "value": condition}, hexstr(target))


def equals(value: int) -> Part:
    """Return whether h.a is a number."""
    return operation("==", field("h", "a"), hexstr(value))


def result(value: int) -> Part:
    """Return an assignment to h.r."""
    return assign("h", "r", hexstr(value))


def add(name: str, value: int) -> Part:
    """Return an addition to a field of h."""
    return assign("h", name, operation("+", field("h", name), hexstr(value)))


def results(run: Run, *primitives: Part) -> list[int]:
    """Return h.r for h.a from 0 to 4."""
    engine = run(program(one_action(FIELDS, *primitives)))
    return [engine.process([(0, bytes([a, 0]))])[0][1][1] for a in range(5)]


def test_if_and_else(run: Run) -> None:
    """An if whose branches have an if and an else themselves."""
    code = [
        unless(operation("<", field("h", "a"), hexstr(2)), 6),
        unless(equals(0), 4),
        result(1),
        jump(5),
        result(2),
        jump(9),
        unless(equals(3), 8),
        result(3),
        add("r", 10),
    ]
    assert results(run, *code) == [1, 2, 10, 13, 10]


def test_return_inside_an_if(run: Run) -> None:
    """A jump to the end of the action leaves it."""
    code = [
        unless(operation("<", field("h", "a"), hexstr(3)), 5),
        unless(equals(1), 4),
        result(7),
        jump(7),
        add("r", 1),
        add("r", 2),
        add("r", 4),
    ]
    assert results(run, *code) == [7, 7, 7, 6, 6]


def test_a_loop(run: Run) -> None:
    """A jump back makes a loop; a jump forward out of it is its break."""
    code = [
        unless(operation(">", field("h", "a"), hexstr(0)), 5),
        add("r", 3),
        assign("h", "a", operation("-", field("h", "a"), hexstr(1))),
        unless(operation("!=", field("h", "r"), hexstr(9)), 6),
        jump(0),
        add("r", 100),
    ]
    assert results(run, *code) == [100, 103, 106, 9, 9]


@pytest.mark.slow
def test_an_endless_loop_has_a_budget(run: Run) -> None:
    """A packet whose action never ends is dropped."""
    engine = run(program(one_action(FIELDS, add("r", 1), jump(0))))
    assert engine.process([(0, bytes(2))]) == []
    assert engine.statistics().extra["over_budget"] == 1


def test_jumps_must_stay_inside() -> None:
    """A jump beyond the action's end is an error."""
    with pytest.raises(P4Error, match="a jump out of the action, to 9"):
        program(one_action(FIELDS, jump(9)))


def test_mark_to_drop(run: Run) -> None:
    """The packet is dropped."""
    standard = {"type": "header", "value": "standard_metadata"}
    engine = run(program(one_action(FIELDS, primitive("mark_to_drop", standard))))
    assert engine.process([(0, bytes(2))]) == []


def test_mark_to_drop_of_a_copy(run: Run) -> None:
    """A copy is marked, not the packet; of metadata without the field is an error."""
    copy = primitive("mark_to_drop", {"type": "header", "value": "copy"})
    shown = assign("h", "r", field("copy", "egress_spec"))
    content = one_action({"a": 8, "r": 16}, copy, shown)
    content["headers"].append(
        {"name": "copy", "id": 3, "header_type": "standard_metadata", "metadata": True}
    )
    engine = run(program(content))
    assert engine.process([(0, bytes(3))]) == [(0, b"\0" + DROP_PORT.to_bytes(2, "big"))]
    wrong = primitive("mark_to_drop", {"type": "header", "value": "meta"})
    with pytest.raises(P4Error, match="has no field 'egress_spec'"):
        program(one_action(FIELDS, wrong))


def test_registers(run: Run) -> None:
    """A register is read into, and written from, fields of other widths."""
    register = {"type": "register_array", "value": "reg"}
    code = [
        primitive("register_read", field("h", "r"), register, field("h", "a")),
        primitive("register_write", register, field("h", "a"), hexstr(0x1FF)),
    ]
    arrays = [{"name": "reg", "id": 0, "size": 4, "bitwidth": 9}]
    engine = run(program(one_action(FIELDS, *code, register_arrays=arrays)))
    assert engine.process([(0, bytes([2, 0]))] * 2) == [(0, bytes([2, 0])), (0, bytes([2, 255]))]
    assert engine.read_register("reg", 2) == 0x1FF


def test_counters_and_hashes(run: Run) -> None:
    """A counter counts; a hash is base + hash % max of its calculation's data."""
    calculation = {
        "name": "calc",
        "id": 0,
        "algo": "identity",
        "input": [field("h", "a"), {**hexstr(0x1), "bitwidth": 8}],
    }
    code = [
        primitive("count", {"type": "counter_array", "value": "ctr"}, hexstr(1)),
        primitive(
            "modify_field_with_hash_based_offset",
            field("h", "r"),
            hexstr(100),
            {"type": "calculation", "value": "calc"},
            hexstr(50),
        ),
    ]
    content = one_action(
        FIELDS,
        *code,
        calculations=[calculation],
        counter_arrays=[{"name": "ctr", "id": 0, "size": 2, "is_direct": False}],
    )
    engine = run(program(content))
    # identity of the bytes 3 and 1 is 0x0301.
    assert engine.process([(0, bytes([3, 0]))]) == [(0, bytes([3, 100 + 0x301 % 50]))]
    assert engine.read_counter("ctr", 1).packets == 1


@pytest.mark.parametrize(
    ("listed", "shown_field", "expected"),
    [
        (("meta", "m"), ("meta", "m"), 9),
        (("standard_metadata", "ingress_port"), ("standard_metadata", "ingress_port"), 6),
        (("meta", "m"), ("standard_metadata", "ingress_port"), 0),
        (("h", "r"), ("meta", "m"), 0),
    ],
)
def test_clones_keep_their_field_list(
    run: Run, listed: tuple[str, str], shown_field: tuple[str, str], expected: int
) -> None:
    """A clone has the metadata of the list that the primitive names, and no other."""
    code = [
        assign("meta", "m", operation("+", field("h", "a"), hexstr(5))),
        primitive("clone_ingress_pkt_to_egress", hexstr(7), hexstr(1)),
        primitive("mark_to_drop", {"type": "header", "value": "standard_metadata"}),
    ]
    content = one_action(
        FIELDS,
        *code,
        field_lists=[{"id": 1, "name": "fl", "elements": [field(*listed)]}],
    )
    shown = one_action(FIELDS, assign("h", "r", field(*shown_field)))
    content["actions"].append({**shown["actions"][0], "id": 1, "name": "show"})
    [show] = shown["pipelines"][0]["tables"]
    entry = {**show["default_entry"], "action_id": 1}
    changed = {"name": "tbl_show", "id": 1, "action_ids": [1], "actions": ["show"]}
    show |= {**changed, "default_entry": entry, "next_tables": {"show": None}}
    content["pipelines"][1] |= {"init_table": "tbl_show", "tables": [show]}
    engine = run(program(content))
    engine.set_clone_session(7, CloneSession((Replica(3, 0),)))
    assert engine.process([(6, bytes([4, 0]))]) == [(3, bytes([4, expected]))]


def test_digests_are_named_after_their_list(run: Run) -> None:
    """A digest has the fields of its learn list."""
    lists = [{"id": 1, "name": "learned", "elements": [field("h", "a"), field("h", "r")]}]
    code = primitive("generate_digest", hexstr(1), hexstr(1))
    engine = run(program(one_action(FIELDS, code, learn_lists=lists)))
    engine.process([(0, bytes([8, 9]))])
    [digest] = engine.take_digests()
    assert (digest.name, digest.values) == ("learned", (8, 9))


def test_primitives_of_p4_14(run: Run) -> None:
    """Those that compute in place."""
    code = [
        primitive("modify_field", field("h", "r"), field("h", "a")),
        primitive("add_to_field", field("h", "r"), hexstr(20)),
        primitive("subtract_from_field", field("h", "r"), hexstr(1)),
        primitive("shift_left", field("h", "r"), field("h", "r"), hexstr(1)),
        primitive("no_op"),
    ]
    assert results(run, *code) == [38, 40, 42, 44, 46]


def test_unknown_primitives_are_named() -> None:
    """A primitive of another target is not supported, and the error says which."""
    with pytest.raises(P4Error, match="primitive 'fly'"):
        program(one_action(FIELDS, primitive("fly")))
