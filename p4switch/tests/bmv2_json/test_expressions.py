"""Expressions against BMv2's arithmetic: integers of any size, cut when they are assigned."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.position import P4Error
from tests.bmv2_json.conftest import Run
from tests.bmv2_json.documents import Part, assign, field, hexstr, one_action, operation, program
from tests.support.search import examples

FIELDS = {"a": 8, "b": -8, "c": 16, "d": 32, "w": 96}
"""By width; `b` is signed."""
RESULTS = {"r16": 16, "s16": -16, "r80": 80}
LEAVES = [field("h", name) for name in FIELDS]

Compute = dict[str, Callable[[int, int], int]]
ARITHMETIC: Compute = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
}
COMPARISONS: Compute = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def wrapped(value: int, width: int) -> int:
    """Return a number as two's complement has it."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> width - 1 else value


def value_of(part: Part, fields: dict[str, int]) -> int:
    """Return what BMv2 computes (src/bm_sim/expressions.cpp)."""
    if part["type"] == "hexstr":
        return int(part["value"], 16)
    if part["type"] == "field":
        return fields[part["value"][1]]
    content = part["value"]
    op = content["op"]
    if op == "?":
        branch = "left" if value_of(content["cond"], fields) else "right"
        return value_of(content[branch], fields)
    right = value_of(content["right"], fields)
    if content["left"] is None:
        return {"~": ~right, "-": -right, "+": right, "d2b": int(right != 0), "b2d": right}[op]
    left = value_of(content["left"], fields)
    if op in ARITHMETIC:
        return ARITHMETIC[op](left, right)
    if op in COMPARISONS:
        return int(COMPARISONS[op](left, right))
    return {
        "<<": lambda: left << right,
        ">>": lambda: left >> right,
        "two_comp_mod": lambda: wrapped(left, right),
        "usat_cast": lambda: min(max(left, 0), (1 << right) - 1),
        "sat_cast": lambda: min(max(left, -(1 << right - 1)), (1 << right - 1) - 1),
    }[op]()


