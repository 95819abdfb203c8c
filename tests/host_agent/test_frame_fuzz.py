"""No frame raises in an agent: mutated valid frames and random bytes, many at a time.

`make fuzz FRAMES=12000000` runs it for long; `make test` runs DEFAULT_FRAMES of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.collectives.plan import JobPlan, Results
from hopsum.host_agent.codec import Frames
from hopsum.host_agent.io.loop import Machine
from hopsum.host_agent.root_worker import RootWorker
from hopsum.host_agent.server import Server
from hopsum.host_agent.server_set import ServerSet
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network
from hopsum.protocol.wire import (
    CHILD_SHIFT,
    Flag,
    Hop,
    Kind,
    Reduction,
    frame_bytes,
    frame_view,
    ipv4_checksum,
    is_hopsum,
)
from hopsum_scapy import Hopsum, parse
from tests.support.protocol_world import (
    LANES,
    SERVER,
    at_server,
    contribution,
    frame,
    lanes_in,
    result,
    star_plan,
    tree_plan,
)

DEFAULT_FRAMES = 8_000
BATCH = 256
WINDOW = 4
HEADERS = range(12, 70)
FREE = (15, *range(18, 20), 22, 43, 45, *range(49, 56), *range(58, 70))
"""Bytes of headers that may differ between the frames of a stream."""
WEIGHTS = (0, 0, 1, 2, 3, 39, 40, 0x7FFF, 0xFFFF)
FLAGS = (0, 0, 0, Flag.BYPASS, Flag.BYPASS, Flag.STALE, Flag.ECN, Flag.OVERFLOW, 0xFF)
ACCESS = {"w0": "a", "w1": "a", "w2": "r", SERVER: "r"}
ROOTED_ACCESS = {"w0": "r", "w1": "r", "w2": "r"}
ONE_WAY = (Reduction.REDUCE_SUM, Reduction.BROADCAST)


@dataclass(frozen=True)
class Scene:
    """A job, and what its agents are."""

    plan: JobPlan
    network: Network

    def server(self, start: int) -> ServerSet:
        """All servers of the job, as if they had come to fragment `start`."""
        servers = [Server(self.plan, tree.tree, self.network) for tree in self.plan.trees]
        for server in servers:
            self.finish(server, start)
        return ServerSet(servers)

    def finish(self, server: Server, fragment: int) -> None:
        """Let a fragment be summed in any state of the server."""
        plan, singles = self.plan, server.tree.singles
        for covered in server.tree.server_children:
            server.receive(
                contribution(
                    server.plan,
                    self.network,
                    covered[0],
                    fragment,
                    7,
                    tree=server.tree.tree,
                    weight=1 if singles else len(covered),
                    flags=Flag.BYPASS if singles else 0,
                    reduction=plan.reduction,
                ),
                0.0,
            )

    @property
    def rooted(self) -> bool:
        """Whether the server is at worker 0."""
        return self.plan.trees[0].server == self.plan.workers[0]

    def worker(self, start: int, *, root: bool = False) -> Worker:
        """Worker 0 with calls in flight; of a rooted tree worker 1, or 0 as the `root`."""
        options = WorkerOptions(first_fragment=start, bypass_after=2, deadline=1e9)
        role, index = (RootWorker, 0) if root else (Worker, int(self.rooted))
        worker = role(self.plan, index, self.network, options)
        for reduction in ONE_WAY if self.rooted else ():
            worker.submit(np.arange(2 * LANES, dtype=np.int32), 0.0, reduction=reduction)
        worker.submit(np.arange(64 * LANES, dtype=np.int32), 0.0)
        worker.submit(np.linspace(-1, 1, 64 * LANES, dtype=np.float32), 0.0)
        return worker


def _two_trees() -> tuple[JobPlan, Network]:
    plan, network = star_plan(3, window=WINDOW)
    tree = plan.trees[0]
    both = (replace(tree, share=0.5), replace(tree, tree=1, share=0.5))
    return replace(plan, trees=both, results=Results.UNICAST), network


SCENES: dict[str, Scene] = {
    "sums of switches": Scene(*tree_plan(ACCESS, {"a": "r"}, ("a",), window=WINDOW)),
    "one sum": Scene(*tree_plan(ACCESS, {"a": "r"}, ("a", "r"), window=WINDOW)),
    "unicast": Scene(*star_plan(3, window=WINDOW, results=Results.UNICAST)),
    "forty singles": Scene(*star_plan(40, window=WINDOW, singles=True)),
    "one worker": Scene(*star_plan(1, window=WINDOW)),
    "two trees": Scene(*_two_trees()),
    "rooted": Scene(*tree_plan(ROOTED_ACCESS, {}, (), window=WINDOW, server="w0")),
}
STARTS = (0, 1 << 31, (1 << 32) - 2 * WINDOW)


@pytest.fixture
def count(request: pytest.FixtureRequest) -> int:
    """Frames for each of the tests of this file."""
    chosen: int | None = request.config.getoption("--fuzz-frames")
    return DEFAULT_FRAMES if chosen is None else chosen


def bases(scene: Scene) -> list[Frames]:
    """One frame of each form that an agent of the job accepts, and some that it rejects."""
    plan, network = scene.plan, scene.network
    up = contribution(plan, network, 0, 0, 7, reduction=plan.reduction)
    deeper = frame(plan, network, Kind.CONTRIBUTION, 0, 7, (Hop(aggregate=True, fan_in=2), Hop()))
    down = result(plan, network, 0, 7)
    copied = frame(plan, network, Kind.REPLICATED, 0, 7, weight=len(plan.workers))
    forms = [up, up, up, deeper, down, down, copied]
    for reduction in ONE_WAY if scene.rooted else ():
        forms += [contribution(plan, network, 1, 0, 7, reduction=reduction)] * 2
        forms.append(result(plan, network, 0, 7, reduction=reduction))
    return forms


def batches(scene: Scene, start: int, frames: int, seed: int) -> Iterator[Frames]:
    """Batches of at most BATCH frames of one length, `frames` in all."""
    rng = np.random.default_rng(seed)
    forms = bases(scene)
    trees = np.array([tree.tree for tree in scene.plan.trees], dtype=np.uint8)
    while frames > 0:
        n = min(frames, int(rng.choice((1, 2, 16, BATCH, BATCH))))
        frames -= n
        chance = rng.random()
        if chance < 0.04:
            yield rng.integers(0, 256, (n, int(rng.integers(0, 300))), dtype=np.uint8)
            continue
        rows = np.repeat(forms[rng.integers(len(forms))], n, axis=0)
        fields = fields_of(rows)
        hops = fields["stack"].shape[1]
        spread = WINDOW * int(rng.choice((1, 4, 8)))
        ahead = rng.integers(-2 * WINDOW, 4 * WINDOW) + rng.integers(0, spread, n)
        fields["fragment"] = (start + ahead) & 0xFFFFFFFF
        fields["worker"] = rng.choice((0, 1, 2, 3, 39, 40, 0xFFFF), n)
        workers = len(scene.plan.workers)
        usual = (*[workers] * 9, *[max(1, workers - 1)] * 4, *[1] * 4)
        fields["weight"] = rng.choice((*WEIGHTS, *usual), n)
        fields["flags"] = rng.choice(FLAGS, n)
        fields["epoch"] = rng.choice((0, 1, 1, 1, 1, 1, 2, 0x8001, 0xFFFF), n)
        fields["tree"] = rng.choice(trees, n)
        if hops:
            fields["stack"][:, 0] ^= rng.integers(0, 4, n, dtype=np.uint32) << CHILD_SHIFT
        _mutate(rng, rows)
        yield rows[:, : int(rng.integers(0, rows.shape[1]))] if chance < 0.08 else rows


def _mutate(rng: np.random.Generator, rows: Frames) -> None:
    """Change up to three bytes of each frame, mostly of its headers."""
    n, length = rows.shape
    for share in (0.6, 0.3, 0.1):
        chosen = np.flatnonzero(rng.random(n) < share)
        free = rng.choice(FREE, len(chosen))
        any_header = rng.choice(HEADERS, len(chosen))
        at = np.where(rng.random(len(chosen)) < 0.8, free, any_header)
        lane = rng.integers(min(66, length - 1), length, len(chosen))
        at = np.where(rng.random(len(chosen)) < 0.05, lane, np.minimum(at, length - 1))
        old = rows[chosen, at]
        flipped = old ^ (1 << rng.integers(0, 8, len(chosen))).astype(np.uint8)
        wild = rng.choice((0, 0xFF, *range(0, 256, 5)), len(chosen)).astype(np.uint8)
        rows[chosen, at] = np.where(rng.random(len(chosen)) < 0.5, flipped, wild)


def fields_of(rows: Frames) -> NDArray[np.void]:
    """The fields of frames of one length and form, sharing memory."""
    lanes = lanes_in(rows, LANES)
    return frame_view(rows, lanes, (rows.shape[1] - frame_bytes(lanes, 0)) // 4)


def check_output(machine: Machine) -> None:
    """Everything that an agent sends is a whole frame."""
    for sent in machine.take_output():
        fields = fields_of(sent)
        assert is_hopsum(sent).all()
        assert (fields["hops"] == fields["stack"].shape[1]).all()
        assert (fields["total_length"] == sent.shape[1] - 14).all()
        assert ipv4_checksum(sent[0, 14:34].tobytes()) == 0


def feed(machine: Machine, received: Frames, now: float) -> None:
    """Give a batch to an agent."""
    machine.receive(received, now)
    check_output(machine)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_servers_survive_any_frames_and_go_on(name: str, count: int) -> None:
    scene = SCENES[name]
    for seed, start in enumerate(STARTS):
        servers = scene.server(start)
        for number, received in enumerate(batches(scene, start, count // len(STARTS), seed)):
            feed(servers, received, 0.001 * number)
        newer = replace(scene.plan, epoch=2)
        for server in servers:
            server.adopt(newer)
            before = server.statistics.results
            # Forged frames may have moved the slot on; what is newer is summed all the same.
            for quarter in range(4):
                scene.finish(server, (start + (quarter << 30)) & 0xFFFFFFFF)
            assert server.statistics.results > before
        check_output(servers)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_workers_survive_any_frames_and_go_on(name: str, count: int) -> None:
    scene = SCENES[name]
    for seed, start in enumerate(STARTS):
        worker = scene.worker(start)
        for number, received in enumerate(batches(scene, start, count // len(STARTS), seed)):
            now = 0.001 * number
            feed(worker, received, now)
            if worker.deadline is not None and worker.deadline <= now:
                worker.tick(now)
            if worker.failure is not None or worker.idle:
                worker = scene.worker(start)
        go_on(scene, worker)


def test_roots_survive_any_frames(count: int) -> None:
    scene = SCENES["rooted"]
    for seed, start in enumerate(STARTS):
        root = scene.worker(start, root=True)
        for number, received in enumerate(batches(scene, start, count // len(STARTS), seed)):
            now = 0.001 * number
            feed(root, received, now)
            if root.deadline is not None and root.deadline <= now:
                root.tick(now)
            if root.failure is not None or root.idle:
                root = scene.worker(start, root=True)


def go_on(scene: Scene, worker: Worker) -> None:
    """A worker's fragments in flight, and those it sends later, are summed as usual."""
    newer = replace(scene.plan, epoch=2)
    worker.adopt(newer, 1e6)
    while not worker.idle:
        sent = worker.take_output()
        assert sent, "a worker with fragments in flight has sent them"
        for row in (batch[number : number + 1] for batch in sent for number in range(len(batch))):
            arrived = fields_of(at_server(row))
            reduction = Reduction(int(arrived["reduction"][0]) >> 4)
            down = result(newer, scene.network, 0, 7, reduction=reduction)
            for field in ("fragment", "tree", "exponent"):
                fields_of(down)[field] = arrived[field]
            worker.receive(down, 1e6)


def test_scapy_reads_anything(count: int) -> None:
    """The agents' slow way to the network parses what comes before their decoders see it."""
    parsed = 0
    for scene in SCENES.values():
        for received in batches(scene, 0, max(1, count // 400), 1):
            parsed += sum(Hopsum in parse(row.tobytes()) for row in received)
    assert parsed


@pytest.mark.slow
def test_the_frames_reach_every_branch() -> None:
    """Else the fuzz would prove little."""
    seen: dict[str, int] = {}

    def add(counts: dict[str, int]) -> None:
        for key, value in counts.items():
            seen[key] = seen.get(key, 0) + value

    for scene in SCENES.values():
        for start in STARTS:
            servers, worker = scene.server(start), scene.worker(start)
            for received in batches(scene, start, 4_000, 0):
                feed(servers, received, 0.0)
                feed(worker, received, 0.0)
            for server in servers:
                add(server.statistics.counts())
            add(worker.statistics.counts())
    wanted = "sums singles repeats handed_over results answered stale older newer refused foreign"
    wanted += " overflowed accepted stale_results ecn"
    assert [key for key in wanted.split() if not seen[key]] == []
