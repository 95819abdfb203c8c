"""The server with scripted packets: what it sums, answers, ignores and refuses."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from hopsum.collectives.plan import JobPlan, PlanError, Results
from hopsum.host_agent import server as server_module
from hopsum.host_agent.codec import REDUCTION_AT, mark
from hopsum.host_agent.server import Server
from hopsum.host_agent.server_set import ServerSet
from hopsum.network.model import Network
from hopsum.protocol.wire import (
    LANE_REDUCTIONS,
    REPLICATED_IP,
    Flag,
    Hop,
    Kind,
    Reduction,
    Width,
    frame_view,
    ipv4_checksum,
)
from tests.support.columns import tos_of
from tests.support.protocol_world import (
    LANES,
    Seen,
    contribution,
    frame,
    result,
    seen,
    star_plan,
    tree_plan,
)

WINDOW = 4
ACCESS = {"w0": "a", "w1": "a", "w2": "r", "ps": "r"}


def pair_and_one(**changes: Any) -> tuple[Server, JobPlan, Network]:
    """The server gets {0, 1} from switch a, and 2."""
    plan, network = tree_plan(ACCESS, {"a": "r"}, ("a",), **changes)
    return Server(plan, 0, network), plan, network


def star(workers: int, **changes: Any) -> tuple[Server, JobPlan, Network]:
    """Every worker is a child of the server."""
    plan, network = star_plan(workers, **changes)
    return Server(plan, 0, network), plan, network


def answers(server: Server) -> list[Seen]:
    return seen(server.take_output())


def test_a_replicated_result_is_one_frame_to_the_group() -> None:
    server, plan, network = pair_and_one()
    server.receive(contribution(plan, network, 0, 5, 3, weight=2, exponent=9), 0.0)
    server.receive(contribution(plan, network, 2, 5, 4, exponent=8), 0.0)
    [packet] = answers(server)
    assert packet == Seen(Kind.REPLICATED, 5, 1, 0, 3, Flag(0), 9, 0, (7,) * LANES, REPLICATED_IP)


def test_unicast_results_go_to_every_worker_by_its_stack() -> None:
    server, plan, network = pair_and_one(results=Results.UNICAST)
    server.receive(contribution(plan, network, 2, 5, 4), 0.0)
    server.receive(contribution(plan, network, 0, 5, 3, weight=2), 0.0)
    batches = [row[None] for batch in server.take_output() for row in batch]
    assert [(p.kind, p.worker, p.value, p.hops) for p in seen(batches)] == [
        (Kind.RESULT, 0, 7, 2),
        (Kind.RESULT, 1, 7, 2),
        (Kind.RESULT, 2, 7, 1),
    ]
    for worker, batch in enumerate(batches):
        hops = plan.trees[0].down[worker]
        record = frame_view(batch, LANES, len(hops))[0]
        assert [Hop.unpack(int(word)) for word in record["stack"]] == list(hops)
        host = network.hosts[plan.workers[worker]]
        assert record["dst_mac"].tobytes() == host.mac_bytes
        assert record["dst_ip"].tobytes() == host.ip_bytes


def test_unicast_results_go_to_all_again_in_a_new_epoch_where_switches_sum() -> None:
    server, plan, network = pair_and_one(results=Results.UNICAST)
    for worker, weight in ((0, 2), (2, 1)):
        server.receive(contribution(plan, network, worker, 5, 4, weight=weight), 0.0)
    server.take_output()
    server.adopt(replace(plan, epoch=2))
    assert [(p.kind, p.worker, p.epoch, p.value) for p in answers(server)] == [
        (Kind.RESULT, worker, 2, 8) for worker in range(3)
    ]


def test_nothing_waits_in_switches_that_do_not_sum_so_the_history_is_not_sent() -> None:
    server, plan, network = star(2, results=Results.UNICAST)
    for worker in range(2):
        server.receive(contribution(plan, network, worker, 0, 4), 0.0)
    server.take_output()
    server.adopt(replace(plan, epoch=2))
    assert answers(server) == []


def test_batches_of_many_children_and_fragments_in_any_order() -> None:
    server, plan, network = star(4)
    frames = [
        contribution(plan, network, w, f, 10**w * (f + 1)) for w in range(4) for f in range(4)
    ]
    generator = np.random.default_rng(1)
    order = generator.permutation(16)
    batch = np.concatenate([frames[i] for i in (*order, *order[:5])])
    server.receive(batch, 0.0)
    packets = answers(server)
    finished = {p.fragment: p.value for p in packets if p.kind is Kind.REPLICATED}
    assert finished == {f: 1111 * (f + 1) for f in range(4)}
    assert server.statistics.sums == 16
    assert server.statistics.answered == 5, "contributions to what was finished before them"


def test_a_sum_after_a_single_of_another_child_starts_from_nothing() -> None:
    server, plan, network = pair_and_one()
    for fragment in (0, WINDOW):
        server.receive(contribution(plan, network, 2, fragment, 4, flags=Flag.BYPASS), 0.0)
        server.receive(contribution(plan, network, 0, fragment, 3, weight=2), 0.0)
        assert [p.value for p in answers(server)] == [7]


def test_a_single_completes_what_sums_began() -> None:
    server, plan, network = pair_and_one()
    server.receive(contribution(plan, network, 0, 0, 3, weight=2, exponent=4), 0.0)
    server.receive(contribution(plan, network, 2, 0, 4, flags=Flag.BYPASS, exponent=7), 0.0)
    [packet] = answers(server)
    assert (packet.value, packet.exponent, packet.flags) == (7, 7, Flag(0))


def test_what_wraps_around_among_singles_does_not_depend_on_who_comes_first() -> None:
    """In the order of workers nothing does; in other orders an intermediate sum would."""
    flags = set()
    for order in permutations(range(3)):
        plan, network = tree_plan({"w0": "a", "w1": "a", "w2": "a", "ps": "a"}, {}, ("a",))
        server = Server(plan, 0, network)
        for worker in order:
            value = (2**31 - 1, -5, 4)[worker]
            single = {"weight": 1, "flags": int(Flag.BYPASS)}
            server.receive(contribution(plan, network, worker, 0, value, **single), 0.0)
        [packet] = answers(server)
        assert packet.value == 2**31 - 2
        flags.add(packet.flags)
    assert flags == {Flag(0)}


def test_singles_beyond_the_room_cost_the_newest_fragment_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the oldest is completed, and each one after it when its singles come again."""
    monkeypatch.setattr(server_module, "_MOST_SINGLES", 3)
    plan, network = tree_plan({"w0": "a", "w1": "a", "w2": "a", "ps": "a"}, {}, ("a",))
    server = Server(plan, 0, network)

    def bypass(worker: int, fragment: int) -> list[Seen]:
        single = {"weight": 1, "flags": int(Flag.BYPASS)}
        server.receive(contribution(plan, network, worker, fragment, 10**worker, **single), 0.0)
        return answers(server)

    assert not any(bypass(worker, fragment) for worker, fragment in ((0, 2), (1, 2), (0, 1)))
    assert not bypass(2, 3), "the newest finds no room"
    assert server.statistics.refused == 1
    assert not bypass(1, 1)
    assert server.statistics.refused == 3, "two of fragment 2, which is newer"
    assert [p.value for p in bypass(2, 1)] == [111]
    assert not bypass(0, 2) and not bypass(1, 2)
    assert [p.value for p in bypass(2, 2)] == [111]
    assert [p.value for worker in range(3) for p in bypass(worker, 3)] == [111]


