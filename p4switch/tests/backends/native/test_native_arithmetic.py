"""Arithmetic of generated code against Python's integers: every operator, many widths."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4switch.backends.native.engine import NativeEngine
from tests.support.program_parts import Part, program_of_parts
from tests.support.search import examples

WIDTHS = (1, 8, 9, 31, 32, 33, 63, 64, 65, 128, 257, 2047, 2048)
"""Whole C types and parts of them; words that are full, and a bit less or more."""

MORE_WIDTHS = (7, 48, 127, 129, 192, 256, 1000)
WIDEST = 2048
KINDS = [
    (width, signed)
    for width in (*WIDTHS, *MORE_WIDTHS[: examples(0, len(MORE_WIDTHS))])
    for signed in (False, True)
]


def computing(kind: str, padding: int, fields: str, statements: str) -> Part:
    """Return a part whose statements use operands h.x.a, h.x.b, h.x.s, and results in h.r."""
    return Part(
        fields=f"{kind} a; {kind} b; bit<16> s; bit<{padding}> p;",
        declarations=f"action compute#() {{ h.r.setValid(); {statements} }}",
        statements="s.egress_spec = 1; compute#();",
        sent=fields,
    )


def engine_of(parts: Sequence[Part]) -> NativeEngine:
    """Return an engine whose frames begin with the number of the part that computes results."""
    return NativeEngine(program_of_parts(parts))


def results(engine: NativeEngine, part: int, operands: bytes) -> bytes:
    [(_, got)] = engine.process([(0, bytes([part]) + operands)])
    return got


@dataclass(frozen=True)
class Operation:
    """P4 text in a, b and s; what it is of Python's integers; its width, None that of a."""

    text: str
    python: Callable[[int, int, int], int]
    width: int | None = None


def bounds(width: int, signed: bool) -> tuple[int, int]:
    return (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)


