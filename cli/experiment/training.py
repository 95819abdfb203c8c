"""A PyTorch training on the hosts of a cluster in Mininet: torchrun's agent on each of them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cli.experiment.description import ExperimentError
from cli.experiment.emulated import with_cluster
from cli.experiment.prepare import Prepared
from cli.experiment.result import DirectedLink
from cli.experiment.session import Running, wait_for_agents
from controller.jobs.job import Job
from controller.jobs.job_state import JobState
from host_agent.workload import intervals_from, reduce_seconds
from mininet_topos.emulation import Emulation
from network.model import Network

MASTER_PORT = 29500
POLL_SECONDS = 0.1
END_SECONDS = 35.0
"""torchrun gives a rank 30 s to end."""
LOGS = Path("logs")

Show = Callable[[str], None]
"""Takes what rank 0 prints, piece by piece."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training on a cluster came to. Times in seconds.

    `summing`: in which sums were under way in the switches. `sent`: bytes that the workers' hosts
    have sent in all, `in_switches` those of them that were for the switches, frames and all.
    `sums`: tensors summed in the switches; a call takes one for its check and mostly one for its
    values. `errors`: what ended ranks or jobs, in words.
    """

    seconds: float
    summing: float
    sums: int
    sent: int
    in_switches: int
    errors: tuple[str, ...]


def train(prepared: Prepared, command: Sequence[str], show: Show) -> Trained:
    """Bring a cluster up and run `command`, a script and its arguments, as a rank on each worker.

    What rank r prints goes to logs/rank-r.log. Raises as `with_cluster`.
    """

    async def run(running: Running, emulation: Emulation) -> Trained:
        await wait_for_agents(running, prepared.hosts)
        workers = prepared.placement.workers
        before, began = running.link_bytes(), time.monotonic()
        codes = await _ranks(emulation, prepared.network, workers, command, show)
        seconds = time.monotonic() - began
        jobs = list(running.cluster.jobs)
        await _settle(jobs)
        return trained(seconds, workers, jobs, before, running.link_bytes(), codes)

    return with_cluster(prepared, run)


async def _ranks(
    emulation: Emulation,
    network: Network,
    workers: Sequence[str],
    command: Sequence[str],
    show: Show,
) -> list[int]:
    """Return each rank's exit code; torchrun ends the others when one fails."""
    processes = []
    LOGS.mkdir(exist_ok=True)
    for rank, host in enumerate(workers):
        log = _log(rank)
        log.write_text("")
        torchrun = [
            sys.executable, "-m", "torch.distributed.run",
            "--nnodes", str(len(workers)), "--node-rank", str(rank), "--nproc-per-node", "1",
            "--master-addr", network.hosts[workers[0]].ip, "--master-port", str(MASTER_PORT),
            *command,
        ]  # fmt: skip
        # Its own log: the host's has what the agent says.
        shell = ["sh", "-c", 'exec "$@" >"$0" 2>&1', str(log)]
        processes.append(emulation.popen(host, [*shell, "env", "OMP_NUM_THREADS=1", *torchrun]))
    try:
        return await _follow(processes, show)
    finally:
        # torchrun ends its rank when it is asked to; one that is killed would leave it.
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)


async def _follow(processes: Sequence[subprocess.Popen[bytes]], show: Show) -> list[int]:
    """Show what rank 0 prints until all have ended; their exit codes, by rank."""
    shown = 0
    while True:
        ended = all(process.poll() is not None for process in processes)
        shown += _show_more(_log(0), shown, show)
        if ended:
            return [process.returncode for process in processes]
        if any(process.poll() for process in processes):
            await _end_soon(processes)
        await asyncio.sleep(POLL_SECONDS)


async def _end_soon(processes: Sequence[subprocess.Popen[bytes]], patience: float = 30.0) -> None:
    """Give the other ranks time to learn of one that failed, then end them."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        await asyncio.sleep(POLL_SECONDS)
    for process in processes:
        if process.poll() is None:
            process.terminate()


def _show_more(log: Path, start: int, show: Show) -> int:
    """Show what has been added to a file since; its length in bytes."""
    with log.open("rb") as file:
        file.seek(start)
        more = file.read()
    if more:
        show(more.decode(errors="replace"))
    return len(more)


async def _settle(jobs: Sequence[Job], patience: float = 30.0) -> None:
    """Wait until the jobs' hosts have reported."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(not job.state.over for job in jobs):
        await asyncio.sleep(POLL_SECONDS)


def trained(
    seconds: float,
    workers: Sequence[str],
    jobs: Sequence[Job],
    before: Mapping[DirectedLink, int],
    after: Mapping[DirectedLink, int],
    codes: Sequence[int],
) -> Trained:
    """Put together what was measured; links' bytes by direction, exit codes by rank."""
    errors = [
        f"rank {rank} on {workers[rank]} ended with {code}: logs/{_log(rank).name}"
        for rank, code in enumerate(codes)
        if code
    ]
    errors += [
        f"job {job.spec.name}: {job.state}: {job.reason}"
        for job in jobs
        if job.state is not JobState.FINISHED
    ]
    summing = 0.0
    for job in jobs:
        reports = [job.reports[host] for host in job.request.workers if host in job.reports]
        if len(reports) == len(job.request.workers):
            summing += reduce_seconds([intervals_from(report.intervals) for report in reports])
    return Trained(
        seconds,
        summing,
        sum(job.round for job in jobs),
        sum(count - before[link] for link, count in after.items() if link[0] in workers),
        sum(sent.total() for job in jobs for host, sent in job.sent.items() if host in workers),
        tuple(errors),
    )


def _log(rank: int) -> Path:
    return LOGS / f"rank-{rank}.log"


def check_script(command: Sequence[str]) -> None:
    """Raise ExperimentError if there is no such script, or no torch to run it with."""
    if find_spec("torch") is None:
        raise ExperimentError("torchrun: PyTorch is not installed; pip install 'hopsum[torch]'")
    try:
        with Path(command[0]).open("rb"):
            pass
    except OSError as error:
        raise ExperimentError(
            f"torchrun: {command[0]:.200}: {error.strerror}; expected a Python script"
        ) from None
