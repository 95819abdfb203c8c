"""The interpreter on hand-built programs: no parser or checker in between."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from p4switch import ir
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.ir import (
    BOOL,
    Assign,
    Binary,
    Bits,
    Block,
    Const,
    Element,
    Emit,
    Expression,
    Extract,
    Field,
    FieldType,
    Goto,
    Header,
    Parameter,
    Read,
    Stack,
    StackNext,
    State,
    Statement,
    Struct,
    Variable,
)
from p4switch.position import UnsupportedError

ERRORS = (
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
)
B8, B9, B16, B32 = Bits(8), Bits(9), Bits(16), Bits(32)

STANDARD = Struct(
    "standard_metadata_t",
    tuple(
        FieldType(name, kind)
        for name, kind in (
            ("ingress_port", B9),
            ("egress_spec", B9),
            ("egress_port", B9),
            ("instance_type", B32),
            ("packet_length", B32),
            ("mcast_grp", B16),
            ("egress_rid", B16),
            ("parser_error", B32),
            ("priority", Bits(3)),
            ("enq_qdepth", Bits(19)),
            ("deq_qdepth", Bits(19)),
        )
    ),
)
LANE = Header("lane_t", (FieldType("a", B8), FieldType("b", B8)))
HEADERS = Struct("headers_t", (FieldType("lane", LANE), FieldType("lanes", Stack(LANE, 2))))
META = Struct("meta_t", (FieldType("x", B8),))


class Builder:
    """A v1model program: extracts `lane`, then what the test says in each block."""

    def __init__(self) -> None:
        self.variables: dict[tuple[str, str], Variable] = {}
        self.blocks: dict[str, Block] = {}
        for block, names in (
            ("parser", ("hdr", "meta", "std")),
            ("verify", ("hdr", "meta")),
            ("ingress", ("hdr", "meta", "std")),
            ("egress", ("hdr", "meta", "std")),
            ("compute", ("hdr", "meta")),
            ("deparser", ("hdr",)),
        ):
            kinds = {"hdr": HEADERS, "meta": META, "std": STANDARD}
            parameters = []
            for name in names:
                variable = Variable(f"{block}_{name}", kinds[name])
                self.variables[block, name] = variable
                parameters.append(Parameter(name, "inout", variable))
            kind = "parser" if block == "parser" else "control"
            self.blocks[block] = Block(block, kind, block, tuple(parameters), [])
        self.states([Extract(target=self.lane("parser"))])
        self.blocks["deparser"].body = [Emit(value=self.path("deparser", "hdr"))]

    def path(self, block: str, name: str, *fields: str) -> Expression:
        variable = self.variables[block, name]
        made: Expression = Read(variable.type, variable)
        for field in fields:
            assert isinstance(made.type, Struct | Header)
            kind = next(f.type for f in made.type.fields if f.name == field)
            made = Field(kind, made, field)
        return made

    def lane(self, block: str, *fields: str) -> Expression:
        return self.path(block, "hdr", "lane", *fields)

    def states(
        self, body: Sequence[Statement], transition: ir.Goto | ir.Select | None = None
    ) -> None:
        start = State("start", list(body), transition or Goto("accept"))
        self.blocks["parser"].states["start"] = start

    def send_to(self, port: int) -> Assign:
        return Assign(target=self.path("ingress", "std", "egress_spec"), value=Const(B9, port))

    def engine(self, ingress: Sequence[Statement], egress: Sequence[Statement] = ()) -> Interpreter:
        self.blocks["ingress"].body = list(ingress)
        self.blocks["egress"].body = list(egress)
        program = ir.Program(
            ir.Package("V1Switch", self.blocks),
            ERRORS,
            {},
            (),
            (),
            (),
            (),
            tuple(self.blocks.values()),
            (),
            tuple(self.variables.values()),
            {},
        )
        return Interpreter(program)


def binary(
    operator: str, left: Expression, right: Expression, kind: ir.Type | None = None
) -> Binary:
    return Binary(kind or left.type, operator, left, right)


def test_headers_go_out_changed_and_the_payload_follows() -> None:
    b = Builder()
    total = binary("+", b.lane("ingress", "a"), b.lane("ingress", "b"))
    engine = b.engine([b.send_to(3), Assign(target=b.lane("ingress", "a"), value=total)])
    assert engine.process([(1, b"\xf0\x20rest")]) == [(3, b"\x10\x20rest")]


def test_a_short_packet_is_recorded_and_goes_on_to_ingress() -> None:
    b = Builder()
    engine = b.engine([b.send_to(3)])
    assert engine.process([(1, b"\xf0")]) == [(3, b"\xf0")]
    assert engine.statistics().parser_errors == 1


@pytest.mark.parametrize(
    ("operator", "left", "right", "expected"),
    [
        ("-", 1, 2, 0xFF),
        ("*", 0x80, 2, 0),
        ("|+|", 0xF0, 0x20, 0xFF),
        ("|-|", 1, 2, 0),
        ("/", 7, 2, 3),
        ("/", 7, 0, 0),
        ("%", 7, 0, 0),
        ("<<", 1, 9, 0),
        ("<<", 0x81, 1, 2),
        (">>", 0x81, 1, 0x40),
        ("^", 0xFF, 0x0F, 0xF0),
    ],
)
def test_unsigned_arithmetic(operator: str, left: int, right: int, expected: int) -> None:
    b = Builder()
    result = binary(operator, b.lane("ingress", "a"), b.lane("ingress", "b"))
    engine = b.engine([b.send_to(3), Assign(target=b.lane("ingress", "a"), value=result)])
    assert engine.process([(1, bytes([left, right]))])[0][1][0] == expected


@pytest.mark.parametrize(
    ("operator", "left", "right", "expected"),
    [
        ("+", 0x7F, 1, 0x80),
        ("|+|", 0x7F, 1, 0x7F),
        ("|-|", 0x80, 1, 0x80),
        (">>", 0x80, 1, 0xC0),
        ("*", 0xFF, 0xFF, 1),
    ],
)
def test_signed_arithmetic(operator: str, left: int, right: int, expected: int) -> None:
    b = Builder()
    signed = Bits(8, signed=True)
    operands = [ir.Cast(signed, b.lane("ingress", name)) for name in "ab"]
    result = ir.Cast(B8, binary(operator, *operands))
    engine = b.engine([b.send_to(3), Assign(target=b.lane("ingress", "a"), value=result)])
    assert engine.process([(1, bytes([left, right]))])[0][1][0] == expected


def test_slices_are_read_and_written() -> None:
    b = Builder()
    target = ir.Slice(Bits(4), b.lane("ingress", "a"), 5, 2)
    value = ir.Slice(Bits(4), b.lane("ingress", "b"), 7, 4)
    engine = b.engine([b.send_to(3), Assign(target=target, value=value)])
    assert engine.process([(1, b"\x81\x6f")]) == [(3, b"\x99\x6f")]


def test_a_stack_fills_then_is_out_of_bounds() -> None:
    b = Builder()
    lanes = b.path("parser", "hdr", "lanes")
    b.states([Extract(target=StackNext(LANE, lanes))], Goto("start"))
    error = ir.Cast(B8, b.path("ingress", "std", "parser_error"))
    first = Element(LANE, b.path("ingress", "hdr", "lanes"), Const(B32, 0))
    engine = b.engine([b.send_to(3), Assign(target=Field(B8, first, "a"), value=error)])
    # two elements fit; the third extraction fails with StackOutOfBounds, error 3
    assert engine.process([(1, b"abcdef")]) == [(3, b"\x03bcdef")]


def test_an_element_out_of_bounds_reads_zero_and_writes_nothing() -> None:
    b = Builder()
    far = Element(LANE, b.path("ingress", "hdr", "lanes"), ir.Cast(B32, b.lane("ingress", "a")))
    body = [
        b.send_to(3),
        Assign(target=Field(B8, far, "a"), value=Const(B8, 1)),
        Assign(target=b.lane("ingress", "b"), value=Field(B8, far, "a")),
    ]
    assert b.engine(body).process([(1, b"\x07\x07")]) == [(3, b"\x07\x00")]


def test_exit_still_copies_out() -> None:
    b = Builder()
    inner = Variable("inner", B8)
    action = ir.Callable(
        "act",
        (Parameter("x", "inout", inner),),
        [Assign(target=Read(B8, inner), value=Const(B8, 9)), ir.Exit()],
    )
    body: list[Statement] = [
        b.send_to(3),
        Assign(target=Read(B8, inner), value=b.lane("ingress", "a")),
        ir.Call(
            callee=action,
            copy_out=[Assign(target=b.lane("ingress", "a"), value=Read(B8, inner))],
        ),
        Assign(target=b.lane("ingress", "b"), value=Const(B8, 1)),
    ]
    assert b.engine(body).process([(1, b"\x05\x05")]) == [(3, b"\x09\x05")]


def test_continue_runs_the_update_and_break_leaves() -> None:
    b = Builder()
    i = Variable("i", B8)
    a = b.lane("ingress", "a")
    one = Const(B8, 1)
    loop = ir.Loop(
        condition_code=[],
        condition=binary("<", Read(B8, i), Const(B8, 10), BOOL),
        body=[
            ir.If(
                condition=binary("==", Read(B8, i), Const(B8, 6), BOOL),
                then=[ir.Break()],
                other=[],
            ),
            ir.If(
                condition=binary("<", Read(B8, i), Const(B8, 3), BOOL),
                then=[ir.Continue()],
                other=[],
            ),
            Assign(target=a, value=binary("+", a, one)),
        ],
        update=[Assign(target=Read(B8, i), value=binary("+", Read(B8, i), one))],
    )
    engine = b.engine([b.send_to(3), ir.Declare(variable=i), loop])
    for _ in range(2):  # the second packet shows that Declare resets
        assert engine.process([(1, b"\x00\x00")]) == [(3, b"\x03\x00")]


def test_set_invalid_zeroes_and_drops_the_header() -> None:
    b = Builder()
    lane = b.lane("ingress")
    gone = ir.SetValid(header=lane, valid=False)
    back = ir.SetValid(header=lane, valid=True)
    assert b.engine([b.send_to(3), gone]).process([(1, b"abc")]) == [(3, b"c")]
    assert b.engine([b.send_to(3), gone, back]).process([(1, b"abc")]) == [(3, b"\0\0c")]


def test_a_queue_drops_at_its_tail_and_shows_its_depth() -> None:
    b = Builder()
    depth = ir.Cast(B8, b.path("egress", "std", "enq_qdepth"))
    left = ir.Cast(B8, b.path("egress", "std", "deq_qdepth"))
    egress = [
        Assign(target=b.lane("egress", "a"), value=depth),
        Assign(target=b.lane("egress", "b"), value=left),
    ]
    engine = b.engine([b.send_to(3)], egress)
    engine.options.queue_depth = 3
    out = engine.process([(1, b"ab")] * 5)
    assert out == [(3, b"\x00\x02"), (3, b"\x01\x01"), (3, b"\x02\x00")]
    assert engine.statistics().queue_drops == 2


def test_higher_priorities_leave_first() -> None:
    b = Builder()
    priority = Assign(
        target=b.path("ingress", "std", "priority"),
        value=ir.Slice(Bits(3), b.lane("ingress", "a"), 2, 0),
    )
    engine = b.engine([b.send_to(3), priority])
    out = engine.process([(1, bytes([level, 0])) for level in (1, 7, 1, 4)])
    assert [frame[0] for _, frame in out] == [7, 4, 1, 1]


def test_deep_expressions_do_not_exhaust_the_stack() -> None:
    b = Builder()
    a = b.lane("ingress", "a")
    total: Expression = a
    for _ in range(2000):
        total = binary("+", total, b.lane("ingress", "b"))
    engine = b.engine([b.send_to(3), Assign(target=a, value=total)])
    assert engine.process([(1, b"\x05\x01")]) == [(3, bytes([(5 + 2000) % 256, 1]))]


def test_a_package_that_is_not_v1model_is_refused() -> None:
    b = Builder()
    del b.blocks["verify"]
    with pytest.raises(UnsupportedError, match="V1Switch"):
        b.engine([])
