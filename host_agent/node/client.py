"""A host's connection to the controller: one stream, kept open forever by threads."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from hopsum.collectives.choices import DataType
from hopsum.collectives.task_messages import workload_message
from hopsum.collectives.workload import PROCESS, WorkloadSpec
from hopsum.files.processes import boot_id
from hopsum.host_agent.io.session_thread import SessionThread
from hopsum.host_agent.memory import total_memory
from hopsum.host_agent.session import NodeSession
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol import hopsum_pb2_grpc as pb_grpc
from hopsum.protocol.channel import Tls, ask_controller, check_tls

SUBMIT_SECONDS = 300.0
"""Timeout of a submission: all switches install rules, one job after another."""
MOST_ROOTS = 8
"""Maximum number of hosts that are roots by default: with more trees fewer frames come at once."""


class NodeClient:
    """Registers `host` at the controller at `address`, and retries while that is unreachable.

    `commands` gives what the controller said since; `fileno` is readable when there is something.
    It does not try again once the controller will not have this process (a command says why).
    Raises ControllerError for unusable TLS files.
    """

    def __init__(self, address: str, host: str, tls: Tls | None = None) -> None:
        if tls is not None:
            check_tls(tls)
        self.address = address
        self.host = host
        self._tls = tls
        self._session = NodeSession(address, host, total_memory(), boot_id(), secrets.token_hex(8))
        self._thread: SessionThread[pb.NodeMessage, pb.NodeCommand] = SessionThread(
            self._session,
            lambda channel, messages: pb_grpc.ControllerStub(channel).Serve(messages),
            tls,
        )

    def open(self) -> None:
        """Start connecting."""
        self._thread.start()

    def fileno(self) -> int:
        """Return a descriptor that is readable when `commands` has something."""
        return self._thread.fileno()

    def commands(self) -> list[pb.NodeCommand]:
        """Return and clear the controller's commands."""
        with self._thread.changed:
            self._thread.heard()
            return self._session.commands()

    def report(self, report: pb.NodeReport) -> None:
        """Send a report; drop it if there is no connection."""
        with self._thread.changed:
            self._session.report(report)

    def submit_processes(
        self, name: str, ranks: Sequence[str], *, immediate: bool = False, user: int = 0
    ) -> int:
        """Submit a `process_job`; return its number.

        Waits until its rules are installed, or it is queued. Raises ControllerError, WorkloadError.
        """
        submission = process_job(name, ranks, immediate=immediate, user=user)
        info = ask_controller(
            self.address, self._tls, lambda stub: stub.Submit(submission, timeout=SUBMIT_SECONDS)
        )
        return int(info.job)

    def close(self) -> None:
        """End the stream."""
        self._thread.close(patience=0.0)


def process_job(
    name: str, ranks: Sequence[str], *, immediate: bool = False, user: int = 0
) -> pb.Submission:
    """Return a job whose tensors processes submit; `ranks`: the host of each.

    `immediate`: it is refused rather than queued. `user`: of this host, whose quota it counts
    towards; 0: nobody's.

    Where a few hosts have several ranks they are the roots of its trees (decision 0021); other jobs
    have a server of their own.
    """
    workers = [*dict.fromkeys(ranks)]
    several = tuple(ranks) if len(workers) < len(ranks) else ()
    spec = WorkloadSpec(PROCESS, len(workers), 0, 0, DataType.FLOAT32, 0, ranks=several)
    submission = pb.Submission(
        name=name, workers=workers, immediate=immediate, user=user, awaited=True
    )
    submission.task.workload.CopyFrom(workload_message(spec))
    if several and len(workers) <= MOST_ROOTS:
        submission.server_count = 0
    return submission
