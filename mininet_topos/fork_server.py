"""Agents and switches as forks of one process that has imported what they need.

Imports take an agent or p4switch half a second of processor time, and an emulation has dozens of
them. Forked, they take milliseconds, and share the memory of their code. The fork server is a
process of the emulation (`python -m hopsum.mininet_topos.fork_server`), asked over a socket pair.
A fork enters a host's namespaces, keeps few privileges, and becomes the program, command line
included.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, Protocol

from hopsum.mininet_topos.failures import EmulationError
from hopsum.mininet_topos.lifetime import CAPABILITIES, END_WITH_STARTER

MESSAGE_BYTES = 1 << 16
TITLE_BYTES = 4096
"""Room for the command line of a fork, as an argument of the server."""
NAMESPACES = ("net", "mnt")
"""Those of a host that its programs enter, as by `mnexec -a`."""


class Process(Protocol):
    """A process of an emulation: `subprocess.Popen`, or a fork."""

    @property
    def pid(self) -> int:
        """Its number."""

    def poll(self) -> int | None:
        """Return its exit code if it has ended; of a signal, the negative number."""

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code when it has ended. Raises subprocess.TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Send a signal if it has not ended."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


class Program(NamedTuple):
    """`entry`: module:function to call. `imports`: what it needs when it runs."""

    entry: str
    imports: tuple[str, ...]


PROGRAMS = {
    "hopsum-agent": Program(
        "hopsum.host_agent.main:main",
        ("hopsum.host_agent.node.client", "hopsum.host_agent.node.serve"),
    ),
    "p4switch": Program(
        "p4switch.cli.main:main",
        (
            "p4switch.cli.run_command",
            "p4switch.device.loading",
            "p4switch.device.native_plane",
            "p4switch.p4runtime.server",
        ),
    ),
}


class ForkServer:
    """Starts forks of `programs`, which end with the thread that made this at the latest.

    Calls may come from several threads. Raises EmulationError.
    """

    def __init__(self, programs: Sequence[str] = tuple(PROGRAMS)) -> None:
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        """Exit codes of forks that nobody has asked for."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [
                    *(*END_WITH_STARTER, sys.executable, "-m", "hopsum.mininet_topos.fork_server"),
                    *(str(theirs.fileno()), ",".join(programs), " " * TITLE_BYTES),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                # One thread a process: a fork has only the one that forked it.
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )

    def start(
        self,
        arguments: Sequence[str],
        output: IO[Any],
        *,
        namespaces_of: int | None = None,
        kept: Sequence[str] = (),
    ) -> Process:
        """Start a program by its name in PROGRAMS, and its arguments; `output`: of both kinds.

        `namespaces_of`: a process whose network and mounts it shares. `kept`: its capabilities, of
        CAPABILITIES.
        """
        request = {"arguments": [*arguments], "namespaces_of": namespaces_of, "kept": [*kept]}
        with self._lock:
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], [output.fileno()])
                while (started := self._receive()) is None:
                    pass
            except OSError as error:
                raise EmulationError(
                    f"{arguments[0]}: the process that starts it has ended with code "
                    f"{self._server.wait()}: {error}"
                ) from None
        return _Fork(*started, self._code_of)

    def _receive(self) -> tuple[int, int] | None:
        """Note a fork's end, or return the number and the descriptor of one that has begun."""
        data, descriptors, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 1)
        if not data:
            raise ConnectionResetError("no answer")
        answer: dict[str, int] = json.loads(data)
        if "started" in answer:
            return answer["started"], descriptors[0]
        self._codes[answer["ended"]] = answer["code"]
        return None

    def _code_of(self, pid: int) -> int:
        """Return the exit code of a fork that has ended, once."""
        with self._lock:
            while pid not in self._codes:
                try:
                    self._receive()
                except OSError:
                    return -signal.SIGKILL  # with the server
            return self._codes.pop(pid)

    def close(self) -> None:
        """End the server, and all forks that it has left."""
        self._socket.close()
        self._server.kill()
        self._server.wait()


