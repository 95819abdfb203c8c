"""A controller that follows a script, in virtual time.

Every agent has its assignment from the beginning, all start when all are ready, each receives newer
plans at their times, boundaries are decided on when they are asked for, and at the end all agents
are released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.session import AllDone, Assignment, Event, PlanChanged
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.simulation.host import VirtualHost, VirtualHosts


class ScriptedStream:
    """A host's stream in a job of a script (`hopsum.host_agent.node.environment.Stream`)."""

    address = "the script"

    def __init__(self, job: ScriptedJob, host: str, assignment: Assignment) -> None:
        self.job = job.number
        self.host = host
        self.assignment: Assignment | None = assignment
        self.news: list[Event] = []
        self._script = job
        self._cut: tuple[int, JobPlan] | None = None

    @property
    def started(self) -> bool:
        """Return whether every agent is ready."""
        return self._script.started

    def events(self) -> Sequence[Event]:
        """Return and clear the messages."""
        taken, self.news = self.news, []
        return taken

    def ready(self) -> None:
        """Report that the agent is ready."""
        self._script.ready.add(self.host)

    def progress(self, round_: int) -> None:
        """Report the number of summed tensors."""

    def ask_boundary(self, number: int) -> None:
        """Decide on a boundary."""
        if self._cut is None or number > self._cut[0]:
            self._cut = number, self._script.cut(number)

    def cut(self, number: int) -> tuple[int, JobPlan] | None:
        """Return the last boundary decided on."""
        return None if self._cut is None or self._cut[0] < number else self._cut

    def finished(self, report: pb.Report) -> None:
        """Report that the work is done."""
        self._script.reports[self.host] = report

    def failed(self, reason: str) -> None:
        """Report that the agent has given up."""
        self._script.failed = True


class ScriptedJob:
    """One job. `cuts`: by tensor number, the plan that partitions it and later ones.

    ValueError for a cut where the plan has no boundary.
    """

    def __init__(
        self,
        assignment: Assignment,
        cuts: Mapping[int, JobPlan] | None = None,
    ) -> None:
        plan = assignment.plan
        for number in cuts or {}:
            if not plan.period or number % plan.period:
                raise ValueError(
                    f"job {plan.job}: a cut at tensor {number}; expected a boundary, a multiple of "
                    f"the plan's period {plan.period}"
                )
        self.number = plan.job
        self.plan = plan
        self.assignment = assignment
        self.hosts = tuple(
            dict.fromkeys(
                (*plan.workers, *(h for p in (plan, *(cuts or {}).values()) for h in p.auxiliary))
            )
        )
        self.streams: dict[str, ScriptedStream] = {}
        self.reports: dict[str, pb.Report] = {}
        self.failed = self.started = False
        self._cuts = {0: plan, **(cuts or {})}
        self.ready: set[str] = set()

    @property
    def missing(self) -> list[str]:
        """Return the workers that have not finished."""
        return [worker for worker in self.plan.workers if worker not in self.reports]

    def cut(self, boundary: int) -> JobPlan:
        """Return the plan that partitions tensors from a boundary on."""
        first = boundary * self.plan.period
        return self._cuts[max(number for number in self._cuts if number <= first)]


class Script:
    """The hosts of a world and their jobs."""

    def __init__(self, hosts: VirtualHosts) -> None:
        self.jobs: dict[int, ScriptedJob] = {}
        self.hosts: dict[str, VirtualHost] = {}
        self._common = hosts
        self._world = hosts.world

    def add(self, job: ScriptedJob) -> None:
        """Assign a job to its hosts."""
        self.jobs[job.number] = job
        for host in job.hosts:
            self._join(job, host)
        for host in job.hosts:
            self.hosts[host].advance()

    def start(self) -> None:
        """Start all jobs: their agents are ready, since operations take no time."""
        for job in self.jobs.values():
            job.started = job.ready.issuperset(job.hosts)
        for host in list(self.hosts.values()):
            host.go_on()

    def _join(self, job: ScriptedJob, name: str) -> None:
        assignment = Assignment(job.assignment.network, job.plan, job.assignment.task)
        stream = job.streams[name] = ScriptedStream(job, name, assignment)
        if name not in self.hosts:
            self.hosts[name] = VirtualHost(name, self._common)
            self._world.agents[name] = self.hosts[name]
        self.hosts[name].agent.join(stream)

    def send_plan(self, host: str, plan: JobPlan) -> None:
        """Send a newer plan to a host; it may be the first of the job there."""
        job = self.jobs[plan.job]
        job.plan = plan
        stream = job.streams.get(host)
        if stream is None:
            self._join(job, host)
        else:
            stream.news.append(PlanChanged(plan))
        self.hosts[host].go_on()

    def restart(self, name: str) -> None:
        """Replace a host's agent by a new one; `send_plan` assigns its jobs again."""
        del self.hosts[name]
        for job in self.jobs.values():
            job.streams.pop(name, None)

    def check(self) -> bool:
        """Return whether all workers have finished. Raises the error that ended a job at a host."""
        if any(job.failed for job in self.jobs.values()):
            for host in self.hosts.values():
                for failure in host.agent.failures.values():
                    raise failure
        return not any(job.missing for job in self.jobs.values())

    def release(self, job: int) -> None:
        """Release the agents of a job, which has ended."""
        for host, stream in self.jobs[job].streams.items():
            stream.news.append(AllDone({}))
            self.hosts[host].advance()
