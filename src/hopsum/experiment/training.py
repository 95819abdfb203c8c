"""A PyTorch training on the hosts of a cluster in Mininet: torchrun's agent on each of them."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hopsum.controller.api.client import ControllerClient
from hopsum.controller.jobs.job_state import JobState
from hopsum.experiment.description import ExperimentError
from hopsum.experiment.emulated import with_cluster
from hopsum.experiment.event_loop import run_async, terminable
from hopsum.experiment.prepare import PreparedExperiment
from hopsum.experiment.result import DirectedLink
from hopsum.experiment.session import RunningCluster, wait_for_agents
from hopsum.experiment.supervision import end_processes
from hopsum.host_agent.workload import intervals_from, reduce_seconds
from hopsum.mininet_topos.emulation import Emulation
from hopsum.mininet_topos.hosts import EmulatedHosts, hosts_of_controller
from hopsum.network.model import Network
from hopsum.planning.model.placement import place_ranks
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.extras import require

POLL_SECONDS = 0.1
PATIENCE = 30.0
"""Seconds for other ranks to notice a failed one, and for hosts to report."""
END_SECONDS = 35.0
"""torchrun gives a rank 30 s to end."""
LOGS = Path("logs")
WITHOUT_AGENT = "HOPSUM_AGENT=none"
"""Makes the backend hopsum use gloo for everything (hopsum_torch.rendezvous)."""
FREE_PORT = "import socket; s = socket.create_server(('', 0)); print(s.getsockname()[1])"

Show = Callable[[str], None]
"""Called with each piece of rank 0's output."""


@dataclass(frozen=True, slots=True)
class Training:
    """The command of each rank: a script, or `-m` and a module, and its arguments.

    In arguments `{run}` stands for `switches`, and for `gloo` in the training that is compared: a
    script that resumes from its checkpoints has to keep those of both apart. `max_restarts`: how
    often all ranks are restarted after one has failed. `compare_gloo`: run the training again on
    the same hosts with all calls over gloo.
    """

    command: Sequence[str]
    max_restarts: int = 0
    compare_gloo: bool = False
    ranks_per_host: int = 1
    environment: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Measurements of a training on a cluster. Times in seconds.

    `summing`: time with sums in progress in the switches. `sent`: bytes sent by all hosts of its
    jobs, including servers; `in_switches`: those of frames for the switches. `sums`: tensors summed
    in the switches, both checks and values, which concurrent calls share. `restarts`: how often the
    ranks continued with another job. `errors`: messages about what ended ranks or their last job.
    `steps`: of rank 0 in milliseconds, from its lines `N ms a step`. `gloo`: the same training with
    all calls over gloo.
    """

    seconds: float
    summing: float
    sums: int
    sent: int
    in_switches: int
    restarts: int
    errors: tuple[str, ...]
    steps: tuple[float, ...] = ()
    gloo: TrainingResult | None = None


def train(prepared: PreparedExperiment, training: Training, show: Show) -> TrainingResult:
    """Start a cluster and train on its workers.

    What rank r prints goes to logs/rank-r.log. Raises as `with_cluster`.
    """

    async def run(running: RunningCluster, emulation: Emulation) -> TrainingResult:
        await wait_for_agents(running, prepared.hosts)
        client = ControllerClient(running.address)
        return await Trainer(emulation, prepared.placement.workers, client, show).run(training)

    return with_cluster(prepared, run)


def train_on_running(
    client: ControllerClient, workers: int, training: Training, show: Show
) -> TrainingResult:
    """Train on the first `workers` hosts of a cluster that another process has up in Mininet.

    What rank r prints goes to logs/rank-r.log. Raises EmulationError, NetworkError,
    ControllerError, ExperimentError.
    """
    from hopsum.collectives.messages import network_from

    state = client.state()
    network = network_from(state.network)
    hosts = hosts_of_controller(network, client.address)
    placed = place_ranks(network, workers).workers
    attached = {node.host for node in state.nodes if node.attached}
    missing = [host for host in placed if host not in attached]
    if missing:
        raise ExperimentError(
            f"torchrun: no agent attached on {', '.join(missing)} of the running cluster; see "
            "`hopsum nodes`"
        )
    with terminable():
        return run_async(Trainer(hosts, placed, client, show).run(training))


@dataclass(frozen=True, slots=True)
class Trainer:
    """Trains on the hosts `workers` of a cluster, with the training's number of ranks on each.

    `show` receives rank 0's output.
    """

    hosts: EmulatedHosts
    workers: Sequence[str]
    client: ControllerClient
    show: Show

    async def run(self, training: Training) -> TrainingResult:
        """Train, and on request again over gloo."""
        trained = await self._train(named(training, "switches"))
        if not training.compare_gloo or trained.errors:
            return trained
        self.show("once more, over gloo\n")
        over_gloo = replace(training, environment=(*training.environment, WITHOUT_AGENT))
        gloo = await self._train(named(over_gloo, "gloo"))
        return with_comparison(trained, gloo)

    async def _train(self, training: Training) -> TrainingResult:
        """Train and measure; on cancellation, first end jobs and ranks."""
        run = f"hopsum-{secrets.token_hex(4)}"
        before, began = self.hosts.link_bytes(), time.monotonic()
        codes = await self._ranks(training, run)
        seconds = time.monotonic() - began
        jobs = await _settled_jobs(self.client, run)
        after, here = self.hosts.link_bytes(), training.ranks_per_host
        found = trained(seconds, self.workers, jobs, before, after, codes, here)
        return replace(found, steps=step_times(_log(0).read_text(errors="replace")))

    async def _ranks(self, training: Training, run: str) -> list[int]:
        """Return each host's exit code; torchrun ends the other ranks when one fails."""
        hosts, workers = self.hosts, self.workers
        port = hosts.run(workers[0], [sys.executable, "-c", FREE_PORT]).strip()
        LOGS.mkdir(exist_ok=True)
        for rank in range(len(workers) * training.ranks_per_host):
            _log(rank).write_text("")
        processes: list[subprocess.Popen[bytes]] = []
        environment = ("OMP_NUM_THREADS=1", *training.environment)
        try:
            for place, host in enumerate(workers):
                arguments = torchrun(hosts.network, workers, place, port, run, training)
                # Its own output goes to its first rank's log: the host's log is the agent's.
                log = str(_log(place * training.ranks_per_host))
                shell = ["sh", "-c", 'exec "$@" >>"$0" 2>&1', log]
                processes.append(hosts.popen(host, [*shell, "env", *environment, *arguments]))
            return await _follow(processes, self.show)
        except asyncio.CancelledError:
            # Before the ranks end: without them its jobs would have failed.
            for job in await asyncio.to_thread(_jobs_of, self.client, run):
                if not job.over:
                    await asyncio.to_thread(self.client.cancel, job.name)
            raise
        finally:
            # torchrun ends its rank on SIGTERM; if killed, it would leave the rank running.
            running = [process for process in processes if process.poll() is None]
            await asyncio.to_thread(end_processes, running, END_SECONDS)


