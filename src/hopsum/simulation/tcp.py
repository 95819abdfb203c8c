"""Schedules over TCP in virtual time: a packet-level model of its connections.

Segments and acknowledgements are Ethernet/IPv4/TCP frames of the sizes Linux sends (timestamp
option, 1448 bytes of data at most), forwarded by the switches' plain tables. Congestion control is
Reno's (RFC 5681) with the timeout of RFC 6298; the TCP checksum is left zero, since a link that
corrupts a frame drops it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import inf

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.execution import Channel, Execution
from hopsum.host_agent.io.tcp_collective import PROGRESS_SECONDS
from hopsum.host_agent.timeout import earliest
from hopsum.network.model import Network
from hopsum.protocol.wire import ETHERNET_BYTES, ETHERTYPE_IPV4, IPV4_BYTES, Address, ipv4_checksum
from hopsum.simulation.wire import RETRANSMISSION_SECONDS
from hopsum.timing.tcp_segments import SEGMENT_BYTES

Frames = NDArray[np.uint8]

TCP_PROTOCOL = 6
PROTOCOL = ETHERNET_BYTES + 9
"""Offset of the IP protocol in a frame."""
TCP_BYTES = 32
HEADER_BYTES = ETHERNET_BYTES + IPV4_BYTES + TCP_BYTES
BASE_PORT = 0x4854
ECN_CAPABLE, CONGESTION_EXPERIENCED = 2, 3
"""The lower two bits of the ToS byte (RFC 3168)."""
ACK, ECN_ECHO, WINDOW_REDUCED = 0x10, 0x40, 0x80
INITIAL_WINDOW = 10.0
MAX_WINDOW = 256.0
RECEIVE_BUFFER = int(MAX_WINDOW) * SEGMENT_BYTES
"""Bytes that a receiver buffers at most."""
RECEIVE_SECONDS = 0.064
"""The same on hosts in Mininet, where a third of the buffer is the kernel's overhead."""
LEAST_BUFFER = 40_000
DELAYED_ACK = 0.04
MAX_TIMEOUT = 60.0
_SEQUENCE = ETHERNET_BYTES + IPV4_BYTES + 4
_SOURCE_PORT = ETHERNET_BYTES + IPV4_BYTES
_WINDOW = _SEQUENCE + 10
_FLAGS = _SEQUENCE + 9
_TOS = ETHERNET_BYTES + 1
_TIMESTAMPS = _SEQUENCE + 20
_WINDOW_SCALE = 6
_TIMESTAMP_OPTION = 0x0101080A
"""Two NOPs, then the kind and the length of the option (RFC 7323, appendix A)."""


def receive_buffer(network: Network, host: str) -> int:
    """Return the bytes that a connection's receiver buffers on a host."""
    links = [network.link(host, peer) for peer in network.ports(host).values()]
    fastest = max((link.bandwidth or inf for link in links), default=inf)
    return int(max(LEAST_BUFFER, min(RECEIVE_BUFFER, fastest * RECEIVE_SECONDS / 8)))


def segment(
    source: Address,
    target: Address,
    end: Channel,
    sequence: int,
    acknowledged: int,
    data: bytes,
    first_port: int = BASE_PORT,
    window: int = 0,
    tos: int = 0,
    flags: int = ACK,
    sent_at: int = 0,
    echoed: int = 0,
) -> bytes:
    """One frame. `end`: the sender's rank, by the source port, and the chain, by the target's.

    Both count from `first_port`. Sequence numbers count bytes from 0. `window`: bytes that may
    follow those acknowledged. `sent_at` and `echoed`: TSval and TSecr (RFC 7323), in microseconds.
    """
    total = IPV4_BYTES + TCP_BYTES + len(data)
    ipv4 = bytearray(
        struct.pack(">BBHHHBBH", 0x45, tos, total, 0, 0x4000, 64, TCP_PROTOCOL, 0)
        + source.ip
        + target.ip
    )
    ipv4[10:12] = ipv4_checksum(bytes(ipv4)).to_bytes(2, "big")
    tcp = struct.pack(
        ">HHIIBBHHHIII",
        first_port + end.peer,
        first_port + end.chain,
        sequence & 0xFFFFFFFF,
        acknowledged & 0xFFFFFFFF,
        TCP_BYTES // 4 << 4,
        flags,
        min(window >> _WINDOW_SCALE, 0xFFFF),
        0,
        0,
        _TIMESTAMP_OPTION,
        sent_at,
        echoed,
    )
    return target.mac + source.mac + ETHERTYPE_IPV4.to_bytes(2, "big") + ipv4 + tcp + data