def test_nothing_is_asked_of_children_that_the_server_does_not_have() -> None:
    server, plan, network = pair_and_one()
    for number in (0, 5):
        batch = contribution(plan, network, 0, 0, 7, sequence=number, flags=int(Flag.SEQUENCED))
        record = frame_view(batch, LANES, 1)[0]
        record["stack"][0] = Hop(child=2).pack()
        server.receive(batch, 0.0)
    assert server.statistics.refused == 2
    assert not server.take_output()


def test_lanes_are_anded_where_the_job_says_so() -> None:
    server, plan, network = pair_and_one(reduction=Reduction.AND)
    common = {"reduction": Reduction.AND}
    server.receive(contribution(plan, network, 0, 0, 0b1101, weight=2, **common), 0.0)
    server.receive(contribution(plan, network, 2, 0, 0b0111, flags=Flag.BYPASS, **common), 0.0)
    server.receive(contribution(plan, network, 0, 1, -1, weight=2, **common), 0.0)
    server.receive(contribution(plan, network, 2, 1, 0x7000, **common), 0.0)
    packets = answers(server)
    assert [p.value for p in packets] == [0b0101, 0x7000]
    assert [p.flags for p in packets] == [Flag(0), Flag(0)]


def reductions(server: Server) -> list[int]:
    """Of the frames that it sends, in order."""
    return [int(row[44]) >> 4 for batch in server.take_output() for row in batch]


