"""From an experiment to what all runs need: network, hosts, plan, workload, prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collectives.network import Network
from collectives.plan import JobPlan
from collectives.prediction import predict, predict_ring
from controller.loaders import load_network
from controller.placement import Placement, place
from controller.planners import make_plan
from controller.planning import Algorithm as PlanAlgorithm
from controller.planning import PlanRequest
from experiment.description import Algorithm, Experiment, WorldKind
from experiment.result import DirectedLink, Predicted
from host_agent.stream import WorkerOptions
from host_agent.workload import WorkloadSpec
from protocol.wire import MAX_HOPS, frame_bytes

JOB = 1
EPOCH = 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """An experiment made concrete. `plan` is None for a ring."""

    experiment: Experiment
    network: Network
    placement: Placement
    plan: JobPlan | None
    workload: WorkloadSpec
    predicted: Predicted

    @property
    def tensor_elements(self) -> int:
        """Elements a worker hands in over all rounds."""
        return sum(self.workload.tensor_sizes())


def prepare(experiment: Experiment) -> Prepared:
    """Load, place, plan and predict.

    Raises NetworkError, PlanError, ExperimentError with what is wrong and what was expected.
    """
    experiment = experiment.resolved
    # Mininet has no latency emulation without netem; its predictions use none.
    latency = 0.0 if experiment.world is WorldKind.MININET else experiment.latency
    network = load_network(
        experiment.topology,
        link_rate=experiment.link_rate,
        latency=latency,
        servers=experiment.servers,
        workers=experiment.workers,
    )
    placement = place(network, experiment.workers, experiment.servers)
    workload = WorkloadSpec(
        kind=experiment.train or "random",
        workers=experiment.workers,
        elements=experiment.elements,
        rounds=experiment.rounds,
        dtype=experiment.dtype,
        seed=experiment.seed,
    )
    sizes = workload.tensor_sizes()
    if experiment.algorithm is Algorithm.RING:
        plan = None
        prediction = predict_ring(network, placement.workers, sizes[0], rounds=len(sizes))
    else:
        request = PlanRequest(
            JOB,
            EPOCH,
            placement.workers,
            placement.servers,
            algorithm=PlanAlgorithm(experiment.algorithm.value),
            lanes=experiment.lanes,
            window=experiment.resolved.window or 1,
            results=experiment.results,
        )
        plan = make_plan(network, request, planner=experiment.planner)
        prediction = predict(network, plan, [(sizes[0], experiment.dtype)], rounds=len(sizes))
    links: dict[DirectedLink, int] = {
        link: prediction.links.get(link, 0) for link in network.directed_links()
    }
    return Prepared(
        experiment,
        network,
        placement,
        plan,
        workload,
        Predicted(links, prediction.seconds),
    )


def worker_options(prepared: Prepared) -> WorkerOptions:
    """Timeouts that suit the experiment.

    The first round trip is that of a single packet, but then a whole window waits in the worker's
    own queue, and with a parameter server the windows of all workers in the server's: no timeout
    may be shorter than that takes. In Mininet two cores run all hosts and switches, and a process
    may be off the processor for tenths of a second.
    """
    experiment, network = prepared.experiment, prepared.network
    options = WorkerOptions(deadline=experiment.limit)
    rates = [link.bandwidth for link in network.links if link.bandwidth]
    window_bits = 8 * (experiment.window or 1) * frame_bytes(experiment.lanes, MAX_HOPS)
    flows = experiment.workers if experiment.algorithm is Algorithm.SERVER else 1
    drain = flows * window_bits / min(rates) if rates else 0.0
    least = 0.25 if experiment.world is WorldKind.MININET else options.min_timeout
    return replace(
        options,
        initial_timeout=max(options.initial_timeout, least, 2 * drain),
        min_timeout=max(least, 1.5 * drain),
        max_timeout=8 * max(least, 1.5 * drain),
    )
