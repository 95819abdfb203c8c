from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finsy import P4Schema
from finsy.p4entity import decode_entity
from hypothesis import given
from hypothesis import strategies as st

from hopsum.collectives.plan import Results
from hopsum.controller.dataplane.driver import (
    ANSWERS,
    QUIET_FACTOR,
    QUIET_SECONDS,
    Driver,
    DriverError,
    State,
    SwitchTarget,
    _Link,
)
from hopsum.controller.dataplane.entries import (
    Change,
    Entity,
    in_program_order,
    rules_read,
    table_entity,
    table_rule,
    updates,
)
from hopsum.controller.dataplane.pipeline import Pipeline, PipelineError, load_pipeline
from hopsum.controller.dataplane.rule_text import describe
from hopsum.controller.dataplane.rules import Loss, SwitchRules, TableEntry, rules_for
from hopsum.controller.dataplane.slots import (
    inspect_frame,
    slot_from,
    slot_message,
    slot_state,
)
from hopsum.network.loaders import load_network
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.outcomes import Outcome
from hopsum.protocol.wire import Width
from tests.support.fake_p4runtime import FakeSwitch
from tests.support.machine import PATIENCE as WAIT
from tests.support.machine import loopback
from tests.support.paths import HOPSUM_P4INFO

SCHEMA = P4Schema(HOPSUM_P4INFO)
PIPELINE = Pipeline(SCHEMA.p4info, b"{}", lanes=256, slots=4096)


def star_rules(hosts: int = 3, job: int = 1, results: Results = Results.REPLICATED) -> SwitchRules:
    network = load_network(f"star:{hosts}")
    placement = place(network)
    request = PlanRequest(job, 1, placement.workers, placement.servers, results=results)
    plan = plan_job(network, request)
    return rules_for(network, [plan], [Loss("h1", "s1", 0.5), Loss("s1", "h1", 0.1)])["s1"]


def held(fake: FakeSwitch) -> SwitchRules:
    return rules_read([decode_entity(e, SCHEMA) for e in fake.entities.values()], SCHEMA)


def same(a: SwitchRules, b: SwitchRules) -> bool:
    return set(a.entries) == set(b.entries) and dict(a.groups) == dict(b.groups)


def run(test: Callable[[FakeSwitch, SwitchTarget], Awaitable[None]]) -> None:
    async def main() -> None:
        fake = FakeSwitch()
        # One of its own: a switch that restarts finds it free.
        target = SwitchTarget("s1", f"{loopback(1)[0]}:9559")
        await fake.start(target.address)
        try:
            await test(fake, target)
        finally:
            await fake.stop()

    asyncio.run(main())


# -- Rules and entities


def test_every_rule_fits_the_program() -> None:
    rules = in_program_order(star_rules(), SCHEMA)
    assert {entry.table for entry in rules.entries} == {
        "admission",
        "replication",
        "ipv4_route",
        "l2_forward",
        "ingress_loss",
        "egress_loss",
    }
    for entry in rules.entries:
        assert table_rule(decoded(table_entity(entry)), SCHEMA) == entry


def decoded(entity: Entity) -> Any:
    return decode_entity(entity.encode(SCHEMA), SCHEMA)


def test_rules_that_do_not_fit_the_program() -> None:
    entry = TableEntry("ipv4_route", (("dst", (1, 32)),), "route", (("port", 1),))
    with pytest.raises(ValueError, match="no match field 'dst' there; it has dst_addr"):
        in_program_order(SwitchRules((entry,)), SCHEMA)
    entry = replace(entry, match=(("dst_addr", (1, 32)),), params=(("gate", 1),))
    with pytest.raises(ValueError, match="no parameter 'gate' there; it has dst_mac, port"):
        in_program_order(SwitchRules((entry,)), SCHEMA)


def test_entries_as_text() -> None:
    entry = TableEntry("ipv4_route", (("dst_addr", (0x0A000001, 32)),), "route", (("port", 1),))
    assert describe(entry) == "ipv4_route[dst_addr=0xa000001/32] -> route(port=1)"