@pytest.mark.parametrize("results", Results)
def test_results_name_the_reduction_whenever_they_are_sent(results: Results) -> None:
    server, plan, network = pair_and_one(results=results)
    for fragment, reduction in enumerate((Reduction.MAX, Reduction.SUM, Reduction.XOR)):
        common = {"reduction": reduction}
        server.receive(contribution(plan, network, 0, fragment, -3, weight=2, **common), 0.0)
        server.receive(contribution(plan, network, 2, fragment, 5, **common), 0.0)
    each = 1 if results is Results.REPLICATED else 3
    assert reductions(server) == [2] * each + [0] * each + [3] * each
    # The answer to a late worker, and the history sent to all in a new epoch.
    late = {"reduction": Reduction.MAX, "flags": Flag.BYPASS}
    server.receive(contribution(plan, network, 1, 0, -3, **late), 0.0)
    assert reductions(server) == [2]
    server.adopt(replace(plan, epoch=2))
    assert reductions(server) == [2, 0, 3] * each


def test_fragments_of_several_reductions_come_in_one_batch() -> None:
    server, plan, network = star(2)
    rows = [
        contribution(plan, network, worker, fragment, value, reduction=reduction)
        for worker, value in enumerate((0b0110, -4))
        for fragment, reduction in enumerate(LANE_REDUCTIONS)
    ]
    server.receive(np.concatenate(rows), 0.0)
    found = {packet.fragment: packet.value for packet in answers(server)}
    assert found == {0: 2, 1: 0b0100, 2: 0b0110, 3: 0b0110 ^ -4}


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize(
    ("left", "right", "flag"),
    [
        (2**31 - 1, 0, Flag(0)),
        (2**31 - 1, 1, Flag.OVERFLOW),
        (-(2**31), -1, Flag.OVERFLOW),
        (-(2**31), 2**31 - 1, Flag(0)),
    ],
)
def test_h11_a_sum_that_wraps_at_the_server_is_flagged(
    left: int, right: int, flag: Flag, bypass: bool
) -> None:
    server, plan, network = star(2)
    flags = Flag.BYPASS if bypass else Flag(0)
    server.receive(contribution(plan, network, 0, 0, left), 0.0)
    server.receive(contribution(plan, network, 1, 0, right, flags=flags), 0.0)
    server.receive(contribution(plan, network, 0, 1, 1), 0.0)
    server.receive(contribution(plan, network, 1, 1, 1), 0.0)
    first, second = answers(server)
    assert (first.flags, second.flags) == (flag, Flag(0))
    assert (first.value - left - right) % 2**32 == 0
    server.receive(contribution(plan, network, 0, 0, left), 0.0)
    assert [p.flags for p in answers(server)] == [flag], "the history keeps the flag"


def test_congestion_below_is_signalled_to_all_and_is_no_overflow() -> None:
    server, plan, network = star(2)
    server.receive(contribution(plan, network, 0, 0, 1, flags=Flag.ECN), 0.0)
    server.receive(contribution(plan, network, 1, 0, 1), 0.0)
    server.receive(contribution(plan, network, 0, 1, 1), 0.0)
    server.receive(contribution(plan, network, 1, 1, 1), 0.0)
    assert [p.flags for p in answers(server)] == [Flag.ECN, 0]
    assert server.statistics.overflowed == 0
    server.receive(contribution(plan, network, 0, 0, 1), 0.0)
    assert [p.flags for p in answers(server)] == [Flag.ECN], "the history keeps the flag"


def test_h11_an_overflow_below_stays_flagged() -> None:
    for workers in (1, 2):
        server, plan, network = star(workers)
        for worker in range(workers):
            server.receive(contribution(plan, network, worker, 0, 1, flags=Flag.OVERFLOW), 0.0)
        assert [p.flags for p in answers(server)] == [Flag.OVERFLOW]
        assert server.statistics.overflowed == 1


