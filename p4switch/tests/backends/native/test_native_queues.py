"""Queues, replication and endless turns: what BMv2's documents say, and as the interpreter does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from p4switch.backends.native.engine import NativeEngine
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.targets.v1model.engine import (
    CloneSession,
    ControlError,
    Engine,
    EngineOptions,
    Replica,
)

TEXT = """
#include <core.p4>
#include <v1model.p4>
header h_t { bit<8> port; bit<8> priority; bit<8> group; bit<8> mark; }
header seen_t { bit<8> instance_type; bit<8> enqueued_behind; bit<8> left; bit<8> replica; }
struct headers_t { h_t h; seen_t seen; }
struct metadata_t { @field_list(1) bit<8> turns; }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.h); transition accept; }
}
control N(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    counter(1, CounterType.packets) passes;
    apply {
        passes.count(0);
        s.egress_spec = (bit<9>)h.h.port;
        s.priority = (bit<3>)h.h.priority;
        s.mcast_grp = (bit<16>)h.h.group;
        INGRESS
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    counter(1, CounterType.packets) passes;
    apply {
        passes.count(0);
        h.seen.setValid();
        h.seen.instance_type = (bit<8>)s.instance_type;
        h.seen.enqueued_behind = (bit<8>)s.enq_qdepth;
        h.seen.left = (bit<8>)s.deq_qdepth;
        h.seen.replica = (bit<8>)s.egress_rid;
        EGRESS
    }
}
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""

Maker = Callable[..., Engine]


@pytest.fixture(params=[Interpreter, NativeEngine], ids=["interpreter", "native"])
def make(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """`make(ingress, egress, **options)`: an engine with these statements in its controls."""

    def maker(ingress: str = "", egress: str = "", **options: int) -> Engine:
        text = TEXT.replace("INGRESS", ingress).replace("EGRESS", egress)
        program = compile_program(parse_text(text, "program.p4"))
        engine: Engine = request.param(program, EngineOptions(**options))
        return engine

    yield maker


def frame(port: int, priority: int = 0, group: int = 0, mark: int = 0) -> bytes:
    return bytes([port, priority, group, mark])


def test_a_queue_drops_at_its_tail(make: Maker) -> None:
    engine = make(queue_depth=3)
    out = engine.process([(0, frame(1, mark=mark)) for mark in range(5)])
    assert [data[3] for _, data in out] == [0, 1, 2]
    assert engine.statistics().queue_drops == 2


def test_packets_in_the_interface_delay_all_that_follow(make: Maker) -> None:
    engine = make(priority_queues=4)
    engine.set_waiting(1, [5, 0, 3, 0, 0, 0, 0, 0])
    depths = [frame(1, 3), frame(1, 2), frame(1, 2), frame(1), frame(2)]
    out = engine.process([(0, each) for each in depths])
    seen = {(port, data[1]): data[5] for port, data in out}
    assert seen == {(1, 3): 0, (1, 2): 4, (1, 0): 8, (2, 0): 0}
    engine.set_waiting(1, [0] * 8)
    ((_, data),) = engine.process([(0, frame(1))])
    assert data[5] == 0


def test_queue_depths_of_unknown_ports_are_ignored(make: Maker) -> None:
    engine = make(priority_queues=4)
    engine.set_waiting(1 << 24, [5] * 8)
    ((_, data),) = engine.process([(0, frame(1))])
    assert data[5] == 0


def test_each_port_and_priority_has_a_queue_of_its_own(make: Maker) -> None:
    engine = make(queue_depth=2, priority_queues=4)
    batch = [(0, frame(port, priority)) for port in (1, 2) for priority in (0, 3) for _ in "abc"]
    assert len(engine.process(batch)) == 8
    assert engine.statistics().queue_drops == 4


def test_higher_priorities_leave_first(make: Maker) -> None:
    engine = make(priority_queues=8)
    out = engine.process([(0, frame(1, priority)) for priority in (0, 7, 3, 7)])
    assert [data[1] for _, data in out] == [7, 7, 3, 0]


def test_a_priority_without_a_queue_is_dropped(make: Maker) -> None:
    engine = make(priority_queues=2)
    out = engine.process([(0, frame(1, 1)), (0, frame(1, 2))])
    assert [data[1] for _, data in out] == [1]
    assert engine.statistics().queue_drops == 1


def test_packets_see_the_depth_of_their_queue(make: Maker) -> None:
    out = make().process([(0, frame(1)) for _ in range(3)])
    assert [(data[5], data[6]) for _, data in out] == [(0, 2), (1, 1), (2, 0)]


def test_a_group_makes_a_copy_for_each_replica(make: Maker) -> None:
    engine = make()
    engine.set_multicast_group(9, [Replica(4, 40), Replica(2, 20), Replica(2, 21)])
    out = engine.process([(0, frame(1, group=9))])
    assert [(port, data[4], data[7]) for port, data in out] == [(2, 5, 20), (2, 5, 21), (4, 5, 40)]
    assert engine.process([(0, frame(1, group=8))]) == []


def test_copies_beyond_a_queue_are_dropped_singly(make: Maker) -> None:
    engine = make(queue_depth=1)
    engine.set_multicast_group(9, [Replica(2, 1), Replica(2, 2), Replica(3, 3)])
    out = engine.process([(0, frame(1, group=9))])
    assert [(port, data[7]) for port, data in out] == [(2, 1), (3, 3)]
    assert engine.statistics().queue_drops == 1


def test_an_ingress_clone_is_the_packet_as_it_came(make: Maker) -> None:
    engine = make("h.h.mark = 99; clone(CloneType.I2E, 5);")
    engine.set_clone_session(5, CloneSession((Replica(3, 1),), length=6))
    out = engine.process([(0, frame(1, mark=7) + b"payload")])
    assert out == [
        (1, frame(1, mark=99) + bytes([0, 0, 0, 0]) + b"payload"),
        (3, frame(1, mark=7) + bytes([1, 0])),
    ]


def test_an_egress_clone_is_the_packet_as_it_goes(make: Maker) -> None:
    engine = make(egress="if (s.instance_type == 0) { h.h.mark = 99; clone(CloneType.E2E, 5); }")
    engine.set_clone_session(5, CloneSession((Replica(3, 1),)))
    out = engine.process([(0, frame(1, mark=7) + b"payload")])
    assert out == [
        (1, frame(1, mark=99) + bytes([0, 0, 0, 0]) + b"payload"),
        (3, frame(1, mark=99) + bytes([2, 0, 0, 1]) + b"payload"),
    ]


ENDLESS = {
    "resubmit": ("resubmit_preserving_field_list(1);", ""),
    "recirculate": ("", "recirculate_preserving_field_list(1);"),
    "clone": ("", "mark_to_drop(s); clone(CloneType.E2E, 5);"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_endless_turns_end(make: Maker, kind: str) -> None:
    engine = make(*ENDLESS[kind], packet_budget=5000)
    engine.set_clone_session(5, CloneSession((Replica(3),)))
    assert engine.process([(0, frame(1))]) == []
    assert engine.statistics().extra == {"over_budget": 1}
    # A turn costs one step by resubmission, else two: both controls, or a copy and egress.
    passes = "E.passes" if kind == "clone" else "I.passes"
    assert engine.read_counter(passes, 0).packets == (5000 if kind == "resubmit" else 2500)
    assert engine.process([(0, frame(1))]) == []


def test_field_lists_survive_turns(make: Maker) -> None:
    engine = make(
        "if (m.turns < 3) { m.turns = m.turns + 1; resubmit_preserving_field_list(1); }"
        "h.h.mark = m.turns;"
    )
    [(_, data)] = engine.process([(0, frame(1))])
    assert data[3] == 3
    assert engine.read_counter("I.passes", 0).packets == 4


def test_a_queues_depth_can_be_set(make: Maker) -> None:
    engine = make(queue_depth=3, priority_queues=2)

    def passed(port: int, priority: int = 0) -> int:
        return len(engine.process([(0, frame(port, priority)) for _ in range(9)]))

    engine.set_queue_depth(5)
    assert (passed(1), passed(2, 1)) == (5, 5)
    engine.set_queue_depth(4, 1)
    engine.set_queue_depth(2, 1, 1)
    assert (passed(1), passed(1, 1), passed(2)) == (4, 2, 5)
    for wrong in ((-1,), (1, 512), (1, 1, 2)):
        with pytest.raises(ControlError):
            engine.set_queue_depth(*wrong)


def test_the_interpreter_has_no_rates() -> None:
    text = TEXT.replace("INGRESS", "").replace("EGRESS", "")
    engine = Interpreter(compile_program(parse_text(text)))
    engine.set_queue_rate(0)
    with pytest.raises(ControlError, match="--executor native"):
        engine.set_queue_rate(100)
