"""Switches, hosts and links in virtual time.

Switches are engines that run the real P4 program; hosts run the real sans-I/O agents. The event
queue and one seed determine everything, so a run repeats exactly.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.codec import JOB_START, TREE_AT
from hopsum.network.model import Network
from hopsum.network.paths import PlainRoutes, forwards
from hopsum.protocol.wire import (
    ETHERNET_BYTES,
    HEADER_BYTES,
    HOP_BYTES,
    IPV4_BYTES,
    UDP_BYTES,
    is_hopsum,
)
from hopsum.simulation.events import EventQueue, SimulationError
from hopsum.simulation.faults import Faults
from hopsum.simulation.queues import (
    NOTHING_WAITS,
    QUEUE_FRAMES,
    FairQueues,
    Fifo,
    PriorityQueues,
    priority_of,
    queue_of,
)
from p4switch.targets.v1model.engine import Engine, Packet

_STACK_START = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES + HEADER_BYTES
_HOPS_AT = 49
"""See docs/protocol.md."""

Frames = NDArray[np.uint8]
_TREE = slice(JOB_START, TREE_AT + 1)
_TARGET_IP = slice(ETHERNET_BYTES + 16, ETHERNET_BYTES + 20)


class Agent(Protocol):
    """A host's protocol logic without I/O: worker, server or ring member."""

    def receive(self, frames: Frames, now: float) -> None:
        """Process frames (n, length)."""

    def tick(self, now: float) -> None:
        """Do what is due by `now`."""

    def take_output(self) -> list[Frames]:
        """Return the frames to send, in order."""

    @property
    def deadline(self) -> float | None:
        """Return when tick must be called next, in seconds; None: not at all."""


class Observer(Protocol):
    """Observes the frames of a world. Times are in seconds; frames must not be changed."""

    def left(self, time: float, source: str, target: str, frame: bytes, lost: bool) -> None:
        """Note a frame whose last bit leaves a node at `time`; `lost`: it is lost on the link."""

    def entered(
        self, time: float, node: str, port: int, frame: bytes, engine: Engine | None
    ) -> None:
        """Note a frame that has arrived. `engine`: the switch's; None at a host or dead switch."""

    def handled(self, time: float, switch: str, frame: bytes, engine: Engine) -> None:
        """Note that a switch has handled the frame that entered last."""


class Channel:
    """One direction of a link: a queue, a rate, a latency and faults.

    `discipline`: chooses the next frame where frames wait for a rate. A transmission is not
    interrupted.
    """

    def __init__(
        self,
        world: World,
        source: str,
        target: str,
        target_port: int,
        rate: float | None,
        latency: float,
        rng: random.Random,
        discipline: PriorityQueues,
    ) -> None:
        self.bytes = 0
        self.frames = 0
        self.lost = 0
        self.delayed = 0
        self.flipped = 0
        self.duplicated = 0
        self.queue_drops = 0
        self.cut = False
        """Whether every frame is lost at present."""
        self.faults = world.faults
        """Random faults of its frames at present."""
        self._world = world
        self.ends = (source, target)
        self._target_port = target_port
        self._rate = rate
        self._latency = latency
        self._rng = rng
        self._discipline = None if rate is None else discipline
        self._sending = False
        self._bad = False
        self._busy_until = 0.0
        self._departures: deque[float] = deque()
        self._cuts = [
            (cut.start, cut.stop) for cut in world.faults.cuts if {cut.a, cut.b} == {source, target}
        ]
        self._lost = {
            lost.frame for lost in world.faults.lost if (lost.source, lost.target) == self.ends
        }

    @property
    def waiting(self) -> list[int]:
        """Return the number of waiting frames by the priority of v1model."""
        return NOTHING_WAITS if self._discipline is None else self._discipline.waiting

    def transmit(self, frame: bytes) -> None:
        """Queue a frame; it arrives later, or never."""
        if self._discipline is None:
            self._transmit_in_order(frame)
        elif not self._discipline.put(frame):
            self.queue_drops += 1
        elif not self._sending:
            self._send_next()

    def _transmit_in_order(self, frame: bytes) -> None:
        now = self._world.queue.now
        departures = self._departures
        while departures and departures[0] <= now:
            departures.popleft()
        if len(departures) >= QUEUE_FRAMES:
            self.queue_drops += 1
            return
        departure = max(now, self._busy_until)
        if self._rate is not None:
            departure += len(frame) * 8 / self._rate
        self._busy_until = departure
        departures.append(departure)
        self._leave(frame, departure)

    def drain(self) -> None:
        """Send what waits immediately: no further event will do so."""
        discipline, self._discipline = self._discipline, None
        while discipline is not None and (frame := discipline.take()) is not None:
            self._transmit_in_order(frame)

    def _send_next(self) -> None:
        """Transmit a frame, and the next one when it has left."""
        if self._discipline is None or self._rate is None:
            return
        frame = self._discipline.take()
        self._sending = frame is not None
        if frame is not None:
            departure = self._world.queue.now + len(frame) * 8 / self._rate
            self._busy_until = departure
            self._world.queue.at(departure, self._send_next)
            self._leave(frame, departure)

    def _loses(self) -> bool:
        """Return whether the next frame is lost at random."""
        faults, chance = self.faults, self._rng.random()
        if faults.burst == 1:
            return chance < faults.loss
        if self._bad:
            self._bad = chance >= 1 / faults.burst
        else:
            self._bad = chance * faults.burst * (1 - faults.loss) < faults.loss
        return self._bad

    def _leave(self, frame: bytes, departure: float) -> None:
        """Send a frame whose last bit departs at `departure`."""
        self.bytes += len(frame)
        self.frames += 1
        arrival = departure + self._latency
        faults = self.faults
        lost = (
            self.cut
            or self.frames - 1 in self._lost
            or any(start <= departure < stop for start, stop in self._cuts)
        )
        draw = self._rng.random
        if not lost and faults.random:
            lost = self._loses() or draw() < faults.corrupt
        for observer in self._world.observers:
            observer.left(departure, *self.ends, frame, lost)
        if lost:
            self.lost += 1
            return
        if faults.flip and draw() < faults.flip and _has_lanes(frame):
            self.flipped += 1
            frame = _with_a_bit_flipped(frame, self._rng)
        if faults.random:
            if draw() < faults.reorder:
                self.delayed += 1
                arrival += draw() * faults.hold
            if draw() < faults.duplicate:
                self.duplicated += 1
                self._world.deliver(arrival, self.ends[1], self._target_port, frame)
        self._world.deliver(arrival, self.ends[1], self._target_port, frame)


