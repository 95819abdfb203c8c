"""The socket at which processes of this host submit tensors (docs/agent-socket.md)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import mmap
import os
import resource
import select
import socket
import stat
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hopsum.host_agent.io.socket_peers import listener_at, peer_of
from hopsum.host_agent.io.wakeup import Wakeup
from hopsum.host_agent.process_calls import (
    ALL,
    BARRIER,
    COPY,
    FAULTS,
    MOST_MEMORIES,
    PARTS,
    PASSED,
    REDUCTIONS,
    ROOT,
    TYPES,
    CallPacket,
    Mailbox,
    done_packet,
    read_call,
)
from hopsum.protocol.errors import HopsumError, OperationError

LOGGER = logging.getLogger("hopsum-agent")

NAME = "@hopsum-agent"
"""Default address of a host's agent; `@`: in the abstract namespace."""
VERSION = 9
MESSAGE_BYTES = 1 << 17
MOST_CONNECTIONS = 256
MOST_OF_USER = 64
"""Connections, and jobs attended before they are known here, so that others find room; root has no
such limit."""
MOST_REQUESTS = 4096
"""Maximum number of pending calls of one process, and of messages that it has not read."""
MOST_A_TURN = 64
"""Messages of one process in a turn, so that frames and other processes have theirs."""
USER_SHARE = 8
"""Of the agent's descriptors those of one user's memories are at most one in so many, and of all
users' but root's half."""
MOST_MAPPINGS = 1 << 13
"""Maximum number of memories of one user where descriptors are plenty: the kernel allows a process
65,530 mappings (vm.max_map_count)."""
MOST_WAITING = 4
"""Maximum number of jobs that one process submits at a time."""

Message = dict[str, Any]


