"""Calls that flows take and answer end as if the source had done so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.controller.jobs.tracker import MOST_REPORT_BYTES
from hopsum.host_agent.io.attendance import ProcessGone
from hopsum.host_agent.node import member as member_module
from hopsum.host_agent.node.expected_calls import MOST_AHEAD
from hopsum.host_agent.node.guesses import SURE
from hopsum.host_agent.numbers import NumbersError
from hopsum.host_agent.process_calls import ALL, BARRIER, PARTS, REDUCTIONS, SUM, TYPES, CallPacket
from hopsum.host_agent.sure_calls import AnsweredCall, SureCalls
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.tos import tos_of_level
from tests.support.process_hosts import MEMORY_BYTES, ProcessHosts
from tests.support.protocol_world import LANES
from tests.support.search import examples

FLOAT32, INT32 = (list(TYPES).index(name) for name in ("float32", "int32"))
WAYS = [
    (code, REDUCTIONS["int32"].index(reduction))
    for code, name in ((FLOAT32, "float32"), (INT32, "int32"))
    for reduction in REDUCTIONS[name]
]
Values = NDArray[Any]


def packet(dtype: int = FLOAT32, reduction: int = 0, **more: int) -> CallPacket:
    return CallPacket(SUM, dtype, reduction, 0, ALL, 0, 0, 0, 0, 0)._replace(**more)


@pytest.fixture
def make() -> Iterator[Callable[..., ProcessHosts]]:
    made: list[ProcessHosts] = []

    def start(**options: Any) -> ProcessHosts:
        made.append(ProcessHosts(**options))
        return made[-1]

    yield start
    for each in made:
        each.close()


def call(hosts: ProcessHosts, values: list[Values], like: CallPacket) -> list[Values]:
    """Call once at every rank; return the results."""
    numbers = [p.call(like, each) for p, each in zip(hosts.processes, values, strict=True)]
    hosts.run()
    found = []
    for process, number, given_ in zip(hosts.processes, numbers, values, strict=True):
        assert process.ends[number] == "done"
        memory = process.memories[like.memory][: given_.nbytes]
        found.append(memory.view(given_.dtype).copy())
    return found


def until_sure(hosts: ProcessHosts, values: Values, like: CallPacket) -> None:
    """Make a call until flows take it."""
    for _ in range(SURE + 3):
        call(hosts, [values] * 2, like)
    assert hosts.by_flow
    hosts.by_flow = 0


@pytest.mark.parametrize("rooted", [False, True])
@pytest.mark.parametrize(("dtype", "reduction"), WAYS)
@pytest.mark.parametrize("elements", [1, pytest.param(300, marks=pytest.mark.slow)])
def test_flows_answer_what_is_sure(
    make: Callable[..., ProcessHosts],
    monkeypatch: pytest.MonkeyPatch,
    dtype: int,
    reduction: int,
    elements: int,
    rooted: bool,
) -> None:
    hosts, like = make(as_flow=True, window=8, rooted=rooted), packet(dtype, reduction)
    if (dtype, reduction) == (FLOAT32, 0):
        # Longer tensors have several scales.
        elements = min(elements, 8 * LANES)
    generator = np.random.default_rng(elements)
    until_sure(hosts, np.full(elements, 999, [*TYPES.values()][dtype]), like)
    collect, answered = SureCalls.collect, []

    def collected(self: SureCalls) -> list[AnsweredCall]:
        answered.append(len(done := collect(self)))
        return done

    monkeypatch.setattr(SureCalls, "collect", collected)
    hosts.steadiness = 1.0
    calls = MOST_AHEAD if elements > LANES else 10
    for _ in range(calls):
        given_ = generator.integers(-1000, 1000, (2, elements)).astype(list(TYPES.values())[dtype])
        given_[:, 0] = 999
        first, second = call(hosts, list(given_), like)
        name = REDUCTIONS["int32"][reduction]
        combine: Any = {"sum": np.add, "max": np.maximum, "min": np.minimum}.get(name)
        combine = combine or getattr(np, f"bitwise_{name}")
        np.testing.assert_array_equal(first, combine(*given_))
        np.testing.assert_array_equal(second, first)
    # All but those at which each script ends; roots have no flows.
    assert hosts.by_flow > (0.6 if rooted else 1.2) * calls
    # What they have done is counted.
    hosts.settle()
    assert sum(answered) > 1.2 * calls
    rounds = {member.round for member in hosts.members.values()}
    assert len(rounds) == 1
    assert rounds.pop() >= calls
    for member in hosts.members.values():
        intervals: Any = member._intervals  # noqa: SLF001
        assert len(intervals.starts) == member.round
        assert all(a <= b for a, b in zip(intervals.starts, intervals.finishes, strict=True))


@pytest.mark.parametrize("as_flow", [False, True])
def test_the_times_of_the_first_tensors_are_reported(
    make: Callable[..., ProcessHosts], monkeypatch: pytest.MonkeyPatch, as_flow: bool
) -> None:
    """A report of all times of a long training would be refused, and the job fail."""
    monkeypatch.setattr(member_module, "MOST_INTERVALS", 4)
    hosts = make(as_flow=as_flow)
    for _ in range(SURE + 3):
        call(hosts, [ONES] * 2, packet())
    assert bool(hosts.by_flow) == as_flow
    hosts.settle()
    for member in hosts.members.values():
        assert member.round > 4
        intervals = member._intervals  # noqa: SLF001
        assert len(intervals.starts) == len(intervals.finishes) == 4


def test_a_report_of_most_times_is_taken() -> None:
    times = [1e9] * member_module.MOST_INTERVALS
    report = pb.Report(intervals=pb.Intervals(starts=times, finishes=times))
    assert report.ByteSize() < MOST_REPORT_BYTES - 100_000


def test_flows_leave_the_first_iterations_to_the_source(make: Callable[..., ProcessHosts]) -> None:
    """Which changes the level of frames exactly after them."""
    hosts = make(as_flow=True)
    members = hosts.members.values()
    early = 4 * SURE
    for member in members:
        member.set_level(3, early)
    while max(member.round for member in members) < early:
        assert not hosts.by_flow
        assert {member._parts._tos for member in members} == {tos_of_level(0)}  # noqa: SLF001
        call(hosts, [ONES] * 2, packet())
    call(hosts, [ONES] * 2, packet())
    assert {member._parts._tos for member in members} == {tos_of_level(3)}  # noqa: SLF001
    until_sure(hosts, ONES, packet())


@pytest.fixture
def sure(make: Callable[..., ProcessHosts]) -> ProcessHosts:
    """Hosts whose flows take sums of five float32."""
    hosts = make(as_flow=True)
    until_sure(hosts, ONES, packet())
    return hosts


ONES = np.ones(5, np.float32)


def test_two_calls_at_once_are_not_for_flows(sure: ProcessHosts) -> None:
    """They share a check, and fragments."""
    for process in sure.processes:
        for _ in range(2):
            process.call(packet(), ONES)
    sure.run()
    assert not sure.by_flow


@pytest.mark.parametrize(
    ("values", "like"),
    [
        (np.ones(6, np.float32), packet()),
        (np.full(5, 4, np.float32), packet()),
        (ONES, packet(FLOAT32, 1)),
        (np.ones(5, np.int32), packet(INT32)),
        (np.ones(6, np.float32), packet(target=PARTS)),
    ],
    ids=["length", "scale", "reduction", "type", "target"],
)
def test_other_calls_are_left_to_the_source(
    sure: ProcessHosts, values: Values, like: CallPacket
) -> None:
    for process in sure.processes:
        process.call(like, values)
    sure.run()
    assert not sure.by_flow
    assert all("done" in process.ends.values() for process in sure.processes)


def test_barriers_are_answered_when_all_have_come(make: Callable[..., ProcessHosts]) -> None:
    hosts = make(as_flow=True)
    for number in range(SURE + 8):
        assert [process.barrier() for process in hosts.processes] == [number] * 2
        hosts.run()
    assert hosts.by_flow
    number = hosts.processes[0].barrier()
    hosts.by_flow = 0
    for _ in range(5):
        hosts.turn("w0")
    hosts.processes[0].hear()
    assert hosts.by_flow == 1
    assert number not in hosts.processes[0].ends
    hosts.processes[1].barrier()
    hosts.run()


def test_a_value_that_is_not_finite_is_named(sure: ProcessHosts) -> None:
    """The flow of the other host has submitted its values already."""
    wrong = np.array([1, 1, np.nan, 1, 1], np.float32)
    number = sure.processes[0].call(packet(), ONES)
    sure.processes[1].call(packet(fault=1, element=2), wrong)
    sure.run()
    assert sure.by_flow == 1
    for process in sure.processes:
        assert "only finite values" in process.ends[number]
        assert "{'1': 'element 2 is nan'}" in process.ends[number]
    # The values are as they were.
    np.testing.assert_array_equal(sure.processes[0].memories[0][:20].view(np.float32), ONES)


def test_values_that_are_not_finite_pass(sure: ProcessHosts) -> None:
    """The flow of the other host has submitted its values already; then flows take calls again."""
    wrong = np.array([1, np.inf, np.nan, 1, -np.inf], np.float32)
    number = sure.processes[0].call(packet(), ONES)
    sure.processes[1].call(packet(fault=4), wrong)
    sure.run()
    assert sure.by_flow == 1
    for process in sure.processes:
        assert process.ends[number] == "done"
        found = process.memories[0][:20].view(np.float32)
        np.testing.assert_array_equal(found, np.float32([2, np.inf, np.nan, 2, -np.inf]))
    until_sure(sure, ONES, packet())


@pytest.mark.parametrize(("reduction", "bits"), [(1, 0x7FC00000), (2, 0xFFC00000)])
def test_flows_take_the_nans_of_extremes(
    make: Callable[..., ProcessHosts], reduction: int, bits: int
) -> None:
    """Processes give those that pass the bits that are beyond the infinities."""
    hosts, like = make(as_flow=True), packet(FLOAT32, reduction)
    until_sure(hosts, ONES, like)
    hosts.steadiness = 1.0
    nan = np.uint32([bits]).view(np.float32)[0]
    rows = [np.array(row, np.float32) for row in ([0, 1, nan], [nan, np.inf, -np.inf])]
    rows = [np.append(row, [1, 1]).astype(np.float32) for row in rows]
    first, second = call(hosts, rows, like)
    assert hosts.by_flow
    combine = (np.maximum, np.minimum)[reduction - 1]
    np.testing.assert_array_equal(first, combine(*rows))
    np.testing.assert_array_equal(second, first)


def test_a_value_that_cannot_be_compared_is_named(make: Callable[..., ProcessHosts]) -> None:
    hosts, like = make(as_flow=True), packet(FLOAT32, 1)
    until_sure(hosts, ONES, like)
    hosts.processes[0].call(like, ONES)
    wrong = np.array([1, np.nan, 1, 1, 1], np.float32)
    number = hosts.processes[1].call(like._replace(fault=1, element=1), wrong)
    hosts.run()
    for process in hosts.processes:
        assert "a NaN cannot be compared" in process.ends[number]


def test_magnitudes_of_which_no_word_was_sent_are_seen(sure: ProcessHosts) -> None:
    """A rank whose values are not as its packet says changes no one's scale."""
    for process in sure.processes:
        process.call(packet(), np.array([np.inf, 1, 1, 1, 1], np.float32))
    with pytest.raises(NumbersError, match="element 0 is inf"):
        sure.settle()
    assert not sure.by_flow