@pytest.mark.parametrize(
    ("changes", "counter"),
    [
        ({"weight": 1}, "refused"),
        ({"weight": 3}, "refused"),
        ({"weight": 2, "flags": Flag.BYPASS}, "refused"),
        ({"worker": 3, "flags": Flag.BYPASS, "weight": 1}, "refused"),
        ({"flags": Flag.STALE}, "stale"),
        ({"epoch": 2}, "newer"),
        ({"job": 2}, "foreign"),
        ({"tree": 1}, "foreign"),
        ({"reduction": Reduction.AND}, "refused"),
        ({"reduction": 4}, "foreign"),
    ],
)
def test_frames_that_contradict_the_plan_are_only_counted(
    changes: dict[str, Any], counter: str
) -> None:
    server, plan, network = pair_and_one()
    fields = {"worker": 0, "weight": 2, **changes}
    stack = (plan.trees[0].up[0][-1],)
    server.receive(frame(plan, network, Kind.CONTRIBUTION, 0, 3, stack, **fields), 0.0)
    server.receive(contribution(plan, network, 2, 0, 4), 0.0)
    assert answers(server) == []
    assert getattr(server.statistics, counter) == 1


def test_an_unknown_child_is_refused() -> None:
    server, plan, network = star(2)
    for child in (2, 31):
        stack = (Hop(child=child, fan_in=2),)
        server.receive(frame(plan, network, Kind.CONTRIBUTION, 0, 3, stack), 0.0)
    assert server.statistics.refused == 2


def test_an_unknown_worker_gets_no_answer() -> None:
    server, plan, network = star(1)
    server.receive(contribution(plan, network, 0, 0, 3), 0.0)
    server.take_output()
    stack = (plan.trees[0].up[0][-1],)
    server.receive(frame(plan, network, Kind.CONTRIBUTION, 0, 3, stack, worker=7), 0.0)
    assert answers(server) == []
    assert server.statistics.refused == 1


def test_noise_is_ignored() -> None:
    server, plan, network = star(2)
    generator = np.random.default_rng(0)
    for length in (0, 14, 60, 194, 1500):
        server.receive(generator.integers(0, 256, (5, length)).astype(np.uint8), 0.0)
    server.receive(result(plan, network, 0, 1), 0.0)
    assert server.statistics.foreign == 26
    assert server.statistics.received == 0


def test_a_plan_without_sums_takes_more_workers_than_a_switch_has_children() -> None:
    server, plan, network = star(40, singles=True)
    for fragment in (0, WINDOW):
        batch = [contribution(plan, network, w, fragment, w, flags=Flag.BYPASS) for w in range(40)]
        server.receive(np.concatenate(batch[:30]), 0.0)
        missing = server.missing()
        assert missing is not None
        assert missing.workers == tuple(f"w{w}" for w in range(30, 40))
        server.receive(np.concatenate(batch[25:]), 0.0)
        assert [p.value for p in answers(server)] == [sum(range(40))]
        assert server.statistics.refused == 0
    stranger = frame(
        plan, network, Kind.CONTRIBUTION, 9, 1, (Hop(fan_in=0),), worker=40, flags=Flag.BYPASS
    )
    server.receive(stranger, 0.0)
    assert server.statistics.refused == 1


def test_a_plan_without_sums_takes_over_results_too() -> None:
    server, plan, network = star(40, singles=True)
    handed = contribution(plan, network, 3, 0, 99, flags=Flag.BYPASS, weight=40)
    server.receive(handed, 0.0)
    assert [p.value for p in answers(server)] == [99]
    assert server.statistics.handed_over == 1


def test_missing_names_the_oldest_fragment_and_who_has_not_come() -> None:
    server, plan, network = pair_and_one()
    assert server.missing() is None
    server.receive(contribution(plan, network, 0, 3, 3, weight=2), 1.0)
    server.receive(contribution(plan, network, 1, 2, 4, flags=Flag.BYPASS), 2.0)
    missing = server.missing()
    assert missing is not None
    assert (missing.fragment, missing.since, missing.workers) == (3, 1.0, ("w2",))
    server.receive(contribution(plan, network, 2, 3, 3), 3.0)
    missing = server.missing()
    assert missing is not None
    assert (missing.fragment, missing.workers) == (2, ("w0", "w2"))


