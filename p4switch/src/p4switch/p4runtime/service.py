"""The P4Runtime service of one device (P4Runtime specification 1.5, chapters 10 to 16)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc

from p4switch.p4runtime import batch
from p4switch.p4runtime.arbitration import Arbitration, Client
from p4switch.p4runtime.p4info_match import difference
from p4switch.p4runtime.pipeline import Pipeline, device_config, unwrapped
from p4switch.p4runtime.reader import Reader
from p4switch.p4runtime.status import code_of, fail, fail_parts
from p4switch.p4runtime.stream import Outbox
from p4switch.p4runtime.timers import Clockwork, Timers, Work
from p4switch.p4runtime.writer import Writer
from p4switch.position import P4Error
from p4switch.proto import U128, p4r, p4r_grpc
from p4switch.targets.v1model.engine import ControlError, Digest, Engine

API_VERSION = "1.5.0"
MAX_STREAMS = 16
"""Maximum clients with a stream; each holds a thread of the server."""
ENTITIES_A_MESSAGE = 512
"""Maximum entities per read response, to stay below gRPC's default limit of 4 MB."""

Action = p4r.SetForwardingPipelineConfigRequest

log = logging.getLogger(__name__)


class DataPlane(Protocol):
    """The packet loop of the current pipeline's engine."""

    def now_us(self) -> int:
        """Return the data plane's clock in microseconds."""

    def use(self, engine: Engine, handover: Callable[[], None] | None = None) -> None:
        """Run packets through another engine from now on.

        With a `handover`, which is called between, no packet is lost.
        """

    def inject(self, frame: bytes) -> None:
        """Receive a frame at the CPU port."""


@dataclass(slots=True)
class Running:
    """A pipeline with its writer and reader."""

    pipeline: Pipeline
    writer: Writer
    reader: Reader


