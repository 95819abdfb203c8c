"""Header stacks and unions: elements by a run-time index, and what is said of a whole stack."""

from __future__ import annotations

from typing import Any

from tests.bmv2_json.conftest import Run
from tests.bmv2_json.documents import Part, assign, field, hexstr, one_action, operation, primitive
from tests.bmv2_json.documents import program as program_of

FIELDS = {"a": 8, "r": 8}
STACK = {"type": "header_stack", "value": "s"}
EXTRACT = {"op": "extract", "parameters": [{"type": "stack", "value": "s"}]}


def with_stack(*primitives: Part, operations: list[Part] | None = None, **more: Any) -> Part:
    """Return a program with a stack of three headers of one byte, two of them extracted."""
    content = one_action(FIELDS, *primitives, **more)
    content["header_types"] += [{"name": "s_t", "id": 3, "fields": [["x", 8, False]]}]
    content["headers"] += [
        {"name": f"s[{index}]", "id": 3 + index, "header_type": "s_t", "metadata": False}
        for index in range(3)
    ]
    content["header_stacks"] = [
        {"name": "s", "id": 0, "header_type": "s_t", "header_ids": [3, 4, 5], "size": 3}
    ]
    [start] = content["parsers"][0]["parse_states"]
    start["parser_ops"] += [EXTRACT, EXTRACT, *(operations or [])]
    content["deparsers"][0]["order"] += ["s[0]", "s[1]", "s[2]"]
    return content


def element(index: Part) -> Part:
    """Return the field of the element with a run-time index, as p4c writes it."""
    header = operation("dereference_header_stack", STACK, index)
    return {"type": "expression", "value": {"op": "access_field", "left": header, "right": 0}}


def sent(run: Run, content: Part, frame: str) -> str:
    """Return the frame that leaves."""
    [(_, out)] = run(program_of(content)).process([(0, bytes.fromhex(frame))])
    return out.hex()


def test_elements_by_a_run_time_index(run: Run) -> None:
    """They are read and written; the wrapping of expressions does not matter."""
    target = {"type": "expression", "value": element(field("h", "a"))}
    value = operation("+", element(field("h", "r")), hexstr(1))
    content = with_stack(primitive("assign", target, {"type": "expression", "value": value}))
    assert sent(run, content, "0001" + "1020") == "000121" + "20"
    assert sent(run, content, "0100" + "1020") == "010010" + "11"


def test_push_and_pop(run: Run) -> None:
    """They move elements and make new ones invalid."""
    push = with_stack(
        primitive("push", STACK, hexstr(1)),
        primitive("add_header", {"type": "header", "value": "s[0]"}),
    )
    assert sent(run, push, "00001020") == "0000001020"
    assert sent(run, with_stack(primitive("pop", STACK, hexstr(1))), "00001020") == "000020"


def test_size_and_last_index(run: Run) -> None:
    """How many elements are extracted, and the number of the last one."""
    put = [
        {"op": "set", "parameters": [field("h", name), {"type": "expression", "value": value}]}
        for name, value in (
            ("a", operation("last_stack_index", STACK, None)),
            ("r", operation("size_stack", None, STACK)),
        )
    ]
    assert sent(run, with_stack(operations=put), "00001020") == "01021020"


def test_the_last_elements_field(run: Run) -> None:
    """`stack_field` is that of the last element."""
    last = {"type": "stack_field", "value": ["s", "x"]}
    put = [{"op": "set", "parameters": [field("h", "a"), last]}]
    assert sent(run, with_stack(operations=put), "00001020") == "20001020"


def test_headers_are_copied_and_compared(run: Run) -> None:
    """With their validity."""
    first, last = ({"type": "header", "value": f"s[{index}]"} for index in (0, 2))
    same = operation("b2d", None, operation("==", first, last))
    code = [
        assign("h", "a", same),
        primitive("assign_header", last, first),
        assign("h", "r", same),
    ]
    assert sent(run, with_stack(*code), "00001020") == "0001102010"


def test_validity(run: Run) -> None:
    """As an operator and as a hidden field."""
    code = [
        assign(
            "h",
            "a",
            operation("b2d", None, operation("valid", None, {"type": "header", "value": "s[1]"})),
        ),
        assign("h", "r", field("s[2]", "$valid$")),
        primitive("remove_header", {"type": "header", "value": "s[1]"}),
    ]
    assert sent(run, with_stack(*code), "00051020") == "010010"


def test_fields_by_number(run: Run) -> None:
    """`access_field` counts a header's fields from 0."""
    header = {"type": "header", "value": "h"}
    first = {"type": "expression", "value": {"op": "access_field", "left": header, "right": 0}}
    assert sent(run, with_stack(assign("h", "r", first)), "07001020") == "07071020"