def forward(mac: int, port: int) -> TableEntry:
    return TableEntry("l2_forward", (("dst_mac", mac),), "forward", (("port", port),))


small_rules = st.builds(
    lambda macs, groups: SwitchRules(
        tuple(forward(mac, port) for mac, port in macs.items()),
        {group: tuple(sorted(ports)) for group, ports in groups.items()},
    ),
    st.dictionaries(st.integers(1, 6), st.integers(1, 3)),
    st.dictionaries(st.integers(1, 4), st.sets(st.integers(1, 3), min_size=1)),
)


@pytest.mark.slow
@given(small_rules, small_rules)
def test_updates_lead_from_one_state_to_the_other(have: SwitchRules, want: SwitchRules) -> None:
    fake = FakeSwitch()
    for state in (have, want):
        for step in updates(held(fake), state):
            message = step.encoded().encode_update(SCHEMA)  # type: ignore[attr-defined]
            assert fake.update(message).canonical_code == 0, step.what
        assert same(held(fake), state)
    assert updates(held(fake), want) == []


def test_groups_come_before_and_go_after_the_entries_that_name_them() -> None:
    rules = star_rules()
    order = [step.what for step in updates(SwitchRules(), rules)]
    last_group = max(i for i, what in enumerate(order) if what.startswith("multicast"))
    assert last_group < order.index(next(what for what in order if "replicate(" in what))
    steps = updates(rules, SwitchRules())
    assert {step.change for step in steps} == {Change.DELETE}
    order = [step.what for step in steps]
    first_group = min(i for i, what in enumerate(order) if what.startswith("multicast"))
    assert first_group > order.index(next(what for what in order if "replicate(" in what))


# -- The driver


def test_a_switch_gets_pipeline_and_rules() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        rules = star_rules()
        async with Driver([target], PIPELINE, {"s1": rules}) as driver:
            await driver.wait(timeout=WAIT)
            assert driver.states() == {"s1": State.READY}
        assert fake.pushes == 1
        assert fake.config.p4_device_config == b"{}"
        assert same(held(fake), rules)

    run(test)


def test_only_the_difference_is_written() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        async with Driver([target], PIPELINE, {"s1": star_rules(3)}) as driver:
            await driver.wait(timeout=WAIT)
            fake.writes.clear()
            await driver.apply({"s1": star_rules(3)}, WAIT)
            assert fake.writes == []
            await driver.apply({"s1": star_rules(3, job=2)}, WAIT)
            (write,) = fake.writes
            # Four admissions and one replication go, as many come.
            assert len(write.updates) == 10
        assert same(held(fake), star_rules(3, job=2))

    run(test)


def test_a_switch_is_read_when_others_may_have_written_it() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        def constant() -> set[int]:
            """Tables that have been read although nobody can write them."""
            tables = {e.table_entry.table_id for read in fake.reads for e in read.entities}
            return {table.id for table in SCHEMA.tables if table.is_const} & tables

        async with Driver([target], PIPELINE, {"s1": star_rules(3)}) as driver:
            await driver.wait(timeout=WAIT)
            assert len(fake.reads) == 1
            assert not constant()
            await driver.apply({"s1": star_rules(4)}, WAIT)
            assert len(fake.reads) == 1
            await fake.elect(False)
            fake.entities.popitem()
            await fake.elect(True)
            while len(fake.reads) == 1:
                await driver.apply({"s1": star_rules(4)}, WAIT)
            assert same(held(fake), star_rules(4))
            # Nor is it known what is left of rules that were refused.
            fake.refuse = {SCHEMA.tables["replication"].id}
            with pytest.raises(DriverError):
                await driver.apply({"s1": star_rules(3, job=2)}, WAIT)
            fake.refuse = set()
            await driver.apply({"s1": star_rules(3, job=2)}, WAIT)
            assert len(fake.reads) == 3
        assert same(held(fake), star_rules(3, job=2))

    run(test)


def test_a_new_controller_keeps_what_is_right() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        rules = star_rules()
        async with Driver([target], PIPELINE, {"s1": rules}) as driver:
            await driver.wait(timeout=WAIT)
        fake.writes.clear()
        async with Driver([target], PIPELINE, {"s1": rules}) as driver:
            await driver.wait(timeout=WAIT)
        assert fake.pushes == 1
        assert fake.writes == []

    run(test)


