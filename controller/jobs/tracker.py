"""State of a job's agents, and messages to them. Without I/O or a clock of its own.

Every method returns the messages to send, in order, as (host, message).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from hopsum.collectives.messages import network_message, plan_message
from hopsum.collectives.plan import JobPlan
from hopsum.network.model import Network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.liveness import (
    HEARTBEAT_SECONDS,
    RECONNECT_SECONDS,
    RETURN_SECONDS,
    SILENCE_SECONDS,
)

MOST_REPORT_BYTES = 8 << 20
"""Maximum bytes of one agent's report: the controller keeps those of many jobs.

A larger one loses the times of its tensors, 16 bytes each.
"""
MOST_REASON = 2000
"""Maximum length of a failure's reason."""

Outgoing = list[tuple[str, pb.ControllerMessage]]


@dataclass
class Agent:
    """One host's agent. `connected`: its stream is open; `heard`: time of its last message."""

    host: str
    role: str
    state: pb.AgentState = pb.EXPECTED
    connected: bool = False
    round: int = 0
    report: pb.Report | None = None
    reason: str = ""
    boundary: int = 0
    """The last boundary that it has requested."""
    replaces: bool = False
    """Whether the plan's epoch began with this host as a new server, and it has not come yet."""
    heard: float = 0.0
    due: float = inf
    """Time when it is lost, unless it returns: its stream has ended."""
    instance: str = ""
    """Name of its session."""
    joined: float = 0.0
    """Time when its stream opened."""
    fresh: bool = False
    """Whether it came then without having been ready before."""
    failure: int = 0
    """Number of its loss or failure among those of the job; 0: none."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in (pb.FINISHED, pb.FAILED, pb.LOST)


class Tracker:
    """The agents of a job: they start together, and are released when all workers have ended."""

    def __init__(
        self,
        network: Network,
        plan: JobPlan,
        task: pb.Task | None = None,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self.network = network
        self.plan = plan
        self.task = task
        self.started = False
        self.released = False
        self.silence = silence
        self._patient_until = 0.0
        """Time until which agents may return after the controller itself was away."""
        self._failure_count = 0
        self._cut: tuple[int, JobPlan] | None = None
        """The last boundary decided, and the plan that partitions tensors from there on."""
        self.deliberate = False
        """Whether boundaries wait for `decide`; else the partition stays, without delay."""
        self.agents = {worker: Agent(worker, "worker") for worker in plan.workers}
        self._expect_auxiliary()

    def _expect_auxiliary(self, *, replaces: bool = False) -> None:
        """Expect agents on hosts other than workers: servers and relays.

        A server may come back in a new epoch; a relay cannot, nor can a server that is one.
        """
        for host in self.plan.auxiliary:
            role = "relay" if host in self.plan.relays else "server"
            if host not in self.agents:
                self.agents[host] = Agent(host, role, replaces=replaces)

    # -- what happens

    def register(
        self,
        host: str,
        now: float,
        state: pb.AgentState = pb.EXPECTED,
        round_: int = 0,
        instance: str = "",
    ) -> Outgoing:
        """Register an agent whose stream has opened; `state` if it was registered before.

        The same session (`instance`) may replace its stream: it has noticed an end first.
        """
        agent = self.agents.get(host)
        if agent is None:
            return [(host, refusal(f"host {host} has no part in job {self.plan.job}"))]
        if agent.connected and not (instance and instance == agent.instance):
            return [(host, refusal(f"host {host} has an agent in job {self.plan.job} already"))]
        # A ready one has missed Start: an earlier controller failed between record and message.
        if agent.role != "server" and self.started and state < pb.READY:
            why = f"job {self.plan.job} has started; a {agent.role} cannot join it again"
            return [(host, refusal(why)), *self._fail_restarted(agent)]
        lost = agent.role == "worker" and agent.state == pb.LOST
        failed = agent.role != "server" and agent.state == pb.FAILED
        if self.started and (lost or failed):
            # The others have been notified.
            why = f"host {host} has failed in job {self.plan.job}: {agent.reason}"
            return [(host, refusal(why))]
        agent.connected, agent.heard, agent.reason = True, now, ""
        agent.due, agent.instance = inf, instance
        agent.fresh = state < pb.READY
        agent.replaces = False
        agent.joined = now
        # Its last message, with the report or the reason, comes next: until then it has not ended.
        agent.state = max(min(state, pb.RUNNING), pb.PREPARING)
        agent.round = max(agent.round, round_)
        welcome = pb.Welcome(
            network=network_message(self.network),
            plan=plan_message(self.plan),
            task=self.task,
            heartbeat_seconds=HEARTBEAT_SECONDS,
        )
        out: Outgoing = [(host, pb.ControllerMessage(welcome=welcome))]
        if agent.state >= pb.RUNNING and not self.started:
            # It had started under an earlier controller, which could not record that.
            self.started = True
            for other in self.agents.values():
                if other.connected and other.fresh and other.role != "server":
                    out += self._fail_restarted(other)
        if self.released:
            out.append((host, self._release()))
        return out + self._advance()

    def _fail_restarted(self, agent: Agent) -> Outgoing:
        """Note that a worker or relay of a started job comes without what it has done.

        It would be at another round than the others.
        """
        if agent.over:
            return []
        why = "it lost its part in the job: it restarted, or the job had ended without a record"
        return self._note_failure(agent, pb.FAILED, why)

    def needs_new_epoch(self, host: str, state: pb.AgentState) -> bool:
        """Whether a host that registers, in `state`, is a server of a started job without sums.

        It is another process than the one that served, which this controller, or one before it,
        has lost. A host that serves for the first time since the plan's epoch began needs none:
        workers hand over their results to it already.
        """
        agent = self.agents.get(host)
        return (
            agent is not None
            and agent.role == "server"
            and self.started
            and not agent.replaces
            and not agent.connected
            and (agent.state in (pb.LOST, pb.FAILED) or state < pb.READY)
        )

    def receive(self, host: str, message: pb.AgentMessage, now: float) -> Outgoing:
        """Process a message of a registered agent."""
        agent = self.agents[host]
        agent.heard = now
        match message.WhichOneof("message"):
            case "ready":
                agent.state = max(agent.state, pb.READY)
            case "progress":
                agent.round = message.progress.round
            case "boundary":
                agent.boundary = message.boundary.number
                boundary = self.open_boundary
                if boundary is not None and not self.deliberate:
                    return self.decide(boundary, self.plan)
                return self._tell_cut([agent])
            case "finished":
                report = _bounded(message.finished.report)
                if (size := report.ByteSize()) > MOST_REPORT_BYTES:
                    why = f"its report has {size} bytes; expected at most {MOST_REPORT_BYTES}"
                    return self._note_failure(agent, pb.FAILED, why)
                agent.state = pb.FINISHED
                agent.report = report
            case "failed":
                # Probably since another has ended that could still return.
                return self._lose_absent() + self._note_failure(
                    agent, pb.FAILED, message.failed.reason[:MOST_REASON]
                )
        return self._advance()

    def leave(self, host: str, now: float) -> Outgoing:
        """Process the end of an agent's stream; it is lost unless it returns in time (`check`)."""
        agent = self.agents[host]
        agent.connected, agent.due = False, max(now + RETURN_SECONDS, self._patient_until)
        failing = any(other.state == pb.FAILED for other in self.agents.values())
        return self._lose_absent() if failing else []

    def was_away(self, seconds: float, now: float) -> None:
        """Do not count the time in which the controller itself was stopped, as silence of others.

        Agents that gave up their streams meanwhile may return.
        """
        self._patient_until = now + RECONNECT_SECONDS
        for agent in self.agents.values():
            if agent.connected:
                agent.heard = min(agent.heard + seconds, now)
            else:
                agent.due = max(agent.due, self._patient_until)

    def _done(self, agent: Agent) -> bool:
        """Return whether nobody needs an agent any longer.

        Others may lack results of a root of trees that has all of its own.
        """
        serves = agent.state == pb.FINISHED and agent.host in self.plan.servers
        return agent.over and (self.released or not serves)

    def check(self, now: float) -> Outgoing:
        """Detect agents that timed out."""
        out: Outgoing = []
        for agent in self.agents.values():
            silent = now - agent.heard
            if self._done(agent):
                continue
            if agent.connected and silent > self.silence:
                out += self._note_failure(agent, pb.LOST, f"silent for {silent:.0f} s")
            elif now >= agent.due:
                out += self._lose(agent)
        return out

    def _lose_absent(self) -> Outgoing:
        """Do not wait for agents that may still return: the job fails, and they may be why."""
        absent = [a for a in self.agents.values() if a.due < inf and not self._done(a)]
        return [message for agent in absent for message in self._lose(agent)]

    def _lose(self, agent: Agent) -> Outgoing:
        """Process that an agent has not returned."""
        agent.due = inf
        if self.released and agent.role != "worker":
            agent.state = pb.FINISHED
            return []
        return self._note_failure(agent, pb.LOST, "its connection ended")

    def waiting(self, *, over: bool = False) -> Outgoing:
        """Notify every agent that the job waits for an unreachable element, or no longer does."""
        message = pb.ControllerMessage(waiting=pb.Waiting(over=over))
        return [(agent.host, message) for agent in self.agents.values() if agent.connected]

    def adopt(self, plan: JobPlan) -> Outgoing:
        """Send a new epoch's plan to every agent."""
        self.plan = plan
        serving = plan.servers
        for agent in list(self.agents.values()):
            if agent.role == "server" and agent.host not in serving and not agent.connected:
                del self.agents[agent.host]
        self._expect_auxiliary(replaces=True)
        message = pb.ControllerMessage(plan=plan_message(plan))
        return [(agent.host, message) for agent in self.agents.values() if agent.connected]

    @property
    def open_boundary(self) -> int | None:
        """The next boundary to decide; None until all workers have requested it.

        So each of them has passed the one before. After a restart of the controller the furthest
        worker says how far an earlier one had come.
        """
        requested = [agent.boundary for agent in self.agents.values() if agent.role == "worker"]
        boundary = max(requested) if self._cut is None else self._cut[0] + 1
        return boundary if boundary and min(requested) >= boundary else None

    @property
    def decided(self) -> bool:
        """Whether any boundary has been decided on here."""
        return self._cut is not None

    def decide(self, number: int, plan: JobPlan) -> Outgoing:
        """Decide the plan that partitions tensors from a boundary on; a decision is final."""
        if self._cut is not None and number <= self._cut[0]:
            raise ValueError(f"job {plan.job}: boundary {number} is decided already")
        self._cut = number, plan
        return self._tell_cut(self.agents.values())

    def _tell_cut(self, agents: Iterable[Agent]) -> Outgoing:
        """Answer requests for the last boundary or earlier ones."""
        if self._cut is None:
            return []
        number, plan = self._cut
        message = pb.ControllerMessage(cut=pb.Cut(number=number, plan=plan_message(plan)))
        return [(a.host, message) for a in agents if a.connected and 0 < a.boundary <= number]

    def _note_failure(self, agent: Agent, state: pb.AgentState, reason: str) -> Outgoing:
        """Note that an agent has failed or is lost; notify the others."""
        self._failure_count += 1
        agent.state, agent.reason, agent.failure = state, reason, self._failure_count
        message = pb.ControllerMessage(lost=pb.Lost(host=agent.host, reason=reason))
        out: Outgoing = [
            (other.host, message)
            for other in self.agents.values()
            if other.connected and other is not agent
        ]
        return out + self._advance()

    def _advance(self) -> Outgoing:
        out: Outgoing = []
        agents = self.agents.values()
        if not self.started and all(a.connected and a.state == pb.READY for a in agents):
            self.started = True
        if self.started:
            for agent in self.agents.values():
                if agent.state == pb.READY:
                    agent.state = pb.RUNNING
                    out.append((agent.host, pb.ControllerMessage(start=pb.Start())))
        workers = [agent for agent in self.agents.values() if agent.role == "worker"]
        # Before the start agents may come again: what they have lost is nothing yet.
        if self.started and not self.released and all(agent.over for agent in workers):
            self.released = True
            message = self._release()
            out += [(agent.host, message) for agent in self.agents.values() if agent.connected]
        return out

    def _release(self) -> pb.ControllerMessage:
        lost = [pb.Lost(host=host, reason=reason) for host, reason in self.failures().items()]
        return pb.ControllerMessage(all_done=pb.AllDone(lost=lost))

    # -- outcome

    @property
    def underway(self) -> bool:
        """Whether all agents have started, none has failed, and some still work."""
        return self.started and not self.released and not self.failures()

    @property
    def over(self) -> bool:
        """Whether all agents have ended."""
        return self.released and all(agent.over for agent in self.agents.values())

    def failures(self) -> dict[str, str]:
        """Reasons why agents failed or are lost, by host, the first failure first."""
        return {
            agent.host: agent.reason
            for agent in sorted(self.agents.values(), key=lambda agent: agent.failure)
            if agent.state in (pb.FAILED, pb.LOST)
        }

    def reports(self) -> dict[str, pb.Report]:
        """Return the agents' final reports, by host."""
        return {a.host: a.report for a in self.agents.values() if a.report is not None}


def _bounded(report: pb.Report) -> pb.Report:
    """Return a report, without the times of its tensors if it is too large with them."""
    if report.ByteSize() <= MOST_REPORT_BYTES:
        return report
    kept = pb.Report()
    kept.CopyFrom(report)
    kept.ClearField("intervals")
    return kept


def refusal(reason: str) -> pb.ControllerMessage:
    """Return the message that refuses an agent's stream."""
    return pb.ControllerMessage(refused=pb.Refused(reason=reason))
