"""The STF runner: it must notice what is wrong, and say where."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_file
from p4switch.ir import Bits, Const, Key, Program
from p4switch.stf import (
    StfError,
    by_suffix,
    compare_packet,
    engine_factory,
    parse_match,
    run_stf,
)
from p4switch.targets.v1model.engine import KeyMatch
from tests.support.paths import PROGRAMS


@cache
def compiled(name: str) -> Program:
    return compile_file(PROGRAMS / f"{name}.p4")


def run(tmp_path: Path, program: str, text: str) -> list[str]:
    path = tmp_path / "test.stf"
    path.write_text(text, encoding="utf-8")
    return run_stf(Interpreter, compiled(program), path)


def test_packets_are_compared_as_prefixes_unless_exact() -> None:
    assert compare_packet("12*4", b"\x12\x34\x56") is None
    assert compare_packet("12*4$", b"\x12\x34") is None
    assert "length" in (compare_packet("12*4$", b"\x12\x34\x56") or "")
    assert "length" in (compare_packet("123456", b"\x12\x34") or "")
    assert "nibble 2 is 3" in (compare_packet("124", b"\x12\x34") or "")


KINDS = [
    ("exact", "0x1f", KeyMatch(0x1F)),
    ("exact", "31", KeyMatch(0x1F)),
    ("exact", "0b101", KeyMatch(5)),
    ("lpm", "0x1f00", KeyMatch(0x1F00, prefix_length=16)),
    ("lpm", "0x1f**", KeyMatch(0x1F00, prefix_length=8)),
    ("lpm", "0x1f00/9", KeyMatch(0x1F00, prefix_length=9)),
    ("ternary", "0x1f*0", KeyMatch(0x1F00, mask=0xFF0F)),
    ("ternary", "0b1*", KeyMatch(2, mask=2)),
    ("ternary", "7", KeyMatch(7, mask=0xFFFF)),
    ("ternary", "0x1f1f&&&0xff", KeyMatch(0x1F, mask=0xFF)),
    ("ternary", "0x1f1f/8", KeyMatch(0x1F00, mask=0xFF00)),
    ("ternary", "*", KeyMatch(any=True)),
    ("range", "1..0x10", KeyMatch(1, high=16)),
    ("range", "1->9", KeyMatch(1, high=9)),
    ("range", "5", KeyMatch(5, high=5)),
    ("optional", "5", KeyMatch(5)),
]


@pytest.mark.parametrize(("kind", "text", "match"), KINDS)
def test_values_of_keys(kind: str, text: str, match: KeyMatch) -> None:
    key = Key("k", kind, Const(Bits(16), 0))
    assert parse_match(text, key) == match


@pytest.mark.parametrize(
    ("kind", "text"), [("exact", "0x1*"), ("exact", "1/2"), ("lpm", "1..2"), ("range", "1&&&2")]
)
def test_values_that_do_not_fit_the_kind(kind: str, text: str) -> None:
    with pytest.raises(StfError, match=kind):
        parse_match(text, Key("k", kind, Const(Bits(16), 0)))


def test_names_match_by_unique_suffix() -> None:
    names = ["a.x", "b.x", "b.y", "c.my_y"]
    assert by_suffix("a.x", names, "table") == "a.x"
    assert by_suffix("y", names, "table") == "b.y"
    assert by_suffix("my_y", names, "table") == "c.my_y"
    with pytest.raises(StfError, match="ambiguous"):
        by_suffix("x", names, "table")
    with pytest.raises(StfError, match="no table 'z'"):
        by_suffix("z", names, "table")


def test_a_wrong_packet_is_reported_with_its_line(tmp_path: Path) -> None:
    failures = run(tmp_path, "loops", "packet 0 00 05 0000\n\nexpect 1 00 05 000b\n")
    assert len(failures) == 1
    assert failures[0].startswith("test.stf:3: port 1: nibble 7 is a, expected b")


def test_missing_and_surplus_packets_are_reported(tmp_path: Path) -> None:
    assert run(tmp_path, "loops", "expect 1 00") == ["port 1: 0 packets, expected 1"]
    surplus = run(tmp_path, "loops", "packet 1 00 00 0000")
    elsewhere = run(tmp_path, "loops", "packet 0 00000000\nexpect 2 00000000")
    assert elsewhere == ["port 2: 0 packets, expected 1\n  port 1 got 00000000"]
    assert surplus == ["port 1: 1 packets, expected 0\n  got 00000000"]


def test_ports_that_are_not_mentioned_are_ignored_and_any_is_any(tmp_path: Path) -> None:
    assert run(tmp_path, "loops", "packet 0 00 00 0000") == []
    assert run(tmp_path, "loops", "packet 0 00 00 0000\nexpect 1") == []
    assert run(tmp_path, "loops", "expect 1") == []


def test_the_order_of_packets_counts(tmp_path: Path) -> None:
    text = "packet 0 00 01 0000\npacket 0 00 03 0000\nexpect 1 00 03\nexpect 1 00 01\n"
    assert len(run(tmp_path, "loops", text)) == 2


P4TESTGEN = """\
# p4testgen seed: 1
# Date generated: 2026-11-29-01:12:00.000
    # Selected branches: 1 2