def test_another_program_is_pushed_over_the_old() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        async with Driver([target], PIPELINE) as driver:
            await driver.wait(timeout=WAIT)
        changed = replace(PIPELINE, config=b"{ }")
        async with Driver([target], changed, {"s1": star_rules()}) as driver:
            await driver.wait(timeout=WAIT)
        assert fake.pushes == 2
        assert same(held(fake), star_rules())

    run(test)


def test_slots_of_another_history_of_jobs_are_emptied_with_the_program() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        for history, pushes in (("a", 1), ("a", 1), ("b", 2), ("b", 2)):
            driver = Driver([target], PIPELINE, {"s1": star_rules()})
            driver.history = history
            async with driver:
                await driver.wait(timeout=WAIT)
            assert fake.pushes == pushes
            assert same(held(fake), star_rules())

    run(test)


def test_a_program_pushed_over_another_replicates_to_its_own_ports_only() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        old = SwitchRules((), {1: (1, 2), 7: (3,)}, {5: 1, 6: 2})
        async with Driver([target], PIPELINE, {"s1": old}) as driver:
            await driver.wait(timeout=WAIT)
        changed = replace(PIPELINE, config=b"{ }")
        new = SwitchRules((), {1: (4,)}, {5: 3})
        async with Driver([target], changed, {"s1": new}) as driver:
            await driver.wait(timeout=WAIT)
        assert fake.pushes == 2
        assert list(fake.replicas.values()) == [[4], [3]]

    run(test)


def test_a_restarted_switch_converges() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        rules = star_rules()
        seen: list[State] = []
        reconnecting = asyncio.Event()

        def listen(name: str, state: State, detail: str) -> None:
            seen.append(state)
            if state is State.CONNECTING:
                reconnecting.set()

        async with Driver([target], PIPELINE, {"s1": rules}, listener=listen) as driver:
            await driver.wait(timeout=WAIT)
            await fake.stop()
            await asyncio.wait_for(reconnecting.wait(), WAIT)
            with pytest.raises(DriverError, match="switch s1: not connected"):
                await driver.outcomes("s1")
            again = FakeSwitch()
            await again.start(target.address)
            try:
                await driver.wait(timeout=WAIT)
            finally:
                await again.stop()
        assert same(held(again), rules)
        assert State.PUSHING in seen[seen.index(State.CONNECTING) :]

    run(test)


@pytest.mark.slow
def test_a_switch_that_was_away_for_long_is_reached_at_the_next_attempt() -> None:
    """The library's backoff, which grows with each refused connection, is not to be waited for."""

    async def main() -> None:
        targets = [
            SwitchTarget(f"s{n}", f"{address}:9559") for n, address in enumerate(loopback(6), 1)
        ]
        attempts: Counter[str] = Counter()
        tried = asyncio.Event()

        def listen(name: str, state: State, detail: str) -> None:
            attempts[name] += state is State.CONNECTING
            tried.set()

        fakes = [FakeSwitch() for _ in targets]
        async with Driver(targets, PIPELINE, listener=listen) as driver:
            while min(attempts[target.name] for target in targets) < 12:
                tried.clear()
                await asyncio.wait_for(tried.wait(), WAIT)
            before = attempts.copy()
            try:
                for fake, target in zip(fakes, targets, strict=True):
                    await fake.start(target.address)
                await driver.wait(timeout=WAIT)
            finally:
                for fake in fakes:
                    await fake.stop()
            more = attempts - before
        assert max(more.values(), default=0) <= 3, more

    asyncio.run(main())


@pytest.mark.slow
def test_a_switch_that_hangs_counts_as_lost_until_it_answers() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        rules = star_rules()
        silent = Heard("no answer for 0.5 s")
        async with Driver([target], PIPELINE, silence=0.5, listener=silent) as driver:
            await driver.apply({"s1": rules}, WAIT)
            fake.going.clear()
            await silent.wait()
            assert driver.states() == {"s1": State.CONNECTING}
            fake.going.set()
            await driver.wait(timeout=WAIT)
        assert fake.pushes == 1
        assert same(held(fake), rules)

    run(test)


