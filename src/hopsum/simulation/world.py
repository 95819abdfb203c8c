"""Switches, hosts and links in virtual time.

Switches are engines that run the real P4 program; hosts run the real sans-I/O agents. The event
queue and one seed determine everything, so a run repeats exactly. Frames move in compiled code
(compiled/nodes.c), from switch to switch and to the flows of agents; they are handed to Python for
other agents and engines, for what agents decide, and for observers.
"""

from __future__ import annotations

import ctypes
import weakref
from abc import ABC, abstractmethod
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.datapath.library import Flow, Output
from hopsum.network.model import Network
from hopsum.network.paths import PlainRoutes, forwards
from hopsum.protocol.wire import is_hopsum
from hopsum.simulation.channel import Channel
from hopsum.simulation.compiled.library import (
    COMPILED,
    DOWN,
    ENTERED,
    ENTERED_DEAD,
    HANDLED,
    LOST,
    OBSERVE,
    PYTHON,
    NodeView,
    WorldView,
    library,
)
from hopsum.simulation.events import EventQueue, SimulationError
from hopsum.simulation.faults import Faults
from p4switch.backends.native.engine import NativeEngine
from p4switch.targets.v1model.engine import Engine, Packet

Frames = NDArray[np.uint8]
_T = TypeVar("_T")
_OUTPUT_ROWS = 1024
"""Frames that a flow may make in one call."""


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


class FlowAgent(ABC):
    """An `Agent` that leaves frames and timers to flows (flow.h) between calls of it."""

    @abstractmethod
    def enter(self) -> tuple[list[int], float | None] | None:
        """Return the addresses of its flows, and when anything else is due, by its own clock.

        None: it takes its frames itself.
        """

    @abstractmethod
    def finish(self, flow: int, sent: list[Frames], now: float) -> None:
        """Go on after a flow, of job << 8 | tree, that has news, and frames to send.

        The flows have ended, as with any other call of the agent.
        """

    @abstractmethod
    def reading(self) -> tuple[float, float, float]:
        """Return the clock: what it shows at a virtual time, that time, and its pace."""


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


class _Table(UserDict[str, _T]):
    """A mapping by node whose changes are passed on; `changed` is called with the node."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        super().__init__()
        self._changed = changed

    def __setitem__(self, node: str, value: _T) -> None:
        super().__setitem__(node, value)
        self._changed(node)

    def __delitem__(self, node: str) -> None:
        super().__delitem__(node)
        self._changed(node)


class _Node:
    """A switch or host: `address` is that of `struct node`."""

    def __init__(self, world: int, ports: int) -> None:
        self.address: int = library().node_create(world, ports)
        self.view = NodeView.from_address(self.address)
        self.known: Engine | None = None
        """The engine that knows the depths of queues."""
        self.flows: object = None
        """What the view points to."""

    def end_flows(self, state: int) -> None:
        """Let compiled code forget a host's flows, which may go at any time."""
        self.view.flows, self.view.flow_count, self.view.state = None, 0, state
        self.flows = None


