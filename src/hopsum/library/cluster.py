"""A running cluster: its jobs and hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsum.collectives.choices import DataType
from hopsum.controller.api.client import ControllerClient
from hopsum.controller.api.records import job_dict
from hopsum.controller.api.submission import submission_of
from hopsum.library.choices import choice
from hopsum.library.records import Records
from hopsum.network.model import Network
from hopsum.planning.model.options import as_texts

if TYPE_CHECKING:
    from hopsum.protocol import hopsum_pb2 as pb


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a running cluster."""

    client: ControllerClient
    number: int

    @property
    def state(self) -> str:
        """Its state now, such as `queued`, `running` or `finished`."""
        return self._info().state

    def to_dict(self) -> dict[str, Any]:
        """Return all about the job, and its workers' verdict once they have reported."""
        return job_dict(self._info())

    def wait(self, limit: float | None = None) -> dict[str, Any]:
        """Wait until the job is over and return it; TimeoutError after `limit` seconds."""
        return job_dict(self.client.wait(self.number, limit))

    def cancel(self) -> dict[str, Any]:
        """End the job and return it."""
        return job_dict(self.client.cancel(str(self.number)))

    def _info(self) -> pb.JobInfo:
        return self.client.job(self.number)


class Cluster:
    """A running controller, its jobs and hosts. Its methods raise ControllerError."""

    def __init__(self, client: ControllerClient) -> None:
        self.client = client

    @property
    def network(self) -> Network:
        """The cluster's network."""
        from hopsum.collectives.messages import network_from

        return network_from(self.client.state().network)

    @property
    def jobs(self) -> Records:
        """A row for each job that the controller knows, the oldest first."""
        return Records(job_dict(info) for info in self.client.jobs())

    @property
    def hosts(self) -> Records:
        """A row for each host: `host`, `agent` (whether one is there), `jobs`."""
        return Records(
            {"host": node.host, "agent": node.attached, "jobs": list(node.jobs)}
            for node in self.client.nodes()
        )

    def job(self, name: str | int) -> Job:
        """Return a job by name or number."""
        return Job(self.client, self.client.job(name).job)

    def submit(
        self,
        name: str,
        workers: int | Sequence[str] = 1,
        *,
        servers: int | Sequence[str] = 1,
        elements: int = 100_000,
        rounds: int = 3,
        dtype: str = "int32",
        wire_bits: int = 0,
        algorithm: str = "in-network",
        planner: str = "",
        options: Mapping[str, object] | None = None,
        window: int | None = None,
        seed: int = 1,
    ) -> Job:
        """Submit a job that sums random tensors and checks each sum.

        Trainings submit theirs themselves: see `hopsum torchrun` and hopsum_torch.
        """
        submission = submission_of(
            name,
            workers,
            servers,
            elements=elements,
            rounds=rounds,
            dtype=choice(DataType, "dtype", dtype),
            wire_bits=wire_bits,
            algorithm=algorithm,
            seed=seed,
        )
        submission.planner = planner
        submission.planner_options.update(as_texts(options or {}))
        submission.seed, submission.window = seed, window or 0
        return Job(self.client, self.client.submit(submission).job)

    def __repr__(self) -> str:
        return f"<cluster of the controller at {self.client.address}>"


def connect(address: str | None = None) -> Cluster:
    """Return the cluster of the controller at an address; None: the running one of this user.

    Raises ControllerError if there is none.
    """
    cluster = Cluster(ControllerClient(address))
    cluster.client.jobs()
    return cluster
