"""What a schedule over TCP will put on every link, and how long it will take, before it runs."""

from __future__ import annotations

from collectives.network import Network
from collectives.prediction import Prediction
from collectives.schedule import Schedule
from collectives.tcp_segments import SEGMENT_BYTES
from collectives.timing.routes import LinkArrays
from collectives.timing.scenario import Scenario
from collectives.timing.schedules import Transport, add_schedule


def by_segments(element_bytes: int = 4) -> Transport:
    """Agents pass on what came in, a segment at a time, whatever the schedule's block.

    (See `execution`.)
    """
    return Transport(element_bytes=element_bytes, block=SEGMENT_BYTES // element_bytes)


def predict_schedule(
    network: Network, schedule: Schedule, element_bytes: int = 4, rounds: int = 1
) -> Prediction:
    """Predict rounds of a schedule between the hosts that it names, at flow level.

    Full segments, an acknowledgement for every two: an estimate, since TCP decides on both.
    Raises NetworkError where a transfer has no way.
    """
    scenario = Scenario(LinkArrays(network))
    add_schedule(scenario, schedule, schedule.names, by_segments(element_bytes))
    timing = scenario.run()
    return Prediction(
        {link: round(size * rounds) for link, size in timing.loads.items() if size},
        timing.seconds * rounds,
        timing.seconds,
    )