class Sender:
    """The sending side of one direction. Sequence numbers are absolute byte numbers."""

    def __init__(self) -> None:
        self.unacknowledged = 0
        self.next = 0
        self.retransmissions = 0
        self.window = INITIAL_WINDOW
        self._threshold = MAX_WINDOW
        self._segments: dict[int, bytes] = {}
        self._duplicates = 0
        self._recover = 0
        self._srtt: float | None = None
        self._rttvar = 0.0
        self._timeout = 1.0
        self.deadline: float | None = None
        self.reduced = False
        """Whether the next segment carries CWR: the sender has reacted to a mark."""
        self._allowed = int(INITIAL_WINDOW) * SEGMENT_BYTES

    @property
    def room(self) -> bool:
        """Return whether another segment may be sent."""
        return len(self._segments) < int(self.window) and self.next + SEGMENT_BYTES <= self._allowed

    def wait_for_window(self, now: float) -> None:
        """Start the persist timer if the receiver's window is closed: its update may be lost."""
        closed = self.next + SEGMENT_BYTES > self._allowed
        if closed and not self._segments and self.deadline is None:
            self.deadline = now + self._timeout

    def send(self, data: bytes, now: float) -> tuple[int, bytes]:
        """Record a new segment; return its sequence number and data."""
        sequence = self.next
        self._segments[sequence] = data
        self.next += len(data)
        if self.deadline is None:
            self.deadline = now + self._timeout
        return sequence, data

    def acknowledge(
        self, upto: int, now: float, window: int, echoed: int
    ) -> list[tuple[int, bytes]]:
        """Process an acknowledgement; return segments to retransmit.

        `window`: the receiver's. `echoed`: timestamp of the segment that caused it, which gives a
        sample of the round-trip time after retransmissions too (RFC 7323, section 4).
        """
        opened = upto + window > self._allowed
        self._allowed = max(self._allowed, upto + window)
        if upto > self.unacknowledged:
            self._measure((_microseconds(now) - echoed) % (1 << 32) / 1e6)
            return self._advance(upto, now)
        if upto == self.unacknowledged and self._segments and not opened:
            self._duplicates += 1
            if self._duplicates == 3 and upto >= self._recover:
                self._threshold = max(len(self._segments) / 2, 2.0)
                self.window = self._threshold
                self._recover = self.next
                return self._again()
        return []

    def marked(self, upto: int) -> None:
        """React to a mark of congestion, at most once per round trip (RFC 3168).

        As after a loss, but without a retransmission.
        """
        if upto >= self._recover and self._segments:
            self._threshold = max(len(self._segments) / 2, 2.0)
            self.window = self._threshold
            self._recover = self.next
            self.reduced = True

    def _advance(self, upto: int, now: float) -> list[tuple[int, bytes]]:
        for sequence in [s for s in self._segments if s < upto]:
            del self._segments[sequence]
            if self.window < self._threshold:
                self.window = min(self.window + 1, MAX_WINDOW)
            else:
                self.window = min(self.window + 1 / self.window, MAX_WINDOW)
        self.unacknowledged = upto
        self._duplicates = 0
        self.deadline = now + self._timeout if self._segments else None
        # RFC 6582: a partial acknowledgement during recovery shows the next hole.
        return self._again() if self._segments and upto < self._recover else []

    def _measure(self, rtt: float) -> None:
        if self._srtt is None:
            self._srtt, self._rttvar = rtt, rtt / 2
        else:
            self._rttvar += (abs(self._srtt - rtt) - self._rttvar) / 4
            self._srtt += (rtt - self._srtt) / 8
        self._timeout = min(max(self._srtt + 4 * self._rttvar, RETRANSMISSION_SECONDS), MAX_TIMEOUT)

    def _again(self) -> list[tuple[int, bytes]]:
        sequence = min(self._segments)
        self.retransmissions += 1
        return [(sequence, self._segments[sequence])]

    def expire(self, now: float) -> list[tuple[int, bytes]]:
        """Handle the timeout: resend the first segment, with window 1 and the timeout doubled.

        If nothing is in flight, one segment may probe the receiver's window.
        """
        if not self._segments:
            self.deadline = None
            self._allowed = self.next + SEGMENT_BYTES
            return []
        self._threshold = max(len(self._segments) / 2, 2.0)
        self.window = 1.0
        self._recover = self.next
        self._timeout = min(self._timeout * 2, MAX_TIMEOUT)
        self.deadline = now + self._timeout
        return self._again()


