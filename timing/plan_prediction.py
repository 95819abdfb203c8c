"""What a plan will put on every link where hosts sum a part of the data beside the trees."""

from __future__ import annotations

from collectives.algorithms.host_part import host_part_all_reduce
from collectives.decomposition import decompose
from collectives.plan import DataType, JobPlan
from network.model import Network
from timing.prediction import Prediction, predict
from timing.routes import LinkArrays
from timing.scenario import Scenario
from timing.schedules import add_schedule, agents_transport
from timing.trees import add_plan


def predict_plan(
    network: Network, plan: JobPlan, elements: int, data_type: DataType, rounds: int = 1
) -> Prediction:
    """Predict rounds of the all-reduce of one tensor, its parts all at once.

    Without parts of hosts as `predict`, to the byte. Else the trees' bytes are exact, those of the
    hosts an estimate as `predict_schedule` gives, and the time that of all parts sharing the links
    fairly, at flow level. Raises NetworkError where a transfer has no way.
    """
    trees = predict(network, plan, [(elements, data_type)])
    if not plan.host_parts:
        return predict(network, plan, [(elements, data_type)], rounds)
    alone, together = Scenario(LinkArrays(network)), Scenario(LinkArrays(network))
    for part, start, stop in decompose(plan, elements):
        if part is None:
            add_plan(together, plan, stop - start, data_type)
            continue
        schedule = host_part_all_reduce(part, plan.workers, stop - start)
        for scenario in (alone, together):
            add_schedule(scenario, schedule, schedule.names, agents_transport(schedule))
    links = {link: round(size) for link, size in alone.run().loads.items()}
    for link, size in trees.links.items():
        links[link] = links.get(link, 0) + size
    seconds = together.run().seconds
    return Prediction(
        {link: rounds * size for link, size in links.items() if size}, rounds * seconds, seconds
    )
