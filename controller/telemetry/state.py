"""The state of the network from reports of agents and switches: used and free bandwidth ([002][]).

Both ends of a link see its traffic, an agent at the interfaces of its host, the controller in the
port counters of switches. Reports are smoothed exponentially and age out; of several fresh ones,
the one with the least free bandwidth counts, so that understating frees no link. An impossible
report is rejected as a whole and changes nothing.

No input or output, no clock of its own: times are seconds of one monotonic clock, the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hopsum.network.model import Network, shorten
from hopsum.planning.model.demand import DirectedLink
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import InputError

FORGOTTEN = 10
"""Time constants after which an expected change has no effect any more."""


SMOOTHING_SECONDS = 5.0
"""Time constant of smoothing: a step in the load has 63 % of its effect after this time."""
AGE_LIMIT_SECONDS = 15.0
"""Maximum age of a report. (Agents report every second.)"""
RATE_TOLERANCE = 0.05
"""Tolerance of rates above the link's: shapers send bursts, and clocks are read in turn."""


class ReportError(InputError):
    """An impossible report of a host or switch; the message names it, and what was expected."""


@dataclass(frozen=True, slots=True)
class InterfaceUse:
    """Load of an interface, in bit/s. `free_*`: free bandwidth; None: the rest of the link."""

    peer: str
    sent: float
    received: float
    free_sent: float | None = None
    free_received: float | None = None


@dataclass(frozen=True, slots=True)
class PortBytes:
    """An interface's counters: bytes since it came up, without FCS, as the link's rate counts."""

    peer: str
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class LinkState:
    """One direction of a link. `used` bit/s, smoothed; `age` s of the newest report on it.

    Without reports `used` is 0 and `age` None. `free` None: the link has no limit.
    """

    used: float
    free: float | None
    age: float | None


@dataclass(slots=True)
class _Estimate:
    """One reporter's data on one direction."""

    used: float
    free: float | None
    at: float


