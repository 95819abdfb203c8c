"""From an experiment to what all runs need: network, hosts, plan, workload, prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from cli.experiment.description import (
    DEFAULT_TREES,
    SERVER_QUEUE,
    Algorithm,
    Experiment,
    ExperimentError,
    WorldKind,
)
from cli.experiment.result import DirectedLink, Predicted
from collectives.algorithms.catalogue import make_schedule
from collectives.algorithms.level_wise_form import forms_of
from collectives.algorithms.trees import SharedTree
from collectives.choices import Coordination
from collectives.plan import JobPlan
from collectives.plan_checker import check_plans
from controller.jobs.sharing import fitting_window
from coordination.physical import plan_coordination
from coordination.tree import CoordinationTree
from host_agent.memory import too_much
from host_agent.stream import WorkerOptions
from host_agent.workload import WorkloadSpec
from network.loaders import load_network
from network.model import Network, shorten
from planning.answers import MTREE, host_forest
from planning.model.allocation import Allocator
from planning.model.forest import ForestOptions, keep_of
from planning.model.graph import planning_graph
from planning.model.placement import Placement, place
from planning.model.request import Algorithm as PlanAlgorithm
from planning.model.request import EmbeddingOptions, PlanRequest
from planning.model.stack_depth import stack_depth
from planning.registry import EMBEDDING, make_plan
from protocol.wire import HOPS_DEFAULT, Reduction, frame_bytes
from timing.plan_prediction import predict_plan
from timing.prediction import predict, total
from timing.schedule_prediction import predict_schedule

JOB = 1
EPOCH = 1
MIXED_WINDOW = 64
"""Of trees that share links with streams of TCP: these wait behind a burst of a whole window."""
VECTORS_APART = 1 << 15
"""The job of a job's bit vectors has its number and this."""
VECTORS_WINDOW = 4
"""A worker has one vector under way at a time."""


@dataclass(frozen=True, slots=True)
class VectorsJob:
    """The job by which the switches combine the bit vectors of another one's workers (004).

    Its reduction is the bitwise and; it has the same workers, in the same order.
    """

    request: PlanRequest
    plan: JobPlan

    def numbered(self, job: int) -> VectorsJob:
        """The same for job number `job`."""
        number = VECTORS_APART + job
        return VectorsJob(replace(self.request, job=number), replace(self.plan, job=number))


@dataclass(frozen=True, slots=True)
class Prepared:
    """An experiment made concrete.

    `plan`, and the `request` for it, are None where workers sum among themselves. `trees`: those
    on which they do, of the algorithm multi-tree. `coordination`: the tree by which they agree on
    an order, if they do; `vectors`: where the switches combine their bit vectors. `forms`: how the
    algorithm level-wise exchanges tensors.
    """

    experiment: Experiment
    network: Network
    placement: Placement
    request: PlanRequest | None
    plan: JobPlan | None
    workload: WorkloadSpec
    predicted: Predicted
    trees: tuple[SharedTree, ...] = ()
    coordination: CoordinationTree | None = None
    vectors: VectorsJob | None = None
    job: int = JOB
    forms: tuple[str, ...] = ()

    def numbered(self, job: int) -> Prepared:
        """The same as job number `job`: one after the other may run on a network that is up."""
        return replace(
            self,
            job=job,
            request=None if self.request is None else replace(self.request, job=job),
            plan=None if self.plan is None else replace(self.plan, job=job),
            vectors=None if self.vectors is None else self.vectors.numbered(job),
        )

    @property
    def tensor_elements(self) -> int:
        """Elements a worker hands in over all rounds."""
        return sum(self.workload.tensor_sizes())


