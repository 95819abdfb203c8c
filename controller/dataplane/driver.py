"""Driver of switches over P4Runtime, by finsy: installs the rules of `rules_for` and maintains
them.

For every switch one task connects, pushes the pipeline if another one (or none) is there, reads
what the switch holds, writes the difference, and waits for new rules, of which it writes what is
new, or for the loss of the switch; then it begins again. A switch that leaves questions unanswered
is lost as well. So a restarted switch, one that hung, or a restarted controller, converges by
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, cast

import finsy as fy
import grpc
from finsy.gnmiclient import GNMIClientError
from finsy.p4entity import P4Entity
from finsy.p4schema import P4SchemaCache
from finsy.proto import p4r, p4r_grpc

from hopsum.controller.background import log_defect
from hopsum.controller.dataplane.connection import (
    FIRST_PAUSE,
    LAST_PAUSE,
    Connect,
    connect_by,
    connected,
    make_switch,
    open_channel,
)
from hopsum.controller.dataplane.entries import (
    Update,
    in_program_order,
    managed_tables,
    rules_read,
    updates,
)
from hopsum.controller.dataplane.pipeline import Pipeline
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.dataplane.slots import (
    OPCODE_INSPECT,
    OPCODE_SEND,
    SlotState,
    inspect_frame,
    slot_state,
)
from hopsum.protocol.errors import OperationError
from hopsum.protocol.outcomes import Outcome

LOGGER = logging.getLogger("hopsum.driver")


def _not_of_a_switch(record: logging.LogRecord) -> bool:
    """Return whether a record of finsy is not about a call that a switch failed: the driver logs
    those."""
    return record.exc_info is None or not isinstance(record.exc_info[1], fy.P4ClientError)


# finsy warns of normal states here: no gNMI, no pipeline before the first push, no switch yet.
logging.getLogger("finsy").setLevel(logging.ERROR)
logging.getLogger("finsy").addFilter(_not_of_a_switch)

ELECTION_ID = 10
"""P4Runtime election id of a single controller; clients with a lower one can only read."""
SILENCE_SECONDS = 10.0
"""Timeout of a silent switch: a busy machine may delay it for seconds; one that hangs counts as
lost."""
BATCH = 300
"""Updates in one write. gRPC limits metadata to 8 KiB, in which p4switch can name the errors of
some 400 updates."""
PUSH_SECONDS = 120.0
"""A first push may compile the program."""
CONNECT_SECONDS = 30.0
"""Timeout for connecting; gRPC itself allows a server 20 s."""
HEARTBEAT_SECONDS = 0.5
MOST_HEARTBEATS = 40
"""Maximum rate of probes per second to all switches: each costs a millisecond of CPU time."""
QUIET_SECONDS = 0.5
QUIET_FACTOR = 4
"""A switch is quiet if an answer takes this many times as long as the slowest recent one, and at
least `QUIET_SECONDS`: on a busy machine all answers are slow."""
ANSWERS = 16
"""Number of recent answers for `QUIET_FACTOR`."""
INSPECT_SECONDS = 2.0


class State(StrEnum):
    """State of a switch's connection."""

    CONNECTING = "connecting"
    PUSHING = "pushing the pipeline"
    WRITING = "writing rules"
    READY = "ready"
    REFUSED = "refused the rules"


@dataclass(frozen=True, slots=True)
class SwitchTarget:
    """A switch's P4Runtime server; `address` is host:port or unix:path.

    `pipeline`: what it runs; None: what the driver's other switches run. The P4Info is the same.
    """

    name: str
    address: str
    device_id: int = 1
    pipeline: Pipeline | None = None


class DriverError(OperationError):
    """A switch cannot be brought to what it should hold; the message names it and why.

    `failures`: what each refused update was, the canonical code, and the switch's words.
    """

    def __init__(self, switch: str, why: str, failures: Iterable[tuple[str, str, str]] = ()):
        self.switch = switch
        self.failures = tuple(failures)
        lines = [f"\n  {what}: {code}: {words}" for what, code, words in self.failures]
        super().__init__(f"switch {switch}: {why}" + "".join(lines))