def _has_lanes(frame: bytes) -> bool:
    """Return whether a frame is hopsum's and longer than its stack, as forged ones may not be."""
    hopsum = bool(is_hopsum(np.frombuffer(frame, np.uint8)[None, :])[0])
    return hopsum and len(frame) > _lanes_start(frame)


def _lanes_start(frame: bytes) -> int:
    return _STACK_START + HOP_BYTES * frame[_HOPS_AT]


def _with_a_bit_flipped(frame: bytes, rng: random.Random) -> bytes:
    """Return a hopsum frame with another value in one of its lanes."""
    changed = bytearray(frame)
    changed[rng.randrange(_lanes_start(frame), len(frame))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@dataclass
class _Arrivals:
    """Frames that reach one node at the same instant."""

    frames: list[tuple[int, bytes]] = field(default_factory=list)


class World:
    """A network in virtual time.

    `engines`: the engine of every switch, None while it is down. `agents`: those of the hosts that
    take part; frames to other hosts are dropped there. `reinstall`: called with the name of a
    switch that returns from a reboot; returns its new engine. `on_reboot`: called with a switch's
    name and engine before that is lost. `fair`: hosts serve their TCP connections in turn. `queue`:
    may be shared with others in the same virtual time. `observers`: see all frames; switches then
    process frames one at a time, with the same result. Links send by IP class selector, the highest
    first.
    """

    def __init__(
        self,
        network: Network,
        engines: Mapping[str, Engine | None],
        agents: Mapping[str, Agent],
        *,
        faults: Faults | None = None,
        seed: int = 0,
        reinstall: Callable[[str], Engine] | None = None,
        on_reboot: Callable[[str, Engine], None] | None = None,
        fair: bool = False,
        queue: EventQueue | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.network = network
        self.queue = queue or EventQueue()
        self.faults = faults or Faults()
        self.observers = tuple(observers)
        self.packet_hops = 0
        self.engines: dict[str, Engine | None] = dict(engines)
        self.agents = dict(agents)
        self.unlinked: dict[str, Callable[[list[Packet]], None]] = {}
        """By switch, called after every step with the frames that left by ports without a link."""
        self._reinstall = reinstall
        self._on_reboot = on_reboot
        self._pending: dict[tuple[float, str], _Arrivals] = {}
        self._ticks: dict[str, float] = {}
        self._reported: dict[str, tuple[Engine, dict[int, list[int]]]] = {}
        """By switch, the queue depths last reported to its engine."""
        self.channels: dict[tuple[str, str], Channel] = {}
        self._out: dict[str, dict[int, Channel]] = {
            name: {} for name in (*network.hosts, *network.switches)
        }
        for number, (u, v) in enumerate(network.directed_links()):
            link = network.link(u, v)
            channel = Channel(
                self,
                u,
                v,
                network.port(v, u),
                link.bandwidth,
                link.latency,
                random.Random(f"{seed}/{number}"),
                PriorityQueues(FairQueues if fair and u in network.hosts else Fifo),
            )
            self.channels[u, v] = channel
            self._out[u][network.port(u, v)] = channel
        self._ways = self._host_routes()
        self._homes = {
            host: self._out[host][network.port(host, network.access_switch(host))]
            for host in network.hosts
            if self._out[host]
        }
        self._links_of_trees: dict[str, dict[int, Channel]] = {}
        """Of each host by job << 8 | tree, where plans have said so."""
        for lost in self.faults.lost:
            network.link(lost.source, lost.target)
        for reboot in self.faults.reboots:
            self._plan_reboot(reboot.switch, reboot.time, reboot.downtime)

    def _host_routes(self) -> dict[str, dict[bytes, Channel]]:
        """Return the next hop towards each address, for every host with several links."""
        ways: dict[str, dict[bytes, Channel]] = {
            host: {} for host in self.network.hosts if len(self._out[host]) > 1
        }
        if ways:
            routes = PlainRoutes(self.network)
            for target in self.network.hosts.values():
                for node, hop in routes.next_hops(target.name).items():
                    if node in ways:
                        ways[node][target.ip_bytes] = self.channels[node, hop]
        return ways

    # --- faults of switches

    def _plan_reboot(self, switch: str, time: float, downtime: float) -> None:
        if switch not in self.engines:
            raise SimulationError(f"reboot of {switch!r}: there is no such switch")
        if self._reinstall is None:
            raise SimulationError("reboots need a way to reinstall a switch")
        reinstall = self._reinstall

        def down() -> None:
            engine = self.engines[switch]
            if engine is not None and self._on_reboot is not None:
                self._on_reboot(switch, engine)
            self.engines[switch] = None

        def up() -> None:
            self.engines[switch] = reinstall(switch)

        self.queue.at(time, down)
        self.queue.at(time + downtime, up)

    # --- frames

    def deliver(self, time: float, node: str, port: int, frame: bytes) -> None:
        """Schedule a frame's arrival at a node's port at `time`."""
        arrivals = self._pending.get((time, node))
        if arrivals is None:
            arrivals = self._pending[time, node] = _Arrivals()
            self.queue.at(time, lambda: self._arrive(time, node))
        arrivals.frames.append((port, frame))

    def _arrive(self, time: float, node: str) -> None:
        frames = self._pending.pop((time, node)).frames
        self.packet_hops += len(frames)
        if node in self.engines:
            engine = self.engines[node]
            if engine is None:
                self._observe(node, None, frames, time)
            else:
                out, unlinked = self._out[node], []
                for port, frame in self._process(node, engine, frames, time):
                    channel = out.get(port)
                    if channel is not None:
                        channel.transmit(frame)
                    else:
                        unlinked.append((port, frame))
                if node in self.unlinked:
                    self.unlinked[node](unlinked)
            return
        self._observe(node, None, frames, time)
        frames = self._pass_on(node, frames)
        agent = self.agents.get(node)
        if agent is not None and frames:
            for group in _by_length(frames):
                agent.receive(group, time)
            self.flush(node)

    def _process(
        self, switch: str, engine: Engine, frames: list[Packet], time: float
    ) -> list[Packet]:
        """Run frames through a switch's engine."""
        now_us = int(time * 1e6)
        waiting = self._report_waiting(switch, engine)
        if not self.observers:
            return engine.process(frames, now_us)
        out: list[Packet] = []
        for packet in frames:
            self._observe(switch, engine, [packet], time)
            sent = engine.process([packet], now_us)
            out += sent
            # As in a batch, where the frames before it are still in the switch's queues.
            for port, frame in sent:
                if port in self._out[switch]:
                    waiting.setdefault(port, [*NOTHING_WAITS])[priority_of(queue_of(frame))] += 1
                    engine.set_waiting(port, waiting[port])
            for observer in self.observers:
                observer.handled(time, switch, packet[1], engine)
        return out

    def _report_waiting(self, switch: str, engine: Engine) -> dict[int, list[int]]:
        """Report the queue depths of its links to an engine; return them by port."""
        known, reported = self._reported.get(switch, (None, {}))
        if known is not engine:
            reported = {}
            self._reported[switch] = engine, reported
        for port, channel in self._out[switch].items():
            waiting = channel.waiting
            if waiting != reported.get(port, NOTHING_WAITS):
                reported[port] = [*waiting]
                engine.set_waiting(port, waiting)
        return reported

    def _observe(
        self, node: str, engine: Engine | None, frames: Iterable[Packet], time: float
    ) -> None:
        for observer in self.observers:
            for port, frame in frames:
                observer.entered(time, node, port, frame, engine)

    def _pass_on(self, host: str, frames: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Forward frames for others, unchanged, if the host forwards; return the rest."""
        ways = self._ways.get(host)
        if ways is None or not forwards(self.network, host):
            return frames
        own = []
        for port, frame in frames:
            channel = ways.get(frame[_TARGET_IP])
            if channel is None:
                own.append((port, frame))
            else:
                channel.transmit(frame)
        return own

    def join(self, host: str, agent: Agent) -> None:
        """Attach an agent."""
        self.agents[host] = agent
        self.flush(host)

    def leave(self, host: str) -> None:
        """Detach a host's agent; frames to it are dropped."""
        self.agents.pop(host, None)
        self._ticks.pop(host, None)

    def use_links(self, host: str, job: int, ports: Mapping[int, int]) -> None:
        """Send a host's frames of each tree of a job from these ports; of others from its home."""
        links = self._links_of_trees.setdefault(host, {})
        for key in [key for key in links if key >> 8 == job]:
            del links[key]
        links |= {job << 8 | tree: self._out[host][port] for tree, port in ports.items()}

    def flush(self, host: str) -> None:
        """Send the frames of a host's agent, and schedule its next tick."""
        agent = self.agents[host]
        home = self._homes[host]
        ways = self._ways.get(host, {})
        trees = self._links_of_trees.get(host, {})
        for frames in agent.take_output():
            # The packets of a job leave by the link of their tree, regardless of plain routes.
            own = not ways or (bool(self.network.switches) and bool(is_hopsum(frames)[0]))
            for row in frames:
                frame = row.tobytes()
                if not own:
                    channel = ways.get(frame[_TARGET_IP], home)
                elif ways:
                    channel = trees.get(int.from_bytes(frame[_TREE], "big"), home)
                else:
                    channel = home
                channel.transmit(frame)
        deadline = agent.deadline
        if deadline is None:
            return
        planned = self._ticks.get(host)
        if planned is None or deadline < planned:
            self._ticks[host] = deadline
            self.queue.at(deadline, lambda: self._tick(host, deadline))

    def _tick(self, host: str, planned: float) -> None:
        if self._ticks.get(host) != planned:
            return
        del self._ticks[host]
        agent = self.agents[host]
        deadline = agent.deadline
        if deadline is not None and deadline <= self.queue.now:
            agent.tick(self.queue.now)
        self.flush(host)

    # --- running

    def run(self, done: Callable[[], bool], limit: float) -> float:
        """Run until `done()`; return the time. SimulationError past `limit` virtual seconds."""
        for host in self.agents:
            self.flush(host)
        while not done():
            next_time = self.queue.next_time
            if next_time is None:
                raise SimulationError(
                    f"no event is left at {self.queue.now:.6f} s and the run is not done"
                )
            if next_time > limit:
                raise SimulationError(
                    f"not done after {limit} s of virtual time; see the agents' statistics for "
                    "what is missing, or raise the time limit"
                )
            self.queue.step()
        return self.queue.now

    def drain(self) -> None:
        """Deliver frames in flight, without timers and the frames they would send."""
        for link in self.channels.values():
            link.drain()
        while self._pending:
            time, node = min(self._pending)
            self.queue.now = time
            frames = self._pending.pop((time, node)).frames
            self.packet_hops += len(frames)
            engine = self.engines.get(node)
            if engine is not None:
                for port, frame in self._process(node, engine, frames, time):
                    if (channel := self._out[node].get(port)) is not None:
                        channel.transmit(frame)
            elif node not in self.engines:
                self._pass_on(node, frames)


def _by_length(frames: Iterable[tuple[int, bytes]]) -> list[Frames]:
    """Yield consecutive frames of one length as arrays (n, length)."""
    groups: list[list[bytes]] = []
    for _, frame in frames:
        if groups and len(groups[-1][-1]) == len(frame):
            groups[-1].append(frame)
        else:
            groups.append([frame])
    return [
        np.frombuffer(b"".join(group), dtype=np.uint8).reshape(len(group), -1) for group in groups
    ]