def most_memories_of_user() -> int:
    """Return the maximum number of memories that the processes of one user share."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_MAPPINGS if soft < 0 else min(MOST_MAPPINGS, soft // USER_SHARE)


class Submit(Protocol):
    """Submits a job."""

    def __call__(self, name: str, ranks: Sequence[str], *, immediate: bool, user: int) -> int:
        """Return the number of a new job of a user of this host; `ranks`: the host of each.

        `immediate`: it starts on free slots now, or is refused. Raises HopsumError.
        """


class ProcessGone(OperationError):
    """The process ended without leaving, or sent invalid data; the message names host and job."""


class SocketInUse(OperationError):
    """The agent cannot listen on its socket."""


class _Refused(Exception):
    """Invalid message of a process; the text is for the process."""


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """A call of a process. `kind`: sum, copy, barrier, leave.

    `tensor`: in memory that the process shares, float32 or int32, flat; its sum goes to the same
    place. `magnitude`: of a sum; no int32 element is further from 0, and no float32 element has a
    higher exponent byte (`hopsum.host_agent.numbers`), of the finite ones where others are PASSED.
    `fault`: what is wrong with an element, one of FAULTS, and its index. `reduction`: one of
    REDUCTIONS. `target`: ALL, PARTS or from ROOT on, of a sum the ranks that it is for, of a copy
    those whose values all get. `type`: one of TYPES; empty: that of the tensor.
    """

    kind: str
    call: int = -1
    tensor: NDArray[Any] | None = None
    magnitude: int = 0
    fault: tuple[str, int] | None = None
    reduction: str = "sum"
    target: int = ALL
    type: str = ""

    @property
    def named_type(self) -> str:
        """Return the name of the type of the elements."""
        assert self.tensor is not None
        return self.type or self.tensor.dtype.name


class ProcessSocket:
    """Listens at `name` for the processes of `host`, which `submit` and attend jobs; where that
    is empty, all that come are passed to `accept`.

    It never waits: `turn` is called when a descriptor that it had watched is readable; then there
    may be something for `Attendance.take`. Raises SocketInUse.

    A job that was submitted here is attended by its user alone, or root, also if another came
    first; of another job, whose user the host does not know, the first process that comes is taken.
    """

    def __init__(
        self,
        host: str,
        name: str,
        submit: Submit,
        watch: Callable[[int], None],
        unwatch: Callable[[int], None],
    ) -> None:
        self.name = name
        self._host = host
        self._submit = submit
        self._watch = watch
        self._unwatch = unwatch
        self._connections: dict[int, _Connection] = {}
        self._exits: dict[int, int] = {}
        """Of each process's `exit` the descriptor of its connection."""
        self._full = False
        """Whether there was no descriptor for the last that came."""
        self._attendances: dict[int, Attendance] = {}
        self._submitters: dict[int, _Connection] = {}
        """Processes that have submitted jobs here, by job."""
        self._answers: deque[tuple[_Connection, int | str]] = deque()
        """Answers to submissions: the job's number, or why there is none."""
        self._server = self._listen(name) if name else None
        self._answered = Wakeup()
        self._full_sockets = select.epoll()
        """Watches for room in those that messages wait for."""
        own = (self._server, self._answered, self._full_sockets)
        self._own = [each.fileno() for each in own if each is not None]
        for descriptor in self._own:
            watch(descriptor)

    def _listen(self, name: str) -> socket.socket:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.setblocking(False)
        try:
            _bind(server, name)
            server.listen()
        except OSError as error:
            server.close()
            holder = listener_at(_address(name)) or "another process"
            raise SocketInUse(
                f"host {self._host}: cannot listen for processes at {name}: {error.strerror}"
                + (f", by {holder}" if error.errno == errno.EADDRINUSE else "")
                + "; end that, or give this agent and its processes another address (--socket, "
                "HOPSUM_AGENT)"
            ) from None
        return server

    @property
    def connected(self) -> int:
        """Number of processes."""
        return len(self._connections)

    @property
    def attended(self) -> Collection[int]:
        """Jobs that processes attend, have attended, or are awaited for."""
        return self._attendances.keys()

    def attendance(self, job: int) -> Attendance:
        """Return the attendance of a job, by a process that has connected or will."""
        if job not in self._attendances:
            self._attendances[job] = Attendance(job, self._host, self._forget)
        return self._attendances[job]

    @property
    def awaited(self) -> Collection[int]:
        """Jobs whose submitters are connected."""
        return [job for job, submitter in self._submitters.items() if not submitter.gone]

    def end(self, job: int, why: str = "") -> None:
        """End the attendance of a job that is over here, if it is not closed already.

        It may have ended before its processes were to be told that it has begun.
        """
        self._submitters.pop(job, None)
        attendance = self._attendances.get(job)
        if attendance is not None:
            over = f"job {job} is over on host {self._host}"
            attendance.close(f"{over}: {why}" if why else over)

    def _forget(self, attendance: Attendance) -> None:
        if self._attendances.get(attendance.job) is attendance:
            del self._attendances[attendance.job]
            self._submitters.pop(attendance.job, None)

    def turn(self, ready: set[int]) -> None:
        """Process readable descriptors."""
        if self._server is not None and self._server.fileno() in ready:
            try:
                self.accept(self._server.accept()[0])
                self._full = False
            except (BlockingIOError, ConnectionError):
                pass
            except OSError as error:
                # It stays in the accept backlog until a turn has a descriptor for it.
                if not self._full:
                    LOGGER.warning("a process could not be accepted: %s", error.strerror)
                self._full = True
        if self._answered.fileno() in ready:
            self._answered.clear()
            while self._answers:
                self._answer(*self._answers.popleft())
        if self._full_sockets.fileno() in ready:
            for descriptor, _ in self._full_sockets.poll(0):
                self._connections[descriptor].flush()
        exited = {self._exits[descriptor] for descriptor in ready & self._exits.keys()}
        for descriptor in (ready | exited) & self._connections.keys():
            connection = self._connections[descriptor]
            try:
                # What is left makes it readable in the next turn.
                for _ in range(MOST_A_TURN):
                    message = connection.receive()
                    if message is None and descriptor in exited:
                        raise EOFError
                    if message is None:
                        break
                    self._obey(connection, message)
            except (EOFError, OSError):
                self._drop(descriptor)
            except _Refused as refusal:
                LOGGER.warning("a process sent an invalid message: %s", refusal)
                connection.say({"kind": "ended", "why": str(refusal)})
                self._drop(descriptor)

    def accept(self, accepted: socket.socket) -> None:
        """Take in a process that is connected, or say why not and close."""
        accepted.setblocking(False)
        connection = _Connection(accepted, self._full_sockets)
        users = Counter(known.user for known in self._connections.values())
        if len(self._connections) >= MOST_CONNECTIONS or (
            connection.user and users[connection.user] >= MOST_OF_USER
        ):
            why = (
                f"{len(self._connections)} processes are connected, {users[connection.user]} of "
                f"user {connection.user}; the limits are {MOST_CONNECTIONS}, and "
                f"{MOST_OF_USER} a user"
            )
            connection.say({"kind": "ended", "why": why})
            connection.close()
            return
        self._connections[accepted.fileno()] = connection
        self._watch(accepted.fileno())
        if connection.exit is not None:
            self._exits[connection.exit] = accepted.fileno()
            self._watch(connection.exit)
        connection.say({"kind": "hello", "version": VERSION, "host": self._host})

    def _drop(self, descriptor: int) -> None:
        connection = self._connections.pop(descriptor)
        self._unwatch(descriptor)
        if connection.exit is not None:
            del self._exits[connection.exit]
            self._unwatch(connection.exit)
        connection.close()
        # A job that begins later learns of those that are gone, but many never do.
        abandoned = [each for each in self._attendances.values() if each.abandoned]
        for attendance in abandoned[:-MOST_OF_USER]:
            self._forget(attendance)

    def _obey(self, connection: _Connection, message: Message | CallPacket) -> None:
        if connection.ending:
            return
        if connection.left:
            raise _Refused("a message after leave: expected nothing more")
        if isinstance(message, CallPacket):
            connection.called(message)
            return
        match message.get("kind"):
            case "submit":
                name, ranks = message.get("name"), message.get("ranks")
                immediate = message.get("immediate")
                if not _is_text(name) or not _names(ranks) or not isinstance(immediate, bool):
                    raise _Refused(
                        f"submit: {_short(message)}: expected name and ranks as strings, and "
                        "immediate, true or false"
                    )
                if connection.waiting >= MOST_WAITING:
                    raise _Refused(
                        f"submit: {connection.waiting} jobs are being submitted; expected at most "
                        f"{MOST_WAITING} at a time"
                    )
                connection.waiting += 1
                # This waits for the controller.
                threading.Thread(
                    target=self._submit_for,
                    args=(connection, name, ranks, immediate),
                    daemon=True,
                ).start()
            case "attend":
                job, rank = _whole(message, "job", 0xFFFF), _whole(message, "rank", 0xFFFF)
                self._check_user(job, connection.user)
                self.attendance(job).begin(connection, rank)
            case "memory":
                self._check_memories(connection.user)
                connection.map_memory(_whole(message, "memory", MOST_MEMORIES - 1))
            case "leave":
                connection.left = True
                connection.requests.append(Request("leave"))
            case kind:
                raise _Refused(f"kind {kind!r:.40}: expected submit, attend, memory or leave")

    def _check_user(self, job: int, user: int) -> None:
        """Raise _Refused if a process's user may not attend a job."""
        attendance = self._attendances.get(job)
        submitter = self._submitters.get(job)
        owner = None if submitter is None else submitter.user
        if owner is None and attendance is not None:
            owner = attendance.user
        if owner is not None and user not in (0, owner):
            raise _Refused(_not_yours(job, owner, user))
        early = sum(
            attendance.unknown and not attendance.abandoned and attendance.user == user
            for attendance in self._attendances.values()
        )
        if user and early >= MOST_OF_USER:
            raise _Refused(
                f"job {job}: user {user} attends {early} jobs that this host does not know; "
                f"expected at most {MOST_OF_USER}"
            )

    def _check_memories(self, user: int) -> None:
        """Raise _Refused if a user shares as many memories as possible."""
        if not user:
            return
        shared = Counter[int]()
        for connection in self._connections.values():
            if connection.user:
                shared[connection.user] += connection.shared
        most = most_memories_of_user()
        most_of_all = most * USER_SHARE // 2
        if shared[user] >= most or shared.total() >= most_of_all:
            raise _Refused(
                f"user {user} shares {shared[user]} memories; expected at most {most}, and "
                f"{most_of_all} of all users: share fewer, larger ones, or raise the agent's limit "
                "of open files"
            )

    def _submit_for(
        self, connection: _Connection, name: str, ranks: Sequence[str], immediate: bool
    ) -> None:
        try:
            user = connection.user
            answer: int | str = self._submit(name, ranks, immediate=immediate, user=user)
        except HopsumError as error:
            answer = str(error)
        self._answers.append((connection, answer))
        self._answered.set()

    def _answer(self, connection: _Connection, answer: int | str) -> None:
        """Send the answer to a submission; a new job belongs to the user who submitted it."""
        connection.waiting -= 1
        if isinstance(answer, str):
            connection.say({"kind": "refused", "why": answer})
            return
        self._submitters[answer] = connection
        if answer in self._attendances:
            self._attendances[answer].evict_others(connection.user)
        connection.say({"kind": "submitted", "job": answer})

    def close(self) -> None:
        """Stop listening, and close every connection without a reply."""
        for descriptor in list(self._connections):
            self._drop(descriptor)
        for descriptor in self._own:
            self._unwatch(descriptor)
        if self._server is not None:
            self._server.close()
        self._full_sockets.close()
        self._answered.close()
        if self.name and not self.name.startswith("@"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.name)  # noqa: PTH108 - as bound


