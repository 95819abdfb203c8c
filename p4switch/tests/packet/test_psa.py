"""PSA where STF does not reach: the CPU's port, digests, class of service of clones, budgets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p4switch.targets.v1model.engine import (
    CloneSession,
    ControlError,
    CounterValue,
    Digest,
    Engine,
    EngineOptions,
    Replica,
)

EngineMaker = Callable[..., Engine]
CPU = 0xFFFFFFFD
RECIRCULATE = 0xFFFFFFFA
CPU_PORT = 500


def test_the_cpu_has_a_port_of_its_own_in_programs(make_engine: EngineMaker) -> None:
    engine = make_engine("psa_paths", EngineOptions(cpu_port=CPU_PORT))
    assert engine.process([(0, bytes.fromhex("0a0000000000"))]) == [
        (CPU_PORT, bytes.fromhex("8a0040010000"))
    ]
    # It came from the CPU: ingress tells so, 0xcc + 0x40.
    assert engine.process([(CPU_PORT, bytes.fromhex("010300000000"))]) == [
        (3, bytes.fromhex("81030c010000"))
    ]


def test_replicas_may_name_the_ports_of_psa(make_engine: EngineMaker) -> None:
    engine = make_engine("psa_paths", EngineOptions(cpu_port=CPU_PORT))
    engine.set_multicast_group(1, [Replica(CPU, 3), Replica(RECIRCULATE, 4), Replica(5)])
    sent = engine.process([(0, bytes.fromhex("020100000000"))])
    assert sorted(sent) == [
        (1, bytes.fromhex("8201ec010000")),  # Recirculated, and then sent by its own port.
        (5, bytes.fromhex("820140020000")),
        (CPU_PORT, bytes.fromhex("820140020300")),
    ]
    assert engine.multicast_groups()[1][0] == Replica(CPU, 3)


def test_without_a_cpu_port_its_replicas_are_dropped(make_engine: EngineMaker) -> None:
    engine = make_engine("psa_paths")
    engine.set_multicast_group(1, [Replica(CPU), Replica(5)])
    assert engine.process([(0, bytes.fromhex("020100000000"))]) == [
        (5, bytes.fromhex("820140020000"))
    ]


def test_v1model_knows_no_named_ports(make_engine: EngineMaker) -> None:
    with pytest.raises(ControlError, match=r"port 4294967293 is not in 0\.\.511"):
        make_engine("replication").set_multicast_group(1, [Replica(CPU)])


def test_a_clone_session_sets_length_and_class(make_engine: EngineMaker) -> None:
    engine = make_engine("psa_paths")
    session = CloneSession((Replica(7, 2),), length=8, class_of_service=3)
    engine.set_clone_session(5, session)
    assert engine.clone_sessions() == {5: session}
    assert engine.process([(0, bytes.fromhex("04000000000000112233"))]) == [
        (7, bytes.fromhex("04001c0302030011"))
    ]


def test_a_digest_goes_by_the_name_of_its_object(make_engine: EngineMaker) -> None:
    engine = make_engine("psa_externs")
    engine.process([(0, bytes.fromhex("0f07123400000000"))])
    assert engine.take_digests() == [Digest("InDeparser.seen", (7, 0x1234))]


def test_the_initial_value_fills_a_register(make_engine: EngineMaker) -> None:
    engine = make_engine("psa_externs")
    assert [engine.read_register("In.filled", i) for i in range(4)] == [0xFFFE] * 4
    assert [engine.read_register("In.plain", i) for i in range(4)] == [0] * 4


def test_egress_counts_what_it_parses(make_engine: EngineMaker) -> None:
    engine = make_engine("psa_externs")
    engine.process([(0, bytes.fromhex("02030000000000001122"))])
    assert engine.read_counter("In.counted", 3) == CounterValue(1, 10)
    assert engine.read_counter("Out.leaving", 0) == CounterValue(1, 10)
    assert engine.process([(0, bytes.fromhex("12030000000000001122"))]) == [(1, b"\x11\x22")]
    assert engine.read_counter("Out.leaving", 0) == CounterValue(2, 12)


def test_endless_recirculation_ends_with_the_budget(make_engine: EngineMaker) -> None:
    engine = make_engine("psa_paths", EngineOptions(packet_budget=40))
    # A clone of each clone's recirculation: a group whose replica is recirculated, by port.
    engine.set_clone_session(5, CloneSession((Replica(RECIRCULATE),)))
    engine.set_multicast_group(1, [Replica(RECIRCULATE, i) for i in range(60)])
    assert len(engine.process([(0, bytes.fromhex("020100000000"))])) < 40
    assert engine.statistics().extra["over_budget"] > 0
