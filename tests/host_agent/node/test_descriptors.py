"""An agent gives back what a job opened: it serves jobs for months."""

from __future__ import annotations

import contextlib
import gc
import threading
from pathlib import Path

import pytest

from hopsum.cli.job_commands import make_submission
from hopsum.collectives.choices import DataType
from hopsum.host_agent.node.real import HostLoop
from tests.support.cluster_world import World, ring
from tests.support.jobs import GOING
from tests.support.machine import until
from tests.support.memory_port import MemoryPort

JOBS = 3
HOSTS = ("h1", "h2", "h3")
JOB_THREADS = ("closing", "schedule", "coordination")
"""What the names of threads begin with that belong to a job."""


def event_descriptors() -> int:
    """Return how many event descriptors this process has open."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += "eventfd" in str(entry.readlink())
        except FileNotFoundError:
            # It was the directory's own, or another thread's.
            continue
    return count


def test_a_host_that_leaves_gives_its_descriptors_back() -> None:
    before = event_descriptors()
    for _ in range(JOBS):
        for port in MemoryPort.pair():
            HostLoop(port, "h1").close()
            port.close()
    assert event_descriptors() < before + JOBS


def finish(world: World, name: str, coordinate: bool) -> None:
    submission = ring(name, ",".join(HOSTS))
    if coordinate:
        submission = make_submission(
            name,
            ",".join(HOSTS),
            dtype=DataType.FLOAT32,
            kind="digits",
            algorithm="ring",
            coordinate=True,
        )
    world.queries.submit(submission)
    world.exact(name)


def cancel(world: World, name: str) -> None:
    world.queries.submit(ring(name, ",".join(HOSTS), rounds=100_000))
    until(lambda: world.queries.job(name).round > 0, "rounds")
    world.queries.cancel(name)
    until(lambda: world.state(name) not in GOING, "its end")


@pytest.mark.slow
@pytest.mark.usefixtures("short_epochs")
@pytest.mark.parametrize(
    ("kind", "jobs"), [("finished", JOBS), ("coordinated", 2), ("cancelled", JOBS)]
)
def test_an_agent_opens_no_more_with_every_job(tmp_path: Path, kind: str, jobs: int) -> None:
    def run(world: World, first: int) -> None:
        for number in range(first, first + jobs):
            if kind == "cancelled":
                cancel(world, f"job-{number}")
            else:
                finish(world, f"job-{number}", kind == "coordinated")
        # The controller knows of a job's end before its agents, and they before their threads.
        until(lambda: not any(node.agent.members for node in world.nodes), "the agents to leave")
        until(
            lambda: not any(each.name.startswith(JOB_THREADS) for each in threading.enumerate()),
            "the end of the jobs' threads",
        )

    def used() -> tuple[int, int]:
        # What is in cycles is given back when Python looks for them: not while nothing happens.
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    with contextlib.closing(World(tmp_path)) as world:
        world.agents(*HOSTS)
        run(world, 1)
        descriptors, threads = used()
        run(world, 1 + jobs)
        # gRPC closes connections when it comes to it.
        until(
            lambda: used()[0] < descriptors + jobs and used()[1] < threads + jobs,
            f"fewer than {jobs} descriptors and threads more than {descriptors} and {threads}",
        )