class World:
    """A network in virtual time.

    `engines`: the engine of every switch, None while it is down. `agents`: those of the hosts that
    take part; frames to other hosts are dropped there. `reinstall`: called with the name of a
    switch that returns from a reboot; returns its new engine. `on_reboot`: called with a switch's
    name and engine before that is lost. `fair`: hosts serve their TCP connections in turn. `queue`:
    may be shared with others in the same virtual time. `observers`: see all frames; what happens is
    the same without. Links send by IP class selector, the highest first.
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
        self._c = library()
        self._output = Output(_OUTPUT_ROWS)
        self._address = self._c.world_create(self.queue.address, self._output.begin(whole=False))
        self._view = WorldView.from_address(self._address)
        self._reinstall = reinstall
        self._on_reboot = on_reboot
        self._names = [*network.hosts, *network.switches]
        self._nodes = self._make_nodes()
        self.channels: dict[tuple[str, str], Channel] = {}
        self._out: dict[str, dict[int, Channel]] = {name: {} for name in self._names}
        self._make_channels(seed, fair=fair)
        weakref.finalize(
            self,
            _free,
            self._address,
            [each.address for each in self.channels.values()],
            [each.address for each in self._nodes.values()],
        )
        self._observers: tuple[Observer, ...] = ()
        self._observe = OBSERVE(self._note)
        self.observers = observers
        self.unlinked: _Table[Callable[[list[Packet]], None]] = _Table(self._set_engine)
        """By switch, called after every step with the frames that left by ports without a link."""
        self.engines: _Table[Engine | None] = _Table(self._set_engine)
        self.agents: _Table[Agent] = _Table(self._set_agent)
        self._add_routes()
        self.engines.update(engines)
        self.agents.update(agents)
        for lost in self.faults.lost:
            network.link(lost.source, lost.target)
        for reboot in self.faults.reboots:
            self._plan_reboot(reboot.switch, reboot.time, reboot.downtime)

    def _make_nodes(self) -> dict[str, _Node]:
        network, nodes = self.network, dict[str, _Node]()
        ranks = {name: rank for rank, name in enumerate(sorted(self._names))}
        for number, name in enumerate(self._names):
            node = nodes[name] = _Node(self._address, max(network.ports(name), default=0) + 1)
            view, keep = node.view, self.queue.keep
            view.number, view.rank = number, ranks[name]
            if name in network.switches:
                view.is_switch = True
                view.takes = keep(partial(self._arrive_at_engine, name))
            else:
                view.plain = not network.switches
                view.takes = keep(partial(self._arrive_at_agent, name))
                view.finishes = keep(partial(self._finish, name))
                view.ticks = keep(partial(self._tick, name))
        return nodes

    def _make_channels(self, seed: int, *, fair: bool) -> None:
        network = self.network
        homes = {
            host: network.port(host, network.access_switch(host))
            for host in network.hosts
            if network.ports(host)
        }
        for number, (u, v) in enumerate(network.directed_links()):
            link, port = network.link(u, v), network.port(u, v)
            address = self._c.channel_create(
                self._nodes[u].address, port, self._nodes[v].address, homes.get(u) == port
            )
            self.channels[u, v] = self._out[u][port] = Channel.create(
                (u, v),
                address,
                number,
                network.port(v, u),
                link.bandwidth,
                link.latency,
                self.faults,
                f"{seed}/{number}",
                fair=fair and u in network.hosts,
            )
        self._by_number = [*self.channels.values()]

    def _add_routes(self) -> None:
        """Tell hosts with several links the next hop towards each address."""
        several = [host for host in self.network.hosts if len(self._out[host]) > 1]
        if not several:
            return
        routes = PlainRoutes(self.network)
        for target in self.network.hosts.values():
            hops = routes.next_hops(target.name)
            for host in several:
                if host in hops:
                    self._c.host_add_route(
                        self._nodes[host].address,
                        int.from_bytes(target.ip_bytes, "big"),
                        self.channels[host, hops[host]].address,
                    )
        for host in several:
            self._nodes[host].view.forwards = forwards(self.network, host)

    @property
    def packet_hops(self) -> int:
        """Frames that have arrived at a node."""
        return self._view.packet_hops  # type: ignore[no-any-return]

    # --- observers

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Observers of all frames."""
        return self._observers

    @observers.setter
    def observers(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        observe = ctypes.cast(self._observe, ctypes.c_void_p).value if observers else None
        self._view.observe = observe

    def _note(
        self, what: int, time: float, where: int, port: int, content: Any, length: int
    ) -> None:
        """Tell observers of a frame; called by compiled code, which no error may pass."""
        frame = ctypes.string_at(content, length)
        try:
            for observer in self._observers:
                if what in (ENTERED, ENTERED_DEAD):
                    name = self._names[where]
                    engine = self.engines[name] if what == ENTERED else None
                    observer.entered(time, name, port, frame, engine)
                elif what == HANDLED:
                    name = self._names[where]
                    engine = self.engines[name]
                    assert engine is not None
                    observer.handled(time, name, frame, engine)
                else:
                    observer.left(time, *self._by_number[where].ends, frame, what == LOST)
        except BaseException as error:  # noqa: BLE001 - it is raised where Python goes on
            self.queue.fail(error)

    # --- switches

    def _set_engine(self, switch: str) -> None:
        """Let compiled code use a switch's engine, if that is compiled."""
        node, engine = self._nodes[switch], self.engines.get(switch)
        view = node.view
        if switch in self.unlinked and not view.unlinked:
            view.unlinked = self.queue.keep(partial(self._hand_unlinked, switch))
        functions = engine.functions() if isinstance(engine, NativeEngine) else None
        if engine is None:
            view.state = DOWN
        elif functions is None:
            view.state = PYTHON
        else:
            view.state = COMPILED
            view.engine, view.process, view.set_waiting = functions
            assert isinstance(engine, NativeEngine)
            view.always_unlinked = bool(engine.layout.digests)
        if engine is not None and engine is not node.known:
            node.known = engine
            self._c.switch_forget(node.address)

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

    def _arrive_at_engine(self, switch: str) -> None:
        """Let an engine that is not compiled process frames."""
        frames, engine, out = self._take(), self.engines[switch], self._out[switch]
        assert engine is not None
        unlinked = []
        for port, frame in self._process(switch, engine, frames):
            if port in out:
                out[port].transmit(frame)
            else:
                unlinked.append((port, frame))
        if switch in self.unlinked:
            self.unlinked[switch](unlinked)

    def _process(self, switch: str, engine: Engine, frames: list[Packet]) -> list[Packet]:
        """Run frames through a switch's engine, one after the other."""
        now, channels = self.queue.now, self._out[switch]
        waiting = {port: channel.depths() for port, channel in channels.items()}
        for port, depths in waiting.items():
            engine.set_waiting(port, depths)
        out: list[Packet] = []
        for port, frame in frames:
            for observer in self._observers:
                observer.entered(now, switch, port, frame, engine)
            sent = engine.process([(port, frame)], int(now * 1e6))
            out += sent
            # Frames that arrive at once are in the queues before the next.
            for sent_to, each in sent:
                if sent_to in waiting:
                    waiting[sent_to][self._c.frame_priority(each, len(each))] += 1
                    engine.set_waiting(sent_to, waiting[sent_to])
            for observer in self._observers:
                observer.handled(now, switch, frame, engine)
        return out

    def _hand_unlinked(self, switch: str) -> None:
        self.unlinked[switch](self._take())

    # --- frames

    def deliver(self, time: float, node: str, port: int, frame: bytes) -> None:
        """Schedule a frame's arrival at a node's port at `time`."""
        address = self._nodes[node].address
        self._c.world_deliver(self._address, time, address, port, frame, len(frame))

    def _take(self) -> list[Packet]:
        """Return the frames that compiled code has handed to Python."""
        count = self._c.world_left(self._address)
        if not count:
            self._c.world_taken(self._address)
            return []
        columns = np.empty((3, count), np.uint64)
        self._c.world_describe(self._address, *[column.ctypes.data for column in columns])
        ports, addresses, lengths = columns.tolist()
        frames = list(map(ctypes.string_at, addresses, lengths))
        self._c.world_taken(self._address)
        return list(zip(ports, frames, strict=True))

    # --- hosts

    def _set_agent(self, host: str) -> None:
        self._nodes[host].end_flows(PYTHON if host in self.agents else DOWN)

    def join(self, host: str, agent: Agent) -> None:
        """Attach an agent."""
        self.agents[host] = agent
        self.flush(host)

    def leave(self, host: str) -> None:
        """Detach a host's agent; frames to it are dropped."""
        self.agents.pop(host, None)
        self._c.host_unplan(self._nodes[host].address)

    def use_links(self, host: str, job: int, ports: Mapping[int, int]) -> None:
        """Send a host's frames of each tree of a job from these ports; of others from its home."""
        address = self._nodes[host].address
        self._c.host_forget_trees(address, job)
        for tree, port in ports.items():
            self._c.host_add_tree(address, job << 8 | tree, self._out[host][port].address)

    def flush(self, host: str) -> None:
        """Send the frames of a host's agent, schedule its next tick, and let its flows go on."""
        agent, node = self.agents[host], self._nodes[host]
        address = node.address
        for frames in agent.take_output():
            rows = np.ascontiguousarray(frames)
            hopsum = bool(is_hopsum(rows[:1])[0]) if len(rows) else False
            self._c.host_send(address, rows.ctypes.data, *rows.shape, rows.strides[0], hopsum)
        deadline = agent.deadline
        if deadline is not None:
            self._c.host_plan(address, deadline)
        if isinstance(agent, FlowAgent):
            self._enter(node, agent)

    def _enter(self, node: _Node, agent: FlowAgent) -> None:
        """Let compiled code go on with an agent's flows, if it has any."""
        entered, view = agent.enter(), node.view
        if entered is None:
            node.end_flows(PYTHON)
            return
        addresses, others_due = entered
        most = max([Flow.from_address(each).most_output for each in addresses], default=0)
        if most > self._output.room:
            self._output = Output(most)
            self._c.world_use(self._address, self._output.begin(whole=False))
        flows = (ctypes.c_void_p * len(addresses))(*addresses)
        node.flows = flows
        view.flows, view.flow_count = ctypes.addressof(flows), len(addresses)
        view.others_due = inf if others_due is None else others_due
        view.shown, view.set_at, view.pace = agent.reading()
        view.state = COMPILED

    def withdraw(self, host: str) -> None:
        """Hand a host's frames to its agent, whose flows have ended."""
        if self._nodes[host].view.state == COMPILED:
            self._nodes[host].end_flows(PYTHON)

    def _arrive_at_agent(self, host: str) -> None:
        frames = self._take()
        for group in _by_length(frames):
            self.agents[host].receive(group, self.queue.now)
        self.flush(host)

    def _finish(self, host: str) -> None:
        """Let an agent go on whose flow has news."""
        sent, agent = self._output.take(), self.agents[host]
        frames, now = self._take(), self.queue.now
        assert isinstance(agent, FlowAgent)
        agent.finish(self._view.finished, sent, now)
        for group in _by_length(frames):
            agent.receive(group, now)
        self.flush(host)

    def _tick(self, host: str) -> None:
        agent = self.agents[host]
        deadline = agent.deadline
        if deadline is not None and deadline <= self.queue.now:
            agent.tick(self.queue.now)
        self.flush(host)

    # --- running

    def run(self, done: Callable[[], bool], limit: float) -> float:
        """Run until `done()`; return the time. SimulationError past `limit` virtual seconds.

        `done` is asked after every event in which Python takes part: it cannot depend on time.
        """
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
            self.queue.run(limit=limit)
        return self.queue.now

    def run_until(self, time: float) -> None:
        """Run until a time."""
        passed: list[bool] = []
        self.queue.at(time, lambda: passed.append(True))
        self.run(lambda: bool(passed), inf)


def _free(world: int, channels: Iterable[int], nodes: Iterable[int]) -> None:
    """Free what compiled code holds."""
    for channel in channels:
        library().channel_free(channel)
    library().world_free(world)
    for node in nodes:
        library().node_free(node)


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
