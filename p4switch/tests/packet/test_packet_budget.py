"""What one packet and its copies may cost: loops, clones and turns end, and are counted."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.frontend.program import compile_file
from p4switch.ir import Program
from p4switch.midend.cycles import multiplies
from p4switch.stf import prepare
from p4switch.targets.v1model.engine import CloneSession, Engine, EngineOptions, Replica
from tests.packet.test_executors_agree import mutated
from tests.support.paths import PROGRAMS

MakeEngine = Callable[..., Engine]
Compile = Callable[[str], Program]

UNLIMITED = (1 << 32) - 1

TEXT = """
#include <core.p4>
#include <v1model.p4>
header op_t { bit<32> count; bit<32> sum; }
struct headers_t { op_t op; }
struct meta_t { @field_list(1) bit<8> turns; }
parser P(packet_in packet, out headers_t hdr, inout meta_t meta,
         inout standard_metadata_t s) {
    state start { packet.extract(hdr.op); transition accept; }
}
#include "no_checksums.p4"
control I(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t s) {
    apply { s.egress_spec = 1; INGRESS }
}
control E(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t s) {
    action loop() { LOOP }
    apply { EGRESS }
}
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.op); } }
V1Switch(P(), NoVerify(), I(), E(), NoCompute(), D()) main;
"""
COUNTED = "for (bit<32> i = 0; i < hdr.op.count; i = i + 1) { hdr.op.sum = hdr.op.sum + i; }"
ENDLESS = "for (bit<8> i = 0; i <= 255; i = i + 1) { hdr.op.sum = hdr.op.sum ^ 5; }"


def program(ingress: str = "", egress: str = "", loop: str = "") -> str:
    text = TEXT.replace("INGRESS", ingress).replace("EGRESS", egress)
    return text.replace("LOOP", loop)


def frame(count: int = 0) -> bytes:
    return count.to_bytes(4, "big") + bytes(4)


def dropped(engine: Engine) -> int:
    return engine.statistics().extra.get("over_budget", 0)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"ingress": COUNTED}, id="in ingress"),
        pytest.param({"egress": COUNTED}, id="in egress"),
        pytest.param({"egress": "loop();", "loop": COUNTED}, id="in an action"),
    ],
)
def test_a_loop_up_to_a_header_field_ends(
    make_engine: MakeEngine, compile_text: Compile, parts: dict[str, str]
) -> None:
    engine = make_engine(compile_text(program(**parts)), EngineOptions(packet_budget=1000))
    out = engine.process([(9, frame(3)), (9, frame(UNLIMITED)), (9, frame(4))])
    assert [int.from_bytes(data[4:], "big") for _, data in out] == [0 + 1 + 2, 0 + 1 + 2 + 3]
    assert dropped(engine) == 1


@pytest.mark.slow
@pytest.mark.parametrize("place", ["ingress", "egress"])
def test_an_endless_loop_ends_by_default(
    make_engine: MakeEngine, compile_text: Compile, place: str
) -> None:
    engine = make_engine(compile_text(program(**{place: ENDLESS})))
    assert engine.process([(9, frame())]) == []
    assert dropped(engine) == 1


def test_a_step_is_an_iteration_or_a_control(
    make_engine: MakeEngine, compile_text: Compile
) -> None:
    checked = compile_text(program(ingress=COUNTED))
    for count in (0, 1, 7):
        steps = 1 + count + 1
        enough = make_engine(checked, EngineOptions(packet_budget=steps))
        assert len(enough.process([(9, frame(count))])) == 1
        assert dropped(enough) == 0
        short = make_engine(checked, EngineOptions(packet_budget=steps - 1))
        assert short.process([(9, frame(count))]) == []
        assert dropped(short) == 1


MULTIPLYING = {
    "clones at egress": {"egress": "mark_to_drop(s); clone(CloneType.E2E, 5);"},
    "clones and turns": {
        "ingress": "clone(CloneType.I2E, 5); resubmit_preserving_field_list(1);",
        "egress": "recirculate_preserving_field_list(1);",
    },
    "replicas that come again": {
        "ingress": "s.mcast_grp = 1;",
        "egress": "recirculate_preserving_field_list(1);",
    },
}


@pytest.mark.parametrize("kind", MULTIPLYING)
def test_packets_that_multiply_end(
    make_engine: MakeEngine, compile_text: Compile, kind: str
) -> None:
    """Two of each, so 2^1000 before they have had their turns."""
    engine = make_engine(
        compile_text(program(**MULTIPLYING[kind])), EngineOptions(packet_budget=3000)
    )
    pair = (Replica(2), Replica(3))
    engine.set_clone_session(5, CloneSession(pair))
    engine.set_multicast_group(1, pair)
    assert engine.process([(9, frame())]) == []
    assert 1 <= dropped(engine) <= 3000


ROUNDS = "if (hdr.op.sum < hdr.op.count) {{ hdr.op.sum = hdr.op.sum + 1; {}; }}"
MANY_TURNS = {
    "recirculate": {"egress": ROUNDS.format("recirculate_preserving_field_list(1)")},
    "clone": {"egress": ROUNDS.format("mark_to_drop(s); clone(CloneType.E2E, 5)")},
}


@pytest.mark.parametrize("kind", MANY_TURNS)
def test_the_budget_alone_limits_turns(
    make_engine: MakeEngine, compile_text: Compile, kind: str
) -> None:
    checked = compile_text(program(**MANY_TURNS[kind]))
    turns = 1500
    for budget, leave in ((2 * turns + 2, 1), (2 * turns + 1, 0)):
        engine = make_engine(checked, EngineOptions(packet_budget=budget))
        engine.set_clone_session(5, CloneSession((Replica(1),)))
        out = engine.process([(9, frame(turns))])
        assert [data[4:] for _, data in out] == [turns.to_bytes(4, "big")] * leave
        assert dropped(engine) == 1 - leave


def test_copies_share_the_budget_of_their_packet(
    make_engine: MakeEngine, compile_text: Compile
) -> None:
    """Ten replicas: a pass of ingress, ten copies, ten passes of egress with a loop each."""
    checked = compile_text(program(ingress="s.mcast_grp = 1;", egress=COUNTED))
    steps = 1 + 10 + 10 * (1 + 4)
    for budget, leave in ((steps, 10), (steps - 1, 9), (steps - 6, 8), (12, 1 - 1), (7, 0)):
        engine = make_engine(checked, EngineOptions(packet_budget=budget))
        engine.set_multicast_group(1, tuple(Replica(port) for port in range(1, 11)))
        assert len(engine.process([(9, frame(4))])) == leave
        assert (dropped(engine) > 0) == (leave < 10)
        assert len(engine.process([(9, frame(4)), (9, frame(0))])) >= leave, "each has its own"


@pytest.mark.slow
def test_only_programs_that_can_go_round_are_counted() -> None:
    counted = {path.stem for path in PROGRAMS.glob("*.p4") if "V1Switch(" in path.read_text()}
    counted = {name for name in counted if multiplies(compile_file(PROGRAMS / f"{name}.p4"))}
    assert counted >= {"again", "loops", "replication"}
    assert not counted & {"parsing", "router", "lanes", "arithmetic"}


def test_a_clone_of_ingress_passes_egress_once(compile_text: Compile) -> None:
    clone = "clone(CloneType.{}, 1);"
    assert not multiplies(compile_text(program(ingress=clone.format("I2E"))))
    assert multiplies(compile_text(program(egress=clone.format("E2E"))))


@pytest.mark.parametrize("executor", ["native"], indirect=True)
@pytest.mark.parametrize("budget", [1, 2, 5, 12, 40])
@pytest.mark.parametrize("name", ["again", "loops", "parsing", "replication"])
def test_executors_count_alike(make_engine: MakeEngine, name: str, budget: int) -> None:
    stf = PROGRAMS / f"{name}.stf"
    checked = compile_file(stf.with_suffix(".p4"))
    reference = Interpreter(checked, EngineOptions(packet_budget=budget))
    other = make_engine(checked, EngineOptions(packet_budget=budget))
    packets = prepare(reference, stf)
    prepare(other, stf)
    rng = random.Random(stf.stem)
    for number in range(10):
        batch = [mutated(rng, packets) for _ in range(6)]
        assert other.process(batch, number) == reference.process(batch, number), batch
        assert other.statistics() == reference.statistics(), batch
    assert dropped(other) > 0 or budget > 5 or not multiplies(checked)


def test_an_interrupt_ends_what_is_under_way(
    make_engine: MakeEngine, compile_text: Compile
) -> None:
    engine = make_engine(
        compile_text(program(ingress=ENDLESS)), EngineOptions(packet_budget=UNLIMITED)
    )
    out: list[object] = [None]

    def run() -> None:
        out[0] = engine.process([(9, frame())] * 50)

    thread = threading.Thread(target=run)
    thread.start()
    while engine.lock.acquire(blocking=False):  # type: ignore[attr-defined]
        engine.lock.release()  # type: ignore[attr-defined]
        if not thread.is_alive():
            break
    engine.interrupt()
    thread.join()
    assert out == [[]]
    assert engine.process([(9, frame())]) == [], "it takes in nothing any more"
    assert dropped(engine) == 0, "nothing of it was over its budget"