@dataclass
class _Link:
    """One switch: its desired rules, and its state."""

    target: SwitchTarget
    wanted: SwitchRules
    generation: int = 0
    reached: int = -1
    state: State = State.CONNECTING
    detail: str = ""
    error: DriverError | None = None
    switch: fy.Switch | None = None
    held: SwitchRules | None = None
    """The switch's rules; None: they have to be read."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    inspecting: asyncio.Lock = field(default_factory=asyncio.Lock)
    answers: deque[float] = field(default_factory=lambda: deque(maxlen=ANSWERS))
    """Durations of recent answers, in seconds."""
    quiet: bool = False

    @property
    def patience(self) -> float:
        """Seconds after which an answer is late."""
        return max(QUIET_SECONDS, QUIET_FACTOR * max(self.answers, default=0.0))


class Driver:
    """Holds the connections to all switches of a network: `async with Driver(...) as driver`.

    `listener` is called with (switch, state, detail) on every change of state. A switch that
    answers nothing for `silence` seconds is unreachable. `connect` opens channels.
    """

    def __init__(
        self,
        targets: Iterable[SwitchTarget],
        pipeline: Pipeline,
        rules: Mapping[str, SwitchRules] | None = None,
        *,
        election_id: int = ELECTION_ID,
        silence: float = SILENCE_SECONDS,
        listener: Callable[[str, State, str], None] | None = None,
        connect: Connect = open_channel,
    ) -> None:
        self._pipeline = pipeline
        self.history = ""
        """History of the jobs whose rules are installed; set it before switches connect. A switch
        with slots of another history gets its program reinstalled."""
        self._schemas = P4SchemaCache()  # type: ignore[no-untyped-call]
        """What finsy makes of the P4Info, the same for all switches."""
        self._connect = connect
        self._election_id = election_id
        self._silence = silence
        self._listener = listener
        self.changed: Callable[[str], None] = lambda switch: None
        """Called with a switch's name when what `reachable` or `ports` return may have changed."""
        self._news = asyncio.Event()
        rules = rules or {}
        self._links = {
            target.name: _Link(target, rules.get(target.name, SwitchRules())) for target in targets
        }
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Driver:
        for name in self._links:
            self.changed(name)
        self._tasks = [
            asyncio.create_task(self._keep(link), name=f"drive {link.target.name}")
            for link in self._links.values()
        ]
        for task in self._tasks:
            task.add_done_callback(log_defect)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- requests of others

    def targets(self) -> dict[str, SwitchTarget]:
        """Address of each switch."""
        return {name: link.target for name, link in self._links.items()}

    def states(self) -> dict[str, State]:
        """State of each switch."""
        return {name: link.state for name, link in self._links.items()}

    def reachable(self, name: str) -> bool | None:
        """Return whether a switch is reachable; None while it is being programmed.

        One that answers later than usual is not: a switch that hangs does long before `silence` is
        over.
        """
        link = self._link(name)
        if link.state in (State.PUSHING, State.WRITING):
            return None
        return link.state is not State.CONNECTING and not link.quiet

    def ports(self, name: str) -> dict[int, bool]:
        """Return whether ports of a switch have a link, by number, if it reports that.

        A switch does over gNMI, as p4switch; BMv2 does not. Nor does one that is not connected.
        """
        switch = self._link(name).switch
        return {} if switch is None else {port.id: port.up for port in switch.ports}

    async def apply(self, rules: Mapping[str, SwitchRules], timeout: float | None = None) -> None:
        """Set the desired rules, and wait until the named switches have them.

        Raises DriverError if a switch refuses them, TimeoutError naming those that lag behind.
        """
        for name, wanted in rules.items():
            link = self._link(name)
            link.wanted = wanted
            link.generation += 1
            link.error = None
            link.changed.set()
        await self.wait(rules, timeout)

    async def wait(self, names: Iterable[str] | None = None, timeout: float | None = None) -> None:
        """Wait until the switches (all, by default) have the desired rules; errors as in apply."""
        links = [self._link(name) for name in (self._links if names is None else names)]
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._news.clear()
                    for link in links:
                        if link.error is not None:
                            raise link.error
                    if all(link.reached == link.generation for link in links):
                        return
                    await self._news.wait()
        except TimeoutError:
            lag = ", ".join(
                f"{link.target.name} ({link.target.address}): {link.state} {link.detail}".rstrip()
                for link in links
                if link.reached != link.generation
            )
            raise TimeoutError(f"after {timeout} s these switches are not ready: {lag}") from None

    async def outcomes(self, name: str) -> dict[Outcome, int]:
        """Read the outcome counter of a switch."""
        switch = self._connected(name)
        counts = dict.fromkeys(Outcome, 0)
        try:
            for entry in await _read(switch, fy.P4CounterEntry("outcomes")):
                if isinstance(entry, fy.P4CounterEntry) and entry.index in counts:
                    counts[Outcome(entry.index)] = entry.packet_count
        except fy.P4ClientError as error:
            raise _driver_error(name, "reading its counters failed", error) from None
        return counts

    async def inspect(self, name: str, slot: int) -> SlotState:
        """Read a slot in-band, by packet-out and packet-in.

        Raises DriverError if there is no such slot, or no answer comes.
        """
        if not 0 <= slot < self._pipeline.slots:
            raise DriverError(name, f"slot {slot}: it has slots 0 to {self._pipeline.slots - 1}")
        link = self._link(name)
        frame = inspect_frame(self._pipeline.lanes)
        async with link.inspecting, _answers(self._connected(name)) as answers:
            await self.packet_out(name, frame, opcode=OPCODE_INSPECT, slot=slot)
            try:
                async with asyncio.timeout(INSPECT_SECONDS):
                    async for packet in answers:
                        if (packet["opcode"], packet["slot"]) == (OPCODE_INSPECT, slot):
                            return slot_state(packet.metadata, packet.payload, self._pipeline.lanes)
            except TimeoutError:
                pass
        raise DriverError(
            name,
            f"slot {slot}: no answer within {INSPECT_SECONDS} s; "
            "the switch must run hopsum.p4 with a CPU port",
        )

    async def packet_out(
        self, name: str, frame: bytes, *, port: int = 0, opcode: int = OPCODE_SEND, slot: int = 0
    ) -> None:
        """Send a packet-out to a switch: by default to send it out of `port`."""
        switch = self._connected(name)
        metadata: dict[str, Any] = {"opcode": opcode, "port": port, "slot": slot}
        for pad in switch.p4info.controller_packet_metadata["packet_out"].metadata:
            metadata.setdefault(pad.name, 0)
        await switch.write([fy.P4PacketOut(frame, **metadata)])

    # -- one switch

    def _link(self, name: str) -> _Link:
        if name not in self._links:
            raise DriverError(name, f"unknown; switches: {', '.join(self._links)}")
        return self._links[name]

    def _connected(self, name: str) -> fy.Switch:
        link = self._link(name)
        if link.switch is None:
            raise DriverError(name, f"not connected ({link.target.address}: {link.state})")
        return link.switch

    def _move(self, link: _Link, state: State, detail: str = "") -> None:
        link.state, link.detail = state, detail
        LOGGER.info("[%s] %s %s", link.target.name, state, detail)
        if self._listener:
            self._listener(link.target.name, state, detail)
        self._news.set()
        self.changed(link.target.name)

    def _set_quiet(self, link: _Link, quiet: bool) -> None:
        if link.quiet is not quiet:
            link.quiet = quiet
            self.changed(link.target.name)

    async def _keep(self, link: _Link) -> None:
        """Keep a switch connected and reconciled, forever."""
        connect_by(self._connect)
        pause = FIRST_PAUSE
        while True:
            try:
                await self._session(link)
                pause = FIRST_PAUSE
                why = "lost"
            except (
                fy.P4ClientError,
                GNMIClientError,
                grpc.RpcError,
                OSError,
                RuntimeError,
            ) as error:
                why = _in_short(error)
            link.switch = None
            link.quiet = False
            link.reached = -1
            self._move(link, State.CONNECTING, why)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)

    async def _session(self, link: _Link) -> None:
        """Handle a switch from connecting to losing it."""
        options = fy.SwitchOptions(
            # finsy takes the message as well as a file's path.
            p4info=cast(Any, self._pipeline.p4info),
            device_id=link.target.device_id,
            initial_election_id=self._election_id,
        )
        with self._schemas:
            switch = make_switch(link.target.name, link.target.address, options)
        lost = asyncio.Event()
        switch.ee.on(fy.SwitchEvent.CHANNEL_DOWN, lambda _: lost.set())
        for event in (fy.SwitchEvent.PORT_UP, fy.SwitchEvent.PORT_DOWN):
            switch.ee.on(event, lambda _, port: self.changed(link.target.name))
        # Only a primary can write: nobody else has since this one's last write, or it was demoted.
        switch.ee.on(fy.SwitchEvent.BECOME_BACKUP, lambda _: setattr(link, "held", None))
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(CONNECT_SECONDS):
                await stack.enter_async_context(connected(switch))
            if not switch.is_primary:
                raise RuntimeError(
                    f"another controller (election id {switch.primary_id}) holds the switch"
                )
            channel = await stack.enter_async_context(self._connect(link.target.address))
            stub = p4r_grpc.P4RuntimeStub(channel)
            await _until_one_ends(self._hold(switch, link, stub, lost), self._ask(link, stub))

    async def _hold(
        self, switch: fy.Switch, link: _Link, stub: p4r_grpc.P4RuntimeAsyncStub, lost: asyncio.Event
    ) -> None:
        """Keep a connected switch reconciled until it is lost."""
        link.held = None
        self._move(link, State.PUSHING)
        await self._push(switch, link.target, stub)
        link.switch = switch
        while not lost.is_set():
            link.changed.clear()
            await self._write(switch, link)
            await _first_of(lost, link.changed)

    async def _ask(self, link: _Link, stub: p4r_grpc.P4RuntimeAsyncStub) -> None:
        """Probe a switch periodically for its capabilities; TimeoutError if it stays silent.

        The connections of a process that hangs stay open. gRPC's own keepalive would notice that,
        but servers end connections that ping more often than every five minutes unless they are
        configured otherwise (GOAWAY, "too many pings"), and simple_switch_grpc is not; a call is no
        ping.
        """
        loop = asyncio.get_running_loop()
        pause = max(HEARTBEAT_SECONDS, len(self._links) / MOST_HEARTBEATS)
        while True:
            sent = loop.time()
            late = loop.call_later(link.patience, self._set_quiet, link, True)
            try:
                await stub.Capabilities(p4r.CapabilitiesRequest(), timeout=self._silence)
            except grpc.aio.AioRpcError as error:
                # A refusal is an answer, and a connection that breaks ends the stream as well.
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise TimeoutError(f"no answer for {self._silence:g} s") from None
            finally:
                late.cancel()
            self._set_quiet(link, False)
            link.answers.append(loop.time() - sent)
            await asyncio.sleep(pause)

    async def _push(
        self, switch: fy.Switch, target: SwitchTarget, stub: p4r_grpc.P4RuntimeAsyncStub
    ) -> None:
        """Install the program unless it is installed for this history; all slots are empty
        afterwards.

        (VERIFY_AND_COMMIT: others break BMv2.)
        """
        pipeline = target.pipeline or self._pipeline
        cookie = pipeline.cookie(self.history)
        request = p4r.GetForwardingPipelineConfigRequest(
            device_id=target.device_id,
            response_type=p4r.GetForwardingPipelineConfigRequest.COOKIE_ONLY,
        )
        try:
            reply = await stub.GetForwardingPipelineConfig(request)
            if reply.config.cookie.cookie == cookie:
                return
            await _drop_replication(switch)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
        config = p4r.ForwardingPipelineConfig(
            p4info=pipeline.p4info,
            p4_device_config=pipeline.config,
            cookie=p4r.ForwardingPipelineConfig.Cookie(cookie=cookie),
        )
        election = switch.election_id
        await stub.SetForwardingPipelineConfig(
            p4r.SetForwardingPipelineConfigRequest(
                device_id=target.device_id,
                election_id=p4r.Uint128(high=election >> 64, low=election & (1 << 64) - 1),
                action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
                config=config,
            ),
            timeout=PUSH_SECONDS,
        )

    async def _write(self, switch: fy.Switch, link: _Link) -> None:
        """Reconcile the switch with the desired rules."""
        generation = link.generation
        self._move(link, State.WRITING)
        try:
            wanted = in_program_order(link.wanted, switch.p4info)
            held = await _holds(switch) if link.held is None else link.held
            steps = updates(held, wanted)
            # Unless all of them are written.
            link.held = None
            for start in range(0, len(steps), BATCH):
                batch = steps[start : start + BATCH]
                try:
                    await switch.write([step.encoded() for step in batch])  # type: ignore[misc]
                except fy.P4ClientError as error:
                    if not error.details:
                        raise
                    raise _driver_error(
                        link.target.name, "refused some rules", error, batch
                    ) from None
        except (ValueError, DriverError) as error:
            if not isinstance(error, DriverError):
                error = DriverError(link.target.name, f"the rules do not fit its program: {error}")
            link.error = error
            self._move(link, State.REFUSED, str(error))
            return
        link.held = wanted
        if link.generation == generation:
            link.reached = generation
            self._move(link, State.READY, f"{len(steps)} updates")


