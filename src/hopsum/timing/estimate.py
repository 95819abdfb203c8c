"""Estimates of work on a network: duration, bytes on every link, bottleneck.

`estimate` answers at two fidelities: closed form, and max-min fair flows. The third, every packet
through the P4 program and the agents, is a run in virtual time (`hopsum run`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hopsum.collectives.algorithms.host_part import host_part_all_reduce
from hopsum.collectives.decomposition import decompose
from hopsum.collectives.schedule import Schedule
from hopsum.network.model import Network
from hopsum.timing.flow_simulator import TimingError
from hopsum.timing.pipeline import pipeline, switch_loads
from hopsum.timing.routes import LinkArrays
from hopsum.timing.scenario import Scenario
from hopsum.timing.schedules import add_schedule, agents_transport
from hopsum.timing.trees import add_plan
from hopsum.timing.work import Background, DirectedLink, PlanWork, ScheduleWork, SwitchLoad, Work


class Fidelity(StrEnum):
    """Level of detail of an estimate."""

    CLOSED_FORM = "closed form"
    """For trees of a plan: exact bytes, unless packets are lost; the seconds of `pipeline`."""
    FLOWS = "flows"
    """Max-min fair rates between events. Over TCP full segments, an acknowledgement for every two:
    bytes are an estimate, since TCP decides on both."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes on links, and duration.

    `links`: bytes of Ethernet frames without FCS on each directed link; those without any are left
    out. `seconds_a_round`: of each of the `rounds`. `limit`: the directed link that sends for
    longest, None where none has a bandwidth. `busy`: for which part of the time; where that is not
    near 1, latency, windows or what waits for what limit the work. `switches`: loads of those of a
    plan's trees in closed form, exact as the bytes.
    """

    links: dict[DirectedLink, int]
    seconds_a_round: float
    rounds: int
    limit: DirectedLink | None
    busy: float
    switches: dict[str, SwitchLoad] | None = None

    @property
    def seconds(self) -> float:
        """Seconds of all rounds."""
        return self.rounds * self.seconds_a_round

    @property
    def total_bytes(self) -> int:
        """Bytes on all links together."""
        return sum(self.links.values())

    @property
    def hottest(self) -> tuple[DirectedLink, int]:
        """The directed link with most bytes, and its bytes; ("", "") and 0 if there is none."""
        return max(self.links.items(), key=lambda item: (item[1], item[0]), default=(("", ""), 0))


def estimate(
    network: Network,
    work: Work,
    fidelity: Fidelity | None = None,
    *,
    background: Sequence[Background] = (),
    resolution: float | None = None,
) -> Estimate:
    """Estimate the bytes, the time and the limit of some work.

    `fidelity`: None for the closed form where there is one, else flows. Only flows support
    `background`, which restarts with each schedule or tensor, and `resolution` (`Scenario.run`). At
    flow level the tensors of a round follow each other. Raises NetworkError for a transfer without
    a path, TimingError for work that never ends or has no closed form.
    """
    switches = None
    closed = isinstance(work, PlanWork) and not work.plan.host_parts and not background
    if fidelity is None:
        fidelity = Fidelity.CLOSED_FORM if closed else Fidelity.FLOWS
    if fidelity is Fidelity.FLOWS:
        links, seconds = _flows(network, work, background, resolution)
    elif isinstance(work, PlanWork) and closed:
        links, seconds = pipeline(network, work)
        links = {link: work.rounds * size for link, size in links.items()}
        switches = switch_loads(network, work)
    else:
        raise TimingError(
            "what hosts send each other, and background, have no closed form: expected a plan of "
            f"trees alone, or {Fidelity.FLOWS!r}"
        )
    times = {
        link: 8 * size / bandwidth
        for link, size in links.items()
        if (bandwidth := network.link(*link).bandwidth)
    }
    limit = max(times, key=lambda link: (times[link], link), default=None)
    busy = times[limit] / (work.rounds * seconds) if limit and seconds else 0.0
    return Estimate(links, seconds, work.rounds, limit, busy, switches)


def _flows(
    network: Network, work: Work, background: Sequence[Background], resolution: float | None
) -> tuple[dict[DirectedLink, int], float]:
    """Return the bytes of all rounds, and the seconds of one."""
    links: dict[DirectedLink, int] = {}
    seconds = 0.0
    for scenario in _scenarios(LinkArrays(network), work):
        for traffic in background:
            scenario.add_background(traffic)
        timing = scenario.run(resolution)
        seconds += timing.seconds
        for link, size in timing.loads.items():
            links[link] = links.get(link, 0) + round(size * work.rounds)
    return {link: size for link, size in links.items() if size}, seconds


def _scenarios(links: LinkArrays, work: Work) -> Iterator[Scenario]:
    """Yield a scenario for each schedule or tensor."""

    def add(scenario: Scenario, schedule: Schedule, block: int | None, overhead: float) -> None:
        transport = agents_transport(schedule, block=block, overhead=overhead)
        add_schedule(scenario, schedule, schedule.names, transport)

    if isinstance(work, ScheduleWork):
        for schedule in work.schedules:
            scenario = Scenario(links)
            add(scenario, schedule, work.block, work.overhead)
            yield scenario
        return
    for elements, data_type in work.tensors:
        scenario = Scenario(links)
        for part, start, stop in decompose(work.plan, elements):
            if part is None:
                kind = data_type, work.collective, work.wire_bits
                add_plan(scenario, work.plan, stop - start, *kind)
            else:
                schedule = host_part_all_reduce(part, work.plan.workers, stop - start)
                add(scenario, schedule, None, 0.0)
        yield scenario