class Receiver:
    """The receiving side of one direction."""

    def __init__(self) -> None:
        self.expected = 0
        self._early: dict[int, bytes] = {}
        self._unanswered = 0
        self.acknowledge_now = False
        self.deadline: float | None = None
        self.waiting = bytearray()
        """Data in order that has not been delivered yet."""
        self.announced = 0
        """The window advertised last."""
        self.marked = False
        """Whether data was marked and the sender has not confirmed it yet (by CWR)."""
        self._last_acknowledged = 0
        self.echoed = 0
        """Timestamp to echo: TS.Recent of RFC 7323, section 4.3."""

    def take(self, sequence: int, data: bytes, now: float, sent_at: int) -> bytes:
        """Process a segment with its timestamp; return the bytes that are now in order."""
        newer = (sent_at - self.echoed) % (1 << 32) < 1 << 31
        if sequence <= self._last_acknowledged and newer:
            self.echoed = sent_at
        if sequence != self.expected:
            self.acknowledge_now = True
            if sequence > self.expected:
                self._early[sequence] = data
            return b""
        in_order = [data]
        self.expected += len(data)
        while (early := self._early.pop(self.expected, None)) is not None:
            in_order.append(early)
            self.expected += len(early)
        self._unanswered += len(in_order)
        if self._unanswered >= 2 or len(data) < SEGMENT_BYTES or self._early:
            self.acknowledge_now = True
        elif self.deadline is None:
            self.deadline = now + DELAYED_ACK
        return b"".join(in_order)

    def answered(self) -> None:
        """Record that an acknowledgement has been sent."""
        self._unanswered = 0
        self._last_acknowledged = self.expected
        self.acknowledge_now = False
        self.deadline = None