def prepare(experiment: Experiment) -> Prepared:
    """Load, place, plan and predict.

    Raises NetworkError, PlanError, ExperimentError with what is wrong and what was expected.
    """
    open_window = experiment.window is None
    experiment = experiment.resolved
    # Mininet has no latency emulation without netem; its predictions use none.
    latency = 0.0 if experiment.world is WorldKind.MININET else experiment.latency
    network = load_network(
        experiment.topology,
        link_rate=experiment.link_rate,
        uplink_rate=experiment.uplink_rate,
        latency=latency,
        servers=experiment.servers,
        workers=None if experiment.worker_names else experiment.workers,
    )
    experiment = way_to_sum(network, experiment)
    depth = stack_depth(network, experiment.lanes, experiment.max_hops)
    experiment = replace(experiment, max_hops=depth)
    named = experiment.worker_names or experiment.workers
    placement = place_ranks(network, named, experiment.servers)
    workload = WorkloadSpec(
        kind=experiment.train or "random",
        workers=experiment.workers,
        elements=experiment.elements,
        rounds=experiment.rounds,
        dtype=experiment.dtype,
        seed=experiment.seed,
        coordinate=experiment.coordinated,
    )
    # All workers are on this machine, in either world.
    needed = experiment.workers * workload.worker_bytes
    why = too_much(
        needed, f"{experiment.elements} elements at each of {experiment.workers} workers"
    )
    if why is not None:
        raise ExperimentError(f"{why}; use fewer elements, rounds or workers")
    sizes, steps = workload.step_sizes(), workload.steps
    request = plan = vectors = None
    trees: tuple[SharedTree, ...] = ()
    forms: tuple[str, ...] = ()
    in_switches = experiment.coordinated and experiment.coordination is Coordination.SWITCHES
    if experiment.algorithm.among_hosts:
        if in_switches:
            raise ExperimentError(
                f"coordination switches with algorithm {experiment.algorithm}: the switches have "
                "no part in it; expected auto, tree or ring, or algorithm in-network or server"
            )
        if experiment.algorithm is Algorithm.LEVEL_WISE:
            forms = forms_of(network, placement.workers, sizes, experiment.form)
        if experiment.algorithm is Algorithm.MULTI_TREE:
            trees = host_trees(network, placement, forest_options(experiment), experiment.planner)
        prediction = total(
            predict_schedule(
                network,
                make_schedule(
                    experiment.algorithm,
                    network,
                    placement.workers,
                    size,
                    trees,
                    experiment.form,
                ),
                rounds=steps,
            )
            for size in sizes
        )
    else:
        if in_switches and experiment.algorithm is Algorithm.EMBEDDING:
            raise ExperimentError(
                "coordination switches with algorithm embedding: tensors go one by one in parts; "
                "expected auto, tree or ring"
            )
        request, plan, allocator = plan_job(network, placement, experiment, open_window)
        if in_switches:
            vectors = _vectors_job(network, request, plan, allocator)
        experiment = replace(experiment, window=plan.window)
        if plan.host_parts:
            prediction = total(
                predict_plan(network, plan, size, experiment.dtype, rounds=steps) for size in sizes
            )
        else:
            tensors = [(size, experiment.dtype) for size in sizes]
            prediction = predict(network, plan, tensors, rounds=steps)
    links: dict[DirectedLink, int] = {
        link: prediction.links.get(link, 0) for link in network.directed_links()
    }
    return Prepared(
        experiment,
        network,
        placement,
        request,
        plan,
        workload,
        # TCP decides itself how many segments and acknowledgements it sends.
        Predicted(links, prediction.seconds, plan is not None and not plan.host_parts),
        trees,
        _coordination(network, placement, experiment) if experiment.coordinated else None,
        vectors,
        forms=forms,
    )


def _coordination(
    network: Network, placement: Placement, experiment: Experiment
) -> CoordinationTree:
    """The tree by which the workers, a process on each host, agree on an order."""
    tree = plan_coordination(network, [(host, host) for host in placement.workers])
    match experiment.coordination:
        case Coordination.TREE | Coordination.SWITCHES:
            return replace(tree, ring=())
        case Coordination.RING:
            return replace(tree, ring=tree.ring or tuple(range(len(tree.names))))
        case Coordination.AUTO:
            return tree