def named(training: Training, run: str) -> Training:
    """Return a training with the name of its run for `{run}` in its arguments."""
    return replace(training, command=[word.replace("{run}", run) for word in training.command])


def with_comparison(trained: TrainingResult, gloo: TrainingResult) -> TrainingResult:
    """Return a training with the one over gloo; trainings that differ are an error, no figure."""
    ours, theirs = len(trained.steps), len(gloo.steps)
    if gloo.errors or ours == theirs > 0:
        return replace(trained, gloo=gloo)
    if ours == theirs:
        error = "rank 0 printed no step times to compare, as lines with `N ms a step`"
        return replace(trained, gloo=gloo, errors=(*trained.errors, error))
    error = (
        f"rank 0 printed {ours} step times, and over gloo {theirs}: nothing to compare; does the "
        "script resume from a checkpoint? Give each run a folder of its own: `{run}` in its "
        "arguments becomes switches and gloo"
    )
    return replace(trained, gloo=gloo, errors=(*trained.errors, error))


def torchrun(
    network: Network, workers: Sequence[str], place: int, port: str, run: str, training: Training
) -> list[str]:
    """Return the command of torchrun's agent on a host; `port`: of the store, on the first one.

    `run`: prefix of its jobs' names after `torch-` (hopsum_torch.rendezvous).
    """
    return [
        sys.executable, "-m", "torch.distributed.run",
        "--nnodes", str(len(workers)), "--node-rank", str(place),
        "--nproc-per-node", str(training.ranks_per_host),
        "--master-addr", network.hosts[workers[0]].ip, "--master-port", port,
        "--rdzv-id", run, "--max-restarts", str(training.max_restarts),
        # Each rank has a log of its own; torchrun would leave empty folders in /tmp.
        "--log-dir", os.devnull,
        "--no-python", "sh", "-c", f'exec "$0" -u "$@" >>"{LOGS}/rank-$RANK.log" 2>&1',
        sys.executable, *training.command,
    ]  # fmt: skip