class StreamMember:
    """One rank of a schedule as a host agent of the simulator.

    Concurrent schedules of a host use different ports: a rank's port is `first_port` plus its
    number. `buffer`: bytes that a connection's receiver buffers.
    """

    def __init__(
        self,
        rank: int,
        addresses: Mapping[int, Address],
        start: float = 0.0,
        first_port: int = BASE_PORT,
        buffer: int = RECEIVE_BUFFER,
        patience: float = PROGRESS_SECONDS,
    ) -> None:
        self.rank = rank
        self.patience = patience
        """Seconds without progress after which a schedule is `stalled`."""
        self.tos = 0
        """IP ToS byte of its packets. With ECN_CAPABLE long queues may mark those with data, and
        that halves the window (RFC 3168)."""
        self._buffer = buffer
        self._addresses = addresses
        self._first_port = first_port
        self._now = start
        self._execution: Execution | None = None
        self._senders: dict[Channel, Sender] = {}
        self._receivers: dict[Channel, Receiver] = {}
        self._output: list[bytes] = []
        self._still_since = start
        """Time when bytes last moved, or the timeout was postponed."""

    @property
    def retransmissions(self) -> int:
        """Segments sent again."""
        return sum(sender.retransmissions for sender in self._senders.values())

    @property
    def sent_bytes(self) -> int:
        """Return the bytes sent so far, each counted once."""
        return sum(sender.next for sender in self._senders.values())

    @property
    def done(self) -> bool:
        """Return whether the current schedule is complete and all it sent has arrived."""
        return (self._execution is None or self._execution.done) and all(
            sender.unacknowledged == sender.next for sender in self._senders.values()
        )

    def start(self, execution: Execution, now: float) -> None:
        """Begin a schedule; the streams of an earlier one continue."""
        self._execution = execution
        self._now = now
        self.postpone(now)
        for peer in execution.targets:
            self._senders.setdefault(peer, Sender())
        for peer in execution.sources:
            self._receivers.setdefault(peer, Receiver())
        self._fill()

    def postpone(self, now: float) -> None:
        """Restart the timeout of the schedule in progress."""
        self._still_since = now

    def stalled(self, now: float) -> bool:
        """Return whether nothing of the schedule in progress has moved for `patience`."""
        return self._in_progress and now >= self._still_since + self.patience

    def abort(self) -> None:
        """Give up the schedule in progress; what was sent is still retransmitted."""
        self._execution = None

    @property
    def _in_progress(self) -> bool:
        return self._execution is not None and not self._execution.done

    def receive(self, frames: Frames, now: float) -> None:
        """Process frames (n, length)."""
        self._now = now
        for row in frames:
            frame = row.tobytes()
            if len(frame) < HEADER_BYTES or frame[PROTOCOL] != TCP_PROTOCOL:
                continue
            source, target = struct.unpack_from(">HH", frame, _SOURCE_PORT)
            peer = Channel(source - self._first_port, target - self._first_port)
            if peer.peer not in self._addresses:
                continue
            sequence, acknowledged = struct.unpack_from(">II", frame, _SEQUENCE)
            sent_at, echoed = struct.unpack_from(">II", frame, _TIMESTAMPS)
            data = frame[HEADER_BYTES:]
            if data:
                self._take(peer, sequence, data, now, sent_at)
                self._react_to_marks(self._receivers[peer], frame)
            elif (sender := self._senders.get(peer)) is not None:
                upto = _absolute(acknowledged, sender.unacknowledged)
                if frame[_FLAGS] & ECN_ECHO:
                    sender.marked(upto)
                (window,) = struct.unpack_from(">H", frame, _WINDOW)
                again = sender.acknowledge(upto, now, window << _WINDOW_SCALE, echoed)
                self._send_again(peer, again)
        self._fill()

    def _take(self, peer: Channel, sequence: int, data: bytes, now: float, sent_at: int) -> None:
        receiver = self._receivers.setdefault(peer, Receiver())
        absolute = _absolute(sequence, receiver.expected)
        receiver.waiting += receiver.take(absolute, data, now, sent_at)

    def _react_to_marks(self, receiver: Receiver, frame: bytes) -> None:
        """Echo a mark until the sender confirms it (RFC 3168)."""
        if frame[_FLAGS] & WINDOW_REDUCED:
            receiver.marked = False
        if frame[_TOS] & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED:
            receiver.marked = True

    def _hand_on(self, execution: Execution) -> bool:
        """Deliver received data that the schedule waits for; return whether there was any."""
        moved = False
        for peer in execution.sources:
            receiver = self._receivers[peer]
            if not receiver.waiting:
                continue
            # A neighbour may be one schedule ahead: its bytes wait until ours begins.
            count = min(len(receiver.waiting), execution.wanted(peer))
            if count:
                moved = True
                execution.incoming(peer, bytes(receiver.waiting[:count]))
                del receiver.waiting[:count]
                half = self._buffer // 2
                if receiver.announced < half <= self._room(receiver):
                    receiver.acknowledge_now = True
        return moved

    def _room(self, receiver: Receiver) -> int:
        return max(0, self._buffer - len(receiver.waiting))

    def tick(self, now: float) -> None:
        """Run the timers for retransmission and delayed acknowledgements."""
        self._now = now
        for peer, sender in self._senders.items():
            if sender.deadline is not None and sender.deadline <= now:
                self._send_again(peer, sender.expire(now))
        for peer, receiver in self._receivers.items():
            if receiver.deadline is not None and receiver.deadline <= now:
                self._acknowledge(peer, receiver)
        self._fill()

    @property
    def deadline(self) -> float | None:
        """Return the time of the next timer."""
        times = [s.deadline for s in self._senders.values()]
        times += [r.deadline for r in self._receivers.values()]
        if self._in_progress:
            times.append(self._still_since + self.patience)
        return earliest(*times)

    def take_output(self) -> list[Frames]:
        """Return the frames to send, in order."""
        output, self._output = self._output, []
        return [np.frombuffer(frame, dtype=np.uint8).reshape(1, -1) for frame in output]

    def _frame(self, peer: Channel, sequence: int, data: bytes) -> bytes:
        receiver = self._receivers.get(peer)
        expected = receiver.expected if receiver is not None else 0
        here, there = self._addresses[self.rank], self._addresses[peer.peer]
        end = Channel(self.rank, peer.chain)
        window = self._buffer if receiver is None else self._room(receiver)
        tos, flags = self.tos if data else self.tos & ~CONGESTION_EXPERIENCED, ACK
        if receiver is not None and receiver.marked:
            flags |= ECN_ECHO
        if data and self._senders[peer].reduced:
            flags |= WINDOW_REDUCED
            self._senders[peer].reduced = False
        return segment(
            here,
            there,
            end,
            sequence,
            expected,
            data,
            self._first_port,
            window,
            tos,
            flags,
            _microseconds(self._now),
            0 if receiver is None else receiver.echoed,
        )

    def _acknowledge(self, peer: Channel, receiver: Receiver) -> None:
        receiver.answered()
        receiver.announced = self._room(receiver)
        self._output.append(self._frame(peer, 0, b""))

    def _send_again(self, peer: Channel, segments: list[tuple[int, bytes]]) -> None:
        self._output += [self._frame(peer, sequence, data) for sequence, data in segments]

    def _fill(self) -> None:
        """Send what can be sent now, and acknowledge what was received."""
        if self._execution is not None:
            self._exchange(self._execution)
        for peer, receiver in self._receivers.items():
            if receiver.acknowledge_now:
                self._acknowledge(peer, receiver)

    def _exchange(self, execution: Execution) -> None:
        moved = True
        # Received data, and data sent to one peer, may unblock another.
        while moved:
            moved = self._hand_on(execution)
            for peer in execution.targets:
                sender = self._senders[peer]
                while sender.room and (data := execution.outgoing(peer, SEGMENT_BYTES)):
                    self._output.append(self._frame(peer, *sender.send(data, self._now)))
                    moved = True
            if moved:
                self.postpone(self._now)
        for sender in self._senders.values():
            sender.wait_for_window(self._now)


def _microseconds(now: float) -> int:
    return round(now * 1e6) % (1 << 32)


def _absolute(wire: int, near: int) -> int:
    """Return the byte number nearest to `near` whose low 32 bits are `wire`."""
    return near + (wire - near + (1 << 31)) % (1 << 32) - (1 << 31)