def _deeper(inner: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    width = st.sampled_from([1, 7, 8, 16, 33]).map(hexstr)
    mask = st.sampled_from([0xFF, 0x7F, 0xFFFF, 0xF0, 0x1FFFFFFFF]).map(hexstr)
    boolean = st.builds(operation, st.sampled_from(sorted(COMPARISONS)), inner, inner)
    return st.one_of(
        st.builds(operation, st.sampled_from(sorted(ARITHMETIC)), inner, inner),
        st.builds(operation, st.sampled_from(["~", "-", "+"]), st.none(), inner),
        st.builds(operation, st.just("&"), inner, mask),
        st.builds(
            operation, st.sampled_from(["two_comp_mod", "usat_cast", "sat_cast"]), inner, width
        ),
        st.builds(operation, st.sampled_from(["<<", ">>"]), inner, st.integers(0, 9).map(hexstr)),
        st.builds(operation, st.just("b2d"), st.none(), boolean),
        st.builds(
            lambda cond, left, right: operation("?", left, right, cond=cond), boolean, inner, inner
        ),
    )


EXPRESSIONS = st.recursive(
    st.one_of(
        st.sampled_from(LEAVES),
        st.sampled_from([0, 1, 5, 0x80, 0xFFFF, -3]).map(hexstr),
    ),
    _deeper,
    max_leaves=8,
)
ENDS = [
    dict.fromkeys(FIELDS, 0),
    {name: (1 << abs(width)) - 1 for name, width in FIELDS.items()},
    {name: 1 << abs(width) - 1 for name, width in FIELDS.items()},
    {
        name: index % 2 * ((1 << abs(width)) - 1)
        for index, (name, width) in enumerate(FIELDS.items())
    },
]
"""Values at the ends of their types."""
VALUES = st.fixed_dictionaries(
    {name: st.integers(0, (1 << abs(width)) - 1) for name, width in FIELDS.items()}
)


@pytest.mark.slow
@settings(max_examples=examples(60, 3000))
@example(operation("usat_cast", operation("-", field("h", "a"), field("h", "c")), hexstr(8)), ENDS)
@example(operation("sat_cast", operation("*", field("h", "b"), field("h", "a")), hexstr(8)), ENDS)
@example(operation("two_comp_mod", operation("~", None, field("h", "a")), hexstr(7)), ENDS)
@given(EXPRESSIONS, st.lists(VALUES, min_size=1, max_size=4))
def test_expressions_are_those_of_bmv2(expression: Part, packets: list[dict[str, int]]) -> None:
    """An expression has BMv2's value, for any sign and size."""
    fields = {**FIELDS, **RESULTS}
    engine = Interpreter(
        program(one_action(fields, *(assign("h", name, expression) for name in RESULTS)))
    )
    for values in packets:
        result = value_of(expression, {**values, "b": wrapped(values["b"], 8)})
        sent = engine.process([(0, packed(fields, values))])
        assert sent == [(0, packed(fields, {**values, **dict.fromkeys(RESULTS, result)}))]


@pytest.mark.slow
def test_executors_compute_the_same(run: Run) -> None:
    """Many expressions, in one program, have BMv2's values on every executor."""
    numbers = random.Random(14)
    chosen = {f"r{index}": _random(numbers, 3) for index in range(40)}
    fields = {**FIELDS, **dict.fromkeys(chosen, 32)}
    assignments = [assign("h", name, value) for name, value in chosen.items()]
    engine = run(program(one_action(fields, *assignments)))
    for _ in range(50):
        values = {name: numbers.getrandbits(abs(width)) for name, width in FIELDS.items()}
        signed = {**values, "b": wrapped(values["b"], 8)}
        results = {name: value_of(value, signed) for name, value in chosen.items()}
        sent = engine.process([(0, packed(fields, values))])
        assert sent == [(0, packed(fields, {**values, **results}))]


def packed(fields: dict[str, int], values: dict[str, int]) -> bytes:
    """Return a header; fields without a value are 0."""
    bits = size = 0
    for name, width in fields.items():
        bits = bits << abs(width) | values.get(name, 0) & (1 << abs(width)) - 1
        size += abs(width)
    return bits.to_bytes(size // 8, "big")


def _random(numbers: random.Random, depth: int) -> Part:
    if depth == 0 or numbers.random() < 0.2:
        return numbers.choice([*LEAVES, hexstr(numbers.choice([0, 3, 0xFF, -7]))])
    one, other = _random(numbers, depth - 1), _random(numbers, depth - 1)
    match numbers.randrange(6):
        case 0:
            return operation("&", one, hexstr(numbers.choice([0xFF, 0xFFFF, 0xF0])))
        case 1:
            return operation("two_comp_mod", one, hexstr(numbers.choice([8, 16])))
        case 2:
            return operation("<<", one, hexstr(numbers.randrange(9)))
        case 3:
            return operation(">>", one, hexstr(numbers.randrange(9)))
        case 4:
            return operation("usat_cast", operation("-", one, other), hexstr(8))
    return operation(numbers.choice(sorted(ARITHMETIC)), one, other)


def test_masked_sums_are_plain_ones() -> None:
    """`(a + a) & 0xff` is the sum of bit<8> that it was in P4, without a wider one."""
    from tests.support.ir_text import dump

    value = operation("&", operation("+", field("h", "a"), field("h", "a")), hexstr(0xFF))
    text = dump(program(one_action({"a": 8}, assign("h", "a", value))))
    assert "hdr.h.a = (hdr.h.a + hdr.h.a)" in text


def test_shift_by_a_field_needs_a_mask() -> None:
    """A left shift by up to 2^32 bits is refused, unless what is kept of it is known."""
    shift = operation("<<", field("h", "a"), field("h", "d"))
    fields = {"a": 8, "d": 32, "r": 8}
    program(one_action(fields, assign("h", "r", shift)))
    compared = operation("b2d", None, operation("==", shift, field("h", "a")))
    with pytest.raises(P4Error, match=r"left shift by up to 4294967295 bits"):
        program(one_action(fields, assign("h", "r", compared)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (field("h", "zz"), "header 'h_t' has no field 'zz'"),
        (field("zz", "a"), "there is no header 'zz'"),
        ({"type": "runtime_data", "value": 0}, "there is no runtime data 0"),
        ({"type": "register", "value": ["r", hexstr(0)]}, "a 'register' as a number"),
        (operation("**", field("h", "a"), field("h", "a")), "operator '\\*\\*'"),
        (operation("/", hexstr(-1), field("h", "a")), "'/' of numbers that may be negative"),
    ],
)
def test_errors_of_expressions(value: Part, message: str) -> None:
    """Everything that an expression names must exist and be supported."""
    with pytest.raises(P4Error, match=message):
        program(one_action({"a": 8}, assign("h", "a", value)))
