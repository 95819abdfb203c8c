"""Run an experiment in Mininet: real switch and agent processes, real links."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cli.experiment.description import Experiment
from cli.experiment.event_loop import run_async
from cli.experiment.jobs import measured, plan_of, task_of, vectors_task
from cli.experiment.pipelines import compile_pipeline, slots_of
from cli.experiment.prepare import Prepared
from cli.experiment.result import Measured, RunFailed
from controller.api.rendezvous import announced
from controller.api.service import ControllerService, at
from controller.dataplane.driver import Driver, State, SwitchTarget
from controller.dataplane.rules import Loss
from controller.jobs.agents import AgentRegistry
from controller.jobs.failover import fail_over
from controller.jobs.manager import Manager
from controller.jobs.tracker import Tracker
from host_agent.task import task_message
from mininet_topos.emulation import Emulation
from network.model import Network
from planning.model.stack_depth import stack_depth

AGENT = Path(sys.executable).with_name("hopsum-agent")
READY_SECONDS = 120.0
WATCH_SECONDS = 0.1


def run_emulated(prepared: Prepared, progress: Callable[[int, int], None]) -> Measured:
    """Bring the network up, run the job, take everything down again.

    Raises MininetUnavailable, EmulationError, SwitchFailed, DriverError, RunFailed.
    """
    experiment = prepared.experiment

    async def run(emulation: Emulation) -> Measured:
        async with driver_for(emulation, experiment) as driver:
            return await run_job(prepared, emulation, driver, progress)

    with Emulation(prepared.network, engine=experiment.engine.value) as emulation:
        return run_async(run(emulation))


def driver_for(emulation: Emulation, experiment: Experiment) -> Driver:
    """The driver of all switches of an emulation, for use as a context manager."""
    hops = stack_depth(emulation.network, experiment.lanes, experiment.max_hops)
    slots = slots_of(emulation.network)
    pipeline = compile_pipeline(experiment.engine, experiment.lanes, slots, hops)
    targets = [
        SwitchTarget(name, address, emulation.device_ids[name])
        for name, address in emulation.grpc_addresses.items()
    ]
    return Driver(targets, pipeline)


def losses_of(network: Network, experiment: Experiment) -> list[Loss]:
    """The experiment's loss probability on every link, in both directions."""
    if not experiment.loss:
        return []
    return [Loss(u, v, experiment.loss) for u, v in network.directed_links()]


async def run_job(
    prepared: Prepared,
    emulation: Emulation,
    driver: Driver,
    progress: Callable[[int, int], None],
) -> Measured:
    """Run the job in a network that is up, with its switches driven; raises as `run_emulated`.

    One job after the other may run there, each with a number of its own.
    """
    experiment, network = prepared.experiment, prepared.network
    manager = Manager(
        network,
        lambda rules: driver.apply(rules, READY_SECONDS),
        losses_of(network, experiment),
    )
    agents = manager.agents
    service = ControllerService(
        agents, manager.server_restarted, driver, manager.health, manager.why_waiting
    )
    async with contextlib.AsyncExitStack() as stack:
        tracker = await _submit(manager, prepared)
        vectors = await _submit_vectors(manager, prepared)
        folder = stack.enter_context(emulation.temporary_folder())
        address = await stack.enter_async_context(service.serve(at(f"unix:{folder}/controller")))
        stack.enter_context(announced(address))
        before = emulation.link_bytes()
        processes = {
            host: _start_agent(emulation, prepared, address, host, _jobs_of(host, tracker, vectors))
            for host in tracker.agents
        }
        following = asyncio.create_task(_follow(agents, tracker, prepared, progress, vectors))
        watching = asyncio.create_task(_watch(emulation, processes))
        failover = asyncio.create_task(fail_over(manager, driver, emulation.down_links))
        tasks = {following, watching, failover}
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=experiment.limit, return_when=asyncio.FIRST_COMPLETED
            )
            for ended in done - {following}:
                ended.result()
            if not following.done():
                raise RunFailed(
                    f"not done after {experiment.limit:g} s: {_rounds(tracker)}"
                    f"{_away(driver)}; --limit gives it longer"
                )
            following.result()
        finally:
            for running in tasks:
                running.cancel()
        after = await _settled(emulation)
        switches = await _outcomes(driver)
    reports = tracker.reports()
    return measured(
        [reports[worker] for worker in tracker.plan.workers],
        {link: after[link] - before[link] for link in after},
        switches,
    )


