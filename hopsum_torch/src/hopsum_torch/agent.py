"""Client of the host's agent (docs/agent-socket.md)."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pwd
import re
import select
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum_torch import packets
from hopsum_torch.errors import GroupLost, HopsumError, SumRefused
from hopsum_torch.shared_memory import Memories, Memory
from hopsum_torch.turns import Turns

NAME = "@hopsum-agent"
"""Default address of a host's agent, overridden by HOPSUM_AGENT; `@`: an abstract name."""
ACCOUNT = "hopsum"
"""Account of the machine that agents may run as (docs/how-to/several-machines.md)."""
VERSION = 9
MESSAGE_BYTES = 1 << 17
HELLO_SECONDS = 10.0
_CREDENTIALS = struct.Struct("iII")
"""Layout of SO_PEERCRED: process, user, group (unix(7))."""

_NARROW = packets.TYPES.index(packets.NARROW)
_CODES = {np.dtype(name): code for code, name in enumerate(packets.TYPES) if code != _NARROW}
"""Codes of types in packets."""

ALL, PARTS = "all", "parts"
"""Targets of a call besides a rank: all ranks; equal parts of the tensor, one for each rank."""


LARGE_BYTES = 1 << 18
"""Results in memories of this size or more are copied out in the background, while their rank may
compute; others by the thread that waits for them."""

MANY_CALLS = 32
"""With more pending calls the background thread reads all messages, lest the socket fill up."""

Message = dict[str, Any]
Fill = Callable[[NDArray[Any]], tuple[int, tuple[str, int] | None]]
"""Puts a tensor into shared memory; returns its magnitude and fault, as messages have them."""
Prepare = Callable[[Memory], None]
"""Called with the memory of a call before it is filled."""
Then = Callable[[Exception | None], None]
"""Called once at the end of a call, in a thread that reads messages (`AgentClient.turns`)."""


_agents: weakref.WeakSet[AgentClient] = weakref.WeakSet()
"""The process's connections."""


class PendingCall:
    """A pending call: its memory holds the tensor, and finally its sum."""

    def __init__(self, what: object, memory: Memory | None, then: Then) -> None:
        self.what = what
        self.memory = memory
        self.then = then


