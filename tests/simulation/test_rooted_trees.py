"""Trees with their roots at workers, in virtual time: sums, bytes, faults and new epochs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum.collectives.choices import Collective
from hopsum.collectives.operation import tree_ranges
from hopsum.collectives.plan import DataType, JobPlan, PlanError, Results
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.registry import plan_job
from hopsum.simulation.faults import Faults, Reboot
from hopsum.timing.estimate import Fidelity, estimate
from hopsum.timing.work import PlanWork
from tests.simulation.test_all_reduce import ELEMENTS, LANES, check, job, run
from tests.support.search import examples
from tests.support.simulated_jobs import Replan, SimulatedRun

TOPOLOGIES = [("star:4", 4), ("star:2", 2), ("leaf-spine:2x2", 4), ("fat-tree:4", 8)]
SOME = [*DataType][: examples(1, of=len(DataType))]
"""Types whose trees are tried everywhere; others differ in what hosts do with values."""
TYPES_AND_TOPOLOGIES = [
    (dtype, *where)
    for where in TOPOLOGIES
    for dtype in (DataType if where == TOPOLOGIES[0] else SOME)
]


def rooted(
    topology: str, workers: int, *, window: int = 16, trees: int = 1, **choices: object
) -> tuple[Network, JobPlan]:
    """A plan with `trees` trees for each of the first hosts, which are its workers."""
    network = load_network(topology, link_rate=1e8, latency=1e-5, workers=workers, slots=1024)
    hosts = tuple(network.hosts)[:workers]
    request = PlanRequest(1, 1, hosts, trees * hosts, lanes=LANES, window=window, **choices)
    return network, plan_job(network, request)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "topology", "workers"), TYPES_AND_TOPOLOGIES)
def test_bytes_of_an_all_reduce_equal_the_prediction(
    topology: str, workers: int, dtype: DataType
) -> None:
    elements = ELEMENTS * 32 // dtype.bits
    network, plan = rooted(topology, workers)
    assert plan.rooted and not plan.auxiliary
    done = run(network, plan, dtype=dtype, elements=elements)
    check(done, elements)
    assert done.retransmissions == 0
    predicted = estimate(network, PlanWork(plan, [(elements, dtype)], 2))
    assert {link: size for link, size in done.links.items() if size} == predicted.links
    assert done.seconds == pytest.approx(predicted.seconds, rel=0.2)


def test_a_worker_sends_and_receives_as_much_as_with_a_server_apart() -> None:
    network, plan = rooted("star:4", 4, window=16)
    predicted = estimate(network, PlanWork(plan, [(4 * 50 * LANES, DataType.INT32)]))
    up, down = (predicted.links[link] for link in (("h1", "s1"), ("s1", "h1")))
    apart = load_network("star:4", link_rate=1e8, latency=1e-5, servers=1, workers=3, slots=1024)
    hosts = tuple(apart.hosts)
    request = PlanRequest(1, 1, hosts[:3], hosts[3:], lanes=LANES, window=16)
    work = PlanWork(plan_job(apart, request), [(4 * 50 * LANES, DataType.INT32)])
    reference = estimate(apart, work).links[hosts[0], "s1"]
    # A sum and a result have shorter stacks than contributions.
    assert 0.9 * reference < up <= reference
    assert 0.9 * reference < down <= reference


@pytest.mark.slow
@pytest.mark.parametrize("results", list(Results))
@pytest.mark.parametrize("algorithm", list(SwitchRole))
@pytest.mark.parametrize("dtype", SOME)
def test_sums_are_exact_under_every_fault(
    results: Results, algorithm: SwitchRole, dtype: DataType
) -> None:
    network, plan = rooted("leaf-spine:2x2", 4, results=results, algorithm=algorithm)
    faults = Faults(loss=0.03, corrupt=0.01, duplicate=0.03, reorder=0.1, hold=0.01)
    check(run(network, plan, dtype=dtype, faults=faults))


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0.0005, 0.002])
def test_a_switch_that_forgets_everything_costs_time_alone(moment: float) -> None:
    network, plan = rooted("leaf-spine:2x2", 4)
    for switch in ("l1", "s2"):
        faults = Faults(loss=0.01, reboots=(Reboot(switch, moment),))
        check(run(network, plan, faults=faults))


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.0002])
def test_a_new_epoch_in_mid_tensor_keeps_every_sum(delay: float) -> None:
    network, plan = rooted("leaf-spine:2x2", 4)
    newer = replace(plan, epoch=2)
    for moment in (0.0005, 0.0017):
        done = run(
            network,
            plan,
            faults=Faults(loss=0.02),
            replans=[Replan(moment, newer, delay)],
        )
        check(done)


def test_roots_stay_where_they_are_for_the_life_of_a_job() -> None:
    network, plan = rooted("star:4", 3)
    hosts = tuple(network.hosts)
    other = plan_job(network, PlanRequest(1, 2, hosts[:3], hosts[1:4], lanes=LANES, window=16))
    with pytest.raises(PlanError, match="roots at workers"):
        run(network, plan, replans=[Replan(0.0005, other)])


def test_a_worker_alone_cannot_be_its_own_server() -> None:
    with pytest.raises(PlanError, match="expected two workers or more"):
        rooted("star:2", 1)


OTHERS = [each for each in Collective if each is not Collective.ALL_REDUCE]


def checked(collective: Collective, workers: int, elements: int = ELEMENTS, rounds: int = 2) -> int:
    """Elements that all workers check together."""
    apart = collective in (Collective.REDUCE_SCATTER, Collective.REDUCE)
    return rounds * elements * (1 if apart else workers)


def check_all(done: SimulatedRun, expected: int) -> None:
    verdicts = [workload.verdict() for workload in done.workloads]
    assert [verdict.wrong for verdict in verdicts] == [0] * len(verdicts)
    assert sum(verdict.checked for verdict in verdicts) == expected


@pytest.mark.slow
@pytest.mark.parametrize("collective", OTHERS)
@pytest.mark.parametrize(("dtype", "topology", "workers"), TYPES_AND_TOPOLOGIES)
def test_bytes_of_every_collective_equal_the_prediction(
    topology: str, workers: int, dtype: DataType, collective: Collective
) -> None:
    network, plan = rooted(topology, workers)
    done = run(network, plan, dtype=dtype, collective=collective)
    check_all(done, checked(collective, workers))
    assert done.retransmissions == 0
    predicted = estimate(network, PlanWork(plan, [(ELEMENTS, dtype)], 2, collective))
    assert {link: size for link, size in done.links.items() if size} == predicted.links


@pytest.mark.slow
@pytest.mark.parametrize("collective", list(Collective))
@pytest.mark.parametrize(("topology", "workers"), [("star:4", 4), ("fat-tree:4", 8)])
def test_long_tensors_take_as_long_as_predicted(
    topology: str, workers: int, collective: Collective
) -> None:
    network, plan = rooted(topology, workers)
    done = run(network, plan, elements=15_000, rounds=1, collective=collective)
    work = PlanWork(plan, [(15_000, DataType.INT32)], 1, collective)
    for fidelity in Fidelity:
        predicted = estimate(network, work, fidelity)
        assert done.seconds == pytest.approx(predicted.seconds, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("results", list(Results))
@pytest.mark.parametrize("collective", OTHERS)
@pytest.mark.parametrize("dtype", list(DataType))
def test_every_collective_is_exact_under_every_fault(
    results: Results, collective: Collective, dtype: DataType
) -> None:
    network, plan = rooted("leaf-spine:2x2", 4, results=results)
    faults = Faults(loss=0.03, corrupt=0.01, duplicate=0.03, reorder=0.1, hold=0.01)
    done = run(network, plan, dtype=dtype, collective=collective, faults=faults)
    check_all(done, checked(collective, 4))


@pytest.mark.slow
@pytest.mark.parametrize("collective", OTHERS)
def test_every_collective_survives_reboots_and_new_epochs(collective: Collective) -> None:
    network, plan = rooted("leaf-spine:2x2", 4)
    newer = replace(plan, epoch=2)
    for switch in ("l1", "s2"):
        done = run(
            network,
            plan,
            faults=Faults(loss=0.01, reboots=(Reboot(switch, 0.001),)),
            collective=collective,
            replans=[Replan(0.0013, newer, 0.0001)],
        )
        check_all(done, checked(collective, 4))


@pytest.mark.slow
@pytest.mark.parametrize("collective", list(Collective))
def test_broadcasts_take_the_second_trees_of_the_workers(collective: Collective) -> None:
    network, plan = rooted("star:4", 4, trees=2)
    assert plan.rooted and len(plan.trees) == 8
    done = run(network, plan, collective=collective)
    check_all(done, checked(collective, 4))
    predicted = estimate(network, PlanWork(plan, [(ELEMENTS, DataType.INT32)], 2, collective))
    assert {link: size for link, size in done.links.items() if size} == predicted.links
    taken = [start < stop for start, stop in tree_ranges(plan, collective, ELEMENTS)]
    assert not any(taken[4:] if collective.sums else taken[:4])


@pytest.mark.parametrize("collective", OTHERS)
def test_other_collectives_take_trees_with_roots_at_workers(collective: Collective) -> None:
    network, plan = job("star:4", 3)
    with pytest.raises(PlanError, match="use the workers as servers"):
        run(network, plan, collective=collective)