def test_an_objection_is_not_taken_for_the_exponent_of_the_greatest_values(
    make: Callable[..., ProcessHosts],
) -> None:
    """Their exponent byte is OTHER."""
    hosts, greatest = make(as_flow=True), np.full(5, 2.0**127, np.float32)
    for _ in range(SURE + 3):
        first, second = call(hosts, [greatest, -greatest], packet())
        assert not first.any()
        assert not second.any()
    numbers = [
        process.call(like, values)
        for process, like, values in zip(
            hosts.processes,
            [packet(), packet(INT32)],
            [greatest, np.ones(5, np.int32)],
            strict=True,
        )
    ]
    hosts.run()
    for process, number in zip(hosts.processes, numbers, strict=True):
        assert "different calls" in process.ends[number]


def test_memory_that_comes_later_is_used(sure: ProcessHosts) -> None:
    for process in sure.processes:
        process.share(MEMORY_BYTES)
    sure.settle()
    assert (call(sure, [ONES] * 2, packet(memory=1))[0] == 2).all()
    assert sure.by_flow


def test_a_process_that_goes_leaves_its_socket_alone(sure: ProcessHosts) -> None:
    """Its descriptor may be another's by then."""
    sure.processes[1].socket.close()
    with pytest.raises(ProcessGone, match="the process on w1 disconnected without leaving"):
        sure.settle()
    member: Any = sure.members["w1"]
    assert member._parts.worker._expected.left == 0  # noqa: SLF001