def _vectors_job(
    network: Network, request: PlanRequest, plan: JobPlan, allocator: Allocator
) -> VectorsJob:
    """Plan the job of the bit vectors beside that of the tensors; raises PlanError."""
    asked = PlanRequest(
        VECTORS_APART + request.job,
        EPOCH,
        request.workers,
        request.servers[:1],
        lanes=request.lanes,
        window=VECTORS_WINDOW,
        max_hops=request.max_hops,
        reduction=Reduction.AND,
    )
    vectors = make_plan(network, asked, allocator)
    check_plans(network, [plan, vectors])
    return VectorsJob(asked, vectors)


def way_to_sum(network: Network, experiment: Experiment) -> Experiment:
    """The planners multi-tree and embedding and the algorithms of these names are one.

    The algorithm multi-tree, on hosts alone, may have its trees from the planner mtree as well.
    Raises ExperimentError for an algorithm, planner or option that does not suit the network.
    """
    chosen = _way_to_sum(network, experiment)
    if chosen.planner != MTREE:
        for option in ("tree_bandwidth", "keep"):
            if getattr(experiment, option) is not None:
                raise ExperimentError(
                    f"{option.replace('_', '-')}: only the planner mtree knows it; use --planner "
                    "mtree, or leave it out"
                )
    return chosen


def _way_to_sum(network: Network, experiment: Experiment) -> Experiment:
    algorithm = experiment.algorithm
    if algorithm is Algorithm.EMBEDDING or (
        algorithm is Algorithm.IN_NETWORK and experiment.planner == EMBEDDING
    ):
        return replace(experiment, algorithm=Algorithm.EMBEDDING, planner=EMBEDDING)
    if experiment.planner == MTREE and algorithm in (Algorithm.MULTI_TREE, Algorithm.IN_NETWORK):
        if network.switches:
            raise ExperimentError(
                f"planner {MTREE} on {network.name}: it plans trees of hosts, and this network has "
                "switches; use --planner multi-tree, or a network of hosts such as torus:4x4"
            )
        return replace(experiment, algorithm=Algorithm.MULTI_TREE)
    if algorithm is Algorithm.MULTI_TREE or (
        algorithm is Algorithm.IN_NETWORK and experiment.planner == "multi-tree"
    ):
        algorithm = Algorithm.IN_NETWORK if network.switches else Algorithm.MULTI_TREE
        return replace(experiment, algorithm=algorithm, planner="multi-tree")
    if not network.switches and not algorithm.among_hosts:
        raise ExperimentError(
            f"algorithm {algorithm} with planner {experiment.planner} on {network.name}: it has "
            "no switches; use a network with switches, --planner multi-tree or mtree, or an "
            "--algorithm such as ring or tree"
        )
    return experiment


def place_ranks(network: Network, workers: int | tuple[str, ...] | None, servers: int) -> Placement:
    """Workers, and servers where there are switches: elsewhere every host may work.

    `workers`: a number, names, or None: as many as there is room for. Raises ExperimentError,
    NetworkError.
    """
    if network.switches:
        return place(network, workers, servers)
    hosts = tuple(network.hosts)
    if isinstance(workers, tuple):
        strange = [name for name in workers if name not in hosts]
        if strange:
            raise ExperimentError(
                f"worker {strange[0]!r}: there is no such host in {network.name}; "
                f"hosts: {shorten(hosts)}"
            )
        return Placement(workers, ())
    if workers is not None and workers > len(hosts):
        raise ExperimentError(f"{network.name}: {workers} workers: expected 1 to {len(hosts)}")
    return Placement(hosts[:workers], ())


def host_trees(
    network: Network,
    placement: Placement,
    options: ForestOptions,
    planner: str = "multi-tree",
) -> tuple[SharedTree, ...]:
    """The trees of a planner of `HOST_PLANNERS`, for hosts that add and forward; PlanError."""
    graph = planning_graph(network, placement.workers)
    return host_forest(graph, options, planner).shared_trees


