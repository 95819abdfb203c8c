"""A job that holds rules and resources, or is about to: what a controller knows while it lives."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsum.collectives.plan import JobPlan
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.plan_costs import KeptEstimate, trees_alone, whole_rounds
from hopsum.controller.jobs.replanning import Replanner
from hopsum.controller.jobs.stall_diagnosis import Progress
from hopsum.controller.jobs.tracker import Tracker


@dataclass(eq=False, slots=True)
class ActiveJob:
    """A job, its agents, and the state of its replanning."""

    job: Job
    tracker: Tracker
    progress: Progress | None = None
    """None until its agents are summoned."""
    restored: bool = False
    """Whether an earlier controller installed it."""
    all_back: bool = True
    """Whether all its agents have been connected at once since this controller started."""
    lost_since: float | None = None
    """Time since which a server has been lost."""
    failed_since: float | None = None
    """Time since which it has failed."""
    replanner: Replanner | None = None
    round_estimate: KeptEstimate = field(default_factory=lambda: KeptEstimate(whole_rounds))
    trees_estimate: KeptEstimate = field(default_factory=lambda: KeptEstimate(trees_alone))
    busy: bool = False
    """Whether a procedure decides on its next plan."""
    ending: bool = False
    """Whether its rules are being removed."""

    @property
    def plan(self) -> JobPlan:
        """Its current plan."""
        assert self.job.plan is not None
        return self.job.plan

    @property
    def absent(self) -> list[str]:
        """The hosts whose agents it lacks."""
        if not self.job.active:
            return []
        return [agent.host for agent in self.tracker.agents.values() if not agent.connected]

    def note_progress(self, now: float) -> None:
        """Note the tensors that all its workers have summed."""
        rounds = [self.tracker.agents[worker].round for worker in self.tracker.plan.workers]
        self.job.round = max(self.job.round, min(rounds))
        if self.progress is not None:
            self.progress.note(self.job.round, now)
