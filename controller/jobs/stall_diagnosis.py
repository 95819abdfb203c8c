"""Diagnosis of stalled jobs: the outage or agent that a job waits for, and for how long.

`telemetry.slot_diagnosis` looks into the slots of switches for a single fragment; this is what
every list of jobs shows. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hopsum.controller.jobs.tracker import Tracker
from hopsum.controller.telemetry.diagnosis import listed
from hopsum.controller.telemetry.nodes import Node
from hopsum.protocol import hopsum_pb2 as pb

STALLED_SECONDS = 10.0
"""A running job that has completed no tensor for this long counts as stalled."""
JOINING_SECONDS = 1.0
"""Seconds in which an agent that is attached may join a job before it is reported."""
SILENT_SECONDS = 5.0
"""Seconds of silence after which an agent is reported: it sends a message every second."""


@dataclass(slots=True)
class Progress:
    """Progress of a job. `began`: when agents were asked to attend; `since`: of its last tensor."""

    began: float
    round: int = 0
    since: float = field(init=False)

    def __post_init__(self) -> None:
        self.since = self.began

    def note(self, round_: int, now: float) -> None:
        """Note the number of summed tensors."""
        if round_ != self.round:
            self.round, self.since = round_, now


def why_stalled(
    tracker: Tracker,
    nodes: Mapping[str, Node],
    progress: Progress,
    outages: str,
    now: float,
    tensors: int = 0,
) -> str:
    """Return what a planned job waits for, and for how long; empty if it makes progress.

    `outages`: what of the network it lacks. `tensors`: how many it has, 0 if unknown.
    """
    reasons = [outages, _absent_agents(tracker, nodes, progress.began, now)]
    if not any(reasons) and tracker.underway:
        seconds = now - progress.since
        if seconds >= STALLED_SECONDS:
            reasons.append(
                f"all tensors are summed; its workers have been checking them for {seconds:.0f} s"
                if 0 < tensors <= progress.round
                else f"no tensor completed for {seconds:.0f} s"
            )
    return "; ".join(filter(None, reasons))


def _absent_agents(tracker: Tracker, nodes: Mapping[str, Node], began: float, now: float) -> str:
    """Return which agents of a job are missing, not ready or silent, and for how long."""
    words = []
    for agent in tracker.agents.values():
        if agent.state == pb.FINISHED or tracker.released:
            continue
        node = nodes[agent.host]
        absent = now - max(began, node.since)
        if not agent.connected and not node.attached:
            words.append(f"no agent attached on {agent.host} for {absent:.0f} s")
        elif not agent.connected and not tracker.started and absent < JOINING_SECONDS:
            words.append(f"agent on {agent.host} joining the job")
        elif not agent.connected:
            what = "come back to" if tracker.started else "joined"
            words.append(
                f"agent on {agent.host} attached but has not {what} the job for {absent:.0f} s"
            )
        elif now - agent.heard >= SILENT_SECONDS:
            words.append(f"agent on {agent.host} silent for {now - agent.heard:.0f} s")
        elif agent.state < pb.READY:
            words.append(f"agent on {agent.host} preparing for {now - agent.joined:.0f} s")
    return listed(words)
