"""The socket at which processes of this host submit tensors (docs/agent-socket.md)."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import select
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeGuard

from hopsum.host_agent.io.attendance import Attendance, not_yours
from hopsum.host_agent.io.process_connection import (
    Message,
    ProcessConnection,
    RefusedMessage,
    Request,
)
from hopsum.host_agent.io.socket_peers import listener_at
from hopsum.host_agent.io.wakeup import Wakeup
from hopsum.host_agent.process_calls import MOST_MEMORIES, CallPacket
from hopsum.protocol.errors import HopsumError, OperationError

LOGGER = logging.getLogger("hopsum-agent")

NAME = "@hopsum-agent"
"""Default address of a host's agent; `@`: in the abstract namespace."""
VERSION = 9
MOST_CONNECTIONS = 256
MOST_OF_USER = 64
"""Connections, and jobs attended before they are known here, so that others find room; root has no
such limit."""
MOST_A_TURN = 64
"""Messages of one process in a turn, so that frames and other processes have theirs."""
USER_SHARE = 8
"""Of the agent's descriptors those of one user's memories are at most one in so many, and of all
users' but root's half."""
MOST_MAPPINGS = 1 << 13
"""Maximum number of memories of one user where descriptors are plenty: the kernel allows a process
65,530 mappings (vm.max_map_count)."""
MOST_BYTES_OF_USER = 1 << 41
"""Maximum bytes of the memories of one user: sparse ones cost their user nothing."""
MOST_BYTES = 1 << 44
"""Maximum bytes of those of all users but root; the agent has 2^47 bytes of addresses."""
MOST_WAITING = 4
"""Maximum number of jobs that one process submits at a time."""


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


