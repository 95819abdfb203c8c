"""A whole cluster in virtual time: network, switches, agents and the real controller.

The controller's own assembly (`hopsum.controller.api.serving`) runs on a loop in virtual time; its
driver speaks P4Runtime to the service of every switch, and its services serve the agents' sessions,
both over `hopsum.simulation.rpc`. One seed is one history: `trace` records every message between
processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hopsum.controller.api.listening import STOP_SECONDS, AddTo
from hopsum.controller.api.serving import serve_cluster
from hopsum.controller.dataplane.driver import Driver, SwitchTarget
from hopsum.controller.dataplane.pipeline import Pipeline
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.journal import FileJournal
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.host_agent.node.environment import Stream
from hopsum.host_agent.plan_checks import KEY_BYTES
from hopsum.host_agent.session import AgentSession, NodeSession
from hopsum.network.model import Network
from hopsum.protocol import hopsum_pb2_grpc as pb_grpc
from hopsum.protocol.channel import ControllerError
from hopsum.protocol.errors import HopsumError
from hopsum.simulation.disk import VirtualDisk
from hopsum.simulation.events import EventQueue, SimulationError
from hopsum.simulation.faults import Faults, Outage, OutageKind
from hopsum.simulation.host import VirtualHost, VirtualHosts
from hopsum.simulation.loop import PROCESS, VirtualLoop
from hopsum.simulation.rpc import Exchange, Server, as_channel, as_server
from hopsum.simulation.session_stream import SessionStream
from hopsum.simulation.switches import VirtualSwitch
from hopsum.simulation.tcp import RECEIVE_BUFFER, receive_buffer
from hopsum.simulation.wire import Wire, WireOptions
from hopsum.simulation.world import Observer, World
from p4switch.targets.v1model.engine import Engine

LOGGER = logging.getLogger("hopsum.virtual")

CONTROLLER = "controller"
_CUT, _RESTORED = "is cut", "is restored"
PEOPLE = "people"
FIRST_DATE = 1_767_225_600.0
"""2026-01-01, the start of every history."""
RESTART_SECONDS = 1.0
"""Pause before a controller that gave up, or a rejected agent, is restarted."""
CHECK_SECONDS = 0.05
"""Polling interval of `until`."""


@dataclass(frozen=True)
class ClusterOptions:
    """Options of a virtual cluster. A journal file named in `settings` is on `disk`.

    `hosts`: those with an agent; None: all. `fair`: where links have one queue, hosts serve their
    TCP connections in turn, with buffers of the same size as in Mininet.
    """

    pipeline: Pipeline
    load: Callable[[bytes], Engine]
    settings: ClusterSettings
    seed: int = 0
    faults: Faults = field(default_factory=Faults)
    outages: Sequence[Outage] = ()
    wires: WireOptions = field(default_factory=WireOptions)
    start_spread: float = 0.05
    """Seconds over which starts of switches and hosts are randomly spread."""
    hosts: Collection[str] | None = None
    fair: bool = False
    observers: Sequence[Observer] = ()
    disk: VirtualDisk = field(default_factory=VirtualDisk)


@dataclass
class _Host:
    """A host's process: its agent, and the streams of its sessions."""

    cluster: VirtualCluster
    name: str
    streams: dict[int, SessionStream] = field(default_factory=dict)
    agent: VirtualHost = field(init=False)
    _advancing: bool = False

    def __post_init__(self) -> None:
        node = NodeSession(CONTROLLER, self.name, instance=self._instance())
        self.agent = VirtualHost(self.name, self.cluster.common, node, self._attend, self._leave)
        self.open(node)

    def _attend(self, job: int) -> AgentSession:
        session = AgentSession(CONTROLLER, job, self.name, self._instance())
        self.open(session)
        return session

    def _instance(self) -> str:
        """Return a name that no other session of the host has, and that every run repeats."""
        return f"since {self.cluster.queue.now}"

    def _leave(self, session: Stream) -> None:
        stream = self.streams.pop(id(session), None)
        if stream is not None:
            stream.close()

    def open(self, session: NodeSession | AgentSession) -> None:
        """Keep a session's stream open until it is over."""
        exchange = self.cluster.exchange
        self.streams[id(session)] = SessionStream(exchange, session, self._news)

    def kill(self) -> None:
        """End, and reset all connections."""
        for stream in self.streams.values():
            stream.kill()
        self.streams.clear()
        self.cluster.exchange.end_client(self.name)
        self.agent.close()

    def _news(self) -> None:
        if not self._advancing:
            self._advancing = True
            self.cluster.queue.at(self.cluster.queue.now, self._advance)

    def _advance(self) -> None:
        self._advancing = False
        if self.cluster.hosts.get(self.name) is not self:
            return
        try:
            self.agent.go_on()
        except ControllerError as error:
            # The process ends and is restarted, as in `hopsum cluster`.
            LOGGER.warning("[%s] %s", self.name, error)
            self.cluster.crash_host(self.name)
            later = self.cluster.queue.now + RESTART_SECONDS
            self.cluster.queue.at(later, partial(self.cluster.start_host, self.name))