class AgentClient:
    """A connection to the agent at `name`; `host`: the agent's name for this host.

    `connect` makes one. All methods may be called from any thread.
    """

    def __init__(self, connected: socket.socket, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.job_name = ""
        """Name of a job that these ranks have submitted."""
        self.rooted = False
        """Whether the job's trees have roots at the ranks' hosts, so that values of, or for, one
        rank take only the links that they need."""
        self.order: Sequence[int] = ()
        """The ranks in the order of the agents' numbers, and of parts."""
        self.rank = self.place = -1
        """This process's rank, and its place in that order."""
        self._socket = connected
        self._memories = Memories(self._announce)
        self._calls: dict[int, PendingCall] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        """Lock: calls are sent in the order of their numbers."""
        self._ended: GroupLost | None = None
        self._why = f"the agent of {host} is gone"
        """Why the job ends."""
        self._closed = False
        self._hosts: Sequence[str] = ()
        """Hosts by rank."""
        self._numbers: Sequence[int] = ()
        """Number of each rank in messages for people."""
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)
        self._turns: Turns | None = None
        _agents.add(self)

    # -- the job

    def submit(
        self, name: str, hosts: Sequence[str], timeout: float, *, immediate: bool = False
    ) -> int:
        """Submit a job; return its number. `hosts`: of the ranks. Raises HopsumError.

        `immediate`: it starts on free slots now, or is refused.
        """
        ranks = list(hosts)
        request = {"kind": "submit", "name": name, "ranks": ranks, "immediate": immediate}
        self._ask(request, f"job {name}")
        answer = self._receive(timeout, f"job {name}", "to be submitted")
        if answer["kind"] == "refused":
            why: str = answer["why"]
            raise HopsumError(why if name in why else f"job {name}: {why}")
        return int(self._expect(answer, "submitted")["job"])

    def attend(
        self,
        job: int,
        rank: int,
        hosts: Sequence[str],
        timeout: float,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """Take part in a job as a rank; `hosts`: of the ranks. Returns when it has begun.

        `numbers`: of the ranks in messages for people. Raises HopsumError if the job does not begin
        within `timeout` seconds.
        """
        self._hosts = hosts
        self._numbers = numbers or range(len(hosts))
        what = f"job {job}"
        self._ask({"kind": "attend", "job": job, "rank": rank}, what)
        waited = f"to begin; `hopsum job {job}` says what it waits for"
        answer = self._receive(timeout, what, waited)
        if answer["kind"] == "ended":
            raise GroupLost(f"{what}: {self._named(answer['why'])}")
        started = self._expect(answer, "started")
        ranks, self.rooted = started["ranks"], started["rooted"]
        one_each = len(set(ranks)) == len(ranks)
        if sorted(ranks) != sorted(hosts) or not (one_each or list(ranks) == list(hosts)):
            raise HopsumError(
                f"{what} has ranks on {', '.join(ranks)}, and these ranks are on "
                f"{', '.join(hosts)}; expected the same"
            )
        self.order = [hosts.index(host) for host in ranks] if one_each else range(len(ranks))
        self.rank, self.place = rank, self.order.index(rank)
        self._socket.settimeout(None)
        self._turns = Turns(self._read, "hopsum agent")

    def lost(self, seconds: float = 0.0) -> GroupLost | None:
        """Return why the job has ended early, or ends within some seconds."""
        ended = self.turns.until(lambda: self._ended is not None, seconds)
        return self._ended if ended and not self._closed else None

    @property
    def turns(self) -> Turns:
        """The threads that read the agent's messages, once it attends a job."""
        assert self._turns is not None
        return self._turns

    # -- calls

    def sum(
        self,
        what: object,
        elements: int,
        dtype: np.dtype[Any],
        reduction: str,
        to: str | int,
        fill: Fill,
        drain: Callable[[NDArray[Any]], None],
        then: Then,
        prepare: Prepare | None = None,
        *,
        narrow: bool = False,
    ) -> None:
        """Sum a tensor of float32, int32 or int8 over all ranks, or reduce it otherwise.

        int8 is summed modulo 256; of int16 there are maxima and minima alone. `narrow`: float32
        takes 16 bits in packets. `reduction`: as the messages name it. `to`: ALL,
        PARTS or a rank. `drain` copies the result out of shared memory, before `then`. `what`: its
        text names the call in messages. Raises GroupLost, and what `prepare` and `fill` raise.
        """
        code = _NARROW if narrow else _CODES[dtype]
        head = packets.SUM, code, packets.REDUCTIONS.index(reduction)
        self._share(what, elements, dtype, head, self._of(to), fill, drain, then, prepare)

    def copy(
        self,
        what: object,
        words: int,
        source: str | int,
        fill: Callable[[NDArray[Any]], None],
        drain: Callable[[NDArray[Any]], None],
        then: Then,
        prepare: Prepare | None = None,
    ) -> None:
        """Copy int32 words to all ranks.

        `source`: PARTS, if each rank has one, or the rank that has the words. The rest as of `sum`.
        """

        def share(values: NDArray[Any]) -> tuple[int, None]:
            fill(values)
            return 0, None

        head = packets.COPY, 0, 0
        dtype = np.dtype(np.int32)
        self._share(what, words, dtype, head, self._of(source), share, drain, then, prepare)

    def _of(self, whose: str | int) -> int:
        """Return the code of a call's target in packets."""
        if isinstance(whose, str):
            return packets.ALL if whose == ALL else packets.PARTS
        return packets.ROOT + self.order.index(whose)

    def _share(
        self,
        what: object,
        elements: int,
        dtype: np.dtype[Any],
        head: tuple[int, int, int],
        target: int,
        fill: Fill,
        drain: Callable[[NDArray[Any]], None],
        then: Then,
        prepare: Prepare | None,
    ) -> None:
        """Begin a call of a tensor in shared memory."""
        with self._sending:
            with self._lock:
                self._check()
                memory = self._memories.take(elements * dtype.itemsize)
            values = memory.bytes[: elements * dtype.itemsize].view(dtype)
            if prepare is not None:
                prepare(memory)
            magnitude, fault = fill(values)
            code, element = packets.fault_code(fault)

            def finish(error: Exception | None) -> None:
                if error is None:
                    try:
                        drain(values)
                    except Exception as raised:  # noqa: BLE001 - of this call, not of who reads
                        error = raised
                with self._lock:
                    self._memories.give_back(memory)
                then(error)

            tail = memory.number, elements, magnitude, element
            self._begin(PendingCall(what, memory, finish), (*head, code, target), tail)

    def barrier(self, what: object, then: Then) -> None:
        """Wait for all ranks. Raises GroupLost."""
        with self._sending:
            self._begin(PendingCall(what, None, then), (packets.BARRIER, 0, 0, 0, 0), (0, 0, 0, 0))

    def _begin(self, call: PendingCall, head: tuple[int, ...], tail: tuple[int, ...]) -> None:
        with self._lock:
            self._check()
            number = self._number
            self._number += 1
            self._calls[number] = call
        # The connection's error is known when its end is read.
        with contextlib.suppress(OSError):
            self._socket.send(packets.CALL.pack(*head, number, *tail))
        large = call.memory is not None and call.memory.size >= LARGE_BYTES
        if large or len(self._calls) > MANY_CALLS:
            self.turns.read_for(lambda: number not in self._calls)

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended
        if self._closed:
            raise GroupLost("this process group has been destroyed; make another")

    def close(self) -> None:
        """Leave; pending calls end by themselves."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(OSError):
            self._send({"kind": "leave"})
        if self._turns is None:
            self._socket.close()

    def _detach_after_fork(self) -> None:
        """Give the connection up in a forked process: it belongs to the parent.

        Its threads do not exist here, and its locks may be held for ever.
        """
        self._socket.close()
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._ended = GroupLost(
            f"process {os.getpid()} has been forked from the one that is this rank (process "
            f"{os.getppid()}); expected calls of that one only: make none here, or start a new "
            "process instead"
        )
        if self._turns is not None:
            self._turns.stop()

    # -- messages

    def _announce(self, memory: Memory) -> None:
        message = {"kind": "memory", "memory": memory.number, "bytes": memory.size}
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [json.dumps(message).encode()], [memory.descriptor])

    def _send(self, message: Message) -> None:
        self._socket.send(json.dumps(message).encode())

    def _ask(self, message: Message, what: str) -> None:
        """Send a message that will be answered. Raises HopsumError."""
        try:
            self._send(message)
        except OSError as error:
            raise HopsumError(f"{what}: agent of {self.host}: {error.strerror}") from None

    def _receive(self, timeout: float, what: str, waited: str) -> Message:
        self._socket.settimeout(timeout)
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except TimeoutError:
            raise HopsumError(f"{what}: waited {timeout:g} s for it {waited}") from None
        except OSError as error:
            raise HopsumError(f"{what}: agent of {self.host}: {error.strerror}") from None
        if not data:
            raise HopsumError(f"{what}: the agent of {self.host} at {self.name} is gone")
        message: Message = json.loads(data)
        return message

    def _expect(self, message: Message, kind: str) -> Message:
        if message.get("kind") != kind:
            raise HopsumError(
                f"the agent of {self.host} at {self.name} says {message!r:.200}; expected "
                f"{kind!r}, as agents of version {VERSION} say"
            )
        return message

    def _read(self, seconds: float) -> bool:
        """Process a message, if one comes within some seconds; return whether one did.

        Raises EOFError once the agent has disconnected.
        """
        try:
            if not self._readable.poll(None if seconds == math.inf else 1000 * seconds):
                return False
            data = self._socket.recv(MESSAGE_BYTES)
        except OSError:
            data = b""
        if data:
            try:
                self._take(data)
            except (ValueError, TypeError, LookupError, struct.error) as error:
                self._why = (
                    f"the agent of {self.host} sent {data[:40]!r} ({type(error).__name__}: "
                    f"{error}); expected a message as agents of version {VERSION} send"
                )
                data = b""
        if not data:
            self._end()
            raise EOFError
        return True

    def _take(self, data: bytes) -> None:
        """Process a message."""
        if data[0] == packets.DONE:
            _, number = packets.END.unpack(data)
            self._finish(number, None)
            return
        message: Message = json.loads(data)
        match message["kind"]:
            case "failed":
                self._finish(message["call"], message)
            case "ended":
                self._why = message["why"]

    def _end(self) -> None:
        """Let all pending calls fail: the agent has disconnected."""
        with self._lock:
            self._ended = GroupLost(
                f"{self._named(self._why)}; the switches sum for this group no longer: destroy it, "
                "and make another (torchrun --max-restarts does)"
            )
            calls = [self._calls.pop(number) for number in list(self._calls)]
        for call in calls:
            call.then(GroupLost(f"{call.what}: {self._ended}"))
        self._socket.close()

    def _finish(self, number: int, failed: Message | None) -> None:
        error = None if failed is None else self._refusal(self._calls[number].what, failed)
        with self._lock:
            call = self._calls.pop(number)
        call.then(error)

    def _refusal(self, what: object, failed: Message) -> SumRefused:
        ranks = {self.order[int(number)]: text for number, text in failed["whose"].items()}
        whose = [
            f"rank {self._numbers[rank]} ({self._hosts[rank]}): {self._renumbered(ranks[rank])}"
            for rank in sorted(ranks)
        ]
        return SumRefused(f"{what}: {'; '.join([self._renumbered(failed['why']), *whose])}")

    def _renumbered(self, text: str) -> str:
        """Return a text with the agents' numbers of ranks replaced by those for people."""

        def number(found: re.Match[str]) -> str:
            return f"rank {self._numbers[self.order[int(found[1])]]}"

        return re.sub(r"\brank (\d+)", number, text)

    def _named(self, why: str) -> str:
        """Return a text with the ranks of its hosts added."""
        named = []
        for host in dict.fromkeys(self._hosts):
            if re.search(rf"\b{re.escape(host)}\b", why):
                ranks = [
                    str(number)
                    for number, each in zip(self._numbers, self._hosts, strict=True)
                    if each == host
                ]
                which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}"
                named.append(f"{host} is {which}")
        return f"{why} ({', '.join(named)})" if named else why


