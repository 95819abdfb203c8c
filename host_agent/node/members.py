"""The jobs of a host behind one port and in one thread: their members, packets and tasks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from host_agent.io.controller_client import ControllerClient
from host_agent.io.loop import Loop
from host_agent.node.member import Member
from host_agent.node.operation_pool import OperationPool
from host_agent.node.traffic_priority import TrafficPriority
from host_agent.node.vectors import VectorQueues
from packet_io.port import FramePort

LOGGER = logging.getLogger("hopsum-agent")


class Members:
    """Jobs come (`join`) and go (`leave`, or by themselves) while `turn` is called.

    What ends one job's member is told its controller, kept in `failures`, and touches no other.
    """

    def __init__(self, port: FramePort, watch: Iterable[int] = ()) -> None:
        self.traffic = TrafficPriority()
        self.failures: dict[int, Exception] = {}
        """What ended the member of a job here, until `leave` is called or the job joins again."""
        self._pool = OperationPool()
        self._vectors = VectorQueues()
        self._loop = Loop(port, [self.traffic], watch=[self._pool.fileno(), *watch])
        self._members: dict[int, Member] = {}

    @property
    def members(self) -> Mapping[int, Member]:
        """The members that are not over, by job."""
        return self._members

    def join(self, client: ControllerClient, patience: float | None = None) -> None:
        """Play this host's part in the job that a client attends; it is closed at the end.

        ValueError if the host is in that job already.
        """
        job = client.job
        if job in self._members:
            raise ValueError(f"host {client.host} attends job {job} already")
        self.failures.pop(job, None)
        self._members[job] = Member(
            client,
            self._pool,
            lambda machine: self.traffic.add(job, machine),
            patience,
            self._vectors,
        )
        self._loop.watch(client.fileno())
        client.open()

    def leave(self, job: int) -> None:
        """End this host's part in a job, whatever its state; nothing if it has none."""
        self.failures.pop(job, None)
        member = self._members.pop(job, None)
        if member is None:
            return
        self._loop.flush()
        self.traffic.remove(job)
        self._pool.drop(job)
        self._vectors.drop(job)
        self._loop.unwatch(member.client.fileno())
        member.close()
        # Closing waits until the last words are out.
        threading.Thread(target=member.client.close, name=f"closing job {job}", daemon=True).start()

    def set_level(self, job: int, level: int) -> None:
        """Let a job's frames and operations wait in the queues of a level, here and on the way."""
        if job in self._members:
            self._pool.set_level(job, level)
            self.traffic.set_level(job, level)
            self._members[job].set_level(level)

    def turn(self, patience: float | None = None) -> set[int]:
        """Move frames until something is due (see Loop.turn), then let every job go on."""
        ready = self._loop.turn(patience)
        if self._pool.fileno() in ready:
            for done in self._pool.completed():
                member = self._members.get(done.job)
                if member is not None:
                    self._guard(member, partial(member.completed, done))
        for member in list(self._members.values()):
            self._guard(member, member.advance)
            if member.over:
                self.leave(member.job)
        return ready

    def _guard(self, member: Member, step: Callable[[], None]) -> None:
        """Let a member take a step; what it raises ends this member only."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - one job's end must not be the others'
            LOGGER.error("job %d: %s: %s", member.job, type(error).__name__, error)
            member.client.failed(f"{type(error).__name__}: {error}")
            self.leave(member.job)
            self.failures[member.job] = error

    def close(self) -> None:
        """Leave every job."""
        for job in list(self._members):
            self.leave(job)
        self._pool.close()
