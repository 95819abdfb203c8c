"""The settings of a cluster, shared by all its jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from hopsum.collectives.plan import WINDOW_EMBEDDED
from hopsum.controller.jobs.journal import Journal
from hopsum.controller.jobs.priorities import PriorityPolicy
from hopsum.controller.jobs.replanning import ReplanningPolicy
from hopsum.controller.jobs.sharing import SharingPolicy
from hopsum.protocol.wire import HOPS_DEFAULT, LANES_DEFAULT

ATTEND_LIMIT = 600.0
"""Default of `attend_limit`: processes attend a job as soon as it has been submitted."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings for accepting, planning and keeping jobs.

    `lanes`, `max_hops`: those that its switches were compiled for. `sharing`: what one job may hold
    of a switch. `priorities`: how jobs' levels follow from their progress; None: what suits the
    network. `replanning`: when plans are looked at again. `journal`: what keeps the jobs, or the
    file that does. `loss`: the probability that a switch drops a packet, on each link. `grace`:
    seconds that a job waits for a server's agent that is gone, and for all its agents after a
    restart of the controller. `attend_limit`: seconds from its start in which processes must attend
    a job whose tensors come from them; it holds slots meanwhile. `most_window`: the largest window
    that a job gets without asking for it; `WINDOW_BMV2` where switches are BMv2.
    """

    lanes: int = LANES_DEFAULT
    max_hops: int = HOPS_DEFAULT
    sharing: SharingPolicy = field(default_factory=SharingPolicy)
    priorities: PriorityPolicy | None = None
    replanning: ReplanningPolicy = field(default_factory=ReplanningPolicy)
    journal: Path | Journal | None = None
    loss: float = 0.0
    grace: float = 30.0
    most_window: int = WINDOW_EMBEDDED
    attend_limit: float = ATTEND_LIMIT

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss {self.loss}: expected a probability from 0 to below 1")
        if not 0 <= self.grace < math.inf:
            raise ValueError(f"grace {self.grace}: expected 0 s or more")
        if not 0 < self.attend_limit < math.inf:
            raise ValueError(f"attend limit {self.attend_limit}: expected more than 0 s")
