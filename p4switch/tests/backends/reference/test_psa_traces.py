"""Traces of PSA programs: stages, what decides where a packet goes, drops, and trees."""

from __future__ import annotations

import pytest

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.backends.reference.trace import PacketTrace, Tracer
from p4switch.frontend.program import compile_file
from p4switch.targets.v1model.engine import CloneSession, Replica
from tests.support.paths import PROGRAMS

PROGRAM = compile_file(PROGRAMS / "psa_paths.p4")


def trace(packet: str) -> PacketTrace:
    """The trace of a packet at port 0; session 5 goes to port 10, session 6 to 14, group 1 to 5."""
    found: list[PacketTrace] = []
    engine = Interpreter(PROGRAM, tracer=Tracer(found.append))
    engine.set_clone_session(5, CloneSession((Replica(10),)))
    engine.set_clone_session(6, CloneSession((Replica(14),)))
    engine.set_multicast_group(1, [Replica(5, 7)])
    engine.process([(0, bytes.fromhex(packet))])
    [made] = found
    return made


def stages(made: PacketTrace) -> list[tuple[str, object, object]]:
    return [
        (event.name, event.details.get("port"), event.details.get("packet_path"))
        for event in made.events
        if event.kind == "stage"
    ]


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        ("010300000000", [("egress", 3, "NORMAL_UNICAST")]),
        ("020100000000", [("egress", 5, "NORMAL_MULTICAST")]),
        (
            "030b00000000",
            [
                ("ingress clone", None, None),
                ("egress", 10, "CLONE_I2E"),
                ("egress", 11, "NORMAL_UNICAST"),
            ],
        ),
        ("050c00000000", [("ingress", 0, None), ("egress", 12, "NORMAL_UNICAST")]),
        (
            "060d00000000",
            [
                ("egress", 0xFFFFFFFA, "NORMAL_UNICAST"),
                ("ingress", 0xFFFFFFFA, None),
                ("egress", 13, "NORMAL_UNICAST"),
            ],
        ),
        ("070f00000000", [("egress", 15, "NORMAL_UNICAST"), ("egress", 14, "CLONE_E2E")]),
    ],
)
def test_stages(packet: str, expected: list[tuple[str, object, object]]) -> None:
    assert stages(trace(packet)) == [("ingress", 0, None), *expected]


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        ("0b0f00000000", "after ingress 'drop' is true"),
        ("090f00000000", "there is no port 600"),
        ("020200000000", "multicast group 2 has no replicas"),
    ],
)
def test_drops(packet: str, reason: str) -> None:
    assert reason in [event.name for event in trace(packet).events if event.kind == "drop"]


def test_what_decides_is_shown() -> None:
    shown = {
        event.name.rpartition(".")[2]: event.details["value"]
        for event in trace("030b00000000").events
        if event.kind == "assign"
    }
    assert shown == {"clone": True, "drop": False, "multicast_group": 0, "egress_port": 11}


def test_copies_and_further_passes_are_branches() -> None:
    assert [branch.reason for branch in trace("030b00000000").tree.branches] == ["clone", "unicast"]
    assert [branch.reason for branch in trace("050c00000000").tree.branches] == ["resubmit"]
    [sent] = trace("020100000000").tree.branches
    assert (sent.reason, sent.details) == ("multicast", {"group": 1, "port": 5, "instance": 7})
    [again] = trace("060d00000000").tree.branches
    assert [branch.reason for branch in again.branches] == ["recirculate"]