class VirtualCluster:
    """A cluster on `network`: `async with VirtualCluster(...)`, in a loop on its `queue`."""

    def __init__(self, network: Network, options: ClusterOptions, queue: EventQueue) -> None:
        self.network = network
        self.queue = queue
        self.options = options
        self.disk = options.disk
        self.clock_error = 0.0
        """Seconds by which the wall clock of the controller's machine is ahead."""
        self.trace: list[str] = []
        self.exchange = Exchange(queue, options.seed, options.wires, self.trace.append)
        self.world = World(
            network,
            {},
            {},
            faults=options.faults,
            seed=options.seed,
            fair=options.fair,
            queue=queue,
            observers=options.observers,
        )
        self.switches = {
            name: VirtualSwitch(
                name, self.world, self.exchange, options.load, number, network.ports(name)
            )
            for number, name in enumerate(network.switches, start=1)
        }

        def buffer(host: str) -> int:
            return receive_buffer(network, host) if options.fair else RECEIVE_BUFFER

        self.common = VirtualHosts(self.world, buffer)
        self.hosts: dict[str, _Host] = {}
        """Hosts whose agent process runs."""
        self.controller: Cluster | None = None
        self.driver: Driver | None = None
        """The current controller's, if there is one."""
        self._controlling: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._rng = random.Random(f"{options.seed}/cluster")
        self._keys = random.Random(f"{options.seed}/keys")
        channel = as_channel(self.exchange.channel(PEOPLE, CONTROLLER))
        self.people = pb_grpc.ControllerStub(channel)

    async def __aenter__(self) -> VirtualCluster:
        for switch in self.switches.values():
            self._soon(switch.start)
        for host in self.network.hosts if self.options.hosts is None else self.options.hosts:
            self._soon(partial(self.start_host, host))
        for outage in self.options.outages:
            self.plan(outage)
        self.start_controller()
        return self

    async def __aexit__(self, *error: object) -> None:
        for (u, v), channel in self.world.channels.items():
            self.trace.append(
                f"{self.queue.now:.9f} {u} > {v} {channel.frames} frames, {channel.bytes} bytes, "
                f"{channel.lost} lost"
            )
        for host in list(self.hosts):
            self.crash_host(host)
        await self.crash_controller()

    def _soon(self, start: Callable[[], None]) -> None:
        self.queue.at(self.queue.now + self.options.start_spread * self._rng.random(), start)

    async def up(self) -> tuple[Cluster, Driver]:
        """Wait for the controller and its driver."""
        while self.controller is None or self.driver is None:
            await asyncio.sleep(CHECK_SECONDS)
        return self.controller, self.driver

    def link_bytes(self) -> dict[tuple[str, str], int]:
        """Return the bytes on links, by direction."""
        return {ends: channel.bytes for ends, channel in self.world.channels.items()}

    async def until(self, true: Callable[[], object], what: str, within: float = 600.0) -> None:
        """Wait for a condition; SimulationError after a virtual timeout."""
        end = self.queue.now + within
        while not true():
            if self.queue.now > end:
                raise SimulationError(f"waited {within} s for {what}")
            await asyncio.sleep(CHECK_SECONDS)

    # -- the controller

    def start_controller(self) -> None:
        """Start the controller with the existing journal."""
        if self._controlling is None or self._controlling.done():
            self._record(CONTROLLER, "starts")
            self._stop = asyncio.Event()
            process = contextvars.copy_context()
            process.run(PROCESS.set, CONTROLLER)
            self._controlling = asyncio.create_task(
                self._supervise(), name=CONTROLLER, context=process
            )

    def journal(self) -> FileJournal:
        """Return the journal as a controller that starts now would find it."""
        file = self.options.settings.journal
        assert isinstance(file, Path)
        return FileJournal(file, disk=self.disk)

    async def stop_controller(self) -> None:
        """End it as SIGTERM does."""
        self._stop.set()
        if self._controlling is not None:
            await self._controlling

    async def crash_controller(self) -> None:
        """Kill it: nothing it does from now on reaches network or journal."""
        controlling, self._controlling = self._controlling, None
        if controlling is None:
            return
        self._record(CONTROLLER, "crashes")
        kept = self.disk.content()
        self.disk.end_owners()
        server = self.exchange.server(CONTROLLER)
        if server is not None:
            server.crash()
        self.exchange.end_client(CONTROLLER)
        controlling.cancel()
        self._loop.resume(CONTROLLER)
        await asyncio.gather(controlling, return_exceptions=True)
        self.exchange.end_client(CONTROLLER)
        self.disk.restore(kept)

    def hang_controller(self) -> None:
        """Stop its process, as SIGSTOP or a paused virtual machine does, until `resume`."""
        server = self.exchange.server(CONTROLLER)
        if self._controlling is not None:
            self._record(CONTROLLER, "hangs")
            self._loop.hang(CONTROLLER)
            if server is not None:
                server.hang()

    def resume_controller(self) -> None:
        """Let it continue."""
        server = self.exchange.server(CONTROLLER)
        self._record(CONTROLLER, "resumes")
        self._loop.resume(CONTROLLER)
        if server is not None:
            server.resume()

    @property
    def _loop(self) -> VirtualLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop

    async def _supervise(self) -> None:
        """Restart the controller when it fails for external reasons, as systemd does."""
        while True:
            try:
                await self._control()
                return
            except (HopsumError, TimeoutError) as error:
                LOGGER.warning("[%s] %s", CONTROLLER, error)
                self._record(CONTROLLER, "ends")
                server = self.exchange.server(CONTROLLER)
                if server is not None:
                    server.crash()
                self.exchange.end_client(CONTROLLER)
            await asyncio.sleep(RESTART_SECONDS)

    async def _control(self) -> None:
        self.driver = driver = Driver(
            [SwitchTarget(s.name, s.address, s.device_id) for s in self.switches.values()],
            self.options.pipeline,
            connect=lambda address: as_channel(self.exchange.channel(CONTROLLER, address)),
        )
        try:
            async with serve_cluster(
                self.network,
                driver,
                self.listen,
                replace(self.options.settings, journal=self.journal()),
                link_bytes=self.link_bytes,
                set_link=self.set_link,
                date=lambda: FIRST_DATE + self.queue.now + self.clock_error,
                new_key=partial(self._keys.randbytes, KEY_BYTES),
            ) as (self.controller, _):
                await self._stop.wait()
        finally:
            self.controller = self.driver = None

    @contextlib.asynccontextmanager
    async def listen(self, services: Iterable[AddTo]) -> AsyncIterator[str]:
        """Serve gRPC services at the controller's address, which is provided."""
        server = Server(self.exchange, CONTROLLER)
        for add in services:
            add(as_server(server))
        server.start()
        try:
            yield CONTROLLER
        finally:
            if self.exchange.server(CONTROLLER) is server:
                self.exchange.close(CONTROLLER)
                await asyncio.sleep(STOP_SECONDS)
            server.crash()

    # -- hosts

    def start_host(self, host: str) -> None:
        """Start a host's agent process."""
        if host in self.hosts:
            return
        self._record(host, "starts")
        process = self.hosts[host] = _Host(self, host)
        self.world.join(host, process.agent)

    def crash_host(self, host: str) -> None:
        """Kill a host's agent process."""
        if host in self.hosts:
            self._record(host, "crashes")
            self.world.leave(host)
            self.hosts.pop(host).kill()

    # -- links and wires

    def set_link(self, u: str, v: str, up: bool) -> None:
        """Restore a link, or cut it; the ports at its ends go up, or down."""
        self._record(f"{u}-{v}", _RESTORED if up else _CUT)
        for node, peer in ((u, v), (v, u)):
            self.world.channels[node, peer].cut = not up
        for node, peer in ((u, v), (v, u)):
            if node in self.switches:
                self.switches[node].port_changed(self.network.port(node, peer), up)

    def drift(self, host: str, pace: float) -> None:
        """Set the rate of a host's clock to `pace` seconds per second."""
        self._record(host, f"runs at {pace}")
        self.common.clocks[host].drift(self.queue.now, pace)
        if host in self.hosts:
            self.world.flush(host)

    def wire(self, name: str) -> Wire:
        """Return the wire between the controller and a host or switch."""
        if name in self.switches:
            return self.exchange.wire(CONTROLLER, self.switches[name].address)
        return self.exchange.wire(name, CONTROLLER)

    def set_management(self, up: bool) -> None:
        """Restore the management network, or lose all messages between controller and the rest."""
        self._record("management", _RESTORED if up else _CUT)
        for name in (*self.network.hosts, *self.switches):
            wire = self.wire(name)
            if up:
                wire.join()
            else:
                wire.part()

    # -- outages

    def plan(self, outage: Outage) -> None:
        """Schedule an outage."""
        begin, end = self._troubles(outage)
        self.queue.at(outage.start, begin)
        if outage.stop < math.inf:
            self.queue.at(outage.stop, end)

    def _troubles(self, outage: Outage) -> tuple[Callable[[], None], Callable[[], None]]:
        what = outage.what
        match outage.trouble:
            case OutageKind.SWITCH_DOWN:
                return self.switches[what].crash, self.switches[what].start
            case OutageKind.SWITCH_HANGS:
                return self.switches[what].hang, self.switches[what].resume
            case OutageKind.LINK_CUT:
                u, _, v = what.partition("-")
                return partial(self.set_link, u, v, False), partial(self.set_link, u, v, True)
            case OutageKind.AGENT_DOWN:
                return lambda: self.crash_host(what), lambda: self.start_host(what)
            case OutageKind.CONTROLLER_DOWN:
                return self.crash_controller_now, self.start_controller
            case OutageKind.CONTROLLER_HANGS:
                return self.hang_controller, self.resume_controller
            case OutageKind.PARTED:
                return self.wire(what).part, self.wire(what).join
            case OutageKind.MANAGEMENT_CUT:
                return partial(self.set_management, False), partial(self.set_management, True)

    def crash_controller_now(self) -> None:
        """Kill the controller, from an event."""
        asyncio.get_running_loop().create_task(self.crash_controller(), name="crash")

    def _record(self, who: str, what: str) -> None:
        self.trace.append(f"{self.queue.now:.9f} {who} {what}")
