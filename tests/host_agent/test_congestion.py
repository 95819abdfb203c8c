"""The window of a stream behind long queues."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from hopsum.collectives.plan import JobPlan, Results
from hopsum.host_agent.congestion import (
    LEAST_WINDOW,
    QUEUE_FRAMES,
    SEGMENT_FRAME_BYTES,
    StreamPath,
    most_flows,
    most_in_flight,
    stream_path,
)
from hopsum.host_agent.datapath.library import Congestion, library
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network
from hopsum.protocol.wire import Flag, frame_bytes
from tests.support.columns import fragments_of
from tests.support.protocol_world import result, star_plan, tree_plan

PATH = StreamPath(round_trip=0.01, step=1.5)


class Window:
    """`struct congestion` of a stream with `size` slots."""

    def __init__(self, size: int = 64, path: StreamPath | None = PATH, *, most: int = 512) -> None:
        self.state = Congestion(window=size)
        self._at = ctypes.addressof(self.state)
        self._set(path, most)
        library().congestion_start(self._at)

    def _set(self, path: StreamPath | None, most: int) -> None:
        self.state.queues = path is not None
        self.state.path_round_trip, self.state.path_step = path or (0.0, 0.0)
        self.state.most = min(most, self.state.window)

    def move(self, path: StreamPath | None, most: int) -> None:
        self._set(path, most)
        library().congestion_move(self._at)

    def overtaken(self, *, following: int) -> None:
        library().congestion_overtaken(self._at, following)

    def answered(
        self, newest: int, following: int, in_flight: int, round_trip: float, *, marked: bool
    ) -> None:
        library().congestion_answered(self._at, newest, following, in_flight, round_trip, marked)

    @property
    def limit(self) -> int:
        return int(self.state.size)

    @property
    def limited(self) -> bool:
        return bool(self.state.size < self.state.window)


def answer(
    of: Window, newest: int, *, marked: bool = False, wait: float = 0.1, sent: int = 0
) -> int:
    """Answer up to `newest` of `sent` (or a window more) with the window full; the new limit."""
    of.answered(newest, sent or newest + of.limit, of.limit, wait, marked=marked)
    return of.limit


def test_a_window_without_marks_stays_as_it_is() -> None:
    of = Window()
    assert [answer(of, 64 * n) for n in range(5)] == [64] * 5
    assert not of.limited


def test_marks_halve_it_once_a_round_trip() -> None:
    of = Window()
    assert answer(of, 10, marked=True, sent=74) == 32
    assert of.limited
    assert answer(of, 20, marked=True, sent=84) == 32, "sent before the window was made smaller"
    assert answer(of, 73, marked=True, sent=90) == 32
    assert answer(of, 74, marked=True, sent=106) == 16
    for _ in range(5):
        answer(of, of.state.reacted, marked=True)
    assert of.limit == LEAST_WINDOW


def test_a_mark_in_the_middle_of_a_round_trip_counts() -> None:
    of = Window()
    answer(of, 10, marked=True, sent=74)
    assert answer(of, 80, sent=110) == 33, "a round trip without a mark"
    assert answer(of, 90, marked=True, sent=120) == 16


def test_a_mark_halves_the_fragments_in_flight() -> None:
    of = Window()
    of.answered(3, 20, 12, 0.1, marked=True)
    assert of.limit == 6


def test_marks_of_what_was_sent_before_a_result_overtook_another_do_not_count() -> None:
    of = Window()
    of.overtaken(following=80)
    assert answer(of, 79, marked=True, sent=143) == 64
    assert answer(of, 80, marked=True, sent=144) == 32


def test_the_window_grows_by_a_segment_per_round_trip_with_queues() -> None:
    of = Window()
    answer(of, 0, marked=True, sent=64)
    sizes = []
    newest = 64
    for _ in range(4):
        sizes.append(answer(of, newest, sent=newest + 32))
        answer(of, newest + 1, sent=newest + 33)
        newest += 32
    assert sizes == [33, 35, 36, 38]


def test_the_window_doubles_while_queues_are_empty() -> None:
    of = Window()
    for n in range(3):
        answer(of, 64 * n, marked=True, sent=64 * n + 64)
    assert of.limit == 8
    assert [answer(of, 1000 * n, wait=0.014) for n in range(1, 5)] == [16, 32, 64, 64]
    assert not of.limited


def test_the_shortest_round_trip_says_whether_frames_wait() -> None:
    of = Window()
    answer(of, 0, marked=True, sent=64)
    answer(of, 10, wait=0.012, sent=70)
    assert answer(of, 64, wait=0.03, sent=99) == 64


def test_the_window_grows_only_while_it_is_full() -> None:
    of = Window()
    answer(of, 0, marked=True, sent=64)
    of.answered(64, 100, 20, 0.1, marked=False)
    assert of.limit == 32


def test_marks_do_not_count_where_links_have_no_rate() -> None:
    of = Window(path=None)
    assert answer(of, 10, marked=True) == 64
    of = Window()
    answer(of, 10, marked=True)
    of.move(None, 512)
    assert answer(of, 1000) == 64


@pytest.mark.parametrize("path", [None, PATH])
def test_it_never_exceeds_what_fits_the_queues(path: StreamPath | None) -> None:
    of = Window(path=path, most=7)
    assert of.limit == 7
    assert of.limited
    assert [answer(of, 7 * n, wait=0.01) for n in range(5)] == [7] * 5
    answer(of, of.state.reacted, marked=True)
    assert of.limit == (7 if path is None else LEAST_WINDOW)
    assert [answer(of, 100 * n, wait=0.01) for n in range(1, 4)][-1] == 7
    of.move(path, 2)
    assert answer(of, 1000, marked=True, sent=1001) == 2
    of.move(path, 512)
    for n in range(20, 200):
        answer(of, 100 * n, wait=0.01)
    assert of.limit == 64
    assert not of.limited


def with_rate(network: Network, rate: float) -> Network:
    links = tuple(replace(link, bandwidth=rate, latency=1e-3) for link in network.links)
    return replace(network, links=links)


def test_the_path_is_that_of_the_farthest_worker() -> None:
    access = {"w0": "s0", "w1": "s1", "ps": "s1", "spare": "s1"}
    plan, network = tree_plan(access, {"s0": "s1"}, ("s0", "s1"))
    (tree,) = plan.trees
    assert stream_path(network, plan, tree) is None
    size = frame_bytes(plan.lanes, 0)
    path = stream_path(with_rate(network, 1e6), plan, tree)
    assert path == pytest.approx((2 * 3 * (1e-3 + 8 * size / 1e6), SEGMENT_FRAME_BYTES / size))


@pytest.mark.parametrize(
    ("plain", "results", "up", "down"),
    [
        ((), Results.REPLICATED, 1, 1),
        (("s0",), Results.REPLICATED, 3, 1),
        (("s1",), Results.REPLICATED, 3, 1),
        (("s0", "s1"), Results.REPLICATED, 5, 1),
        ((), Results.UNICAST, 1, 5),
        (("s0",), Results.UNICAST, 3, 5),
    ],
)
def test_flows_on_the_busiest_link(
    plain: tuple[str, ...], results: Results, up: int, down: int
) -> None:
    access = {"w0": "s0", "w1": "s0", "w2": "s0", "w3": "s1", "w4": "s1", "ps": "s1", "spare": "s1"}
    summing = tuple(switch for switch in ("s0", "s1") if switch not in plain)
    plan, _ = tree_plan(access, {"s0": "s1"}, summing)
    plan = replace(plan, results=results)
    (tree,) = plan.trees
    assert most_flows(plan, tree) == (up, down)
    flows = max(up, down)
    assert most_in_flight(plan, tree) == QUEUE_FRAMES // flows
    twice = replace(plan, trees=(tree, replace(tree, tree=1)))
    assert most_in_flight(twice, tree) == QUEUE_FRAMES // (2 * flows), "at the same server"


def busy_worker(window: int = 8, fragments: int = 40) -> tuple[Worker, JobPlan, Network]:
    """A worker on links with a rate, its window in flight."""
    plan, network = star_plan(window=window)
    network = with_rate(network, 1e8)
    worker = Worker(plan, 0, network, WorkerOptions(min_timeout=50, initial_timeout=50))
    worker.submit(np.zeros(fragments * plan.lanes, dtype=np.int32), 0.0)
    worker.take_output()
    return worker, plan, network


def sent(worker: Worker) -> list[int]:
    return [int(f) for batch in worker.take_output() for f in fragments_of(batch)]


def test_a_marked_result_lets_fewer_fragments_follow() -> None:
    worker, plan, network = busy_worker()
    following = []
    for f in range(8):
        flags = Flag.ECN if f == 0 else 0
        worker.receive(result(plan, network, f, 0, flags=flags), 0.1)
        following.append(sent(worker))
    assert following == [[], [], [], [], [8], [9], [10], [11]]
    assert (worker.statistics.ecn, worker.statistics.sent) == (1, 12)


def test_a_queue_behind_a_lost_fragment_shrinks_no_Window() -> None:
    """Sums wait for the lost one, and queue when they leave together."""
    worker, plan, network = busy_worker()
    for f in (1, 2, 3, 0, 4):
        worker.receive(result(plan, network, f, 0, flags=Flag.ECN), 0.1)
    assert sent(worker) == [9, 10, 11, 8, 12]
    for f in (5, 6, 7, 9):
        worker.receive(result(plan, network, f, 0, flags=Flag.ECN), 0.2)
    # These were sent before the overtaken one was answered.
    assert sent(worker) == [13, 14, 15, 17]
    for f in (10, 11, 8, 12, 13):
        worker.receive(result(plan, network, f, 0, flags=Flag.ECN), 0.3)
    # Three less than came: the window has shrunk.
    assert sent(worker) == [18, 16]


def test_fragments_go_in_order_again_when_the_window_is_whole() -> None:
    worker, plan, network = busy_worker()
    worker.receive(result(plan, network, 0, 0, flags=Flag.ECN), 0.1)
    worker.receive(result(plan, network, 1, 0, flags=Flag.ECN), 0.1)
    order = list(range(2, 40))
    came = []
    for f in order:
        # Without any wait the window doubles soon.
        worker.receive(result(plan, network, f, 0), 0.1)
        came += sent(worker)
    assert came == list(range(8, 40))
    assert worker.done(0)


def test_the_oldest_fragments_go_however_many_others_are_in_flight() -> None:
    """All workers' windows would wait for one another otherwise, full of different fragments."""
    worker, plan, network = busy_worker()
    congestion = worker._streams[0]._state.congestion  # noqa: SLF001
    for f in range(1, 8):
        worker.receive(result(plan, network, f, 0), 0.1)
    assert sent(worker) == list(range(9, 16))
    # As after marks, which do not count while the oldest is overtaken.
    library().congestion_answered(ctypes.addressof(congestion), 99, 100, 4, 1.0, True)
    assert int(congestion.size) == 4
    # Nothing newer, but what comes next after the oldest.
    worker.receive(result(plan, network, 0, 0), 0.1)
    assert sent(worker) == [8]
