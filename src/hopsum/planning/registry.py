"""Planners by name."""

from __future__ import annotations

from collections.abc import Mapping

from hopsum.collectives.choices import DEFAULT_PLANNER, EMBEDDING, MULTI_TREE
from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.collectives.plan_checker import check_plans
from hopsum.network.model import Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.request import Planner, PlanRequest
from hopsum.planning.steiner.multi_hop import plan_multi_hop
from hopsum.planning.steiner.multi_tree_in_network import plan_multi_tree


def _plan_embedding(network: Network, request: PlanRequest, allocator: Allocator) -> JobPlan:
    # Not at the top: embeddings use this package.
    from hopsum.planning.embedding.job_planner import plan_job_embedding

    return plan_job_embedding(network, request, allocator)


MULTI_HOP = DEFAULT_PLANNER
PLANNERS: Mapping[str, Planner] = {
    MULTI_HOP: plan_multi_hop,
    MULTI_TREE: plan_multi_tree,
    EMBEDDING: _plan_embedding,
}


def make_plan(
    network: Network,
    request: PlanRequest,
    allocator: Allocator | None = None,
    planner: str = MULTI_HOP,
) -> JobPlan:
    """Plan a job with a planner by name; PlanError if no plan meets the request.

    `allocator` keeps the slots and groups of several jobs; without it the job is alone. The plan of
    every planner is checked, and the allocator changes only if the check passes.
    """
    if planner not in PLANNERS:
        raise PlanError(f"there is no planner {planner!r}; planners: {', '.join(PLANNERS)}")
    allocator = allocator or Allocator(network)
    plan = PLANNERS[planner](network, request, allocator.copy())
    check_plans(network, [plan])
    allocator.take(plan)
    return plan
