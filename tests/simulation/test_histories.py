"""Histories are the same if compiled code alone moves frames, is observed, or Python takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from hopsum.collectives.algorithms.ring import ring_all_reduce
from hopsum.collectives.choices import Collective
from hopsum.collectives.plan import DataType, JobPlan, Results
from hopsum.host_agent.workload import WorkloadSpec, make_workload
from hopsum.network.model import Network
from hopsum.planning.model.request import SwitchRole
from hopsum.simulation.faults import Faults, LinkCut, LostFrame, Reboot
from hopsum.simulation.host import VirtualHost
from hopsum.simulation.world import World
from p4switch.backends.native.engine import NativeEngine
from p4switch.targets.v1model.engine import Engine
from tests.simulation.test_all_reduce import job, make_engine, run
from tests.simulation.test_rooted_trees import rooted
from tests.support.search import examples
from tests.support.simulated_jobs import Replan, SimulatedRun, simulate_schedule

EVERY = Faults(loss=0.03, corrupt=0.01, duplicate=0.03, reorder=0.1, hold=0.01)
Run = Callable[[], SimulatedRun]
SOME = [*DataType][: examples(1, of=len(DataType))]
"""Types that go over every topology and form of results; others differ in the hosts' part alone."""


class Frames:
    """An `Observer` with a digest of all it sees."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def left(self, time: float, source: str, target: str, frame: bytes, lost: bool) -> None:
        """See `Observer`."""
        self.digest.update(f"left {time!r} {source} {target} {lost} ".encode() + frame)

    def entered(
        self, time: float, node: str, port: int, frame: bytes, engine: Engine | None
    ) -> None:
        """See `Observer`."""
        self.digest.update(f"entered {time!r} {node} {port} {engine is None} ".encode() + frame)

    def handled(self, time: float, switch: str, frame: bytes, engine: Engine) -> None:
        """See `Observer`."""
        self.digest.update(f"handled {time!r} {switch} ".encode() + frame)


def epochs(topology: str = "leaf-spine:2x2") -> SimulatedRun:
    """Two new plans, the second with a new server."""
    network, plan = job(topology, 4)
    server = plan.trees[0].server
    replans = [
        Replan(0.002, replace(plan, epoch=2), 1e-4),
        Replan(0.006, replace(plan, epoch=3), 1e-4, restarted=(server,)),
    ]
    return run(network, plan, rounds=4, faults=Faults(loss=0.02), replans=replans)


def ring(topology: str, faults: Faults) -> SimulatedRun:
    """A schedule over TCP, through plain forwarding."""
    network, plan = job(topology, 4)
    spec = WorkloadSpec("random", 4, 6000, 2, DataType.FLOAT32, 1)
    return simulate_schedule(
        network,
        plan.workers,
        lambda elements: ring_all_reduce(4, elements),
        make_engine,
        lambda rank: make_workload(spec, rank, None),
        faults=faults,
        seed=4,
    )


def of(made: tuple[Network, JobPlan], faults: Faults | None = None, **choices: object) -> Run:
    """A job in lock step."""
    return lambda: run(*made, faults=faults, seed=7, **choices)  # type: ignore[arg-type]


RUNS: dict[str, Run] = {
    **{
        f"{dtype} on {topology}, {name}": of(job(topology, workers), faults, dtype=dtype)
        for topology, workers, dtypes in (
            ("star:4", 4, DataType),
            ("line:3x2", 6, DataType),
            ("fat-tree:4", 8, SOME),
        )
        for name, faults in [("no fault", None), ("every fault", EVERY)]
        for dtype in (dtypes if faults else SOME)
    },
    **{
        f"{results}, {role}": of(job("leaf-spine:2x2", 4, results=results, algorithm=role), EVERY)
        for results in Results
        for role in SwitchRole
    },
    **{
        f"rooted, {results}, {dtype}": of(
            rooted("leaf-spine:2x2", 4, results=results), EVERY, dtype=dtype
        )
        for results, dtypes in [(Results.UNICAST, DataType), (Results.REPLICATED, SOME)]
        for dtype in dtypes
    },
    "bursts": of(job("leaf-spine:2x2", 4), Faults(loss=0.05, burst=6.0)),
    "flips": of(job("line:3x2", 6, integrity=True), Faults(flip=0.02, loss=0.005)),
    "a cut": of(job("leaf-spine:2x2", 4), Faults(cuts=(LinkCut("l1", "s1", 0.001, 0.05),))),
    "two frames": of(
        job("leaf-spine:2x2", 4), Faults(lost=(LostFrame("l1", "s1", 3), LostFrame("h1", "l1", 0)))
    ),
    "reboots": of(
        job("leaf-spine:2x2", 4),
        Faults(reboots=(Reboot("s1", 0.001, 0.01), Reboot("l1", 0.002))),
    ),
    "two servers": of(job("leaf-spine:2x3", 6, servers=2), Faults(loss=0.02)),
    "two trees a root": of(rooted("star:4", 4, trees=2), dtype=DataType.FLOAT32, rounds=5),
    "parts": of(rooted("star:4", 4), EVERY, collective=Collective.REDUCE_SCATTER),
    "a broadcast": of(rooted("star:4", 4), EVERY, collective=Collective.BROADCAST),
    "short tensors": of(job("star:4", 4), elements=300, rounds=30, dtype=DataType.FLOAT32),
    "epochs": epochs,
    "a ring": lambda: ring("star:4", Faults()),
    "a ring under loss": lambda: ring(
        "leaf-spine:2x2", Faults(loss=0.02, duplicate=0.02, reorder=0.02)
    ),
}


def history(run: Run, *, observed: bool) -> list[object]:
    """What a run did: counters of all channels and switches, reports, frames if `observed`."""
    worlds: list[World] = []
    frames = Frames()
    create = World.__init__

    def note(world: World, *arguments: object, **options: object) -> None:
        if observed:
            options["observers"] = (frames,)
        create(world, *arguments, **options)  # type: ignore[arg-type]
        worlds.append(world)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "__init__", note)
        done = run()
    [world] = worlds
    channels = [
        (ends, c.frames, c.bytes, c.lost, c.delayed, c.flipped, c.duplicated, c.queue_drops)
        for ends, c in world.channels.items()
    ]
    reports = [report.SerializeToString(deterministic=True) for report in done.reports]
    counts = done.finished_at, done.packet_hops, done.retransmissions, done.switches
    return [channels, reports, counts, frames.digest.hexdigest()]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_python_compiled_code_and_observed_code_move_frames_alike(name: str) -> None:
    compiled, observed = (history(RUNS[name], observed=each) for each in (False, True))
    assert compiled[:-1] == observed[:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualHost, "enter", lambda host: None)
        patch.setattr(NativeEngine, "functions", lambda engine: None)
        by_python = history(RUNS[name], observed=True)
    assert by_python == observed
