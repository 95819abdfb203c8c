"""Parsers: keys and their padding, value sets, errors."""

from __future__ import annotations

import pytest

from p4switch.position import P4Error
from p4switch.targets.v1model.engine import KeyMatch
from tests.bmv2_json.conftest import Run
from tests.bmv2_json.documents import Part, assign, field, hexstr, one_action, operation, program

FIELDS = {"a": 12, "b": 4, "r": 8}
SHOW = assign("h", "r", field("meta", "m"))


def case(kind: str, value: str | None, mask: str | None, state: str | None) -> Part:
    """Return a transition."""
    return {"type": kind, "value": value, "mask": mask, "next_state": state}


def setting(number: int, value: int) -> Part:
    """Return a state that sets meta.m and accepts."""
    operations = [{"op": "set", "parameters": [field("meta", "m"), hexstr(value)]}]
    return {
        "name": f"s{value}",
        "id": number,
        "parser_ops": operations,
        "transitions": [case("default", None, None, None)],
        "transition_key": [],
    }


def parsing(key: list[Part], *transitions: Part, **more: object) -> Part:
    """Return a program that shows in h.r which of the states s1 to s3 its parser took."""
    content = one_action(FIELDS, SHOW, **more)
    [parser] = content["parsers"]
    [start] = parser["parse_states"]
    start |= {"name": "first", "transition_key": key, "transitions": list(transitions)}
    parser["init_state"] = "first"
    parser["parse_states"] += [setting(value, value) for value in (1, 2, 3)]
    return content


BOTH = [field("h", "a"), field("h", "b")]


def shown(run: Run, content: Part, *frames: str) -> list[int]:
    """Return h.r of each frame."""
    sent = run(program(content)).process([(0, bytes.fromhex(frame)) for frame in frames])
    return [frame[2] for _, frame in sent]


def test_parts_of_a_key_fill_bytes(run: Run) -> None:
    """12 and 4 bits are three bytes of a transition's value and mask."""
    content = parsing(
        BOTH,
        case("hexstr", "0x0aba03", None, "s1"),
        case("hexstr", "0x000003", "0x00000f", "s2"),
        case("default", None, None, "s3"),
    )
    assert shown(run, content, "aba300", "abb300", "aba400") == [1, 2, 3]


def test_lookahead_as_a_key(run: Run) -> None:
    """Bits ahead, from an offset on; too few of them are a parser error."""
    ahead = {"type": "lookahead", "value": [4, 8]}
    content = parsing(
        [ahead], case("hexstr", "0xbc", None, "s1"), case("default", None, None, "s2")
    )
    assert shown(run, content, "000000abcd", "000000abdd", "000000ab") == [1, 2, 0]


def test_value_sets(run: Run) -> None:
    """A value set has one member for all of the key."""
    content = parsing(
        BOTH,
        case("parse_vset", "pvs", None, "s1"),
        case("default", None, None, "s2"),
        parse_vsets=[{"name": "pvs", "id": 0, "compressed_bitwidth": 16, "max_size": 4}],
    )
    engine = run(program(content))
    engine.set_value_set("pvs", [(KeyMatch(0xABA), KeyMatch(3))])
    sent = engine.process([(0, bytes.fromhex("aba300")), (0, bytes.fromhex("aba400"))])
    assert [frame[2] for _, frame in sent] == [1, 2]


@pytest.mark.parametrize("no_error", [0, 1])
def test_errors_have_the_numbers_of_the_file(run: Run, no_error: int) -> None:
    """parser_error is what the file calls it, that of no error too, which p4c makes 1."""
    names = ["NoError", "PacketTooShort", "NoMatch", "Mine"]
    numbers = [[name, no_error + index] for index, name in enumerate(names)]
    content = one_action(
        FIELDS,
        assign("h", "r", field("standard_metadata", "parser_error")),
        errors=numbers,
    )
    [start] = content["parsers"][0]["parse_states"]
    fine = operation("!=", field("h", "a"), hexstr(0))
    start["parser_ops"].append({"op": "verify", "parameters": [fine, hexstr(no_error + 3)]})
    assert shown(run, content, "123400", "000400") == [no_error, no_error + 3]


def test_unions_and_stacks(run: Run) -> None:
    """The next union of a stack, as BMv2's own test has it."""
    content = one_action(FIELDS, SHOW)
    content["header_types"] += [{"name": "x_t", "id": 3, "fields": [["x", 8, False]]}]
    content["headers"] += [
        {"name": f"u[{index}].x", "id": 3 + index, "header_type": "x_t", "metadata": False}
        for index in range(2)
    ]
    content["header_union_types"] = [{"name": "u_t", "id": 0, "headers": [["x", "x_t"]]}]
    content["header_unions"] = [
        {"name": f"u[{index}]", "id": index, "union_type": "u_t", "header_ids": [3 + index]}
        for index in range(2)
    ]
    content["header_union_stacks"] = [
        {"name": "u", "id": 0, "union_type": "u_t", "header_union_ids": [0, 1]}
    ]
    extract = {"op": "extract", "parameters": [{"type": "union_stack", "value": ["u", "x"]}]}
    last = {"type": "union_stack_field", "value": ["u", "x", "x"]}
    put = {"op": "set", "parameters": [field("meta", "m"), last]}
    content["parsers"][0]["parse_states"][0]["parser_ops"] += [extract, put, extract]
    content["deparsers"][0]["order"] = ["h", "u[1].x", "u[0].x"]
    sent = run(program(content)).process([(0, bytes.fromhex("000000070899"))])
    assert sent == [(0, bytes.fromhex("000007080799"))]


def test_a_header_that_says_its_own_length() -> None:
    """P4_14's length_exp is not supported."""
    content = one_action(FIELDS, SHOW)
    content["header_types"][1] |= {"fields": [["r", 8, False], ["v", "*"]], "max_length": 8}
    with pytest.raises(P4Error, match="length_exp"):
        program(content)


def test_headers_of_variable_length(run: Run) -> None:
    """The second operand of extract_VL is the length in bits; assign_VL copies."""
    content = one_action(
        {"a": 8, "r": 8},
        {
            "op": "assign_VL",
            "parameters": [field("w", "v"), field("v", "v")],
        },
    )
    content["header_types"] += [
        {"name": "v_t", "id": 3, "fields": [["n", 8, False], ["v", "*"]], "max_length": 4}
    ]
    content["headers"] += [
        {"name": name, "id": 3 + index, "header_type": "v_t", "metadata": False}
        for index, name in enumerate("vw")
    ]
    bits = {"type": "expression", "value": operation("<<", field("h", "a"), hexstr(3))}
    content["parsers"][0]["parse_states"][0]["parser_ops"] += [
        {"op": "extract_VL", "parameters": [{"type": "regular", "value": name}, bits]}
        for name in "vw"
    ]
    content["deparsers"][0]["order"] = ["w", "v", "h"]
    engine = run(program(content))
    assert engine.process([(0, bytes.fromhex("0200" + "01aabb" + "02ccdd" + "ee"))]) == [
        (0, bytes.fromhex("02aabb" + "01aabb" + "0200" + "ee"))
    ]
    # Four bytes do not fit in three.
    assert engine.process([(0, bytes.fromhex("0400" + "01aabbccdd"))]) == [
        (0, bytes.fromhex("0400" + "01aabbccdd"))
    ]