@pytest.mark.parametrize("first", [0, (1 << 31) - WINDOW, (1 << 32) - WINDOW])
def test_a_newer_fragment_takes_the_slot_over_and_older_ones_are_ignored(first: int) -> None:
    # A new server: worker 0 has the result of `first` already and is one window ahead.
    server, plan, network = star(2)
    newer = (first + WINDOW) % (1 << 32)
    server.receive(contribution(plan, network, 1, first, 1), 0.0)
    server.receive(contribution(plan, network, 0, newer, 10), 0.0)
    server.receive(contribution(plan, network, 1, first, 1), 0.0)
    server.receive(contribution(plan, network, 1, first, 1, flags=Flag.BYPASS), 0.0)
    assert answers(server) == []
    assert server.statistics.older == 2
    server.receive(contribution(plan, network, 0, first, 77, flags=Flag.BYPASS, weight=2), 0.0)
    assert [(p.fragment, p.value) for p in answers(server)] == [(first, 77)]
    server.receive(contribution(plan, network, 1, newer, 5), 0.0)
    assert [(p.fragment, p.value) for p in answers(server)] == [(newer, 15)]
    server.receive(contribution(plan, network, 0, first, 77, flags=Flag.BYPASS, weight=2), 0.0)
    server.receive(contribution(plan, network, 1, first, 1), 0.0)
    assert answers(server) == [], "older than the history"


@pytest.mark.parametrize("child", [2, 3, 31, 63])
@pytest.mark.parametrize("weight", [0, 1, 2, 3])
def test_children_that_the_server_does_not_have_are_refused(child: int, weight: int) -> None:
    """A weight of 0 is that of no child, present or not."""
    server, plan, network = pair_and_one()
    foreign = frame(plan, network, Kind.CONTRIBUTION, 5, 1, (Hop(fan_in=2),), weight=weight)
    frame_view(foreign, LANES, 1)["stack"] |= child << 24
    server.receive(foreign, 0.0)
    server.receive(np.concatenate([foreign, foreign]), 0.0)
    assert server.statistics.refused == 3
    assert server.missing() is None


@pytest.mark.parametrize("child", [0, 1])
def test_a_contribution_of_weight_0_is_refused(child: int) -> None:
    server, plan, network = pair_and_one()
    hop = Hop(child=child, fan_in=2)
    empty = frame(plan, network, Kind.CONTRIBUTION, 5, 1, (hop,), worker=0, weight=0)
    bypassed = frame(
        plan, network, Kind.CONTRIBUTION, 5, 1, (hop,), worker=0, weight=0, flags=Flag.BYPASS
    )
    server.receive(empty, 0.0)
    server.receive(bypassed, 0.0)
    assert server.statistics.refused == 2
    assert server.missing() is None


@pytest.mark.parametrize("singles", [False, True])
@pytest.mark.parametrize("code", sorted({*range(16)} - {*Reduction}))
def test_unknown_reductions_are_foreign(code: int, singles: bool) -> None:
    """Switches drop such frames; a server must not depend on that."""
    server, plan, network = star(2, singles=singles)
    flags = Flag.BYPASS if singles else 0
    for worker in (0, 1):
        unknown = contribution(plan, network, worker, 0, 7, flags=flags)
        unknown[:, REDUCTION_AT] = code << 4
        server.receive(unknown, 0.0)
    assert server.statistics.foreign == 2
    assert server.missing() is None
    for worker in (0, 1):
        server.receive(contribution(plan, network, worker, 0, 7, flags=flags), 0.0)
    assert [answer.value for answer in answers(server)] == [14]


@pytest.mark.parametrize("reduction", list(Reduction))
@pytest.mark.parametrize("code", range(16))
def test_only_numbers_have_widths_and_only_three(reduction: Reduction, code: int) -> None:
    server, plan, network = star(2)
    packet = contribution(plan, network, 0, 0, 7, reduction=reduction)
    packet[:, REDUCTION_AT] |= code
    server.receive(packet, 0.0)
    values = reduction.name in ("SUM", "MAX", "REDUCE_SUM", "REDUCE_MAX")
    assert server.statistics.foreign == (code > (2 if values else 0))


@pytest.mark.parametrize(
    ("width", "other", "total", "over"),
    [
        (Width.WIDTH_32, 0x0001FFFF, 0x00020001, False),
        (Width.WIDTH_16, 0x0001FFFF, 0x00010001, False),
        (Width.WIDTH_16, 0x00017FFE, 0x00018000, True),
        (Width.WIDTH_8, 0x7F01FFFF, 0x7F01FF01, False),
        (Width.WIDTH_8, 0x00FF017E, 0x00FF0180, True),
    ],
)
def test_values_are_added_by_their_width(width: Width, other: int, total: int, over: bool) -> None:
    server, plan, network = star(2)
    server.receive(contribution(plan, network, 0, 0, 2, width=width), 0.0)
    server.receive(contribution(plan, network, 1, 0, other, width=width), 0.0)
    [frame_] = server.take_output()
    assert frame_[0, REDUCTION_AT] == width
    [packet] = seen([frame_])
    assert (packet.value, packet.flags) == (total, Flag.OVERFLOW if over else Flag(0))