def _detach_after_fork() -> None:
    for agent in _agents:
        agent._detach_after_fork()


# A forked process, a worker of a data loader for instance, that ends normally would otherwise leave
# the job in its parent's place, and its copy of the socket would hide the parent's end.
os.register_at_fork(after_in_child=_detach_after_fork)


def connect(name: str | None = None) -> AgentClient | None:
    """Connect to the agent of this host; None if there is none at `name`.

    `name`: a path, or @ and an abstract name (None: NAME). Raises HopsumError for an agent of
    another user, or of another version.
    """
    name = name or NAME
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connected.connect(f"\0{name[1:]}" if name.startswith("@") else name)
    except (ConnectionRefusedError, FileNotFoundError):
        connected.close()
        return None
    except OSError as error:
        connected.close()
        raise HopsumError(f"agent at {name}: {error.strerror}") from None
    agent = AgentClient(connected, name, "this host")
    try:
        _check_user(connected, name)
        said = agent._receive(HELLO_SECONDS, f"agent at {name}", "to answer")
        if said["kind"] == "ended":
            raise HopsumError(f"agent at {name}: {said['why']}")
        hello = agent._expect(said, "hello")
        if hello["version"] != VERSION:
            raise HopsumError(
                f"agent at {name}: it speaks version {hello['version']} and hopsum_torch "
                f"{VERSION}; install the two of one release"
            )
    except HopsumError:
        connected.close()
        raise
    agent.host = hello["host"]
    agent._why = f"the agent of {agent.host} is gone"
    return agent


def _check_user(connected: socket.socket, name: str) -> None:
    """Raise HopsumError if the listening process is none of root, ACCOUNT and this user.

    Any user can take an abstract name first, but only root can make accounts.
    """
    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    trusted = {0, os.geteuid()}
    with contextlib.suppress(KeyError):
        trusted.add(pwd.getpwnam(ACCOUNT).pw_uid)
    if user not in trusted:
        raise HopsumError(
            f"agent at {name}: process {process} of user {user} listens there; expected an agent "
            f"of root, of the account {ACCOUNT} or of this user: end that process, or set "
            "HOPSUM_AGENT"
        )
