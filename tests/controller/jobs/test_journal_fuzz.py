"""Journal files of any content: jobs, or one error that names the file."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import JobError, JobState
from hopsum.controller.jobs.job_table import JobTable
from hopsum.controller.jobs.journal import FileJournal, JournalError
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.network.loaders import load_network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.simulation.disk import VirtualDisk
from tests.support.jobs import reached
from tests.support.manager import join
from tests.support.search import examples

FILE = Path("jobs")
VALUES = (None, True, 0, -1, 1.5, 1 << 70, "", "x", [], {}, [1], {"a": 1}, "running", "finished")


@cache
def journal() -> bytes:
    """The records of two jobs, in several steps: one finishes, one is cancelled."""
    disk = VirtualDisk({})

    async def main() -> None:
        kept = ClusterSettings(journal=FileJournal(FILE, disk=disk))
        cluster = Cluster(load_network("star:4"), install, kept)
        first, second = [
            await cluster.submit(JobSpec(name, workers, ("ps",), window=64))
            for name, workers in (("a", ("h1", "h2")), ("b", ("h1", "h3")))
        ]
        streams = [join(cluster, host, first.number) for host in first.hosts]
        for stream in streams:
            cluster.receive(stream, pb.AgentMessage(finished=pb.Finished(report=pb.Report())))
        await reached(first, JobState.FINISHED)
        await cluster.cancel(second)
        await cluster.close()

    asyncio.run(main())
    [content] = disk.content().values()
    return content


async def install(rules: Mapping[str, SwitchRules]) -> None:
    """Switches that take everything."""


def mutated(rng: random.Random) -> bytes:
    """The journal with some of it changed: bytes, lines, or values of records."""
    content = journal()
    for _ in range(rng.choice([1, 1, 2, 5])):
        lines = content.split(b"\n")
        at = rng.randrange(len(lines))
        match rng.randrange(7):
            case 0:
                content = content[: rng.randrange(len(content) + 1)]
            case 1:
                place = rng.randrange(len(content) + 1)
                content = content[:place] + rng.randbytes(3) + content[place + rng.choice([0, 3]) :]
            case 2:
                content = b"\n".join([*lines[:at], *lines[at + 1 :]])
            case 3:
                content = b"\n".join([*lines, *lines[at:]])
            case 4:
                content += bytes(rng.choice([1, 4096]))
            case _:
                content = b"\n".join([*lines[:at], _changed(lines[at], rng), *lines[at + 1 :]])
    return content


def _changed(line: bytes, rng: random.Random) -> bytes:
    """A record with another value somewhere."""
    try:
        record = json.loads(line)
    except ValueError:
        return line
    places: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], (dict, list)):
                collect(value[key])

    if isinstance(record, dict):
        collect(record)
    if places:
        within, key = rng.choice(places)
        if rng.random() < 0.3:
            del within[key]
        else:
            within[key] = rng.choice(VALUES)
    return json.dumps(record).encode()


@pytest.mark.slow
@settings(max_examples=examples(400, of=20_000), deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_journal_is_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    content = mutated(rng)
    disk = VirtualDisk({FILE: content})
    try:
        table = JobTable(FileJournal(FILE, disk=disk))
    except (JobError, JournalError) as error:
        assert "jobs" in str(error)
        assert len(str(error)) < 2000
        # A file that is refused is left as it is: somebody may repair it.
        assert disk.read(FILE) == content
        return
    known = {job.number: (job.spec, job.state, job.outcome, job.plan) for job in table}
    again = JobTable(FileJournal(FILE, disk=disk))
    assert {job.number: (job.spec, job.state, job.outcome, job.plan) for job in again} == known
