"""A worker whose host is the root of trees: packets from the network cannot pass as its own."""

from __future__ import annotations

import numpy as np
import pytest

from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.codec import Frames, address_of
from hopsum.host_agent.datapath.library import Flow, Output
from hopsum.host_agent.io.port import tree_key
from hopsum.host_agent.root_worker import RootWorker
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.wire import Flag, Header, Hop, Kind, Reduction, carries_lanes, frame_template
from hopsum.simulation import flows

LANES = 32
ROOT, OTHER = 0, 1
"""Worker numbers."""


def rooted() -> tuple[JobPlan, Network]:
    """Two workers, with a tree rooted at each."""
    network = load_network("star:2", workers=2, slots=1024)
    hosts = tuple(network.hosts)[:2]
    return plan_job(network, PlanRequest(1, 1, hosts, hosts, lanes=LANES, window=16)), network


def from_other(
    plan: JobPlan,
    network: Network,
    reduction: Reduction,
    *,
    worker: int = OTHER,
    child_of: int = OTHER,
    weight: int = 1,
    flags: int = 0,
) -> Frames:
    """A contribution of zeros to fragment 0 of the root's tree, as it arrives from the network."""
    header = Header(
        Kind.CONTRIBUTION,
        plan.job,
        0,
        plan.epoch,
        0,
        worker=worker,
        weight=weight,
        flags=flags,
        reduction=reduction,
    )
    [child] = [c for c, group in enumerate(plan.trees[0].server_children) if child_of in group]
    source, root = (address_of(network, plan.workers[number]) for number in (OTHER, ROOT))
    lanes = LANES if carries_lanes(reduction, up=True) else 0
    return frame_template(source, root, header, [Hop(child=child, fan_in=2)], lanes)[None, :]


def entered(root: RootWorker, frames: Frames) -> int:
    """Let flows go on; return the address of the one that these frames are for."""
    key = tree_key(frames[0].tobytes())
    (flow,) = [each for each in root.enter() if Flow.from_address(each).key == key]
    return flow


@pytest.mark.parametrize("by_flow", [False, True])
@pytest.mark.parametrize("reduction", [Reduction.BROADCAST, Reduction.REDUCE_SUM, Reduction.SUM])
@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({"child_of": ROOT}, id="the root's child"),
        pytest.param({"worker": ROOT, "flags": int(Flag.BYPASS)}, id="the root's single"),
        pytest.param({"weight": 2, "flags": int(Flag.BYPASS)}, id="a total"),
    ],
)
def test_no_packet_passes_as_the_roots(
    forged: dict[str, int], reduction: Reduction, by_flow: bool
) -> None:
    """Its part comes from its own host alone, and nothing is ever handed over to its servers."""
    plan, network = rooted()
    root = RootWorker(plan, ROOT, network)
    for number, fields in enumerate([forged, {}]):
        flags = fields.get("flags", 0) | Flag.SEQUENCED
        frames = from_other(plan, network, reduction, **{**fields, "flags": flags})
        if by_flow:
            flows.receive(entered(root, frames), frames, 0.1 * number)
            root.leave(0.1 * number)
        else:
            root.receive(frames, 0.1 * number)
    values = np.arange(1, LANES + 1, dtype=np.int32)
    call = root.submit(values, 0.2, reduction=reduction, ranges=[(0, LANES), (LANES, LANES)])
    result = root.result(call)
    assert result is not None
    np.testing.assert_array_equal(result, values)


def test_a_result_that_waits_for_room_is_taken_when_a_flow_ends() -> None:
    plan, network = rooted()
    root = RootWorker(plan, ROOT, network)
    ones = np.ones(LANES, dtype=np.int32)
    call = root.submit(ones, 0.0, ranges=[(0, LANES), (LANES, LANES)])
    frames = from_other(plan, network, Reduction.SUM, flags=int(Flag.SEQUENCED))
    flow, no_room = entered(root, frames), Output(0)
    flows.RECEIVE(Flow.from_address(flow).receive)(
        flow, frames.ctypes.data, *frames.shape, frames.strides[0], 0.1, no_room.begin(whole=False)
    )
    root.leave(0.1)
    result = root.result(call)
    assert result is not None
    np.testing.assert_array_equal(result, ones)


def test_no_frame_may_wait_for_others_at_a_root() -> None:
    """Other workers' windows go on when its server has answered."""
    plan, network = rooted()
    root = RootWorker(plan, ROOT, network)
    root.submit(np.zeros(2 * 16 * LANES, dtype=np.int32), 0.0)
    assert not root.idle
    assert root.deferrable == 0


@pytest.mark.parametrize("reduction", [Reduction.BROADCAST, Reduction.REDUCE_SUM])
def test_what_has_no_lanes_goes_before_what_has(reduction: Reduction) -> None:
    """Contributions to a broadcast, or results of a reduce: other hosts can send then."""
    plan, network = rooted()
    root = RootWorker(plan, ROOT, network)
    root.receive(from_other(plan, network, reduction), 0.0)
    elements = 3 * LANES
    values = np.ones(elements, dtype=np.int32)
    root.submit(values, 0.1, reduction=reduction, ranges=[(0, LANES), (LANES, elements)])
    lengths = [batch.shape[1] for batch in root.take_output()]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]
