"""The processes of a host that attend one job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hopsum.host_agent.io.process_connection import (
    ProcessConnection,
    RefusedMessage,
    Request,
)
from hopsum.host_agent.process_calls import CallPacket, Mailbox, done_packet
from hopsum.protocol.errors import OperationError


class ProcessGone(OperationError):
    """The process ended without leaving, or sent invalid data; the message names host and job."""


class Attendance:
    """The processes of this host that attend `job`, by rank; they may come before it has begun.

    On a host with a single rank, the rank that the process states is not checked.
    """

    def __init__(self, job: int, host: str, forget: Callable[[Attendance], None]) -> None:
        self.job = job
        self._host = host
        self._forget = forget
        self._connections: dict[int, ProcessConnection] = {}
        """By the rank that they claim; from `start` on by rank."""
        self._ranks: Sequence[str] | None = None
        self._rooted = False
        self._here: Sequence[int] = ()
        self._intrusion = ""
        """Why the job cannot go on: another user's process has taken part."""

    @property
    def unknown(self) -> bool:
        """Whether a process attends it, and the job has not started here."""
        return bool(self._connections) and self._ranks is None

    @property
    def abandoned(self) -> bool:
        """Whether all that attended it are gone, and the job has not started here."""
        return self.unknown and all(each.gone for each in self._connections.values())

    @property
    def user(self) -> int | None:
        """User of the first process."""
        return next((connection.user for connection in self._connections.values()), None)

    def begin(self, connection: ProcessConnection, rank: int) -> None:
        """Attach a process.

        Raises RefusedMessage if another one attends, or its rank is not on this host.
        """
        if self._ranks is not None:
            rank = self._place(rank)
        if rank in self._connections or connection in self._connections.values():
            raise RefusedMessage(
                f"job {self.job} on host {self._host}: another process attends it as rank {rank}; "
                "expected one process a rank"
            )
        self._connections[rank] = connection
        if self._ranks is not None:
            self._tell(connection)

    def start(self, ranks: Sequence[str], *, rooted: bool) -> None:
        """Notify the processes, now or when they connect, that the job has started.

        `ranks`: the host of each. `rooted`: whether what is for one rank goes to its host alone.
        """
        self._ranks, self._rooted = ranks, rooted
        self._here = [rank for rank, host in enumerate(ranks) if host == self._host]
        early, self._connections = self._connections, {}
        for rank, connection in early.items():
            try:
                self.begin(connection, rank)
            except RefusedMessage as refusal:
                connection.end(str(refusal))

    def evict_others(self, owner: int) -> None:
        """End the connections of other users than the job's, which came in advance, and root's.

        If the job has started, sums may have values of theirs: `take` raises.
        """
        for rank, connection in list(self._connections.items()):
            if connection.user in (0, owner):
                continue
            del self._connections[rank]
            connection.end(not_yours(self.job, owner, connection.user))
            if self._ranks is not None:
                self._intrusion = (
                    f"job {self.job} on host {self._host}: a process of user {connection.user} "
                    f"attended it as rank {rank} before it was known to belong to user {owner}; "
                    "submit it again"
                )

    def _place(self, rank: int) -> int:
        """Return the rank of a process that claims `rank`. Raises RefusedMessage."""
        if len(self._here) == 1:
            return self._here[0]
        if rank not in self._here:
            raise RefusedMessage(
                f"job {self.job} on host {self._host}: rank {rank} is not here; expected one of "
                f"{', '.join(map(str, self._here))}"
            )
        return rank

    def _tell(self, connection: ProcessConnection) -> None:
        assert self._ranks is not None
        connection.ranks = len(self._ranks)
        connection.say({"kind": "started", "ranks": list(self._ranks), "rooted": self._rooted})

    def absent(self) -> list[int]:
        """Return the ranks of this host that no process has attended since the start."""
        return [rank for rank in self._here if rank not in self._connections]

    def take(self) -> list[tuple[int, Request]]:
        """Take the calls that the processes have made since, with their ranks.

        Raises ProcessGone.
        """
        if self._intrusion:
            raise ProcessGone(self._intrusion)
        taken = []
        for rank, connection in self._connections.items():
            requests, connection.requests = connection.requests, []
            if not requests and connection.gone and not connection.left:
                raise self._gone(rank)
            taken += [(rank, request) for request in requests]
        return taken

    def _gone(self, rank: int) -> ProcessGone:
        which = f" of rank {rank}" if len(self._here) > 1 else ""
        return ProcessGone(
            f"job {self.job}: the process{which} on {self._host} disconnected without leaving"
        )

    def mailbox(self, rank: int) -> Mailbox | None:
        """Return where a rank's packets come; None if it is not here."""
        connection = self._connections.get(rank)
        return None if connection is None else connection.mailbox

    def request(self, rank: int, packet: CallPacket) -> Request:
        """Return the request in a packet of a rank's that was taken from its mailbox.

        Raises ProcessGone.
        """
        if self._intrusion:
            raise ProcessGone(self._intrusion)
        connection = self._connections[rank]
        if connection.gone:
            raise self._gone(rank)
        request = connection.request(packet)
        connection.open_calls += 1
        return request

    def done(self, rank: int, call: int) -> None:
        """Report that a rank's sum is in place, or that all have reached a barrier."""
        connection = self._connections.get(rank)
        if connection is not None:
            connection.open_calls -= 1
            connection.send(done_packet(call))

    def failed(self, rank: int, call: int, why: str, whose: Mapping[int, str]) -> None:
        """Report why a rank's call has no result; `whose`: each rank's fault."""
        connection = self._connections.get(rank)
        if connection is not None:
            connection.open_calls -= 1
            connection.say({"kind": "failed", "call": call, "why": why, "whose": dict(whose)})

    def close(self, why: str) -> None:
        """Close, and send the processes that are still connected the reason."""
        self._forget(self)
        for connection in self._connections.values():
            connection.end(why)


def not_yours(job: int, owner: int, user: int) -> str:
    """Return why a user's process may not attend the job of another."""
    return (
        f"job {job} belongs to user {owner} on this host; expected a process of that user, not of "
        f"user {user}"
    )