def forest_options(experiment: Experiment) -> ForestOptions:
    """What the experiment asks of the planners multi-tree and mtree."""
    bandwidth, keep = experiment.tree_bandwidth, experiment.keep
    return ForestOptions(
        max_trees=experiment.max_trees or DEFAULT_TREES,
        max_height=experiment.max_height,
        min_rate=Fraction(str(experiment.min_rate)),
        seed=experiment.seed,
        tree_bandwidth=None if bandwidth is None else Fraction(str(bandwidth)),
        keep=keep_of(keep),
    )


def plan_job(
    network: Network, placement: Placement, experiment: Experiment, open_window: bool
) -> tuple[PlanRequest, JobPlan, Allocator]:
    """Ask the planner; where the window is open, it suits the switches' slots and the trees.

    All trees' windows then fit a worker's queue. The allocator holds what the plan has of the
    switches.
    """
    embedded = experiment.algorithm is Algorithm.EMBEDDING
    if embedded and open_window:
        experiment = replace(experiment, window=min(experiment.window or 1, MIXED_WINDOW))
    if open_window and experiment.algorithm is not Algorithm.SERVER:
        in_switches = experiment.coordinated and experiment.coordination is Coordination.SWITCHES
        vectors = VECTORS_WINDOW if in_switches else 0
        trees = 1 if embedded else len(placement.servers)
        fits = fitting_window(network, trees, experiment.window or 1, vectors)
        experiment = replace(experiment, window=fits)
    request = PlanRequest(
        JOB,
        EPOCH,
        placement.workers,
        () if embedded else placement.servers,
        algorithm=PlanAlgorithm.IN_NETWORK
        if embedded
        else PlanAlgorithm(experiment.algorithm.value),
        lanes=experiment.lanes,
        window=experiment.window or 1,
        max_hops=experiment.max_hops or HOPS_DEFAULT,
        results=experiment.results,
        forest=forest_options(experiment),
        # A relay does not hear of the order that workers agree on.
        embedding=EmbeddingOptions(relays=not experiment.coordinated),
    )
    allocator = Allocator(network)
    plan = make_plan(network, request, allocator, experiment.planner)
    while open_window and len(plan.trees) * plan.window > SERVER_QUEUE and plan.window > 1:
        request = replace(request, window=plan.window // 2)
        allocator = Allocator(network)
        plan = make_plan(network, request, allocator, experiment.planner)
    return request, plan, allocator


def worker_options(prepared: Prepared) -> WorkerOptions:
    """Timeouts that suit the experiment.

    The first result comes after a round trip of one packet, and then results keep coming, unless
    they wait behind other flows' windows: of a worker's other trees, for these share its queue,
    and with a parameter server of the other workers. No timeout nor probe may be shorter than
    that takes. A timeout sends all that is in flight again, so it also waits for the window's
    own time. In Mininet two cores run all hosts and switches, and a process may be off the
    processor for tenths of a second.
    """
    experiment, network = prepared.experiment, prepared.network
    options = WorkerOptions(deadline=experiment.limit)
    rates = [link.bandwidth for link in network.links if link.bandwidth]
    hops = experiment.max_hops or HOPS_DEFAULT
    packet = 8 * frame_bytes(experiment.lanes, hops) / min(rates) if rates else 0.0
    latency = max((link.latency for link in network.links), default=0.0)
    flows = experiment.workers if experiment.algorithm is Algorithm.SERVER else 1
    window = flows * (experiment.window or 1) * packet
    windows = (1 if prepared.plan is None else len(prepared.plan.trees)) * window
    if prepared.plan is not None and prepared.plan.host_parts:
        # Streams of TCP fill the queues.
        windows += SERVER_QUEUE * packet
    others = windows if flows > 1 else windows - window
    slow = experiment.world is WorldKind.MININET
    least, probe = (0.25, 0.25) if slow else (options.min_timeout, options.min_probe)
    first = 2 * hops * (packet + latency) + others
    min_timeout = max(least, 1.5 * windows)
    return replace(
        options,
        initial_timeout=max(least, 2 * first),
        min_timeout=min_timeout,
        max_timeout=8 * min_timeout,
        min_probe=max(probe, 1.5 * others),
    )