def test_a_process_that_goes_while_its_call_is_under_way_is_named(sure: ProcessHosts) -> None:
    """Its memory is gone by the time its host goes on with the call."""
    sure.steadiness = 1.0
    sure.processes[1].call(packet(), ONES)
    while not sure.by_flow:
        sure.turn("w1")
    sure.processes[1].socket.close()
    with pytest.raises(ProcessGone, match="the process on w1 disconnected without leaving"):
        sure.settle()


def scenario(seed: int) -> list[tuple[list[CallPacket], list[Values]]]:
    """Steps of calls that repeat, with exceptions: packets and values by rank, none of barriers."""
    random, generator = Random(seed), np.random.default_rng(seed)
    cycle: list[tuple[int, int, int]] = [
        (*random.choice(WAYS), random.choice([0, 1, 5, 32, 40, 300]))
        for _ in range(random.choice([1, 1, 2, 3]))
    ]
    steps = []
    exceptional = random.choice([0.0, 0.03, 0.1])
    for number in range(random.choice([30, 120])):
        dtype, reduction, elements = cycle[number % len(cycle)]
        values: list[Values] = []
        packets = []
        for _ in range(2):
            like = packet(dtype, reduction)
            scale = 2.0 ** random.choice([8, 40, -130]) if random.random() < exceptional else 1
            size = elements + 1 if random.random() < exceptional / 2 else elements
            if not size:
                packets.append(packet(kind=BARRIER))
                values.append(np.zeros(0, np.int32))
                continue
            if dtype == FLOAT32:
                each = (generator.uniform(-1, 1, size) * scale).astype(np.float32)
                each[0] = 0.75 * scale
                if random.random() < exceptional / 2:
                    like = like._replace(fault=1, element=size - 1)
                    each[-1] = np.nan
                elif not reduction and random.random() < exceptional:
                    like = like._replace(fault=4)
                    each[generator.integers(size)] = random.choice([np.nan, np.inf, -np.inf])
            else:
                most = 1 << random.choice([30, 31]) if scale != 1 else 1000
                each = generator.integers(-most, most, size).astype(np.int32)
            if random.random() < exceptional / 3 and not size % 2:
                like = like._replace(target=PARTS)
            packets.append(like)
            values.append(each)
        steps.append((packets, values))
    return steps


