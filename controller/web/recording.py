"""A recorded run: states of a cluster over time, real or virtual.

A file has one JSON document a line, each a ClusterState (src/hopsum/protocol/hopsum.proto);
`network` is in the first alone, `events` has those since the document before.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

from google.protobuf.json_format import MessageToJson, Parse, ParseError

from hopsum.collectives.messages import network_from
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.telemetry.event_log import KEPT
from hopsum.controller.web.sources import SourceError, StateSource
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import InputError

FIRST_SECONDS = 0.05
"""Initial seconds between two states."""
MOST_FRAMES = 600
"""Maximum number of states; beyond it every second one is dropped and the interval doubled."""


MOST_DATE = 253_402_300_800
"""The year 10000, the end of displayable dates."""


class RecordingError(InputError):
    """A file that is not a recording."""


class Recording(StateSource):
    """States of one cluster, the oldest first; a `StateSource` whose current state is the last.

    One thread may add while another reads.
    """

    def __init__(
        self,
        states: Sequence[pb.ClusterState] = (),
        *,
        live: bool = False,
        interval: float = FIRST_SECONDS,
        most: int = MOST_FRAMES,
    ) -> None:
        self._states = list(states)
        self._live = live
        self._most = most
        self.interval = interval
        """Seconds until the next state is recorded."""

    def add(self, state: pb.ClusterState) -> None:
        """Record the next state."""
        states = [*self._states, state]
        if len(states) > self._most:
            states = [*states[:-1:2], states[-1]]
            self.interval *= 2
        self._states = states

    async def state(self) -> pb.ClusterState:
        """Return the last state; SourceError if there is none yet."""
        if not self._states and self._live:
            raise SourceError("nothing is recorded yet; the run is being prepared")
        if not self._states:
            raise SourceError("nothing is recorded: the run failed before its network was up")
        return self._states[-1]

    async def slot(self, switch: str, slot: int) -> pb.Slot:
        """Raise SourceError: slots are read at running switches."""
        raise SourceError("a recording has no slot contents; read them while a job runs")

    async def missing(self, job: int) -> list[str]:
        """Raise SourceError: slots are read at running switches."""
        raise SourceError("a recording has no slot contents; read them while a job runs")

    def frames(self) -> Sequence[pb.ClusterState]:
        """Return all states, the oldest first."""
        return self._states

    @property
    def live(self) -> bool:
        """Whether the run may continue."""
        return self._live

    def end(self) -> None:
        """Note that the run is over."""
        self._live = False

    def to_lines(self) -> str:
        """Return its contents for a file."""
        lines: list[str] = []
        last = 0
        for state in self._states:
            kept = pb.ClusterState()
            kept.CopyFrom(state)
            if lines:
                kept.ClearField("network")
            kept.ClearField("events")
            kept.events.extend(event for event in state.events if event.number > last)
            last = max([last, *(event.number for event in state.events)])
            lines.append(MessageToJson(kept, preserving_proto_field_name=True, indent=None))
        return "".join(f"{line}\n" for line in lines)


async def record(source: StateSource, recording: Recording) -> None:
    """Record states of a source, forever; on a loop in virtual time, at virtual intervals."""
    while True:
        recording.add(await source.state())
        await asyncio.sleep(recording.interval)


def read_recording(path: Path) -> Recording:
    """Return the recording of a file. Raises RecordingError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordingError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); expected a "
            "recording of `hopsum run --record`"
        ) from None
    states: list[pb.ClusterState] = []
    events: list[pb.Event] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            state = Parse(line, pb.ClusterState())
        except (ParseError, RecursionError) as error:
            why = " ".join(str(error).split()).rstrip(".")
            raise RecordingError(
                f"{path}, line {number}: {why:.200}; expected a state as `hopsum run --record` "
                "writes it"
            ) from None
        if not (states or state.network.hosts):
            raise RecordingError(
                f"{path}, line {number}: it has no network; expected the first line of what "
                "`hopsum run --record` writes"
            )
        if states:
            state.network.CopyFrom(states[0].network)
        try:
            _check(state)
        except ValueError as error:
            raise RecordingError(
                f"{path}, line {number}: {' '.join(str(error).split()):.200}; expected what "
                "`hopsum run --record` writes"
            ) from None
        events = [*events, *state.events][-KEPT:]
        state.ClearField("events")
        state.events.extend(events)
        states.append(state)
    if not states:
        raise RecordingError(f"{path}: it is empty; expected a recording of `hopsum run --record`")
    return Recording(states)


def _check(state: pb.ClusterState) -> None:
    """Raise ValueError for a state that pages and terminals cannot show."""
    network = network_from(state.network)
    names = {*network.hosts, *network.switches}
    for what, date in [("state", state.date), *((e.kind, e.date) for e in state.events)]:
        if not (math.isfinite(date) and 0 <= date < MOST_DATE):
            raise ValueError(f"date {date} of {what!r:.40}: expected seconds since 1970")
    ends = {frozenset((link.a, link.b)) for link in network.links}
    for use in state.links:
        if frozenset((use.sender, use.receiver)) not in ends:
            raise ValueError(f"link {use.sender!r:.40} - {use.receiver!r:.40}: not in the network")
        if not math.isfinite(use.used):
            raise ValueError(f"link {use.sender} - {use.receiver} carries {use.used} bit/s")
    for node in state.nodes:
        if node.host not in network.hosts:
            raise ValueError(f"host {node.host!r:.40}: not in the network")
    for job in state.jobs:
        if job.state not in list(JobState):
            raise ValueError(f"job {job.job}: state {job.state!r:.40}: {', '.join(JobState)}")
        for tree in job.trees:
            strange = {*tree.parents, *tree.parents.values(), *tree.sums} - names
            if strange:
                raise ValueError(
                    f"job {job.job}, tree {tree.tree}: {min(strange)!r:.40} is no node"
                )
