from __future__ import annotations

import numpy as np
import pytest

from hopsum.host_agent.codec import JOB_START, TURN_FRAMES, Frames
from hopsum.host_agent.node.traffic_priority import MarkedMachine, TrafficPriority
from hopsum.host_agent.server import Server
from hopsum.host_agent.server_set import ServerSet
from hopsum.host_agent.worker import Worker
from hopsum.protocol.tos import LevelError
from tests.support.protocol_world import star_plan

LENGTH = 80


def frames(job: int, count: int = 1, mark: int = 0) -> Frames:
    made = np.full((count, LENGTH), mark, dtype=np.uint8)
    made[:, JOB_START], made[:, JOB_START + 1] = divmod(job, 256)
    return made


def job_of(batch: Frames) -> int:
    return int(batch[0, JOB_START]) << 8 | int(batch[0, JOB_START + 1])


class Machine:
    """Says what it is given, and was given."""

    def __init__(self, *output: Frames, deadline: float | None = None) -> None:
        self.output = list(output)
        self.deadline = deadline
        self.deferrable = 0
        self.received: list[Frames] = []
        self.ticks: list[float] = []

    def receive(self, frames: Frames, now: float) -> None:
        self.received.append(frames)

    def tick(self, now: float) -> None:
        self.ticks.append(now)

    def take_output(self) -> list[Frames]:
        taken, self.output = self.output, []
        return taken


def test_frames_reach_the_machine_of_their_job_only() -> None:
    traffic = TrafficPriority()
    one, other = Machine(), Machine()
    traffic.add(1, one)
    traffic.add(0x1234, other)
    traffic.receive(np.concatenate([frames(1, 2, 7), frames(0x1234), frames(2), frames(1)]), 0.0)
    assert [len(batch) for batch in one.received] == [3]
    assert [job_of(batch) for batch in other.received] == [0x1234]
    assert traffic.foreign == 1
    traffic.receive(np.zeros((2, JOB_START + 1), np.uint8), 0.0)
    assert traffic.foreign == 3
    traffic.remove(1)
    traffic.receive(frames(1), 0.0)
    assert traffic.foreign == 4


def test_jobs_of_one_level_take_turns() -> None:
    traffic = TrafficPriority()
    traffic.add(1, Machine(frames(1, 3 * TURN_FRAMES)))
    traffic.add(2, Machine(frames(2, TURN_FRAMES + 1)))
    sent = [(job_of(batch), len(batch)) for batch in traffic.take_output()]
    turn = TURN_FRAMES
    assert sent == [(1, turn), (2, turn), (1, turn), (2, 1), (1, turn)]
    assert traffic.sent_bytes(1) == 3 * turn * LENGTH


def test_lower_levels_go_first_and_may_be_set_before_the_job_comes() -> None:
    traffic = TrafficPriority()
    traffic.set_level(1, 3)
    for job in (1, 2, 3):
        traffic.add(job, Machine(frames(job)))
    traffic.set_level(2, 1)
    assert [job_of(batch) for batch in traffic.take_output()] == [3, 2, 1]


def test_the_earliest_deadline_counts_and_every_machine_looks_at_its_own() -> None:
    traffic = TrafficPriority()
    early, late, idle = Machine(deadline=1.0), Machine(deadline=3.0), Machine()
    for job, machine in enumerate((early, late, idle)):
        traffic.add(job, machine)
    assert traffic.deadline == 1.0
    traffic.tick(2.0)
    assert (early.ticks, late.ticks, idle.ticks) == ([2.0], [2.0], [2.0])


def test_the_job_that_defers_fewest_frames_counts() -> None:
    traffic = TrafficPriority()
    assert traffic.deferrable == 0
    few, many = Machine(), Machine()
    few.deferrable, many.deferrable = 2, 100
    traffic.add(1, many)
    assert traffic.deferrable == 100
    traffic.add(2, few)
    assert traffic.deferrable == 2


class MarkingMachine(Machine):
    marks: list[int]

    def mark(self, tos: int) -> None:
        self.marks.append(tos)


def test_a_level_is_marked_in_the_frames_whenever_it_is_set() -> None:
    traffic = TrafficPriority()
    early, late, unset = MarkingMachine(), MarkingMachine(), MarkingMachine()
    for machine in (early, late, unset):
        machine.marks = []
    traffic.add(1, early)
    traffic.set_level(1, 3)
    traffic.set_level(2, 0)
    traffic.add(2, late)
    traffic.add(3, unset)
    traffic.set_level(1, 7)
    assert (early.marks, late.marks, unset.marks) == ([0x80, 0], [0xE0], [])
    with pytest.raises(LevelError, match="expected 0 "):
        traffic.set_level(1, 8)


def test_members_of_jobs_can_be_marked() -> None:
    plan, network = star_plan()
    for machine in (Worker(plan, 0, network), Server(plan, 0, network), ServerSet()):
        assert isinstance(machine, MarkedMachine)