def test_another_width_than_that_of_the_fragment_is_refused() -> None:
    server, plan, network = pair_and_one()
    server.receive(contribution(plan, network, 2, 0, 7, width=Width.WIDTH_16), 0.0)
    for width in (Width.WIDTH_8, Width.WIDTH_32):
        server.receive(contribution(plan, network, 0, 0, 7, weight=2, width=width), 0.0)
    assert server.statistics.refused == 2
    server.receive(contribution(plan, network, 0, 0, 7, weight=2, width=Width.WIDTH_16), 0.0)
    assert [answer.value for answer in answers(server)] == [14]


def test_without_sums_only_what_is_flagged_bypass_is_a_contribution() -> None:
    server, plan, network = star(40, singles=True)
    for weight in (1, 40):
        server.receive(contribution(plan, network, 3, 0, 99, weight=weight), 0.0)
    assert answers(server) == []
    assert server.statistics.refused == 2
    assert server.missing() is None


# Bytes 20 and 21 of a frame: IPv4 flags and fragment offset.
FRAGMENTED = [0x0000, 0x2000, 0x6000, 0x8000, 0xC000, 0x4001, 0x00B9, 0x20B9, 0x5FFF]


@pytest.mark.parametrize("bits", FRAGMENTED)
def test_ipv4_fragments_are_foreign(bits: int) -> None:
    """No switch has admitted them."""
    server, plan, network = pair_and_one()
    good = contribution(plan, network, 0, 5, 3, weight=2)
    bad = contribution(plan, network, 2, 5, 4)
    frame_view(bad, LANES, 1)["fragment_offset"] = bits
    server.receive(bad, 0.0)
    server.receive(np.concatenate([bad, good]), 0.0)
    assert (server.statistics.foreign, server.statistics.sums) == (2, 1)


@pytest.mark.parametrize("first", [0, (1 << 32) - WINDOW])
def test_a_total_is_taken_within_the_window_only(first: int) -> None:
    """What the server has summed itself cannot be more than a window behind any worker."""
    server, plan, network = star(2)

    def total(ahead: int) -> list[Seen]:
        fragment = (first + ahead) % (1 << 32)
        handed = contribution(plan, network, 1, fragment, 77, flags=Flag.BYPASS, weight=2)
        server.receive(handed, 0.0)
        return answers(server)

    for worker in (0, 1):
        server.receive(contribution(plan, network, worker, first, 5), 0.0)
    answers(server)
    for ahead in (2 * WINDOW, 1 << 10, (1 << 31) - WINDOW):
        assert total(ahead) == []
    assert server.statistics.refused == 3
    assert [p.fragment for p in total(WINDOW)] == [(first + WINDOW) % (1 << 32)]


def test_a_total_ahead_of_what_is_open_is_refused_by_a_server_that_started_empty() -> None:
    server, plan, network = star(2)
    server.receive(contribution(plan, network, 0, 5 * WINDOW, 1), 0.0)
    for windows, taken in ((6, 0), (1 << 20, 0), (2, 0), (4, 1)):
        handed = contribution(plan, network, 1, windows * WINDOW, 77, flags=Flag.BYPASS, weight=2)
        server.receive(handed, 0.0)
        assert server.statistics.handed_over == taken
    assert server.statistics.refused == 3


def test_a_server_that_missed_an_epoch_takes_totals_far_ahead() -> None:
    """Another server may have finished any number of fragments in the meantime."""
    server, plan, network = star(2)
    for worker in (0, 1):
        server.receive(contribution(plan, network, worker, 0, 5), 0.0)
    answers(server)
    third = replace(plan, epoch=3)
    server.adopt(third)
    answers(server)
    handed = contribution(third, network, 1, 9 * WINDOW, 77, flags=Flag.BYPASS, weight=2)
    server.receive(handed, 0.0)
    assert [p.fragment for p in answers(server)] == [9 * WINDOW]