@pytest.mark.slow
def test_a_switch_that_hangs_while_it_is_written_counts_as_lost() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        silent = Heard("no answer for 0.5 s")
        async with Driver([target], PIPELINE, silence=0.5, listener=silent) as driver:
            await driver.wait(timeout=WAIT)
            fake.going.clear()
            writing = asyncio.create_task(driver.apply({"s1": star_rules()}, WAIT))
            await silent.wait()
            fake.going.set()
            await writing
        assert same(held(fake), star_rules())

    run(test)


def test_a_switch_that_hangs_while_it_is_connected_is_connected_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        states = []
        fake.late = 1

        def listen(name: str, state: State, detail: str) -> None:
            states.append((state, detail))

        async with Driver([target], PIPELINE, {"s1": star_rules()}, listener=listen) as driver:
            await driver.wait(timeout=WAIT)
            assert same(held(fake), star_rules())
        assert states[0] == (State.CONNECTING, "TimeoutError: no answer while connecting")
        # gRPC has one poller a process, which may still call the closed loop of an earlier test.
        assert [r for r in caplog.records if "PollerCompletionQueue" not in r.getMessage()] == []

    with caplog.at_level("ERROR"):
        run(test)


def test_patience_grows_with_the_time_that_answers_take() -> None:
    link = _Link(SwitchTarget("s1", "nowhere"), SwitchRules())
    assert link.patience == QUIET_SECONDS
    link.answers.append(2.0)
    for _ in range(ANSWERS - 1):
        link.answers.append(0.01)
        assert link.patience == QUIET_FACTOR * 2.0
    link.answers.append(0.01)
    assert link.patience == QUIET_SECONDS


def test_a_switch_that_refuses_the_question_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error is an answer."""
    monkeypatch.setattr("hopsum.controller.dataplane.driver.HEARTBEAT_SECONDS", 0.05)

    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        seen: list[State] = []
        async with Driver(
            [target],
            PIPELINE,
            silence=0.2,
            listener=lambda name, state, detail: seen.append(state),
        ) as driver:
            await driver.wait(timeout=WAIT)
            fake.knows_capabilities = False
            before = fake.asked
            while fake.asked < before + 3:
                await asyncio.sleep(0.05)
        assert seen[-1] is State.READY
        assert State.CONNECTING not in seen

    run(test)


def test_refused_rules_are_named() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        fake.refuse = {SCHEMA.tables["replication"].id}
        async with Driver([target], PIPELINE) as driver:
            with pytest.raises(
                DriverError,
                match=r"switch s1: refused some rules\n  insert replication\[job=1, tree=0, "
                r"epoch=1\] -> replicate\(group=2, clear=1\): INVALID_ARGUMENT: I do not like it",
            ):
                await driver.apply({"s1": star_rules()}, WAIT)
            assert driver.states() == {"s1": State.REFUSED}
            await driver.apply({"s1": star_rules(results=Results.UNICAST)}, WAIT)

    run(test)


def test_rules_of_another_program_are_refused() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        strange = SwitchRules((TableEntry("no_such_table", (), "route"),))
        async with Driver([target], PIPELINE) as driver:
            with pytest.raises(DriverError, match=r"do not fit its program.*no_such_table"):
                await driver.apply({"s1": strange}, WAIT)

    run(test)


def test_counters_and_slots() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        async with Driver([target], PIPELINE) as driver:
            await driver.wait(timeout=WAIT)
            counts = await driver.outcomes("s1")
            assert counts[Outcome.AGGREGATED] == 100
            assert counts[Outcome.PLAIN] == 115
            slot = await driver.inspect("s1", 77)
            assert (slot.slot, slot.job, slot.valid, slot.cleared) == (77, 3, True, False)
            assert (slot.bitmap, slot.count, slot.fan_in) == (2, 1, 2)
            assert slot.missing() == [0]
            assert not slot.complete
            assert slot.lanes.tolist() == [0] * 255 + [7]
            with pytest.raises(DriverError, match="slot 4096: it has slots 0 to 4095"):
                await driver.inspect("s1", 4096)
            with pytest.raises(DriverError, match="switch s9: unknown; switches: s1"):
                await driver.inspect("s9", 0)

    run(test)


def test_a_slot_without_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum.controller.dataplane.driver.INSPECT_SECONDS", 0.05)

    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        fake.answers = False
        async with Driver([target], PIPELINE) as driver:
            await driver.wait(timeout=WAIT)
            with pytest.raises(DriverError, match="slot 1: no answer within"):
                await driver.inspect("s1", 1)

    run(test)


class Heard:
    """A listener that waits for an event of a switch."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.event = asyncio.Event()

    def __call__(self, name: str, state: State, detail: str) -> None:
        if self.words in detail:
            self.event.set()

    async def wait(self) -> None:
        await asyncio.wait_for(self.event.wait(), WAIT)