def outcome(seed: int, *, as_flow: bool) -> tuple[Any, int]:
    """What the ranks get in a scenario, and what the hosts remember; calls that flows took."""
    random = Random(seed)
    loss = random.choice([0.0, 0.0, 0.02])
    window, rooted = random.choice([4, 16]), random.random() < 0.5
    hosts = ProcessHosts(seed, as_flow=as_flow, loss=loss, window=window, rooted=rooted)
    found: list[Any] = []
    try:
        for packets, values in scenario(seed):
            together = random.random() < 0.05
            for process, like, each in zip(hosts.processes, packets, values, strict=True):
                if len(each):
                    process.call(like, each)
                else:
                    process.barrier()
                if together:
                    process.barrier()
            hosts.run()
            found += [p.memories[0].tobytes() for p in hosts.processes]
        hosts.settle()
        for process in hosts.processes:
            assert process.all_ended
            found.append(sorted(process.ends.items()))
        guesses = [member._source._guesses for member in hosts.members.values()]  # type: ignore[union-attr]  # noqa: SLF001
        assert guesses[0]._last == guesses[1]._last  # noqa: SLF001
        assert guesses[0]._follows == guesses[1]._follows  # noqa: SLF001
        found += [guesses[0]._last, guesses[0]._follows]  # noqa: SLF001
        for host in hosts.plan.workers:
            member, worker = hosts.members[host], hosts.machines[host]
            found.append((member.round, member._begun, worker._next_call))  # noqa: SLF001
            found.append((worker._all[0].end, worker.idle, worker._calls))  # noqa: SLF001
    finally:
        hosts.close()
    return found, hosts.by_flow


@pytest.mark.slow
@settings(max_examples=examples(3, of=600))
@given(st.integers(0, 1 << 32))
def test_flows_do_what_the_source_does(seed: int) -> None:
    by_source, none = outcome(seed, as_flow=False)
    by_flow, _ = outcome(seed, as_flow=True)
    assert none == 0
    for mine, other in zip(by_flow, by_source, strict=True):
        assert mine == other