class _Fork:
    """A fork, and its pidfd; `code_of` returns its exit code once it has ended."""

    def __init__(self, pid: int, handle: int, code_of: Callable[[int], int]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._code_of = code_of
        self._ended = threading.Lock()
        self._handle: int | None = handle
        """Its pidfd, until it has ended: its number may be another's by then."""

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            with self._ended:
                if self._handle is None:
                    continue
                left = None if until is None else max(0.0, until - time.monotonic())
                ended = select.poll()
                ended.register(self._handle, select.POLLIN)
                # Others may wait as well: not for longer than they want to.
                if ended.poll(1000 * min(0.02, 0.02 if left is None else left)):
                    self.returncode = self._code_of(self.pid)
                    os.close(self._handle)
                    self._handle = None
                elif left == 0:
                    assert timeout is not None
                    raise subprocess.TimeoutExpired("fork", timeout)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        with self._ended:
            if self._handle is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


# -- the server's process


def serve(connected: socket.socket) -> list[str]:
    """Start forks until the other end is closed; in a fork, return its command line."""
    noted, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ready = select.poll()
    ready.register(noted, select.POLLIN)
    ready.register(connected, select.POLLIN)
    owner = os.getpid()
    while True:
        events = {descriptor for descriptor, _ in ready.poll()}
        if noted in events:
            os.read(noted, 1 << 10)
            _report_ended(connected)
        if connected.fileno() in events:
            data, descriptors, _, _ = socket.recv_fds(connected, MESSAGE_BYTES, 1)
            if not data:
                sys.exit()
            request = json.loads(data)
            [output] = descriptors
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (noted, wake):
                    os.close(each)
                connected.close()
                _settle(request, output, owner)
                arguments: list[str] = request["arguments"]
                return arguments
            os.close(output)
            handle = os.pidfd_open(pid)
            socket.send_fds(connected, [json.dumps({"started": pid}).encode()], [handle])
            os.close(handle)


def _report_ended(connected: socket.socket) -> None:
    """Tell the exit codes of forks that have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(BrokenPipeError):
            connected.send(json.dumps({"ended": pid, "code": code}).encode())


_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NAME, _PR_SET_NO_NEW_PRIVS = 1, 24, 15, 38
_CAPABILITY_VERSION = 0x20080522


def _settle(request: dict[str, Any], output: int, owner: int) -> None:
    """Make a fork what a program would find itself in: session, output, namespaces, privileges."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.setsid()
    for each in (1, 2):
        os.dup2(output, each)
    os.close(output)
    folder = Path.cwd()
    if request["namespaces_of"] is not None:
        for name in NAMESPACES:
            with Path(f"/proc/{request['namespaces_of']}/ns/{name}").open() as namespace:
                _check(libc.setns(namespace.fileno(), 0), f"setns {name}")
        os.chdir(folder)
    _reduce_privileges(libc, [CAPABILITIES[name] for name in request["kept"]])
    _check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != owner:
        os.kill(os.getpid(), signal.SIGKILL)
    _set_title(libc, request["arguments"])


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _reduce_privileges(libc: Any, kept: Sequence[int]) -> None:
    """Keep some capabilities, also of programs that it runs (`lifetime.reduced_privileges`)."""
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for number in range(last + 1):
        if number not in kept:
            _check(libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), "prctl")
    mask = sum([1 << number for number in kept])
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    # Effective, permitted and inheritable, of the lower and the upper 32.
    sets = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    _check(libc.capset(header, sets), "capset")


def _set_title(libc: Any, arguments: Sequence[str]) -> None:
    """Show these arguments as the command line: they replace the server's own in memory."""
    text = "\0".join(arguments).encode()
    libc.prctl(_PR_SET_NAME, Path(arguments[0]).name.encode(), 0, 0, 0)
    # proc_pid_stat(5): fields 48 and 49, arg_start and arg_end; field 2 may have spaces.
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(after_name[45]), int(after_name[46])
    ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)


def main() -> NoReturn:
    """Run the server, or in a fork the program."""
    connected = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2].split(","):
        for module in PROGRAMS[name].imports:
            import_module(module)
    # Forks look for no garbage here, and write no counts of collections into shared memory.
    gc.freeze()
    sys.argv = serve(connected)
    module, _, function = PROGRAMS[sys.argv[0]].entry.partition(":")
    getattr(import_module(module), function)()
    sys.exit()


if __name__ == "__main__":
    main()
