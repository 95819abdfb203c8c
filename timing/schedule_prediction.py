"""What a schedule over TCP will put on every link, and how long it will take, before it runs."""

from __future__ import annotations

from collectives.schedule import Schedule
from network.model import Network
from timing.prediction import Prediction
from timing.routes import LinkArrays
from timing.scenario import Scenario
from timing.schedules import add_schedule, agents_transport


def predict_schedule(
    network: Network, schedule: Schedule, element_bytes: int = 4, rounds: int = 1
) -> Prediction:
    """Predict rounds of a schedule between the hosts that it names, at flow level.

    Full segments, an acknowledgement for every two: an estimate, since TCP decides on both. How
    agents pass on what came in: see `agents_transport`. Raises NetworkError where a
    transfer has no way.
    """
    scenario = Scenario(LinkArrays(network))
    add_schedule(scenario, schedule, schedule.names, agents_transport(schedule, element_bytes))
    timing = scenario.run()
    return Prediction(
        {link: round(size * rounds) for link, size in timing.loads.items() if size},
        timing.seconds * rounds,
        timing.seconds,
    )