def test_switches_that_lag_behind_are_named() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        heard = Heard("UNAVAILABLE")
        nobody = SwitchTarget("s2", f"{loopback(1)[0]}:9559")
        async with Driver([target, nobody], PIPELINE, listener=heard) as driver:
            await driver.wait(["s1"], timeout=WAIT)
            await heard.wait()
            with pytest.raises(
                TimeoutError, match=r"not ready: s2 \(127\.[\d.]+:9559\): connecting UNAVAILABLE"
            ):
                await driver.wait(timeout=0)

    run(test)


def test_another_controller_is_named() -> None:
    async def test(fake: FakeSwitch, target: SwitchTarget) -> None:
        fake.primary = False
        heard = Heard("another controller")
        async with Driver([target], PIPELINE, listener=heard) as driver:
            await heard.wait()
            with pytest.raises(TimeoutError, match=r"another controller .election id 99. holds"):
                await driver.wait(timeout=0)

    run(test)


# -- The pipeline


def test_pipeline_files(tmp_path: Path) -> None:
    config = tmp_path / "hopsum.json"
    with pytest.raises(PipelineError, match=r"hopsum\.json: no such file; p4c makes it"):
        load_pipeline(HOPSUM_P4INFO, config, 256, 4096)
    config.write_bytes(b"1")
    first = load_pipeline(HOPSUM_P4INFO, config, 256, 4096)
    config.write_bytes(b"2")
    assert load_pipeline(HOPSUM_P4INFO, config, 256, 4096).cookie() != first.cookie()
    half = tmp_path / "half.txtpb"
    half.write_bytes(HOPSUM_P4INFO.read_bytes()[:1000])
    with pytest.raises(PipelineError, match=r"half\.txtpb: expected P4Info as text: "):
        load_pipeline(half, config, 256, 4096)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "hopsum",
        "hopsum.controller",
        "hopsum.controller.dataplane.driver",
        "hopsum.cli.controller_commands",
    ],
)
def test_imports_stay_light(name: str) -> None:
    code = (
        f"import {name}, sys; "
        "bad = {'mininet', 'torch', 'scapy', 'IPython'} & set(sys.modules); "
        "sys.exit(', '.join(bad) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_numbers_of_a_slot_are_signed() -> None:
    frame = bytearray(inspect_frame(32))
    frame[-4:] = np.array([-5], dtype=">i4").tobytes()
    metadata = {"slot": 1, "valid": 0, "cleared": 1, "bitmap": 0, "count": 0, "fan_in": 0}
    state = slot_state(metadata, bytes(frame), 32)
    assert state.lanes[-1] == -5
    assert (state.valid, state.cleared) == (False, True)
    frame[44] |= Width.WIDTH_16
    narrow = slot_from(slot_message(slot_state(metadata, bytes(frame), 32), lanes=True))
    assert (narrow.width, narrow.lanes.tolist()) == (Width.WIDTH_16, [0] * 62 + [-1, -5])
    with pytest.raises(ValueError, match="a slot's answer of 10 bytes; expected 190"):
        slot_state(metadata, bytes(10), 32)
