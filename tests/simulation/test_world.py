from __future__ import annotations

import numpy as np
import pytest

from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.execution import Channel as StreamChannel
from hopsum.collectives.execution import Execution
from hopsum.collectives.plan import DataType
from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.workload import WorkloadSpec, make_workload
from hopsum.network.model import Host, Link, Network
from hopsum.protocol.wire import Address, Header, Kind, frame_template
from hopsum.simulation.compiled.library import PACKAGE
from hopsum.simulation.events import EventQueue, SimulationError
from hopsum.simulation.faults import FaultError, Faults, LinkCut, Reboot
from hopsum.simulation.tcp import StreamMember, segment
from hopsum.simulation.world import Frames, World
from p4switch.backends.native.library import BatchResult
from p4switch.targets.v1model.engine import Engine
from tests.support.data_types import OF_HOSTS
from tests.support.departures import Departures
from tests.support.schedules import broadcast_from
from tests.support.simulated_jobs import simulate_schedule

HOPS_AT = 49


def two_hosts(bandwidth: float | None = 8e6, latency: float = 0.001) -> Network:
    hosts = {
        name: Host(name, f"10.0.0.{number}", f"02:00:00:00:00:0{number}")
        for number, name in enumerate(("h1", "h2"), start=1)
    }
    return Network("pair", hosts, {}, (Link("h1", "h2", 0, 0, bandwidth, latency),))


class Sender:
    """Sends frames at given times and notes when frames arrive."""

    def __init__(self, times: list[float], frame: bytes = bytes(1000)) -> None:
        self.times = times
        self.frame = np.frombuffer(frame, np.uint8).reshape(1, -1)
        self.arrivals: list[float] = []
        self._output: list[Frames] = []

    def receive(self, frames: Frames, now: float) -> None:
        self.arrivals += [now] * len(frames)

    def tick(self, now: float) -> None:
        self.times.pop(0)
        self._output.append(self.frame)

    def take_output(self) -> list[Frames]:
        output, self._output = self._output, []
        return output

    @property
    def deadline(self) -> float | None:
        return self.times[0] if self.times else None


def run_pair(times: list[float], faults: Faults | None = None) -> tuple[World, Sender]:
    sender, receiver = Sender(times), Sender([])
    world = World(two_hosts(), {}, {"h1": sender, "h2": receiver}, faults=faults, seed=3)
    world.run(lambda: not sender.times and world.queue.next_time is None, 100)
    return world, receiver


def test_frames_take_their_time_and_wait_for_each_other() -> None:
    world, receiver = run_pair([1.0, 1.0, 2.0])
    assert receiver.arrivals == pytest.approx([1.002, 1.003, 2.002])
    assert world.channels["h1", "h2"].bytes == 3000
    assert world.channels["h2", "h1"].bytes == 0


def test_a_cut_link_loses_frames_for_its_time() -> None:
    _, receiver = run_pair([1.0, 2.0, 3.0], Faults(cuts=(LinkCut("h2", "h1", 1.5, 2.5),)))
    assert receiver.arrivals == pytest.approx([1.002, 3.002])


@pytest.mark.parametrize(
    ("faults", "expected"),
    [(Faults(loss=1), 0), (Faults(corrupt=1), 0), (Faults(duplicate=1), 40), (Faults(flip=1), 20)],
)
def test_faults_of_probability_one(faults: Faults, expected: int) -> None:
    _, receiver = run_pair([float(i) for i in range(20)], faults)
    assert len(receiver.arrivals) == expected


@pytest.mark.parametrize(("hops", "flipped"), [(0, 1), (31, 1), (32, 0), (255, 0)])
def test_no_bit_flips_behind_a_stack_that_fills_its_frame(hops: int, flipped: int) -> None:
    """Forged frames may have any number of entries."""
    host = Address(bytes(6), bytes(4))
    frame = frame_template(host, host, Header(Kind.CONTRIBUTION, 1, 0, 1, 0), (), 32).tobytes()
    frame = frame[:HOPS_AT] + bytes([hops]) + frame[HOPS_AT + 1 :]
    ends = {"h1": Sender([1.0], frame), "h2": Sender([])}
    world = World(two_hosts(), {}, ends, faults=Faults(flip=1.0))
    world.run(lambda: world.queue.next_time is None, 100)
    assert world.channels["h1", "h2"].flipped == flipped


def test_faults_repeat_with_the_seed_and_reorder() -> None:
    faults = Faults(loss=0.3, reorder=0.5, hold=3.0)
    runs = [run_pair([i / 10 for i in range(50)], faults)[1].arrivals for _ in range(2)]
    assert runs[0] == runs[1]
    assert 20 < len(runs[0]) < 50


def test_events_run_in_order_of_time_then_of_scheduling() -> None:
    queue = EventQueue()
    seen: list[int] = []
    queue.at(2, lambda: seen.append(3))
    queue.at(1, lambda: seen.append(1))
    queue.at(1, lambda: seen.append(2))
    while queue.step():
        pass
    assert seen == [1, 2, 3]
    assert queue.now == 2