async def _read(switch: fy.Switch, *patterns: P4Entity) -> list[P4Entity]:
    """Read all entities of a switch that match one of the patterns."""
    # finsy declares its overloads as coroutines; they are asynchronous generators.
    found: AsyncIterator[P4Entity] = cast(Any, switch).read(patterns)
    return [entity async for entity in found]


async def _holds(switch: fy.Switch) -> SwitchRules:
    """Return the current rules of a switch."""
    # Most entries of the program are constant.
    tables = [fy.P4TableEntry(name) for name in sorted(managed_tables(switch.p4info))]
    replication = fy.P4MulticastGroupEntry(), fy.P4CloneSessionEntry()
    return rules_read(await _read(switch, *tables, *replication), switch.p4info)


async def _drop_replication(switch: fy.Switch) -> None:
    """Delete the multicast groups and clone sessions before another program is pushed.

    BMv2 forgets them when it takes a program, but its packet engine keeps their replicas:
    a new group of the same number would replicate to the old one's ports as well.
    """
    held = await _read(switch, fy.P4MulticastGroupEntry(), fy.P4CloneSessionEntry())
    if held:
        await switch.write([-each for each in held])  # type: ignore[operator]


@contextlib.asynccontextmanager
async def _answers(switch: fy.Switch) -> AsyncIterator[AsyncIterator[fy.P4PacketIn]]:
    """Subscription to packet-ins from now on."""
    queue: asyncio.Queue[fy.P4PacketIn] = asyncio.Queue()

    async def collect() -> None:
        async for packet in switch.read_packets():
            queue.put_nowait(packet)

    async def packets() -> AsyncIterator[fy.P4PacketIn]:
        while True:
            yield await queue.get()

    task = asyncio.create_task(collect())
    # The task has to run once, so that the queue is open before the question goes out.
    await asyncio.sleep(0)
    try:
        yield packets()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _until_one_ends(*works: Coroutine[Any, Any, None]) -> None:
    """Run several coroutines until one returns or raises, and do the same.

    Raises RuntimeError if one is cancelled: finsy cancels a switch's calls when its stream ends.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        if task.cancelled():
            raise RuntimeError("its calls were cancelled: the connection is lost")
        task.result()


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _in_short(error: Exception) -> str:
    """Return the message of a failed call, in one line."""
    if isinstance(error, fy.P4ClientError):
        return f"{error.code.name}: {error.message}"
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


def _driver_error(
    name: str, why: str, error: fy.P4ClientError, batch: list[Update] | None = None
) -> DriverError:
    """Return the error with the names of all rejected updates."""
    if not error.details:
        return DriverError(name, f"{why}: {error.code.name}: {error.message}")
    failures = [
        (
            f"{batch[number].change.value} {batch[number].what}" if batch else f"update {number}",
            detail.canonical_code.name,
            detail.message,
        )
        for number, detail in sorted(error.details.items())
    ]
    return DriverError(name, why, failures)
