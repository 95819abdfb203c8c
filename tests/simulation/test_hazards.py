"""Hazards of in-network aggregation that a whole job must survive, each made on purpose.

The numbers are those of the list in docs/protocol.md. Sums are exact at every worker each time.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.collectives.plan import DataType, JobPlan
from hopsum.host_agent.stream import WorkerOptions
from hopsum.host_agent.workload import WorkloadSpec, make_workload
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.placement import place
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol.wire import next_epoch
from hopsum.simulation.faults import Faults, LinkCut, LostFrame, Reboot
from tests.simulation.test_all_reduce import LANES, make_engine
from tests.support.search import examples
from tests.support.simulated_jobs import Replan, SimulatedRun, simulate_plan

WINDOW = 8
OPTIONS = WorkerOptions(deadline=500.0, max_timeout=0.3)


def epochs(
    topology: str, workers: int, *without: str, first: int = 1, window: int = WINDOW
) -> tuple[Network, list[JobPlan]]:
    """A network and the plans of a job: first over all of it, then without each switch in turn."""
    network = load_network(topology, link_rate=1e8, latency=1e-5, workers=workers, slots=1024)
    placement = place(network, workers, 1)
    request = PlanRequest(
        1, first, placement.workers, placement.servers, lanes=LANES, window=window
    )
    allocator = Allocator(network)
    plans = [plan_job(network, request, allocator)]
    for switch in without:
        request = replace(request, epoch=next_epoch(request.epoch))
        plans.append(plan_job(network.without([switch]), request, allocator))
    return network, plans


def run(
    network: Network,
    plan: JobPlan,
    *,
    fragments: int = 3 * WINDOW,
    rounds: int = 1,
    faults: Faults | None = None,
    replans: tuple[Replan, ...] = (),
    options: WorkerOptions = OPTIONS,
) -> SimulatedRun:
    elements = fragments * LANES
    spec = WorkloadSpec("random", len(plan.workers), elements, rounds, DataType.INT32, 1)
    done = simulate_plan(
        network,
        plan,
        make_engine,
        lambda worker: make_workload(spec, worker, plan),
        faults=faults,
        limit=400.0,
        options=options,
        replans=replans,
    )
    for workload in done.workloads:
        verdict = workload.verdict()
        assert (verdict.wrong, verdict.checked) == (0, elements * rounds)
    return done


NETWORK, [PLAN] = epochs("leaf-spine:2x2", 4)
LINKS = [link for link, carried in run(NETWORK, PLAN).links.items() if carried]


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS, ids=lambda link: "-".join(link))
def test_h1_h2_h3_h7_each_frame_of_the_first_windows_is_lost_once(link: tuple[str, str]) -> None:
    """Contributions, partial sums and results of every level, one loss at a time."""
    quiet = run(NETWORK, PLAN, fragments=2 * WINDOW)
    for frame in range(WINDOW + 2)[:: examples(3, of=1)]:
        done = run(
            NETWORK, PLAN, fragments=2 * WINDOW, faults=Faults(lost=(LostFrame(*link, frame),))
        )
        assert sum(done.links.values()) > sum(quiet.links.values()), "it was sent again"


def test_h14_a_worker_that_stands_still_for_ten_seconds() -> None:
    network, [plan] = epochs("star:3", 3)
    quiet = run(network, plan)
    worker = plan.workers[0]
    still = LinkCut(worker, network.access_switch(worker), quiet.finished_at / 2, 10.0)
    assert run(network, plan, faults=Faults(cuts=(still,))).finished_at > 10.0


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["l1", "l2", "s1", "s2"])
def test_h16_a_switch_forgets_everything_at_any_moment(switch: str) -> None:
    quiet = run(NETWORK, PLAN)
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        reboot = Reboot(switch, quiet.finished_at * share)
        run(NETWORK, PLAN, faults=Faults(reboots=(reboot,)))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_h17_a_switch_that_is_gone_for_good_is_planned_around(share: float) -> None:
    spine = next(name for name in PLAN.trees[0].parts if name.startswith("s"))
    network, [plan, around] = epochs("leaf-spine:2x2", 4, spine)
    assert spine in plan.trees[0].parts
    assert spine not in around.trees[0].parts
    quiet = run(network, plan)
    time = quiet.finished_at * share
    done = run(
        network,
        plan,
        faults=Faults(reboots=(Reboot(spine, time, 1e6),)),
        replans=(Replan(time + 0.05, around),),
    )
    assert done.finished_at > quiet.finished_at


@pytest.mark.parametrize("first", [2**16, 2**31, 2**32])
def test_h19_fragment_numbers_pass_every_width(first: int) -> None:
    network, [plan] = epochs("leaf-spine:2x2", 4)
    options = replace(OPTIONS, first_fragment=first - 2 * WINDOW)
    run(network, plan, rounds=2, faults=Faults(loss=0.05), options=options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delay", "epoch"), [(0.0, 1), (1e-4, 1), (3e-3, 1), (1e-4, 0xFFFE), (1e-4, 0xFFFF)]
)
@pytest.mark.parametrize("share", [0.1, 0.4, 0.7])
def test_h31_the_tree_changes_with_packets_in_flight(
    delay: float, share: float, epoch: int
) -> None:
    """Switches, server and workers are of two opinions about the epoch for a while, twice."""
    spines = [name for name in NETWORK.switches if name.startswith("s")]
    network, [plan, second, third] = epochs("leaf-spine:2x2", 4, *spines, first=epoch)
    quiet = run(network, plan)
    first = quiet.finished_at * share
    replans = (Replan(first, second, delay), Replan(first + 2 * delay, third, delay))
    done = run(network, plan, replans=replans, faults=Faults(loss=0.02, reorder=0.05))
    assert all(done.links[leaf, third_spine(third)] for leaf in ("l1", "l2"))


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["star:4", "leaf-spine:2x2"])
def test_h31_a_new_plan_sends_its_last_results_once_more_and_no_oftener(topology: str) -> None:
    """Switches keep them for the new plan: each result, and each late child, is dealt with there.

    Were they only forwarded, it would be 1.5 times.
    """
    window = 32
    network, [plan] = epochs(topology, 4, window=window)
    quiet = run(network, plan, fragments=10 * window)
    replan = Replan(quiet.finished_at / 2, replace(plan, epoch=2), 1e-4)
    done = run(network, plan, fragments=10 * window, replans=(replan,))
    assert quiet.finished_at < done.finished_at < 1.35 * quiet.finished_at


def third_spine(plan: JobPlan) -> str:
    return next(name for name in plan.trees[0].parts if name.startswith("s"))