def test_a_run_that_cannot_end_says_so() -> None:
    world = World(two_hosts(), {}, {"h1": Sender([])})
    with pytest.raises(SimulationError, match="no event is left"):
        world.run(lambda: False, 1)
    world = World(two_hosts(), {}, {"h1": Sender([5.0])})
    with pytest.raises(SimulationError, match="not done after 1 s of virtual time"):
        world.run(lambda: False, 1)


def test_impossible_faults_are_refused() -> None:
    with pytest.raises(FaultError, match=r"loss 1\.5: expected a probability"):
        Faults(loss=1.5)
    with pytest.raises(SimulationError, match="'s9': there is no such switch"):
        World(two_hosts(), {}, {}, faults=Faults(reboots=(Reboot("s9", 1.0),)))


def test_a_fair_host_serves_its_connections_in_turn() -> None:
    addresses = [Address(host.mac_bytes, host.ip_bytes) for host in two_hosts().hosts.values()]

    def tcp(chain: int) -> bytes:
        return segment(addresses[0], addresses[1], StreamChannel(0, chain), 0, 0, bytes(934))

    def arrivals(fair: bool) -> list[int]:
        agents = {"h1": Sender([]), "h2": Sender([])}
        frames: list[bytes] = []
        departures = Departures(lambda source, frame: frames.append(frame))
        world = World(two_hosts(), {}, agents, fair=fair, observers=[departures])
        channel = world.channels["h1", "h2"]
        for chain in (0, 0, 0, 1, 1, 2):
            channel.transmit(tcp(chain))
        while world.queue.step():
            pass
        return [frame[37] - tcp(0)[37] for frame in frames]

    assert arrivals(fair=False) == [0, 0, 0, 1, 1, 2]
    # The first was under way when the others came.
    assert arrivals(fair=True) == [0, 0, 1, 2, 0, 1]


def test_frames_too_short_for_a_job_take_one_turn() -> None:
    # Their job number was read past their end, from the remains of an earlier frame.
    agents = {"h1": Sender([]), "h2": Sender([])}
    frames: list[bytes] = []
    departures = Departures(lambda source, frame: frames.append(frame))
    world = World(two_hosts(), {}, agents, fair=True, observers=[departures])
    channel = world.channels["h1", "h2"]
    to_hopsum = bytes(12) + b"\x08\x00\x45" + bytes(8) + b"\x11" + bytes(12) + b"\x48\x53"
    short = [to_hopsum + bytes([0, 0, 0, number]) for number in range(6)]
    for burst in [[to_hopsum.ljust(1400, bytes([job])) for job in (1, 2) * 4], short]:
        frames.clear()
        for frame in burst:
            channel.transmit(frame)
        while world.queue.step():
            pass
    assert frames == short


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_receiver_that_takes_nothing_stops_its_sender(loss: float) -> None:
    network, elements = two_hosts(8e8, 1e-4), 200_000
    addresses = {
        rank: Address(host.mac_bytes, host.ip_bytes)
        for rank, host in enumerate(network.hosts.values())
    }
    schedule = broadcast_from(0, ["h1", "h2"], elements)
    tensors = [np.arange(elements, dtype=np.int32), np.zeros(elements, np.int32)]
    members = [StreamMember(rank, addresses, buffer=50_000) for rank in range(2)]
    executions = [Execution(schedule, rank, tensors[rank]) for rank in range(2)]
    world = World(
        network,
        {},
        dict(zip(network.hosts, members, strict=True)),
        faults=Faults(loss=loss, reorder=loss),
        seed=2,
    )
    members[0].start(executions[0], 0.0)
    # The other rank is still busy with something else.
    world.run_until(2.0)
    # It asks a few times a second whether there is room, with a segment; what is lost comes again.
    assert 50_000 <= world.channels["h1", "h2"].bytes <= 1.3 * 50_000 + 12 * 1514
    members[1].start(executions[1], world.queue.now)
    world.flush("h2")
    world.run(lambda: members[1].done and executions[1].done, 3000)
    assert (tensors[1] == tensors[0]).all()


@pytest.mark.parametrize("loss", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("dtype", OF_HOSTS)
def test_a_ring_over_lossy_streams_is_exact(loss: float, dtype: DataType) -> None:
    network = two_hosts()
    spec = WorkloadSpec("random", 2, 30_001, 2, dtype, seed=5)
    run = simulate_schedule(
        network,
        tuple(network.hosts),
        lambda n: ring_all_reduce(2, n),
        no_engine,
        lambda rank: make_workload(spec, rank, None),
        faults=Faults(loss=loss, duplicate=loss, reorder=loss),
        seed=1,
        limit=1000,
    )
    for workload, intervals in zip(run.workloads, run.intervals, strict=True):
        verdict = workload.verdict()
        assert (verdict.checked, verdict.wrong) == (60_002, 0)
        assert len(intervals) == 2
    if loss == 0:
        assert run.retransmissions == 0
        data = 30_001 * 4 * 2
        assert data < run.links["h1", "h2"] < 1.1 * data
    else:
        assert run.retransmissions > 0


def no_engine() -> Engine:
    raise AssertionError("there is no switch")


def test_what_engines_return_lies_as_the_network_reads_it() -> None:
    fields = c_fields("nodes.c", "batch_result", package=PACKAGE)
    assert fields == list(BatchResult._fields_)