async def _submit(manager: Manager, prepared: Prepared) -> Tracker:
    """Bring the switches to what the job needs, and expect its agents."""
    plan, task = prepared.plan, task_message(task_of(prepared))
    if plan is None or prepared.request is None:
        tracker = Tracker(prepared.network, plan_of(prepared), task)
        manager.agents.add(tracker)
        await manager.refresh()
        return tracker
    await manager.submit(prepared.request, task, prepared.experiment.planner)
    return manager.agents.tracker(plan.job)


async def _submit_vectors(manager: Manager, prepared: Prepared) -> Tracker | None:
    """The same for the job of the bit vectors, if the switches combine them."""
    if prepared.vectors is None:
        return None
    request = prepared.vectors.request
    task = vectors_task(prepared, len(request.workers))
    await manager.submit(request, task_message(task))
    return manager.agents.tracker(request.job)


def _jobs_of(host: str, tracker: Tracker, vectors: Tracker | None) -> list[int]:
    """The jobs that a host has a part in, first that of the tensors."""
    return [
        each.plan.job for each in (tracker, vectors) if each is not None and host in each.agents
    ]


async def _outcomes(driver: Driver) -> dict[str, dict[str, int]]:
    """The counters of every switch that is still there."""
    counted = {}
    for name, state in driver.states().items():
        if state is State.READY:
            counts = await driver.outcomes(name)
            counted[name] = {outcome.name.lower(): count for outcome, count in counts.items()}
    return counted


def _away(driver: Driver) -> str:
    names = [name for name, state in driver.states().items() if state is State.CONNECTING]
    return f"; no answer from {', '.join(names)}" if names else ""


def _start_agent(
    emulation: Emulation, prepared: Prepared, address: str, host: str, jobs: Sequence[int]
) -> subprocess.Popen[bytes]:
    neighbour = prepared.network.access_switch(host)
    return emulation.popen(
        host,
        [
            str(AGENT), "attend", "--controller", address,
            *(word for job in jobs for word in ("--job", str(job))), "--host", host,
            "--interface", emulation.interface(host, neighbour),
            "--packet-io", prepared.experiment.packet_io.value,
        ],
    )  # fmt: skip


async def _follow(
    agents: AgentRegistry,
    tracker: Tracker,
    prepared: Prepared,
    progress: Callable[[int, int], None],
    vectors: Tracker | None = None,
) -> None:
    """Return when all workers have finished, those of `vectors` too. Raises RunFailed."""
    total = len(prepared.workload.tensor_sizes())
    first = tracker.agents[tracker.plan.workers[0]]
    shown = -1
    while tracker.state in ("waiting", "running"):
        await agents.wait(
            prepared.job,
            lambda t, seen=shown: t.state in ("failed", "finished") or first.round != seen,  # type: ignore[misc]
        )
        shown = first.round
        progress(shown, total)
    if tracker.state == "failed":
        reasons = "; ".join(f"{host}: {why}" for host, why in tracker.failures().items())
        raise RunFailed(f"the job failed: {reasons}")
    if vectors is not None:
        await agents.wait(vectors.plan.job, lambda t: t.state in ("failed", "finished"))


async def _watch(emulation: Emulation, processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Raise RunFailed when an agent's process ends before its time."""
    while True:
        for host, process in processes.items():
            if process.poll() not in (None, 0):
                raise RunFailed(
                    f"agent on {host} ended with code {process.returncode}:\n"
                    f"{emulation.log_tail(host)}"
                )
        await asyncio.sleep(WATCH_SECONDS)


async def _settled(emulation: Emulation) -> dict[tuple[str, str], int]:
    """The links' counters once nothing moves any more."""
    counted = emulation.link_bytes()
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        again = emulation.link_bytes()
        if again == counted:
            return counted
        counted = again


def _rounds(tracker: Tracker) -> str:
    return ", ".join(f"{agent.host} at {agent.round}" for agent in tracker.agents.values())
