"""From what a job asks for to what the planner is asked, on the terms of its cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from collectives.plan import PlanError
from controller.jobs.job_placement import place_helpers, place_job
from controller.jobs.job_spec import JobSpec
from controller.jobs.sharing import SharingPolicy
from network.model import Network
from planning.model.placement import Placement
from planning.model.request import Algorithm, EmbeddingOptions, PlanRequest
from planning.registry import EMBEDDING
from protocol.wire import HOPS_DEFAULT, LANES_DEFAULT

WINDOW = 64
"""Of a job that does not say: a host's queue of 1000 frames holds the windows of many jobs."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What is the same for all jobs of a cluster.

    `lanes`, `max_hops`: those that its switches were compiled for. `sharing`: what one job may hold
    of a switch. `period`: tensors between two boundaries of an embedding, 0 for none.
    """

    lanes: int = LANES_DEFAULT
    max_hops: int = HOPS_DEFAULT
    sharing: SharingPolicy = field(default_factory=SharingPolicy)
    period: int = 0


def place_spec(
    network: Network, spec: JobSpec, attached: Collection[str], loads: Mapping[str, int]
) -> Placement:
    """Choose the hosts of a job, as `job_placement`; workers that sum by themselves need no server.

    Raises NetworkError.
    """
    if spec.among_hosts:
        return place_job(network, spec.workers, (), attached, loads)
    choose = place_helpers if spec.planner == EMBEDDING else place_job
    return choose(network, spec.workers, spec.servers, attached, loads)


def make_request(
    spec: JobSpec, number: int, placed: Placement, network: Network, terms: Terms
) -> PlanRequest:
    """Return the request for a job's first plan: windows and trees within its quota of slots.

    Raises PlanError for a job that asks for more, or for other switches.
    """
    if spec.lanes not in (None, terms.lanes):
        raise PlanError(
            f"job {spec.name}: {spec.lanes} lanes a packet; the switches of this cluster were "
            f"compiled for {terms.lanes}"
        )
    request = PlanRequest(
        number,
        1,
        placed.workers,
        placed.servers,
        algorithm=Algorithm.IN_NETWORK if spec.among_hosts else Algorithm(spec.algorithm),
        lanes=terms.lanes,
        window=spec.window or WINDOW,
        max_hops=terms.max_hops,
        results=spec.results,
        forest=spec.forest,
    )
    if spec.among_hosts or request.algorithm is not Algorithm.IN_NETWORK:
        return request
    if spec.planner == EMBEDDING:
        # Servers are its own choice, and it sums less in the switches rather than wait.
        wanted = EmbeddingOptions(
            auxiliary=placed.servers,
            relays=not spec.coordinated,
            period=terms.period,
        )
        request = replace(request, servers=(), embedding=wanted)
    sharing = terms.sharing
    if spec.window is None:
        window = sharing.window(network, max(1, len(request.servers)), WINDOW)
        request = replace(request, window=window)
    sharing.check(network, request)
    room = sharing.trees(network, request.window)
    most = room if spec.forest.max_trees is None else min(room, spec.forest.max_trees)
    return replace(request, forest=replace(request.forest, max_trees=most))