def test_a_total_handed_over_ends_what_is_open_of_that_fragment() -> None:
    server, plan, network = star(2)
    server.receive(contribution(plan, network, 1, 0, 1), 0.0)
    for worker in (0, 1):
        server.receive(contribution(plan, network, worker, 0, 77, flags=Flag.BYPASS, weight=2), 0.0)
    first, second = answers(server)
    assert (first.kind, first.value) == (Kind.REPLICATED, 77)
    assert (second.kind, second.value, second.worker) == (Kind.RESULT, 77, 1)
    assert server.missing() is None


def test_a_server_moves_to_its_new_plan() -> None:
    server, plan, network = pair_and_one(results=Results.UNICAST)
    other, _ = tree_plan(ACCESS, {"a": "r"}, ("a", "r"), epoch=2)
    server.adopt(other)
    server.adopt(plan)
    assert server.plan is other
    server.receive(contribution(other, network, 0, 0, 7, weight=3), 0.0)
    [packet] = answers(server)
    assert (packet.kind, packet.epoch, packet.value) == (Kind.REPLICATED, 2, 7)


@pytest.mark.parametrize("children", [((0, 1),), ((0, 1), (1, 2)), ((0,), (2,), (1,), (2,))])
def test_children_that_do_not_cover_the_workers_once_are_refused(
    children: tuple[tuple[int, ...], ...],
) -> None:
    _, plan, network = pair_and_one()
    broken = replace(plan, trees=(replace(plan.trees[0], server_children=children),))
    with pytest.raises(PlanError, match="do not cover its 3 workers exactly once"):
        Server(broken, 0, network)


def test_a_tree_outside_the_plan_is_refused() -> None:
    _, plan, network = pair_and_one()
    with pytest.raises(PlanError, match=r"job 1 has no tree 3; its trees: \[0\]"):
        Server(plan, 3, network)


def test_several_servers_on_one_host() -> None:
    _, plan, network = star(1)
    tree = plan.trees[0]
    both = replace(plan, trees=(replace(tree, share=0.5), replace(tree, tree=1, share=0.5)))
    other = replace(plan, job=2)
    group = ServerSet([Server(both, 0, network), Server(both, 1, network)])
    group.add(Server(other, 0, network))
    frames = [
        contribution(both, network, 0, 0, 5, tree=0),
        contribution(both, network, 0, 0, 6, tree=1),
        contribution(other, network, 0, 0, 7),
        contribution(other, network, 0, 0, 8, job=3),
        contribution(both, network, 0, 1, 9, tree=1),
    ]
    group.receive(np.concatenate(frames), 0.0)
    batches = group.take_output()
    assert sorted(p.value for p in seen(batches)) == [5, 6, 7, 9]
    assert group.foreign == 1
    group.receive(np.zeros((2, 20), dtype=np.uint8), 0.0)
    assert group.foreign == 3
    group.remove(2)
    group.receive(frames[2], 0.0)
    assert group.take_output() == []
    assert group.deadline is None


@pytest.mark.parametrize("results", list(Results))
def test_results_have_the_priority_of_the_sums(results: Results) -> None:
    server, plan, network = pair_and_one(results=results)
    sent = []
    for fragment, tos in enumerate((0, 0x60, 0x60, 0xE0)):
        for worker, weight in ((0, 2), (2, 1)):
            batch = contribution(plan, network, worker, fragment, 1, weight=weight)
            mark(batch, tos)
            server.receive(batch, 0.0)
        for batch in server.take_output():
            assert all(ipv4_checksum(row[14:34].tobytes()) == 0 for row in batch)
            sent += tos_of(batch).tolist()
    copies = 1 if results is Results.REPLICATED else len(plan.workers)
    assert sent == [tos for tos in (0, 0x60, 0x60, 0xE0) for _ in range(copies)]
    # The answer from the history, and results of a new epoch, have it too.
    server.receive(contribution(plan, network, 2, 3, 1), 0.0)
    assert tos_of(server.take_output()[0]).tolist() == [0]
    mark(batch := contribution(plan, network, 0, 4, 1, weight=2), 0x40)
    server.receive(batch, 0.0)
    server.adopt(newer := replace(plan, epoch=2))
    server.receive(contribution(newer, network, 0, 4, 1, weight=3, flags=Flag.BYPASS), 0.0)
    assert {tos for b in server.take_output() for tos in tos_of(b).tolist()} == {0x40}
