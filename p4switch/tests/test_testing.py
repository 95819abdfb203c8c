"""The switch for unit tests, without pytest's fixture."""

from __future__ import annotations

import pytest

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.testing import Switch, as_bytes

TEXT = """#include <core.p4>
#include <v1model.p4>
header h_t { bit<32> a; bit<16> b; }
struct headers_t { h_t h; }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.h); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    register<bit<16>>(4) last;
    counter(4, CounterType.packets) seen;
    action to(bit<9> port) { s.egress_spec = port; }
    action drop() { mark_to_drop(s); }
    table t {
        key = { h.h.a : ternary; h.h.b : range; }
        actions = { to; drop; }
        default_action = drop();
    }
    apply {
        seen.count(1);
        last.write(2, h.h.b);
        digest(1, h.h);
        t.apply();
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""
PROGRAM = compile_program(parse_text(TEXT, "t.p4"))
FRAME = "0a000001 0007"


@pytest.fixture
def box() -> Switch:
    return Switch(Interpreter(PROGRAM))


@pytest.mark.parametrize(
    ("keys", "hits"),
    [
        ({"h.h.a": "10.0.0.1"}, True),
        ({"h.h.a": "10.0.0.0/8", "h.h.b": 7}, True),
        ({"h.h.a": "10.0.0.0/8", "h.h.b": 8}, False),
        ({"h.h.a": "10.0.0.0&&&255.0.0.0"}, True),
        ({"h.h.a": "0x0a00****", "h.h.b": "5..7"}, True),
        ({"h.h.b": "8..9"}, False),
        ({}, True),
    ],
)
def test_keys(box: Switch, keys: dict[str, object], hits: bool) -> None:
    box.add("t", keys, "to", priority=1, port=3)
    box.send(0, FRAME)
    if hits:
        assert box.expect(3, "0a0000** 0007") == as_bytes(FRAME)
    box.expect_nothing()


def test_the_whole_frame_is_compared(box: Switch) -> None:
    box.set_default("t", "to", port=3)
    box.send(0, FRAME + "ff")
    with pytest.raises(AssertionError, match="length 7 bytes, expected 6"):
        box.expect(3, FRAME)


def test_the_larger_priority_wins(box: Switch) -> None:
    box.add("t", {}, "to", priority=1, port=3)
    box.add("t", {}, "to", priority=2, port=4)
    box.send(0, FRAME)
    assert box.take_all(4) == [as_bytes(FRAME)]
    assert box.take_all() == []


def test_state_can_be_read(box: Switch) -> None:
    box.set_default("t", "to", port=2)
    for _ in range(3):
        box.send(0, bytes.fromhex(FRAME))
    assert box.register("last", 2) == 7
    assert box.counter("seen", 1).packets == 3
    assert [digest.values for digest in box.digests()] == [(0x0A000001, 7)] * 3
    box.set_register("last", 2, 9)
    assert box.register("I.last", 2) == 9
    assert len(box.take_all(2)) == 3


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ('add "nowhere" "to"(port:1)', "no table 'nowhere'; there are I.t"),
        ('add "t" h.h.a:1 "fly"()', "no action of table 'I.t' 'fly'"),
        ("packet 1 00", "use `send` and `expect` for packets"),
        ("nonsense", "unknown command 'nonsense'"),
    ],
)
def test_invalid_commands_are_refused(box: Switch, command: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        box.control(command)


def test_checks_of_stf_fail(box: Switch) -> None:
    box.control("check_counter seen(1) packets == 0")
    with pytest.raises(AssertionError, match="it is 0"):
        box.control("check_counter seen(1) packets == 1")


def test_a_frame_must_be_hexadecimal(box: Switch) -> None:
    with pytest.raises(ValueError, match="hexadecimal digits, not 'xyz'"):
        box.send(0, "xyz")


def test_addresses_must_be_addresses(box: Switch) -> None:
    with pytest.raises(ValueError, match=r"'10\.0\.0' is neither a number nor an address"):
        box.add("t", {"h.h.a": "10.0.0"}, "drop", priority=1)


def test_an_unknown_register_is_named(box: Switch) -> None:
    with pytest.raises(ValueError, match=r"no register 'first'; there are I\.last"):
        box.register("first", 0)