class SocketInUse(OperationError):
    """The agent cannot listen on its socket."""


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
        self._connections: dict[int, ProcessConnection] = {}
        self._exits: dict[int, int] = {}
        """Of each process's `exit` the descriptor of its connection."""
        self._full = False
        """Whether there was no descriptor for the last that came."""
        self._attendances: dict[int, Attendance] = {}
        self._submitters: dict[int, ProcessConnection] = {}
        """Processes that have submitted jobs here, by job."""
        self._submitting = Counter[int]()
        """Number of jobs that are being submitted, by user, also for processes that are gone."""
        self._answers: deque[tuple[ProcessConnection, int | str]] = deque()
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
            except RefusedMessage as refusal:
                LOGGER.warning("a process sent an invalid message: %s", refusal)
                # With messages unread a close would reach the process before the reason.
                connection.end(str(refusal))

    def accept(self, accepted: socket.socket) -> None:
        """Take in a process that is connected, or say why not and close."""
        accepted.setblocking(False)
        connection = ProcessConnection(accepted, self._full_sockets)
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
        gone = [job for job, submitter in self._submitters.items() if submitter.gone]
        for job in [job for job in gone if job not in self._attendances][:-MOST_OF_USER]:
            del self._submitters[job]

    def _obey(self, connection: ProcessConnection, message: Message | CallPacket) -> None:
        if connection.ending:
            return
        if connection.left:
            raise RefusedMessage("a message after leave: expected nothing more")
        if isinstance(message, CallPacket):
            connection.called(message)
            return
        match message.get("kind"):
            case "submit":
                name, ranks = message.get("name"), message.get("ranks")
                immediate = message.get("immediate")
                if not _is_text(name) or not _names(ranks) or not isinstance(immediate, bool):
                    raise RefusedMessage(
                        f"submit: {_short(message)}: expected name and ranks as strings, and "
                        "immediate, true or false"
                    )
                if connection.waiting >= MOST_WAITING:
                    raise RefusedMessage(
                        f"submit: {connection.waiting} jobs are being submitted; expected at most "
                        f"{MOST_WAITING} at a time"
                    )
                self._start_submission(connection, name, ranks, immediate)
            case "attend":
                job, rank = _whole(message, "job", 0xFFFF), _whole(message, "rank", 0xFFFF)
                self._check_user(job, connection.user)
                self.attendance(job).begin(connection, rank)
            case "memory":
                self._check_memories(connection.user)
                number = _whole(message, "memory", MOST_MEMORIES - 1)
                connection.map_memory(number, self._bytes_left(connection.user))
            case "leave":
                connection.left = True
                connection.requests.append(Request("leave"))
            case kind:
                raise RefusedMessage(f"kind {kind!r:.40}: expected submit, attend, memory or leave")

    def _check_user(self, job: int, user: int) -> None:
        """Raise RefusedMessage if a process's user may not attend a job."""
        attendance = self._attendances.get(job)
        submitter = self._submitters.get(job)
        owner = None if submitter is None else submitter.user
        if owner is None and attendance is not None:
            owner = attendance.user
        if owner is not None and user not in (0, owner):
            raise RefusedMessage(not_yours(job, owner, user))
        early = sum(
            attendance.unknown and not attendance.abandoned and attendance.user == user
            for attendance in self._attendances.values()
        )
        if user and early >= MOST_OF_USER:
            raise RefusedMessage(
                f"job {job}: user {user} attends {early} jobs that this host does not know; "
                f"expected at most {MOST_OF_USER}"
            )

    def _check_memories(self, user: int) -> None:
        """Raise RefusedMessage if a user shares as many memories as possible."""
        if not user:
            return
        shared = self._of_users(lambda connection: connection.shared)
        most = most_memories_of_user()
        most_of_all = most * USER_SHARE // 2
        if shared[user] >= most or shared.total() >= most_of_all:
            raise RefusedMessage(
                f"user {user} shares {shared[user]} memories; expected at most {most}, and "
                f"{most_of_all} of all users: share fewer, larger ones, or raise the agent's limit "
                "of open files"
            )

    def _bytes_left(self, user: int) -> int:
        """Return how many bytes a user's processes may still share."""
        if not user:
            return MOST_BYTES
        shared = self._of_users(lambda connection: connection.shared_bytes)
        return min(MOST_BYTES_OF_USER - shared[user], MOST_BYTES - shared.total())

    def _of_users(self, amount: Callable[[ProcessConnection], int]) -> Counter[int]:
        """Return an amount of each user but root: the total of the user's processes."""
        total = Counter[int]()
        for connection in self._connections.values():
            if connection.user:
                total[connection.user] += amount(connection)
        return total

    def _start_submission(
        self, connection: ProcessConnection, name: str, ranks: Sequence[str], immediate: bool
    ) -> None:
        """Submit a job in a thread, since that waits for the controller."""
        connection.waiting += 1
        self._submitting[connection.user] += 1
        if connection.user and self._submitting[connection.user] > MOST_OF_USER:
            why = f"user {connection.user} is submitting {MOST_OF_USER} jobs; try again later"
            self._answer(connection, f"job {name}: {why}")
            return
        thread = threading.Thread(
            target=self._submit_for, args=(connection, name, ranks, immediate), daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self._answer(connection, f"job {name}: {error}")

    def _submit_for(
        self, connection: ProcessConnection, name: str, ranks: Sequence[str], immediate: bool
    ) -> None:
        try:
            user = connection.user
            answer: int | str = self._submit(name, ranks, immediate=immediate, user=user)
        except HopsumError as error:
            answer = str(error)
        except Exception as error:
            LOGGER.exception("job %s could not be submitted", name)
            answer = f"job {name}: {type(error).__name__}: {error}"
        self._answers.append((connection, answer))
        self._answered.set()

    def _answer(self, connection: ProcessConnection, answer: int | str) -> None:
        """Send the answer to a submission; a new job belongs to the user who submitted it."""
        connection.waiting -= 1
        self._submitting[connection.user] -= 1
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


def _names(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


def _is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is a text in UTF-8: JSON allows lone surrogates too."""
    return isinstance(value, str) and value.isprintable()


def _whole(message: Message, key: str, most: int = (1 << 31) - 1) -> int:
    value = message.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise RefusedMessage(
            f"{message['kind']}: {key} {value!r:.40}: expected a number, 0 to {most}"
        )
    return value


def _short(message: Message) -> str:
    return f"{message!r:.80}"
