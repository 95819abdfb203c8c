"""Election of one of several controllers: a key in etcd that is bound to the leader's lease.

A leader that ends, hangs, or is cut off from etcd does not refresh its lease; the key is deleted,
and the controller that creates it again leads. The revision of the key's creation is the term: it
increases from leader to leader, determines the P4Runtime election id, and fences writes to etcd, so
that a former leader does no harm when it resumes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable

from hopsum.controller.dataplane.driver import ELECTION_ID
from hopsum.controller.ha.etcd import Entry, Etcd, EtcdAddress, EtcdError, Fence

LOGGER = logging.getLogger("hopsum.election")

LEASE_SECONDS = 3
"""Seconds of a leader's silence after which another one leads; etcd's default minimum is 2."""
POLL_SECONDS = 0.3
"""Seconds between polls of a controller that waits. (A watch would save little, and its stream may
break as well.)"""
REFRESHES = 3
"""Number of refreshes during a lease."""


class Leadership:
    """One term of a controller. Made, and used, in an event loop; `lose` from any thread.

    `term`: etcd's revision at its begin. `fence`: holds as long as the term.
    """

    def __init__(self, key: str, term: int) -> None:
        self.term = term
        self.fence = Fence(key, term)
        self.election_id = ELECTION_ID + term
        """P4Runtime election id: above those of earlier terms, and of a controller without etcd."""
        self.lost = asyncio.Event()
        self.why = ""
        """Reason for its loss."""
        self._loop = asyncio.get_running_loop()

    def lose(self, why: str) -> None:
        """End the term: another controller leads, or may lead."""
        self._loop.call_soon_threadsafe(self._lose, why)

    def _lose(self, why: str) -> None:
        if not self.lost.is_set():
            self.why = why
            self.lost.set()
            LOGGER.warning("term %d is over: %s", self.term, why)


class _Lease:
    """A lease that a thread refreshes, so that planning for seconds does not end it."""

    def __init__(self, address: EtcdAddress, lease: int, seconds: int, granted: float) -> None:
        self.alive_until = granted + seconds
        """Expiry by `time.monotonic`; etcd's is later."""
        self.gone = False
        self._etcd = Etcd(address)
        self._lease = lease
        self.seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self.seconds / REFRESHES):
            sent = time.monotonic()
            try:
                if not self._etcd.refresh(self._lease):
                    self.gone = True
                    return
                self.alive_until = sent + self.seconds
            except EtcdError as error:
                LOGGER.warning("the lease was not refreshed: %s", error)

    def end(self) -> None:
        """Revoke the lease, so that no candidate has to wait until it expires."""
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(EtcdError):
            self._etcd.revoke(self._lease)


class Election:
    """A controller's part in the election of a cluster's leader.

    `name`: what others say of it. `notify`: prints a line for people. Raises MissingExtraError.
    """

    def __init__(
        self,
        address: EtcdAddress,
        name: str,
        notify: Callable[[str], None],
        seconds: int = LEASE_SECONDS,
    ) -> None:
        self.address = address
        self._key = address.key("leader")
        self._etcd = Etcd(address)
        self._name = name
        self._notify = notify
        self._seconds = seconds

    @contextlib.asynccontextmanager
    async def lead(self) -> AsyncIterator[Leadership]:
        """Wait until this controller leads, and lead while the block runs.

        The block has to end soon after `Leadership.lost`.
        """
        lease, term = await self._win()
        leadership = Leadership(self._key, term)
        watch = asyncio.create_task(_watch(lease, leadership), name="watch the lease")
        try:
            yield leadership
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await asyncio.to_thread(lease.end)

    async def _win(self) -> tuple[_Lease, int]:
        """Wait until there is no leader, and create the key; return lease and key revision."""
        last_words = ""
        while True:
            try:
                leader = await asyncio.to_thread(self._etcd.get, self._key)
                if leader is None:
                    won = await self._try()
                    if won is not None:
                        return won
                    continue
                words = f"standing by: {leader.value.decode(errors='replace')} leads"
            except EtcdError as error:
                words = f"standing by: {error}"
            if words != last_words:
                self._notify(words)
                last_words = words
            await asyncio.sleep(POLL_SECONDS)

    async def _try(self) -> tuple[_Lease, int] | None:
        """Create the key, unless another controller is faster."""
        granted = time.monotonic()
        number = await asyncio.to_thread(self._etcd.grant, self._seconds)
        lease = _Lease(self.address, number, self._seconds, granted)
        won = False
        try:
            made = await asyncio.to_thread(self._make, number)
            won = made is not None
        finally:
            if not won:
                await asyncio.to_thread(lease.end)
        return None if made is None else (lease, made.created)

    def _make(self, lease: int) -> Entry | None:
        self._etcd.create(self._key, self._name, lease)
        # An endpoint may have made it, and not said so.
        made = self._etcd.get(self._key)
        return made if made is not None and made.lease == lease else None


async def _watch(lease: _Lease, leadership: Leadership) -> None:
    """End a term with its lease: at the latest when etcd may expire it."""
    while not lease.gone:
        left = lease.alive_until - time.monotonic()
        if left <= 0:
            leadership.lose(f"etcd has not answered for {lease.seconds} s")
            return
        await asyncio.sleep(min(left, POLL_SECONDS))
    leadership.lose("its lease in etcd is gone")


def name_of_process(address: str) -> str:
    """Return the description of a controller that listens at an address."""
    return f"the controller at {address} (process {os.getpid()} on {socket.gethostname()})"
