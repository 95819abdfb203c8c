"""Embeddings as jobs of a cluster: helping hosts, a restart, weights that change."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from hopsum.cli.job_commands import make_submission
from hopsum.collectives.plan import DataType
from hopsum.controller.jobs.active_job import ActiveJob
from hopsum.controller.jobs.plan_costs import free_network
from hopsum.controller.jobs.plan_store import Change
from hopsum.controller.jobs.procedures import Procedure
from hopsum.controller.jobs.reoptimization import Reoptimization
from hopsum.controller.jobs.replanning import ReplanningPolicy
from tests.support.cluster_world import World
from tests.support.machine import until

pytestmark = pytest.mark.usefixtures("time_to_plan")


@pytest.mark.slow
def test_an_embedding_with_helping_hosts(tmp_path: Path) -> None:
    """Four hosts of a torus are workers; others sum for them if they have an agent."""
    world = World(tmp_path, "torus:3x3", link_rate=1e8)
    workers = "h1,h3,h5,h9"
    try:
        world.agents("h1", "h3", "h5", "h9", "h4", "h6", "h7", "h8")
        for name, dtype in (("exact", DataType.INT32), ("near", DataType.FLOAT32)):
            submission = make_submission(
                name, workers, elements=20_003, dtype=dtype, algorithm="embedding"
            )
            world.queries.submit(submission)
            world.exact(name)
            servers = world.queries.job(name).servers
            assert servers and set(servers) <= {"h4", "h6", "h7", "h8"}
        submission = make_submission("named", workers, "h8", algorithm="embedding")
        world.queries.submit(submission)
        world.exact("named")
        assert set(world.queries.job("named").servers) <= {"h8"}
    finally:
        world.close()


@pytest.mark.slow
def test_an_embedding_goes_on_after_the_controller_was_restarted(tmp_path: Path) -> None:
    """Its weights and topologies are kept: another choice would be a wrong sum."""
    world = World(tmp_path, "torus:3x3", link_rate=1e8)
    try:
        world.agents("h1", "h3", "h5", "h9", "h4", "h6", "h7", "h8")
        world.queries.submit(
            make_submission("long", "h1,h3,h5,h9", rounds=30, elements=3000, algorithm="embedding")
        )
        until(lambda: world.queries.job("long").round > 0, "rounds")
        servers = list(world.queries.job("long").servers)
        world.stop()
        world.start()
        world.exact("long")
        assert list(world.queries.job("long").servers) == servers
    finally:
        world.close()


@pytest.mark.slow
def test_weights_change_at_boundaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the links' loads other hosts sum other parts; relays come and go; the controller too."""
    random = Random(2)
    cuts: list[object] = []

    def recut(
        self: Reoptimization, active: ActiveJob, elements: int, now: float
    ) -> Procedure[None]:
        network = self.plans.working()
        loads = {link: random.choice([0.1, 0.5, 1.0]) for link in network.directed_links()}
        change = Change("", on=free_network(network, loads), recut=True)
        plan = yield from self.epochs.change(active.job.number, change)
        cuts.append(plan.cut)

    monkeypatch.setattr(Reoptimization, "recut", recut)
    policy = ReplanningPolicy(every=2, pause=0.0)
    world = World(tmp_path, "torus:3x3", link_rate=1e8, replanning=policy)
    try:
        world.agents("h1", "h3", "h5", "h9", "h4", "h6", "h7", "h8")
        for name, dtype in (("exact", DataType.INT32), ("near", DataType.FLOAT32)):
            submission = make_submission(
                name, "h1,h3,h5,h9", rounds=16, elements=1003, dtype=dtype, algorithm="embedding"
            )
            world.queries.submit(submission)
            until(lambda n=name: world.queries.job(n).round > 5, "rounds")  # type: ignore[misc]
            world.stop()
            world.start()
            world.exact(name)
    finally:
        world.close()
    assert len(set(map(str, cuts))) > 4
