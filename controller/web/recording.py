"""A recorded run: states of a cluster at many moments, in real or virtual time.

A file has one JSON document a line, each a ClusterState (protocol/hopsum.proto); `network` is in
the first alone, `events` has those since the document before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from google.protobuf.json_format import MessageToJson, Parse, ParseError

from controller.telemetry.event_log import KEPT
from controller.web.sources import StateError, StateSource
from protocol import hopsum_pb2 as pb
from protocol.errors import InputError

FIRST_SECONDS = 0.05
"""Between two states at first."""
MOST_FRAMES = 600
"""With more, every second is dropped, and states are taken half as often from then on."""


class RecordingError(InputError):
    """A file that is no recording; the message says where, and what was expected."""


class Recording:
    """States of one cluster, the oldest first; a `StateSource` whose present state is the last.

    One thread may add while another reads.
    """

    def __init__(self, states: Sequence[pb.ClusterState] = ()) -> None:
        self._states = list(states)
        self.interval = FIRST_SECONDS
        """Seconds after which the next state is to be taken."""

    def add(self, state: pb.ClusterState) -> None:
        """Take the next state in."""
        states = [*self._states, state]
        if len(states) > MOST_FRAMES:
            states = [*states[:-1:2], states[-1]]
            self.interval *= 2
        self._states = states

    async def state(self) -> pb.ClusterState:
        """Return the last state; StateError if there is none yet."""
        if not self._states:
            raise StateError("nothing is recorded yet; the run is being prepared")
        return self._states[-1]

    async def slot(self, switch: str, slot: int) -> pb.Slot:
        """Raise StateError: slots are read at running switches."""
        raise StateError("a recording has no contents of slots; they can be read while a job runs")

    async def missing(self, job: int) -> list[str]:
        """Raise StateError: slots are read at running switches."""
        raise StateError("a recording has no contents of slots; they can be read while a job runs")

    def frames(self) -> Sequence[pb.ClusterState]:
        """Return all states, the oldest first."""
        return self._states

    def to_lines(self) -> str:
        """Return what a file of it has."""
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
    """Take states of a source, for ever: on a loop in virtual time, at virtual intervals."""
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
            raise RecordingError(
                f"{path}, line {number}: {' '.join(str(error).split()):.200}; expected a state as "
                "`hopsum run --record` writes it"
            ) from None
        if not (states or state.network.hosts):
            raise RecordingError(
                f"{path}, line {number}: it has no network; expected the first line of what "
                "`hopsum run --record` writes"
            )
        if states:
            state.network.CopyFrom(states[0].network)
        events = [*events, *state.events][-KEPT:]
        state.ClearField("events")
        state.events.extend(events)
        states.append(state)
    if not states:
        raise RecordingError(f"{path}: it is empty; expected a recording of `hopsum run --record`")
    return Recording(states)