def operations(width: int, signed: bool) -> list[Operation]:
    """All operators that P4 allows on such operands."""
    low, high = bounds(width, signed)

    def clamp(value: int) -> int:
        return max(low, min(high, value))

    kind = f"int<{width}>" if signed else f"bit<{width}>"
    found = [
        Operation("h.x.a + h.x.b", lambda a, b, s: a + b),
        Operation("h.x.a - h.x.b", lambda a, b, s: a - b),
        Operation("h.x.a * h.x.b", lambda a, b, s: a * b),
        Operation("h.x.a |+| h.x.b", lambda a, b, s: clamp(a + b)),
        Operation("h.x.a |-| h.x.b", lambda a, b, s: clamp(a - b)),
        Operation("h.x.a & h.x.b", lambda a, b, s: a & b),
        Operation("h.x.a | h.x.b", lambda a, b, s: a | b),
        Operation("h.x.a ^ h.x.b", lambda a, b, s: a ^ b),
        Operation("~h.x.a", lambda a, b, s: ~a),
        Operation("-h.x.a", lambda a, b, s: -a),
        Operation("h.x.a << h.x.s", lambda a, b, s: a << s),
        Operation("h.x.a >> h.x.s", lambda a, b, s: a >> s),
        Operation("h.x.a << 3", lambda a, b, s: a << 3),
        Operation("h.x.a >> 3", lambda a, b, s: a >> 3),
        Operation(f"({kind}){min(high, 5)} << h.x.s", lambda a, b, s: min(high, 5) << s),
        Operation(f"h.x.a << {width}", lambda a, b, s: 0),
        Operation(f"h.x.a >> {width}", lambda a, b, s: -1 if a < 0 else 0),
        Operation("(h.x.a + h.x.b) ^ (~h.x.a - h.x.b)", lambda a, b, s: (a + b) ^ (~a - b)),
        Operation("(h.x.a ^ h.x.b) >> 1 & h.x.a << 2", lambda a, b, s: wrap(a ^ b) >> 1 & a << 2),
        Operation("h.x.a < h.x.b ? h.x.b - h.x.a : h.x.a", lambda a, b, s: b - a if a < b else a),
        # What is beyond the width must be gone before the next operator sees it.
        Operation("(h.x.a + h.x.b) >> 1", lambda a, b, s: wrap(a + b) >> 1),
        Operation("h.x.a << 3 >> 3", lambda a, b, s: wrap(a << 3) >> 3),
        Operation("~h.x.a == h.x.b ? (bit<1>)1 : 0", lambda a, b, s: int(wrap(~a) == b), 1),
        Operation("h.x.a - h.x.b < h.x.a ? (bit<1>)1 : 0", lambda a, b, s: int(wrap(a - b) < a), 1),
        Operation("h.x.a == h.x.b ? (bit<1>)1 : 0", lambda a, b, s: int(a == b), 1),
        Operation("h.x.a != h.x.b ? (bit<1>)1 : 0", lambda a, b, s: int(a != b), 1),
        Operation("h.x.a < h.x.b ? (bit<1>)1 : 0", lambda a, b, s: int(a < b), 1),
        Operation("h.x.a <= h.x.b ? (bit<1>)1 : 0", lambda a, b, s: int(a <= b), 1),
        Operation("h.x.a > h.x.b ? (bit<1>)1 : 0", lambda a, b, s: int(a > b), 1),
        Operation("h.x.a >= h.x.b ? (bit<1>)1 : 0", lambda a, b, s: int(a >= b), 1),
        Operation("h.x.a ++ h.x.b", lambda a, b, s: a << width | b & (1 << width) - 1, 2 * width),
        Operation(
            "h.x.a ++ h.x.s ++ h.x.b",
            lambda a, b, s: (a << 16 | s) << width | b & (1 << width) - 1,
            2 * width + 16,
        ),
        Operation(
            "h.x.a ++ 8w0 ++ h.x.s ++ 76w9 ++ h.x.s",
            lambda a, b, s: (a << 24 | s) << 92 | 9 << 16 | s,
            width + 116,
        ),
        Operation(f"({kind})h.x.a", lambda a, b, s: a),
    ]

    def wrap(value: int) -> int:
        value &= (1 << width) - 1
        return value - (1 << width) if signed and value >> width - 1 else value

    for other in {1, max(width // 2, 1), width + 1, width + 64, 3 * width}:
        other_kind = f"int<{other}>" if signed else f"bit<{other}>"
        found.append(Operation(f"({other_kind})h.x.a", lambda a, b, s: a, other))
    if not signed:
        found += [
            Operation("h.x.b == 0 ? 0 : h.x.a / h.x.b", lambda a, b, s: a // b if b else 0),
            Operation("h.x.b == 0 ? 0 : h.x.a % h.x.b", lambda a, b, s: a % b if b else 0),
        ]
    cuts = {(width - 1, 0), (width - 1, width // 2), (width // 2, width // 3), (0, 0)}
    cuts |= {(width - 1, min(64, width - 1)), (min(63, width - 1), 0)}
    for high_bit, low_bit in sorted(cuts):
        found.append(
            Operation(
                f"h.x.a[{high_bit}:{low_bit}]",
                lambda a, b, s, low_bit=low_bit: (a & (1 << width) - 1) >> low_bit,
                high_bit - low_bit + 1,
            )
        )
    return [operation for operation in found if (operation.width or 0) <= WIDEST]


def sliced_stores(width: int) -> list[tuple[int, int]]:
    """Slices that are stored into."""
    return sorted(
        {
            (width - 1, 0),
            (width // 2, width // 3),
            (width - 1, width - 1),
            (min(70, width - 1), min(3, width - 1)),
        }
    )


def part_of(width: int, signed: bool) -> Part:
    """Compute everything at once, each result in bytes of its own."""
    kind = "int" if signed else "bit"
    fields, statements = [], []
    for number, operation in enumerate(operations(width, signed)):
        size = operation.width or width
        result = (
            "bit"
            if operation.width and ("bit<1>" in operation.text or operation.text.endswith("]"))
            else kind
        )
        fields.append(f"{result}<{size}> r{number}; bit<{pad(size)}> p{number};")
        statements.append(f"h.r.r{number} = {operation.text};")
    if not signed:
        for number, (high, low) in enumerate(sliced_stores(width)):
            fields.append(f"bit<{width}> w{number}; bit<{pad(width)}> q{number};")
            statements.append(f"h.r.w{number} = h.x.a;")
            statements.append(f"h.r.w{number}[{high}:{low}] = h.x.b[{high - low}:0];")
    return computing(
        kind=f"{kind}<{width}>",
        padding=-(2 * width + 16) % 8 or 8,
        fields=" ".join(f.replace("bit<0>", "bit<8>") for f in fields),
        statements="\n        ".join(statements),
    )


@cache
def engine_of_all() -> NativeEngine:
    return engine_of([part_of(width, signed) for width, signed in KINDS])


def pad(width: int) -> int:
    return -width % 8


def check(width: int, signed: bool, a: int, b: int, s: int) -> None:
    mask = (1 << width) - 1
    bits = (a & mask) << width | b & mask
    frame = bits << 16 | s
    size = 2 * width + 16
    padding = -size % 8 or 8
    sent = (frame << padding).to_bytes((size + padding) // 8, "big")
    got = results(engine_of_all(), KINDS.index((width, signed)), sent)
    at = 0
    for operation in operations(width, signed):
        result_width = operation.width or width
        count = (result_width + (pad(result_width) or 8)) // 8
        value = int.from_bytes(got[at : at + count], "big") >> (pad(result_width) or 8)
        at += count
        expected = operation.python(a, b, s) & (1 << result_width) - 1
        assert value == expected, f"{operation.text} with a={a:#x} b={b:#x} s={s}"
    if not signed:
        for high, low in sliced_stores(width):
            count = (width + (pad(width) or 8)) // 8
            value = int.from_bytes(got[at : at + count], "big") >> (pad(width) or 8)
            at += count
            hole = ((1 << high - low + 1) - 1) << low
            assert value == a & ~hole | (b << low) & hole
    assert at == len(got)


def samples(width: int, signed: bool, rng: random.Random) -> list[tuple[int, int, int]]:
    """Extremes against each other, and random values."""
    low, high = bounds(width, signed)
    edges = sorted({low, low + (width > 1), high, high - (width > 1), 0, min(1, high)})
    if signed:
        edges.append(-1)
    shifts = (0, 1, 63, 64, 65, width - 1, width, width + 1, 0xFFFF)
    pairs = [(a, b) for a in edges for b in edges]
    pairs += [(rng.randint(low, high), rng.randint(low, high)) for _ in range(20)]
    return [(a, b, shifts[i % len(shifts)]) for i, (a, b) in enumerate(pairs)]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "signed"), KINDS)
def test_every_operator(width: int, signed: bool) -> None:
    for a, b, s in samples(width, signed, random.Random(width)):
        check(width, signed, a, b, s)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=examples(50, 200))
def test_any_values(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from((33, 64, 65, 128, 257, 2048)))
    numbers = st.integers(0, (1 << width) - 1)
    shift = data.draw(st.integers(0, width + 2))
    check(width, False, data.draw(numbers), data.draw(numbers), shift)


OVERWRITES = (8, 64, 72, 128, 200)


@cache
def engine_of_single_expressions() -> NativeEngine:
    overwrites = [
        computing(
            "bit<256>",
            8,
            "bit<256> r;",
            f"h.r.r = h.x.a; h.r.r = (bit<256>)(h.r.r ++ h.x.b[{low - 1}:0]);",
        )
        for low in OVERWRITES
    ]
    lanes = """
        const bit<32> one = 0x80000000;
        const bit<128> four = one ++ one ++ one ++ one;
        const bit<512> sixteen = four ++ four ++ four ++ four;
        const bit<2048> sign = sixteen ++ sixteen ++ sixteen ++ sixteen;
        const bit<2048> rest = ~sign;
        h.r.r = ((h.x.a & rest) + (h.x.b & rest)) ^ ((h.x.a ^ h.x.b) & sign);
    """
    return engine_of([*overwrites, computing("bit<2048>", 8, "bit<2048> r;", lanes)])


@pytest.mark.parametrize("low", OVERWRITES)
def test_a_concatenation_may_overwrite_its_own_part(low: int) -> None:
    engine = engine_of_single_expressions()
    a, b = random.Random(low).getrandbits(256), random.Random(-low).getrandbits(256)
    sent = a.to_bytes(32, "big") + b.to_bytes(32, "big") + bytes(3)
    got = results(engine, OVERWRITES.index(low), sent)
    expected = (a << low | b & (1 << low) - 1) & (1 << 256) - 1
    assert int.from_bytes(got[:32], "big") == expected


def test_lanes_in_a_wide_word_add_without_carries_between_them() -> None:
    """The sum that the generator makes free of carries (wide.py, carries_nothing)."""
    engine = engine_of_single_expressions()
    assert "add_carry(" not in engine.path.with_name("switch.c").read_text().split("f_r.w", 1)[1]
    rng = random.Random(5)
    for _ in range(50):
        a, b = (
            [rng.choice((0, 2**31, 2**32 - 1, rng.getrandbits(32))) for _ in range(64)]
            for _ in range(2)
        )
        sent = b"".join(v.to_bytes(4, "big") for v in (*a, *b)) + bytes(3)
        got = results(engine, len(OVERWRITES), sent)
        sums = [(x + y) % 2**32 for x, y in zip(a, b, strict=True)]
        assert got == b"".join(v.to_bytes(4, "big") for v in sums)
