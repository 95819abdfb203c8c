"""Switches as processes of a virtual world: an engine behind the real P4Runtime service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from finsy.proto import gnmi, gnmi_grpc, p4r, p4r_grpc

from hopsum.simulation.events import EventQueue
from hopsum.simulation.rpc import Exchange, Server, as_server
from hopsum.simulation.world import World
from p4switch.p4runtime.arbitration import Client
from p4switch.p4runtime.interfaces import InterfaceService
from p4switch.p4runtime.service import P4RuntimeService
from p4switch.p4runtime.status import fail
from p4switch.p4runtime.stream import LARGEST_BACKLOG
from p4switch.p4runtime.timers import SWEEP_SECONDS, Work
from p4switch.targets.v1model.engine import ControlError, Engine, Packet

LOGGER = logging.getLogger("hopsum.switches")

CPU_PORT = 510
"""The CPU port, as by default in hopsum.p4."""


class _Timers:
    """Timed work of P4Runtime as events: a `p4switch.p4runtime.timers.Clockwork`."""

    def __init__(self, queue: EventQueue, work: Work) -> None:
        self._queue = queue
        self._work = work
        self._sweep = False
        self._closed = False
        self._due: float | None = None

    def now_ns(self) -> int:
        """Return the virtual time in nanoseconds."""
        return int(self._queue.now * 1e9)

    date_ns = now_ns

    def configure(self, *, sweep: bool) -> None:
        """Set whether idle entries are checked."""
        self._sweep = sweep
        if sweep:
            self._plan(self._queue.now + SWEEP_SECONDS)

    def wake(self) -> None:
        """Recompute the deadlines."""
        deadline = self._work(False)
        if deadline is not None:
            self._plan(deadline / 1e9)

    def close(self) -> None:
        """Stop all timed work."""
        self._closed = True

    def _plan(self, time: float) -> None:
        if self._due is None or time < self._due:
            self._due = time
            self._queue.at(time, lambda: self._run(time))

    def _run(self, planned: float) -> None:
        if self._closed or self._due != planned:
            return
        self._due = None
        deadline = self._work(self._sweep)
        if deadline is not None:
            self._plan(deadline / 1e9)
        if self._sweep:
            self._plan(self._queue.now + SWEEP_SECONDS)


class _Service(P4RuntimeService):
    """The service with a stream that is a coroutine."""

    async def StreamChannel(  # type: ignore[override]
        self, requests: AsyncIterator[p4r.StreamMessageRequest], context: Any
    ) -> AsyncIterator[p4r.StreamMessageResponse]:
        """See the specification, chapters 5 and 16."""
        outbox: asyncio.Queue[p4r.StreamMessageResponse | ControlError | None] = asyncio.Queue()

        def offer(message: p4r.StreamMessageResponse) -> None:
            if outbox.qsize() < LARGEST_BACKLOG:
                outbox.put_nowait(message)

        async def read() -> None:
            end: ControlError | None = None
            try:
                async for request in requests:
                    self.take(client, request)
            except ControlError as error:
                end = error
            outbox.put_nowait(end)

        client = Client(outbox.put_nowait, offer)
        try:
            self.join()
        except ControlError as error:
            fail(context, error)
        reading = asyncio.create_task(read(), name="P4Runtime stream")
        try:
            while isinstance(message := await outbox.get(), p4r.StreamMessageResponse):
                yield message
        finally:
            reading.cancel()
            self.leave(client)
        if message is not None:
            fail(context, message)


class _Interfaces(InterfaceService):
    """gNMI with subscriptions that are coroutines."""

    async def Subscribe(  # type: ignore[override]
        self, requests: AsyncIterator[gnmi.SubscribeRequest], context: Any
    ) -> AsyncIterator[gnmi.SubscribeResponse]:
        """See the gNMI specification, 3.5."""
        news = asyncio.Event()
        try:
            subscription = self.join(await anext(requests), news.set)
        except ControlError as error:
            fail(context, error)
        try:
            for response in subscription.first:
                yield response
            while subscription.on_change:
                await news.wait()
                news.clear()
                for response in self.news(subscription):
                    yield response
        finally:
            self.leave(subscription)


class VirtualSwitch:
    """The switch `name` of a world, with a P4Runtime server at `address` while its process runs.

    `load` makes an engine from a device configuration. A process that ends loses all its state;
    frames that reach a switch without a process or a program are lost.
    """

    def __init__(
        self,
        name: str,
        world: World,
        exchange: Exchange,
        load: Callable[[bytes], Engine],
        device_id: int,
        ports: Collection[int],
    ) -> None:
        self.name = name
        self.address = f"switch {name}"
        self.device_id = device_id
        self._world = world
        self._exchange = exchange
        self._load = load
        self._links = dict.fromkeys(ports, True)
        """Whether each port exists, by its number."""
        self._service: _Service | None = None
        self._interfaces: _Interfaces | None = None
        self._server: Server | None = None
        self._engine: Engine | None = None
        self._started = 0.0
        self._hangs = False
        world.engines[name] = None
        world.unlinked[name] = self._to_controller

    # -- the interface of a data plane for P4Runtime

    def now_us(self) -> int:
        """Return the data plane's clock."""
        return int(self._world.queue.now * 1e6)

    def use(self, engine: Engine, handover: Callable[[], None] | None = None) -> None:
        """Run packets through another engine from now on."""
        if handover is not None:
            handover()
        self._engine = engine
        self._world.engines[self.name] = engine

    def inject(self, frame: bytes) -> None:
        """Receive a frame at the CPU port."""
        self._world.deliver(self._world.queue.now, self.name, CPU_PORT, frame)

    def _to_controller(self, packets: list[Packet]) -> None:
        if self._service is None or self._engine is None:
            return
        frames = [frame for port, frame in packets if port == CPU_PORT]
        if frames:
            self._service.packets_in(frames)
        digests = self._engine.take_digests()
        if digests:
            self._service.digests(digests)

    def port_changed(self, port: int, up: bool) -> None:
        """Record whether a port has a link."""
        self._links[port] = up
        if self._service is not None and self._interfaces is not None:
            self._service.port_changed(port, up)
            self._interfaces.port_changed(port, up)

    # -- the process

    @property
    def up(self) -> bool:
        """Return whether its process runs."""
        return self._service is not None

    def start(self) -> None:
        """Start the process, without the state of an earlier one."""
        if self.up:
            return
        self._started = self._world.queue.now
        self._service = _Service(
            self.device_id, self._load, self, lambda work: _Timers(self._world.queue, work)
        )
        self._server = Server(self._exchange, self.address)
        p4r_grpc.add_P4RuntimeServicer_to_server(self._service, as_server(self._server))
        names = {port: f"{self.name}-eth{port}" for port in self._links}
        self._interfaces = _Interfaces(names, lambda: int(self._world.queue.now * 1e9))
        gnmi_grpc.add_gNMIServicer_to_server(self._interfaces, as_server(self._server))
        for port, up in self._links.items():
            self.port_changed(port, up)
        self._server.start()
        self._exchange.record(self.name, self.name, "starts")

    def crash(self) -> None:
        """End the process: tables and registers are lost, connections reset."""
        if self._service is None or self._server is None:
            return
        self._exchange.record(self.name, self.name, "crashes")
        self._hangs = False
        self._world.engines[self.name] = None
        self._engine = None
        self._service.close()
        self._server.crash()
        self._service = self._server = self._interfaces = None

    def hang(self) -> None:
        """Suspend the process, with its state and connections, until `resume`."""
        if self._server is not None and not self._hangs:
            self._exchange.record(self.name, self.name, "hangs")
            self._hangs = True
            self._world.engines[self.name] = None
            self._server.hang()

    def resume(self) -> None:
        """Let a suspended process continue."""
        if self._server is not None and self._hangs:
            self._exchange.record(self.name, self.name, "resumes")
            self._hangs = False
            self._world.engines[self.name] = self._engine
            self._server.resume()