# Current node coverage: 0.63
# Traces
# [Parser] start

# Table RouterIngress.routes
add "RouterIngress.routes" 1 "hdr.ipv4.dst":0b110000000000000000000010******** \
"RouterIngress.forward"("next_hop":0x080000000404,"port":0x0004)

packet 1 0800000000FE0800000001010800450000190001000040FDABE40A000202C000020168656C6C6F
expect 4 0800000004040800000000FE08004500001900010000{ttl}FD****0A000202C000020168656C6C6F$

"""


@pytest.mark.parametrize(("ttl", "found"), [("3F", []), ("40", ["nibble 44 is 3, expected 4"])])
def test_files_as_p4testgen_writes_them(tmp_path: Path, ttl: str, found: list[str]) -> None:
    """All names are quoted, entries of lpm tables have a priority, masks are `*` digits."""
    failures = run(tmp_path, "router", P4TESTGEN.format(ttl=ttl))
    assert len(failures) == len(found)
    assert all(what in failure for what, failure in zip(found, failures, strict=True))


def test_counters_and_registers_are_checked(tmp_path: Path) -> None:
    text = (
        "packet 0 0102 00000000\n"
        "check_counter packets(2) packets == 2\n"
        "check_counter packets(2) bytes >= 6\n"
        "check_register sums(0) != 0\n"
    )
    failures = run(tmp_path, "state", text)
    assert failures == [
        "test.stf:2: packets(2) packets == 2: it is 1",
        "test.stf:4: sums(0) != 0: it is 0",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense 1", "test.stf:1: unknown command 'nonsense'"),
        ("\npacket x 00", "test.stf:2: "),
        ("add nowhere a:1 set()", "no table 'nowhere'"),
        ("add lpm_table nothing:1 set(value:1)", "no key 'nothing'"),
        ("add lpm_table hdr.op.a:1 put(value:1)", "no action"),
        ("add lpm_table hdr.op.a:1 set(x:1)", "unknown arguments"),
        ("add lpm_table hdr.op.a:1 set", "expected ACTION"),
        ("add lpm_table hdr.op.a:0x100 set(value:1)", "does not fit in 8 bits"),
        ("setdefault constant_table miss()", "constant"),
        ("mc_node_associate 1 0", "no node 0"),
        ("remove some", "expected remove all"),
    ],
)
def test_statements_that_cannot_run_are_errors_with_their_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(StfError) as caught:
        run(tmp_path, "matches", text)
    assert message in str(caught.value)


def test_executors_have_names() -> None:
    with pytest.raises(StfError, match="no executor 'abacus'"):
        engine_factory("abacus")