class P4RuntimeService(p4r_grpc.P4RuntimeServicer):
    """The six calls of P4Runtime.

    `load` makes an engine from a device configuration; it raises P4Error or ControlError. `timers`
    makes the object that does timed work.

    Callers that serve streams without a thread each, unlike `StreamChannel`, call `join`, `take`
    for each message, and `leave`.
    """

    def __init__(
        self,
        device_id: int,
        load: Callable[[bytes], Engine],
        data_plane: DataPlane,
        timers: Callable[[Work], Clockwork] = Timers,
    ) -> None:
        self.device_id = device_id
        self._load = load
        self._data_plane = data_plane
        self._state_lock = threading.RLock()  # Pipelines: reads, writes, a change of primary.
        self._read_lock = threading.Lock()  # One read at a time; acquired before _state_lock.
        self._stream_lock = threading.RLock()  # clients; acquired after _state_lock if both are
        self._arbitration = Arbitration(device_id)
        self._streams = 0
        self._down: set[int] = set()
        self._running: Running | None = None
        self._saved: Running | None = None
        self._timers = timers(self._send_due)

    # --- the pipeline

    def start(self, engine: Engine, config: p4r.ForwardingPipelineConfig) -> None:
        """Run a program that no client has pushed."""
        with self._state_lock:
            self._commit(self._make(engine, config))

    def reload(self, engine: Engine, config: p4r.ForwardingPipelineConfig) -> None:
        """Run another program as RECONCILE_AND_COMMIT does. Raises ControlError."""
        with self._state_lock:
            self._reconcile(self._make(engine, config))

    @property
    def engine(self) -> Engine | None:
        """Return the current engine, if there is a pipeline."""
        running = self._running
        return running.pipeline.engine if running is not None else None

    @property
    def device_config(self) -> bytes:
        """Return the current program as it was pushed; empty if there is none."""
        running = self._running
        return b"" if running is None else unwrapped(running.pipeline.config.p4_device_config)

    def close(self) -> None:
        """Stop the timers."""
        self._timers.close()

    def port_changed(self, port: int, up: bool) -> None:
        """Record whether a port has a link: selectors' members may watch it."""
        with self._state_lock:
            (self._down.discard if up else self._down.add)(port)
            for running in (self._running, self._saved):
                if running is not None:
                    running.writer.port_changed(port)

    def _make(self, engine: Engine, config: p4r.ForwardingPipelineConfig) -> Running:
        pipeline = Pipeline(engine, config, self._down)
        return Running(pipeline, Writer(pipeline), Reader(pipeline, self._data_plane.now_us))

    def _verified(self, config: p4r.ForwardingPipelineConfig) -> Running:
        """Return a pipeline for a client's configuration; INVALID_ARGUMENT if it is invalid."""
        kept = p4r.ForwardingPipelineConfig()
        kept.CopyFrom(config)
        try:
            made = self._make(self._load(device_config(config)), kept)
        except P4Error as error:
            raise ControlError("INVALID_ARGUMENT", str(error)) from error
        problem = difference(config.p4info, made.pipeline.p4info)
        if problem is not None:
            raise ControlError(
                "INVALID_ARGUMENT", f"the P4Info is not that of the device config: {problem}"
            )
        return made

    def _commit(self, made: Running, handover: Callable[[], None] | None = None) -> None:
        self._data_plane.use(made.pipeline.engine, handover)
        self._running, self._saved = made, None
        self._timers.configure(sweep=made.pipeline.has_timeouts)

    def _current(self) -> Running:
        """Return the pipeline that requests refer to; FAILED_PRECONDITION if there is none."""
        current = self._saved or self._running
        if current is None:
            # finsy recognizes this case by BMv2's wording.
            raise ControlError(
                "FAILED_PRECONDITION", "No forwarding pipeline config set for this device"
            )
        return current

    def _check_device(self, device_id: int) -> None:
        if device_id != self.device_id:
            raise ControlError(
                "NOT_FOUND", f"device id {device_id}: this is device {self.device_id}"
            )

    def _check_primary(self, request: p4r.WriteRequest | Action) -> None:
        self._check_device(request.device_id)
        with self._stream_lock:
            self._arbitration.check_primary(request.role, U128.decode(request.election_id))

    def SetForwardingPipelineConfig(
        self, request: Action, context: grpc.ServicerContext
    ) -> p4r.SetForwardingPipelineConfigResponse:
        """See the specification, chapter 12."""
        try:
            self._set_pipeline(request)
        except ControlError as error:
            log.warning("pipeline refused: %s", error)
            fail(context, error)
        return p4r.SetForwardingPipelineConfigResponse()

    def _set_pipeline(self, request: Action) -> None:
        self._check_primary(request)
        action = request.action
        if action == Action.COMMIT:
            with self._state_lock:
                self._check_primary(request)
                if request.HasField("config"):
                    raise ControlError("INVALID_ARGUMENT", "COMMIT takes no config")
                if self._saved is None:
                    raise ControlError("NOT_FOUND", "COMMIT: no config was saved")
                self._commit(self._saved)
            return
        if action not in (
            Action.VERIFY,
            Action.VERIFY_AND_SAVE,
            Action.VERIFY_AND_COMMIT,
            Action.RECONCILE_AND_COMMIT,
        ):
            raise ControlError("INVALID_ARGUMENT", f"unknown action {action}")
        if not request.HasField("config"):
            raise ControlError("INVALID_ARGUMENT", "the request has no config")
        # Compiling can take seconds, during which only this client waits.
        made = self._verified(request.config)
        with self._state_lock:
            self._check_primary(request)
            if action == Action.VERIFY_AND_SAVE:
                self._saved = made
            elif action == Action.VERIFY_AND_COMMIT:
                self._commit(made)
                log.info("pipeline committed")
            elif action == Action.RECONCILE_AND_COMMIT:
                self._reconcile(made)

    def _reconcile(self, made: Running) -> None:
        """Commit and keep the previous forwarding state; INVALID_ARGUMENT if it does not fit.

        No packet is lost; counters and registers that both programs have go on counting.
        """
        before = self._running
        if before is not None:
            updates = batch.state_updates(before.pipeline, before.reader)
            batch.clear_entries(made.pipeline)
            try:
                batch.keep_unnoted(before.pipeline, made.pipeline)
                for error in batch.write_all(made.writer, updates):
                    if error is not None:
                        raise error
            except ControlError as error:
                raise ControlError(
                    "INVALID_ARGUMENT", f"the forwarding state cannot be kept: {error}"
                ) from error
            self._commit(made, lambda: batch.keep_cells(before.pipeline, made.pipeline))
        else:
            self._commit(made)
        log.info("pipeline committed, forwarding state kept")

    def GetForwardingPipelineConfig(
        self, request: p4r.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.GetForwardingPipelineConfigResponse:
        """See the specification, chapter 13."""
        kinds = p4r.GetForwardingPipelineConfigRequest
        response = p4r.GetForwardingPipelineConfigResponse()
        try:
            self._check_device(request.device_id)
            with self._state_lock:
                current = self._current()
        except ControlError as error:
            fail(context, error)
        config = current.pipeline.config
        response.config.SetInParent()
        if config.HasField("cookie"):
            response.config.cookie.CopyFrom(config.cookie)
        if request.response_type in (kinds.ALL, kinds.P4INFO_AND_COOKIE):
            response.config.p4info.CopyFrom(config.p4info)
        if request.response_type in (kinds.ALL, kinds.DEVICE_CONFIG_AND_COOKIE):
            response.config.p4_device_config = config.p4_device_config
        return response

    def Capabilities(
        self, request: p4r.CapabilitiesRequest, context: grpc.ServicerContext
    ) -> p4r.CapabilitiesResponse:
        """See the specification, chapter 17."""
        return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    # --- reads and writes

    def Write(self, request: p4r.WriteRequest, context: grpc.ServicerContext) -> p4r.WriteResponse:
        """See the specification, chapter 10."""
        try:
            with self._state_lock:
                self._check_primary(request)
                outcome = self._write(self._current(), request)
        except ControlError as error:
            fail(context, error)
        if any(update.entity.HasField("digest_entry") for update in request.updates):
            self._timers.wake()
        if any(error is not None for error in outcome):
            fail_parts(context, outcome)
        return p4r.WriteResponse()

    def _write(self, current: Running, request: p4r.WriteRequest) -> batch.Outcome:
        current.pipeline.engine.now_us = self._data_plane.now_us()
        if request.atomicity == p4r.WriteRequest.CONTINUE_ON_ERROR:
            return batch.write_all(current.writer, request.updates)
        if request.atomicity == p4r.WriteRequest.ROLLBACK_ON_ERROR:
            return batch.write_or_roll_back(
                current.pipeline, current.writer, current.reader, request.updates
            )
        raise ControlError("UNIMPLEMENTED", "DATAPLANE_ATOMIC is not supported")

    def Read(
        self, request: p4r.ReadRequest, context: grpc.ServicerContext
    ) -> Iterator[p4r.ReadResponse]:
        """See the specification, chapter 11.

        Entities before one that cannot be read are sent, then the call ends with that one's code,
        as on BMv2 (only writes have an error for each part, section 10.4).
        """
        found: list[p4r.Entity] = []
        problem: ControlError | None = None
        try:
            self._check_device(request.device_id)
            # Writes wait for one read, not for all that clients have begun.
            with self._read_lock, self._state_lock:
                reader = self._current().reader
                for entity in request.entities:
                    found.extend(reader.read(entity))
        except ControlError as error:
            problem = error
        for start in range(0, len(found), ENTITIES_A_MESSAGE):
            yield p4r.ReadResponse(entities=found[start : start + ENTITIES_A_MESSAGE])
        if problem is not None:
            fail(context, problem)

    # --- the stream

    def StreamChannel(
        self, request_iterator: Iterator[p4r.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4r.StreamMessageResponse]:
        """See the specification, chapters 5 and 16."""
        outbox = Outbox()
        client = Client(outbox.put, outbox.offer)
        try:
            self.join()
        except ControlError as error:
            fail(context, error)
        context.add_callback(outbox.close)
        reader = threading.Thread(
            target=self._read_stream,
            args=(request_iterator, client, outbox),
            name="stream-reader",
            daemon=True,
        )
        reader.start()
        try:
            yield from outbox
        finally:
            self.leave(client)
        if outbox.error is not None:
            fail(context, outbox.error)

    def _read_stream(
        self, requests: Iterator[p4r.StreamMessageRequest], client: Client, outbox: Outbox
    ) -> None:
        try:
            for request in requests:
                if outbox.error is not None:
                    return
                self.take(client, request)
        except ControlError as error:
            outbox.close(error)
        except grpc.RpcError:
            outbox.close()  # The client is gone.
        except Exception as error:
            # A defect, but no reason for the whole switch to end.
            log.exception("a stream message failed")
            outbox.close(ControlError("INTERNAL", f"defect of p4switch: {error!r}"))
        else:
            outbox.close()

    def join(self) -> None:
        """Add a client with a stream; RESOURCE_EXHAUSTED if there are too many."""
        with self._stream_lock:
            if self._streams >= MAX_STREAMS:
                raise ControlError(
                    "RESOURCE_EXHAUSTED", f"{MAX_STREAMS} clients are connected already"
                )
            self._streams += 1

    def leave(self, client: Client) -> None:
        """Forget a client whose stream has ended."""
        with self._state_lock, self._stream_lock:
            self._streams -= 1
            self._arbitration.leave(client)

    def take(self, client: Client, request: p4r.StreamMessageRequest) -> None:
        """Process a stream message; ControlError ends the stream."""
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            # A change of primary waits for the writes of the previous one.
            with self._state_lock, self._stream_lock:
                self._arbitration.update(client, request.arbitration)
            return
        try:
            with self._stream_lock:
                if not self._arbitration.is_primary(client):
                    raise ControlError("PERMISSION_DENIED", "Not primary")
            if kind == "packet":
                self._packet_out(request.packet)
            elif kind == "digest_ack":
                running = self._running_now()
                with self._stream_lock:
                    running.pipeline.digests.acknowledge(request.digest_ack)
            else:
                raise ControlError("UNIMPLEMENTED", f"stream messages of kind {kind}")
        except ControlError as error:
            client.offer(_stream_error(kind, request, error))

    def _running_now(self) -> Running:
        if self._running is None:
            raise ControlError(
                "FAILED_PRECONDITION", "No forwarding pipeline config set for this device"
            )
        return self._running

    def _packet_out(self, packet: p4r.PacketOut) -> None:
        header = self._running_now().pipeline.headers.packet_out.pack(packet.metadata)
        self._data_plane.inject(header + packet.payload)

    # --- called by the data plane, in its threads

    def packets_in(self, frames: Sequence[bytes]) -> None:
        """Send frames that left at the CPU port to the primary clients."""
        running = self._running
        if running is None:
            return
        for frame in frames:
            packet = running.pipeline.headers.packet_in.unpack(frame)
            if packet is None:
                log.warning("a frame of %d bytes is too short for packet-in: dropped", len(frame))
                continue
            self._offer(p4r.StreamMessageResponse(packet=packet))

    def digests(self, digests: Sequence[Digest]) -> None:
        """Process digests generated by packets."""
        running = self._running
        if running is None:
            return
        now = self._timers.now_ns()
        with self._stream_lock:
            for digest in digests:
                running.pipeline.digests.add(digest.name, digest.values, now)
        self._send_digests(running)
        self._timers.wake()

    def _offer(self, message: p4r.StreamMessageResponse) -> None:
        with self._stream_lock:
            for client in self._arbitration.primaries():
                client.offer(message)

    def _send_digests(self, running: Running) -> int | None:
        """Send the lists that are due; return when the next one is due (monotonic nanoseconds)."""
        with self._stream_lock:
            for digest_list in running.pipeline.digests.due(self._timers.now_ns()):
                digest_list.timestamp = self._timers.date_ns()
                self._offer(p4r.StreamMessageResponse(digest=digest_list))
            return running.pipeline.digests.deadline()

    def _send_due(self, sweep: bool) -> int | None:
        """Do timed work: digest lists and, with `sweep`, idle entries."""
        running = self._running
        if running is None:
            return None
        if sweep:
            with self._state_lock:
                idle = running.pipeline.idle.due(self._data_plane.now_us())
            if idle is not None:
                idle.timestamp = self._timers.date_ns()
                self._offer(p4r.StreamMessageResponse(idle_timeout_notification=idle))
        return self._send_digests(running)


def _stream_error(
    kind: str | None, request: p4r.StreamMessageRequest, error: ControlError
) -> p4r.StreamMessageResponse:
    response = p4r.StreamMessageResponse()
    response.error.canonical_code = code_of(error)
    response.error.message = str(error)
    response.error.space = "p4switch"
    if kind == "packet":
        response.error.packet_out.packet_out.CopyFrom(request.packet)
    elif kind == "digest_ack":
        response.error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
    else:
        response.error.other.SetInParent()
    return response
