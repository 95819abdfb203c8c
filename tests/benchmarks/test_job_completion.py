"""The benchmark of job completion times: its mix, its simulation on a small network, its table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.job_completion import (
    EIGHT,
    JobOutcome,
    Mix,
    Way,
    distribution_plot,
    make_mix,
    measured_rows,
    simulated_times,
)
from hopsum.network.loaders import load_network
from hopsum.network.model import Network

SMALL = Mix("leaf-spine:2x4", 10e6, 6, 1.0, 0.8, 1e6, 2e7, 1, (2, 4))


@pytest.fixture(scope="module")
def network() -> Network:
    return load_network(SMALL.topology, link_rate=SMALL.link_rate)


def test_a_mix_has_a_heavy_tail_and_random_places(network: Network) -> None:
    jobs, others = make_mix(SMALL, network, 1), make_mix(SMALL, network, 2)
    assert jobs == make_mix(SMALL, network, 1)
    assert jobs != others
    assert sorted(job.size for job in jobs) == sorted(job.size for job in others)
    sizes = [job.size for job in jobs]
    assert sizes[0] == max(sizes) > 3 * sorted(sizes)[-3]
    assert SMALL.smallest * 0.8 <= min(sizes)
    assert max(sizes) <= SMALL.largest
    assert [job.start for job in jobs] == sorted(job.start for job in jobs)
    assert jobs[0].start == 0
    for job in jobs:
        assert 2 <= len(job.workers) <= 4
        assert len({*job.workers, job.server}) == len(job.workers) + 1
        assert {*job.workers, job.server} <= network.hosts.keys()


def test_sizes_are_those_of_a_bounded_pareto_distribution(network: Network) -> None:
    mix = replace(SMALL, jobs=2000, elements=1, long=0)
    sizes = sorted(job.size for job in make_mix(mix, network, 1))
    # P(size > x) = ((low / x)^a - (low / high)^a) / (1 - (low / high)^a)
    for x in (2e6, 5e6, 1e7):
        end = (1e6 / 2e7) ** 0.8
        expected = ((1e6 / x) ** 0.8 - end) / (1 - end)
        assert sum(size > x for size in sizes) / 2000 == pytest.approx(expected, abs=0.002)


def test_the_switches_beat_a_server_in_simulation(network: Network) -> None:
    jobs = make_mix(SMALL, network, 1)
    times = {way: simulated_times(way, network, jobs) for way in Way}
    assert sum(times[Way.SERVER]) > 2 * sum(times[Way.FAIR])
    assert times[Way.PRIORITIES] != times[Way.FAIR]
    for way in (Way.PRIORITIES, Way.FAIR):
        for job, seconds in zip(jobs, times[way], strict=True):
            assert seconds > 8 * job.size / SMALL.link_rate


def test_a_table_of_what_was_measured() -> None:
    network = load_network(EIGHT.topology, link_rate=EIGHT.link_rate)
    jobs = make_mix(EIGHT, network, 1)[:2]
    measured = {
        Way.PRIORITIES: [JobOutcome(1.0, 0.5, 10, 0, 1), JobOutcome(5.0, 0.5, 10, 0, 0)],
        Way.FAIR: [JobOutcome(2.0, 0.5, 10, 0, 0), JobOutcome(6.0, 1.5, 10, 0, 0)],
        Way.SERVER: [JobOutcome(4.0, 0.5, 10, 0, 0), JobOutcome(20.0, 2.5, 10, 2, 0)],
    }
    fluid = {way: [1.0, 2.0] for way in Way}
    first, second, mean = measured_rows(jobs, measured, fluid)
    assert first.keys() == second.keys() == mean.keys()
    assert (first["of_fair"], first["server_times"]) == (0.5, 4.0)
    assert (mean["priorities"], mean["fair"], mean["server"]) == (3.0, 4.0, 12.0)
    assert (mean["of_fair"], mean["server_times"]) == (0.75, 4.0)
    assert (mean["checked"], mean["wrong"], mean["sent_again"]) == (60, 2, 1)
    assert (second["wrong"], second["starting"], mean["starting"]) == (2, 1.5, 1.0)


@pytest.mark.slow
def test_the_same_times_give_the_same_picture() -> None:
    times = {way: [1.0, 2.0, 4.0] for way in Way}
    assert distribution_plot(times).startswith(b"\x89PNG")
    assert distribution_plot(times) == distribution_plot(times)
