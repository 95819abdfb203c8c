"""The streams of agents in jobs: who attends which job, and what they are sent.

What messages say is recorded in the journal before the agents know.
"""

from __future__ import annotations

from collections.abc import Callable

from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.controller.dataplane.driver import DriverError
from hopsum.controller.jobs import events
from hopsum.controller.jobs.active_job import ActiveJob
from hopsum.controller.jobs.engine_state import EngineState
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.plan_store import Change
from hopsum.controller.jobs.procedures import Procedure
from hopsum.controller.jobs.tracker import Outgoing, refusal
from hopsum.protocol import hopsum_pb2 as pb


class AgentStreams:
    """The open streams of agents. `change` starts a job's next epoch (`Epochs.change`)."""

    def __init__(
        self, state: EngineState, change: Callable[[int, Change], Procedure[JobPlan]]
    ) -> None:
        self._state = state
        self._change = change
        self._streams: dict[tuple[int, str], int] = {}
        """The current stream of each agent, by job and host."""
        self._agents: dict[int, tuple[int, str]] = {}
        """Job and host of each stream."""
        self._joining: set[int] = set()
        """Streams whose agents wait for a new epoch."""

    def job_of(self, stream: int) -> ActiveJob | None:
        """Return the active job that a stream's agent attends."""
        number, _ = self._agents.get(stream, (0, ""))
        return self._state.plans.active.get(number)

    def join(self, event: events.AgentJoined) -> None:
        """Let an agent attend its job; a server that has lost its sums does in a new epoch."""
        active = self._state.plans.active.get(event.job)
        if active is not None and active.tracker.needs_new_epoch(event.host, event.state):
            self._joining.add(event.stream)
            self._state.procedures.start(self._join_in_new_epoch(event))
        else:
            self._register(event)

    def _join_in_new_epoch(self, event: events.AgentJoined) -> Procedure[None]:
        """Register a server that has lost its sums, in a new epoch."""
        why = f"another agent serves on {event.host}"
        try:
            yield from self._change(event.job, Change(why))
        except (DriverError, PlanError, TimeoutError) as error:
            # It tries again.
            if event.stream in self._joining:
                self._state.send(events.PostponeAgent(event.stream, str(error)))
        else:
            if event.stream in self._joining:
                self._register(event)
        finally:
            self._joining.discard(event.stream)

    def _register(self, event: events.AgentJoined) -> None:
        active = self._state.plans.active.get(event.job)
        if active is None:
            self._state.send(events.RejectAgent(event.stream, self._ended(event.job)))
            return
        messages = active.tracker.register(
            event.host, self._state.now, event.state, event.round, event.instance
        )
        if messages[0][1].HasField("refused"):
            self._state.send(events.RejectAgent(event.stream, messages[0][1]))
            self.tell(active, messages[1:])
            return
        key = event.job, event.host
        replaced = self._streams.get(key)
        if replaced is not None:
            self._state.send(events.EndStream(replaced))
        self._streams[key] = event.stream
        self._agents[event.stream] = key
        self.tell(active, messages)

    def _ended(self, number: int) -> pb.ControllerMessage:
        """Return how a job ended, for an agent that was away then."""
        job = self._state.jobs.get(number)
        if job is None or job.outcome is None:
            return refusal(self._state.plans.unknown(number))
        if job.outcome is JobState.FINISHED:
            return pb.ControllerMessage(all_done=pb.AllDone())
        verb = "was" if job.outcome is JobState.CANCELLED else "has"
        return refusal(f"job {job.spec.name} {verb} {job.outcome}: {job.reason}")

    def receive(self, stream: int, message: pb.AgentMessage) -> None:
        """Process an agent's message."""
        active = self.job_of(stream)
        if active is not None:
            _, host = self._agents[stream]
            self.tell(active, active.tracker.receive(host, message, self._state.now))

    def leave(self, stream: int) -> str | None:
        """Process the end of an agent's stream.

        Return its host if it ended without the agent's last message.
        """
        self._joining.discard(stream)
        key = self._agents.pop(stream, None)
        if key is None or self._streams.get(key) != stream:
            # A later stream has replaced it.
            return None
        del self._streams[key]
        number, host = key
        active = self._state.plans.active[number]
        unfinished = not active.tracker.agents[host].over
        self.tell(active, active.tracker.leave(host, self._state.now))
        return host if unfinished else None

    def tell(self, active: ActiveJob, messages: Outgoing) -> None:
        """Send messages to a job's agents; what they say is recorded before they know."""
        self._record(active)
        for host, message in messages:
            stream = self._streams.get((active.job.number, host))
            if stream is not None:
                self._state.send(events.SendToAgent(stream, message))

    def _record(self, active: ActiveJob) -> None:
        """Record that a job has started, or is done."""
        job, tracker = active.job, active.tracker
        if not job.active:
            return
        if tracker.started and not job.started:
            self._state.jobs.start(job)
        if tracker.released and not tracker.failures():
            active.note_progress(self._state.now)
            self._state.jobs.drain(job, JobState.FINISHED, reports=tracker.reports())

    def forget(self, active: ActiveJob) -> None:
        """End the streams of a removed job."""
        number = active.job.number
        for key in [key for key in self._streams if key[0] == number]:
            self._state.send(events.EndStream(self._streams.pop(key)))