class Attendance:
    """The processes of this host that attend `job`, by rank; they may come before it has begun.

    On a host with a single rank, the rank that the process states is not checked.
    """

    def __init__(self, job: int, host: str, forget: Callable[[Attendance], None]) -> None:
        self.job = job
        self._host = host
        self._forget = forget
        self._connections: dict[int, _Connection] = {}
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

    def begin(self, connection: _Connection, rank: int) -> None:
        """Attach a process. Raises _Refused if another one attends, or its rank is not on this
        host."""
        if self._ranks is not None:
            rank = self._place(rank)
        if rank in self._connections or connection in self._connections.values():
            raise _Refused(
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
            except _Refused as refusal:
                connection.end(str(refusal))

    def evict_others(self, owner: int) -> None:
        """End the connections of other users than the job's, which came in advance, and root's.

        If the job has started, sums may have values of theirs: `take` raises.
        """
        for rank, connection in list(self._connections.items()):
            if connection.user in (0, owner):
                continue
            del self._connections[rank]
            connection.end(_not_yours(self.job, owner, connection.user))
            if self._ranks is not None:
                self._intrusion = (
                    f"job {self.job} on host {self._host}: a process of user {connection.user} "
                    f"attended it as rank {rank} before it was known to belong to user {owner}; "
                    "submit it again"
                )

    def _place(self, rank: int) -> int:
        """Return the rank of a process that claims `rank`. Raises _Refused."""
        if len(self._here) == 1:
            return self._here[0]
        if rank not in self._here:
            raise _Refused(
                f"job {self.job} on host {self._host}: rank {rank} is not here; expected one of "
                f"{', '.join(map(str, self._here))}"
            )
        return rank

    def _tell(self, connection: _Connection) -> None:
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
        return connection.request(packet)

    def done(self, rank: int, call: int) -> None:
        """Report that a rank's sum is in place, or that all have reached a barrier."""
        connection = self._connections.get(rank)
        if connection is not None:
            connection.send(done_packet(call))

    def failed(self, rank: int, call: int, why: str, whose: Mapping[int, str]) -> None:
        """Report why a rank's call has no result; `whose`: each rank's fault."""
        self._say(rank, {"kind": "failed", "call": call, "why": why, "whose": dict(whose)})

    def close(self, why: str) -> None:
        """Close, and send the processes that are still connected the reason."""
        self._forget(self)
        for connection in self._connections.values():
            connection.end(why)

    def _say(self, rank: int, message: Message) -> None:
        connection = self._connections.get(rank)
        if connection is not None:
            connection.say(message)


class _Connection:
    """One process. `user`: its user id. `left`: it has left. `ranks`: of its job, once started.

    `exit`: a descriptor that is readable once it has ended, if the kernel gives one.
    `ending`: it will be disconnected once it has been told why. `full`: watches for room in it.
    """

    def __init__(self, connected: socket.socket, full: select.epoll) -> None:
        process, self.user = peer_of(connected)
        self.exit = _exit_of(process)
        self.requests: list[Request] = []
        self.waiting = 0
        """Number of jobs that are being submitted for it."""
        self.gone = self.left = self.ending = False
        self.ranks = 0
        self._full = full
        self._unsent: deque[bytes] = deque()
        """Messages that wait for room in its socket."""
        self.mailbox = Mailbox(connected.fileno())
        self._socket = connected
        self._memories: dict[int, NDArray[np.uint8]] = {}
        self._descriptors: list[int] = []

    @property
    def shared(self) -> int:
        """Number of memories that it shares."""
        return len(self._memories)

    def receive(self) -> Message | CallPacket | None:
        """Return the next message, None if there is none now. Raises EOFError, _Refused."""
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 4)
        except BlockingIOError:
            return None
        self._descriptors += descriptors
        if not data:
            raise EOFError
        call = read_call(data)
        if call is not None:
            self._check_descriptors(None)
            return call
        try:
            if flags & socket.MSG_TRUNC:
                raise ValueError(f"longer than {MESSAGE_BYTES} bytes")
            message = json.loads(data.decode())
            if not isinstance(message, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            raise _Refused(
                f"message {data[:40]!r}: {error}; expected a JSON object, or a call"
            ) from None
        self._check_descriptors(message.get("kind"))
        return message

    def _check_descriptors(self, kind: object) -> None:
        """Raise _Refused for descriptors that no message of this kind has; `close` closes them."""
        count = len(self._descriptors)
        if count > (kind == "memory"):
            raise _Refused(f"{count} descriptors: expected none, or one with memory")

    def say(self, message: Message) -> None:
        """Send a message; one that never reads is disconnected."""
        self.send(json.dumps(message).encode())

    def send(self, data: bytes) -> None:
        """Send a packet as `say` does, without waiting: what does not fit is kept for `flush`."""
        if self.gone or self.ending:
            return
        if self._unsent or not self._sent(data):
            if len(self._unsent) >= MOST_REQUESTS:
                self._shutdown()
                return
            if not self._unsent:
                self._full.register(self._socket, select.EPOLLOUT)
            self._unsent.append(data)

    def flush(self) -> None:
        """Send what has been waiting for room."""
        while self._unsent and self._sent(self._unsent[0]):
            self._unsent.popleft()
        if not self._unsent:
            self._full.unregister(self._socket)
            if self.ending:
                self._shutdown()

    def _sent(self, data: bytes) -> bool:
        """Send a packet if there is room; return whether there was, or nobody to read it."""
        try:
            self._socket.send(data)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def map_memory(self, number: int) -> None:
        """Map the memory of a received descriptor. Raises _Refused."""
        if len(self._descriptors) != 1 or number in self._memories:
            raise _Refused(
                f"memory {number}: {len(self._descriptors)} descriptors received; expected one, "
                "and an unused number"
            )
        descriptor = self._descriptors.pop()
        try:
            status = os.fstat(descriptor)
            # What can shrink while it is mapped can end the agent with SIGBUS.
            sealed = stat.S_ISREG(status.st_mode) and (
                fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            )
            if not sealed or not status.st_size:
                raise ValueError("it can shrink, or is empty")
            mapped = mmap.mmap(descriptor, status.st_size)
        except (OSError, ValueError) as error:
            raise _Refused(
                f"memory {number}: {error}; expected a memfd sealed with F_SEAL_SHRINK"
            ) from None
        finally:
            os.close(descriptor)
        memory = self._memories[number] = np.frombuffer(mapped, np.uint8)
        self.mailbox.add(number, memory)

    def called(self, call: CallPacket) -> None:
        """Add a call to the requests. Raises _Refused."""
        if len(self.requests) >= MOST_REQUESTS:
            raise _Refused(
                f"{MOST_REQUESTS} calls are pending; expected no more before the client "
                "reads their answers"
            )
        self.requests.append(self.request(call))

    def request(self, call: CallPacket) -> Request:
        """Return the request that a call is. Raises _Refused."""
        number = call.number
        if call.kind == BARRIER:
            return Request("barrier", number)
        kind = "copy" if call.kind == COPY else "sum"
        named = "int32" if call.kind == COPY else call.named_type
        memory = self._memories.get(call.memory)
        if named is None:
            raise _Refused(
                f"call {number}: type {call.type}: expected 0 to {len(TYPES) - 1}: "
                f"{', '.join(TYPES)}"
            )
        dtype = TYPES[named]
        if memory is None or call.elements * dtype.itemsize > len(memory):
            size = "none of that number" if memory is None else f"{len(memory)} bytes"
            raise _Refused(
                f"call {number}: {call.elements} {dtype} in memory {call.memory}: there is {size}"
            )
        tensor = memory[: call.elements * dtype.itemsize].view(dtype)
        if not self._is_target(kind, call):
            raise _Refused(
                f"call {number}: {kind} with target {call.target}, {call.elements} elements: "
                f"expected {f'{ALL} (all), ' if kind == 'sum' else ''}{PARTS} (parts), of elements "
                f"that {self.ranks} ranks can share, or {ROOT} + one of these ranks"
            )
        if kind == "copy":
            return Request(kind, number, tensor, target=call.target)
        reduction, possible = call.named_reduction, REDUCTIONS[named]
        if reduction is None or reduction not in possible:
            raise _Refused(
                f"call {number}: reduction {call.reduction} of {dtype}: expected 0 to "
                f"{len(possible) - 1}: {', '.join(possible)}"
            )
        if call.fault > len(FAULTS):
            raise _Refused(
                f"call {number}: fault {call.fault}: expected 0, or 1 to {len(FAULTS)}: "
                f"{', '.join(FAULTS)}"
            )
        fault = (FAULTS[call.fault - 1], call.element) if call.fault else None
        floats = dtype == np.float32
        if fault and fault[0] == PASSED and not (floats and reduction == "sum"):
            raise _Refused(
                f"call {number}: fault {call.fault} of {reduction} of {dtype}: expected a sum of "
                "float32 where values that are not finite are to be in the result"
            )
        if call.magnitude > 1 << 31 or (fault and call.element >= call.elements):
            raise _Refused(
                f"call {number}: magnitude {call.magnitude}, element {call.element} of "
                f"{call.elements}: expected at most 2^31, and one of the elements"
            )
        request = kind, number, tensor, call.magnitude, fault, reduction, call.target
        return Request(*request, named)

    def _is_target(self, kind: str, call: CallPacket) -> bool:
        """Return whether a call's target is possible for its number of elements."""
        if call.target == ALL:
            return kind == "sum"
        if call.target == PARTS:
            return self.ranks > 0 and not call.elements % self.ranks
        return call.target - ROOT < self.ranks

    def end(self, why: str) -> None:
        """Send the reason for the end, and shut down once everything is sent."""
        self.say({"kind": "ended", "why": why})
        self.ending = True
        self.mailbox.open = False
        if not self._unsent:
            self._shutdown()

    def _shutdown(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; memory is released with the last pending call."""
        self.gone = True
        self.mailbox.open = False
        if not self.ranks:
            # Nobody waits for calls of a job that has not begun, and they keep memory.
            self.requests = [each for each in self.requests if each.kind == "leave"]
        if self._unsent:
            self._full.unregister(self._socket)
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._memories.clear()
        self._socket.close()
        if self.exit is not None:
            os.close(self.exit)


def _exit_of(process: int) -> int | None:
    """Return a descriptor that is readable once a process has ended (pidfd_open(2)).

    Its socket is not where it has forked others, which have it too. None for a process in a
    namespace where it has no number here, and where descriptors are short.
    """
    try:
        return os.pidfd_open(process)
    except OSError:
        return None


def _address(name: str) -> str:
    """Return the address of a path, or of @ and an abstract name."""
    return f"\0{name[1:]}" if name.startswith("@") else name


def _bind(server: socket.socket, name: str) -> None:
    if name.startswith("@"):
        server.bind(_address(name))
        return
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe,
        contextlib.suppress(FileNotFoundError),
    ):
        try:
            probe.connect(name)
        except ConnectionRefusedError:
            # That of an agent that was killed; one that listens is left alone.
            os.unlink(name)  # noqa: PTH108 - as bound
    server.bind(name)
    # Any user may train; the process looks whose agent it is.
    os.chmod(name, 0o666)  # noqa: PTH101 - as bound


def _not_yours(job: int, owner: int, user: int) -> str:
    return (
        f"job {job} belongs to user {owner} on this host; expected a process of that user, not of "
        f"user {user}"
    )


def _names(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


def _is_text(value: object) -> bool:
    """Return whether a value is a text in UTF-8: JSON allows lone surrogates too."""
    return isinstance(value, str) and value.isprintable()


def _whole(message: Message, key: str, most: int = (1 << 31) - 1) -> int:
    value = message.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise _Refused(f"{message['kind']}: {key} {value!r:.40}: expected a number, 0 to {most}")
    return value


def _short(message: Message) -> str:
    return f"{message!r:.80}"