async def _follow(processes: Sequence[subprocess.Popen[bytes]], show: Show) -> list[int]:
    """Show rank 0's output until all have ended; return exit codes by rank."""
    shown = 0
    while True:
        ended = all(process.poll() is not None for process in processes)
        shown += _show_more(_log(0), shown, show)
        if ended:
            return [process.returncode for process in processes]
        if any(process.poll() for process in processes):
            await _end_soon(processes)
        await asyncio.sleep(POLL_SECONDS)


async def _end_soon(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Give the other ranks time to notice a failed one, then end them."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        await asyncio.sleep(POLL_SECONDS)
    for process in processes:
        if process.poll() is None:
            process.terminate()


def _show_more(log: Path, start: int, show: Show) -> int:
    """Show what was appended to a file; return its length in bytes."""
    with log.open("rb") as file:
        file.seek(start)
        more = file.read()
    if more:
        show(more.decode(errors="replace"))
    return len(more)


def _jobs_of(client: ControllerClient, run: str) -> list[pb.JobInfo]:
    """Return the jobs that ranks of a run have submitted, oldest first, with reports."""
    ours = [job for job in client.jobs() if job.name.startswith(f"torch-{run}-")]
    return [client.job(job.job) for job in ours]


async def _settled_jobs(client: ControllerClient, run: str) -> list[pb.JobInfo]:
    """Return a run's jobs once their hosts have reported or the timeout expires."""
    deadline = time.monotonic() + PATIENCE
    while True:
        jobs = await asyncio.to_thread(_jobs_of, client, run)
        if all(job.over for job in jobs) or time.monotonic() > deadline:
            return jobs
        await asyncio.sleep(POLL_SECONDS)


def trained(
    seconds: float,
    workers: Sequence[str],
    jobs: Sequence[pb.JobInfo],
    before: Mapping[DirectedLink, int],
    after: Mapping[DirectedLink, int],
    codes: Sequence[int],
    ranks_per_host: int = 1,
) -> TrainingResult:
    """Combine the measurements: links' bytes by direction, exit codes by worker.

    Of jobs that did not finish only the last ranks' are errors: the others were replaced by the
    next. Those of sub-groups are named after that of all ranks (hopsum_torch.rendezvous).
    """
    errors = []
    for place, code in enumerate(codes):
        if code:
            ranks = range(place * ranks_per_host, (place + 1) * ranks_per_host)
            which = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
            logs = ", ".join(map(str, map(_log, ranks)))
            errors.append(f"{which} on {workers[place]} ended with {code}: {logs}")
    attempts = [job.name for job in jobs if "." not in job.name]
    failed = [job for job in jobs if job.state != JobState.FINISHED]
    errors += [
        f"job {job.name}: {job.state}: {job.reason}"
        for job in failed
        if job.name.partition(".")[0] == attempts[-1]
    ]
    intervals = []
    for job in jobs:
        reports = [job.reports[host] for host in job.workers if host in job.reports]
        if len(reports) == len(job.workers):
            intervals.append([intervals_from(report.intervals) for report in reports])
    hosts = {*workers, *(server for job in jobs for server in job.servers)}
    return TrainingResult(
        seconds,
        reduce_seconds(*intervals),
        sum(job.round for job in jobs),
        sum(count - before[link] for link, count in after.items() if link[0] in hosts),
        sum(job.sent_bytes for job in jobs),
        sum(job.name in attempts[:-1] for job in failed),
        tuple(errors),
    )


def step_times(printed: str) -> tuple[float, ...]:
    """Return the milliseconds of all lines of the form `N ms a step`."""
    return tuple(map(float, re.findall(r"\b(\d+(?:\.\d+)?) ms a step", printed)))


def _log(rank: int) -> Path:
    return LOGS / f"rank-{rank}.log"


def check_script(command: Sequence[str]) -> None:
    """Raise ExperimentError if the script or module is missing; MissingExtraError if torch is."""
    require("torch", "torchrun")
    if command[0] == "-m":
        if len(command) < 2:
            raise ExperimentError("torchrun: -m: expected the name of a module after it")
        if not _is_module(command[1]):
            raise ExperimentError(
                f"torchrun: -m {command[1]:.200}: there is no such module; expected one that "
                f"{sys.executable} imports from this folder"
            )
        return
    try:
        with Path(command[0]).open("rb"):
            pass
    except OSError as error:
        raise ExperimentError(
            f"torchrun: {command[0]:.200}: {error.strerror}; expected a Python script, or -m and a "
            "module"
        ) from None


def _is_module(name: str) -> bool:
    """Return whether Python finds a module from this folder, as ranks will."""
    code = "import importlib.util as u, sys; sys.exit(u.find_spec(sys.argv[1]) is None)"
    found = subprocess.run([sys.executable, "-c", code, name], capture_output=True, check=False)
    return found.returncode == 0