@dataclass(slots=True)
class _Reading:
    at: float
    ports: Mapping[str, PortBytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Move:
    """Expected change of a job's rate (bit/s), and its start."""

    more: Mapping[DirectedLink, float]
    at: float


class NetworkState:
    """Used and free bandwidth of every direction of every link."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._estimates: dict[DirectedLink, dict[str, _Estimate]] = {}
        self._readings: dict[str, _Reading] = {}
        self._reported: dict[str, float] = {}
        self._moves: dict[int, _Move] = {}

    # -- reports

    def take_report(self, host: str, report: pb.NodeReport, now: float) -> None:
        """Process an agent's raw report. Raises ReportError."""
        self.report(
            host,
            [
                InterfaceUse(
                    use.peer,
                    use.sent,
                    use.received,
                    use.free_sent if use.HasField("free_sent") else None,
                    use.free_received if use.HasField("free_received") else None,
                )
                for use in report.interfaces
            ],
            now,
        )

    def report(self, node: str, uses: Iterable[InterfaceUse], now: float) -> None:
        """Process rates measured by a host or switch since its last report. Raises ReportError."""
        uses = list(uses)
        self._check_node(node, [use.peer for use in uses])
        self._check_time(node, now)
        for use in uses:
            self._check_rate(node, use.peer, "sends", use.sent, use.free_sent)
            self._check_rate(node, use.peer, "receives", use.received, use.free_received)
        self._reported[node] = now
        for use in uses:
            self._smooth((node, use.peer), node, use.sent, use.free_sent, now)
            self._smooth((use.peer, node), node, use.received, use.free_received, now)

    def count(self, node: str, ports: Iterable[PortBytes], now: float) -> None:
        """Process counters of a host or switch; rates follow from the previous reading.

        The first reading, and that of a port whose counters were reset (its switch was restarted),
        give no rate. Raises ReportError.
        """
        ports = list(ports)
        read = {port.peer: port for port in ports}
        self._check_node(node, [port.peer for port in ports])
        for port in ports:
            for what, value in (("sent", port.sent), ("received", port.received)):
                if value < 0:
                    raise ReportError(
                        f"{node}: {value} bytes {what} at the port to {port.peer}: expected a "
                        "counter, 0 or more"
                    )
        before = self._readings.get(node)
        if before is None:
            self._check_time(node, now)
            self._readings[node] = _Reading(now, read)
            return
        elapsed = now - before.at
        if not elapsed > 0:
            raise ReportError(
                f"{node}: counters of {now:.6f} s, after those of {before.at:.6f} s: expected a "
                "later reading"
            )
        self.report(
            node,
            [
                InterfaceUse(
                    peer,
                    8 * (port.sent - old.sent) / elapsed,
                    8 * (port.received - old.received) / elapsed,
                )
                for peer, port in read.items()
                if (old := before.ports.get(peer)) is not None
                and port.sent >= old.sent
                and port.received >= old.received
            ],
            now,
        )
        self._readings[node] = _Reading(now, read)

    def expect(
        self,
        job: int,
        before: Mapping[DirectedLink, float],
        after: Mapping[DirectedLink, float],
        now: float,
    ) -> None:
        """Note a job's change of plan: bit/s that it sent before, and sends from now on.

        Reports show that in the course of `smoothing`; until then `shares` and `free` reckon it in.
        """
        # What its move before lets expect still holds, as far as reports do not show it yet.
        more = self._expected_of(self._moves[job], now) if job in self._moves else {}
        for link in before.keys() | after.keys():
            change = after.get(link, 0.0) - before.get(link, 0.0)
            more[link] = more.get(link, 0.0) + change
        self._moves[job] = _Move(more, now)
        # After this time the expectation has decayed.
        last = now - FORGOTTEN * SMOOTHING_SECONDS
        self._moves = {job: move for job, move in self._moves.items() if move.at > last}

    def _expected(self, now: float) -> dict[DirectedLink, float]:
        """Return expected changes of load that reports do not show yet, bit/s."""
        expected: dict[DirectedLink, float] = {}
        for move in self._moves.values():
            for link, more in self._expected_of(move, now).items():
                expected[link] = expected.get(link, 0.0) + more
        return expected

    def _expected_of(self, move: _Move, now: float) -> dict[DirectedLink, float]:
        left = math.exp(min(0.0, move.at - now) / SMOOTHING_SECONDS)
        return {link: left * more for link, more in move.more.items()}

    def forget(self, node: str) -> None:
        """Drop reports of a host or switch whose agent is gone or was restarted."""
        self._readings.pop(node, None)
        self._reported.pop(node, None)
        for estimates in self._estimates.values():
            estimates.pop(node, None)

    def _smooth(
        self, link: DirectedLink, node: str, used: float, free: float | None, now: float
    ) -> None:
        estimates = self._estimates.setdefault(link, {})
        old = estimates.get(node)
        if old is None or now - old.at > AGE_LIMIT_SECONDS:
            estimates[node] = _Estimate(used, free, now)
            return
        weight = -math.expm1(-(now - old.at) / SMOOTHING_SECONDS)
        old.used += weight * (used - old.used)
        old.free = (
            free if free is None or old.free is None else old.free + weight * (free - old.free)
        )
        old.at = now

    def _check_node(self, node: str, peers: list[str]) -> None:
        known = set(self.network.ports(node).values())
        if node not in self.network.hosts and node not in self.network.switches:
            raise ReportError(
                f"a report of {node!r}: there is no such node in {self.network.name}; nodes: "
                f"{shorten([*self.network.switches, *self.network.hosts])}"
            )
        for peer in peers:
            if peer not in known:
                raise ReportError(
                    f"{node} reports a link to {peer!r}; its links go to {shorten(sorted(known))}"
                )
            if peers.count(peer) > 1:
                raise ReportError(f"{node} reports its link to {peer} more than once")

    def _check_time(self, node: str, now: float) -> None:
        before = self._reported.get(node, -math.inf)
        if not (math.isfinite(now) and now >= before):
            raise ReportError(
                f"{node}: a report of {now} s, after one of {before:.6f} s: expected a later time"
            )

    def _check_rate(self, node: str, peer: str, verb: str, used: float, free: float | None) -> None:
        bandwidth = self.network.link(node, peer).bandwidth
        # The free rate alone, and with the used one, is bounded as that is.
        rates = [(verb, used)]
        if free is not None:
            rates += [(f"has left of what it {verb}", free)]
            rates += [(f"{verb}, with what it says is left,", used + free)]
        for what, rate in rates:
            if not math.isfinite(rate) or rate < 0:
                raise ReportError(
                    f"{node} reports that it {what} {rate} bit/s on its link to {peer}: expected a "
                    "finite rate, 0 or more"
                )
            if bandwidth is not None and rate > (1 + RATE_TOLERANCE) * bandwidth:
                raise ReportError(
                    f"{node} reports that it {what} {rate:.6g} bit/s on its link to {peer}, which "
                    f"carries {bandwidth:.6g} bit/s: expected no more than that (and "
                    f"{RATE_TOLERANCE:.0%} for bursts)"
                )

    # -- results

    def link(self, u: str, v: str, now: float) -> LinkState:
        """Return the direction u -> v at `now`. NetworkError if they are not linked."""
        bandwidth = self.network.link(u, v).bandwidth
        fresh = [
            estimate
            for estimate in self._estimates.get((u, v), {}).values()
            if now - estimate.at <= AGE_LIMIT_SECONDS
        ]
        used = max((estimate.used for estimate in fresh), default=0.0)
        lefts = [estimate.free for estimate in fresh if estimate.free is not None]
        if bandwidth is not None:
            used = min(used, bandwidth)
            lefts.append(bandwidth - used)
        return LinkState(
            used,
            max(0.0, min(lefts)) if lefts else None,
            min((now - estimate.at for estimate in fresh), default=None),
        )

    def links(self, now: float) -> dict[DirectedLink, LinkState]:
        """Every direction of every link at `now`."""
        return {(u, v): self.link(u, v, now) for u, v in self.network.directed_links()}

    def shares(
        self, now: float, own: Mapping[DirectedLink, float] | None = None
    ) -> dict[DirectedLink, float]:
        """Return the free fraction of every direction's bandwidth, for `Replanner`.

        `own` as for `free`. Links without bandwidth are left out: they are never used up.
        """
        shares = {}
        expected = self._expected(now)
        for link, state in self.links(now).items():
            bandwidth = self.network.link(*link).bandwidth
            if bandwidth is not None and state.free is not None:
                more = expected.get(link, 0.0)
                given_up = min(own.get(link, 0.0), max(0.0, state.used + more)) if own else 0.0
                shares[link] = min(1.0, max(0.0, state.free - more + given_up) / bandwidth)
        return shares
