"""From a job's specification to requests to planner and agents, by its cluster's settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from math import inf

from hopsum.collectives.algorithms.catalogue import SCHEDULES
from hopsum.collectives.choices import (
    DEFAULT_PLANNER,
    EMBEDDING,
    MTREE,
    MULTI_TREE,
    Collective,
    Coordination,
    DataType,
)
from hopsum.collectives.messages import shared_tree_message
from hopsum.collectives.plan import PlanError
from hopsum.collectives.task_messages import workload_message
from hopsum.collectives.workload import PROCESS, VECTORS, WorkloadSpec
from hopsum.controller.jobs.job_placement import place_helpers, place_job
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import MOST_NAME, JobError
from hopsum.controller.jobs.settings import ATTEND_LIMIT, ClusterSettings
from hopsum.coordination.physical import plan_coordination
from hopsum.coordination.tree import DEFAULT_LIMITS, CoordinationTree, TreeLimits
from hopsum.network.model import Network
from hopsum.planning.model.graph import planning_graph
from hopsum.planning.model.placement import Placement
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.model.window import EXPECTED_TREES, QUOTA, default_window
from hopsum.planning.registry import host_forest, with_options
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.wire import Reduction

MOST_PLANNING = 10.0
"""Maximum time limit in seconds of a planner for one job: other jobs wait meanwhile."""
VECTORS_WINDOW = 4
"""Window of a job of bit vectors: a worker has one vector in flight."""


def resolve(spec: JobSpec, network: Network) -> JobSpec:
    """Return the spec with algorithm and planner resolved for the network.

    Multi-tree is a planner of trees of switches, and where there are none a schedule on trees of
    hosts, by the planner of that name or by mtree. Raises PlanError for an algorithm, planner,
    option or coordination that does not suit the others or the network.
    """
    resolved = _resolve(spec, network)
    if resolved.options and resolved.algorithm in SCHEDULES:
        raise PlanError(
            f"planner options with algorithm {resolved.algorithm}: it has no planner; omit "
            f"{', '.join(resolved.options)}"
        )
    planner_request(resolved, PlanRequest(1, 1, (), ()))
    if resolved.coordination_limits != DEFAULT_LIMITS and not coordinated(resolved):
        raise PlanError(
            "coordination-height, coordination-fan-out, coordination-distance: limits of the tree "
            "by which the workers of a training agree on an order of its gradients; expected "
            "--train with --coordinate, or none of them"
        )
    if resolved.coordination is Coordination.SWITCHES:
        if resolved.among_hosts:
            raise PlanError(
                f"coordination switches with algorithm {resolved.algorithm}: the switches take no "
                "part in it; expected auto, tree or ring, or algorithm in-network or server"
            )
        if resolved.planner == EMBEDDING:
            raise PlanError(
                "coordination switches with algorithm embedding: tensors are divided into parts; "
                "expected auto, tree or ring"
            )
    return resolved


def planner_request(spec: JobSpec, request: PlanRequest) -> PlanRequest:
    """Return the request with the options of a job's planner, and its limits for jobs.

    Raises PlanError for an option that the planner has not, or an invalid value.
    """
    request = replace(request, forest=replace(request.forest, seed=spec.seed))
    if spec.algorithm in SCHEDULES:
        return request
    request = with_options(request, spec.planner, spec.options)
    if request.forest.time_limit > MOST_PLANNING:
        raise PlanError(
            f"planner option time-limit: {request.forest.time_limit:g} s: expected at most "
            f"{MOST_PLANNING:g} s, in which other jobs wait; `hopsum plan` takes more"
        )
    most = request.forest.max_trees
    forest = replace(request.forest, max_trees=EXPECTED_TREES if most is None else most)
    return replace(request, forest=forest)


def _resolve(spec: JobSpec, network: Network) -> JobSpec:
    algorithm, planner = spec.algorithm, spec.planner
    in_network = algorithm == SwitchRole.IN_NETWORK
    if in_network and planner == EMBEDDING:
        return spec
    if planner == MTREE and (in_network or algorithm == MULTI_TREE):
        if network.switches:
            raise PlanError(
                f"planner {MTREE} on {network.name}: it plans trees of hosts, and this network has "
                "switches; use --planner multi-tree, or a network of hosts such as torus:4x4"
            )
        return replace(spec, algorithm=MULTI_TREE)
    if algorithm == MULTI_TREE or (in_network and planner == MULTI_TREE):
        algorithm = SwitchRole.IN_NETWORK if network.switches else MULTI_TREE
        return replace(spec, algorithm=algorithm, planner=MULTI_TREE)
    if not network.switches and not spec.among_hosts:
        raise PlanError(
            f"algorithm {algorithm} with planner {planner} on {network.name}: it has "
            "no switches; use a network with switches, --planner multi-tree or mtree, or an "
            "--algorithm such as ring or tree"
        )
    return spec


def complete_task(
    spec: JobSpec,
    network: Network,
    workers: Sequence[str],
    key: bytes = b"",
    attend_limit: float = ATTEND_LIMIT,
) -> JobSpec:
    """Return the spec with its task completed from its hosts.

    That is its schedule, the tree by which workers agree on an order, and the trees of hosts on
    which they sum; `key`, if it wants integrity; and `attend_limit`, in seconds, if its tensors
    come from processes. A submission has no say in these two, nor in which job combines its bit
    vectors. Raises PlanError, TreeError.
    """
    task = pb.Task()
    task.CopyFrom(spec.task)
    task.ClearField("key")
    task.ClearField("attend_seconds")
    # `with_vectors` sets it.
    task.ClearField("vectors")
    if task.workload.kind == PROCESS:
        task.attend_seconds = attend_limit
    if spec.integrity:
        if spec.among_hosts:
            raise PlanError(
                f"job {spec.name}: integrity protects sums of switches and servers; with algorithm "
                f"{spec.algorithm} hosts sum among themselves over TCP; omit one of the two"
            )
        task.key = key
    if spec.among_hosts and not task.schedule:
        task.schedule = spec.algorithm
    if coordinated(spec) and not task.HasField("coordination"):
        tree = coordination_tree(network, workers, spec.coordination, spec.coordination_limits)
        task.coordination.CopyFrom(pb.CoordinationTree(**asdict(tree)))
    if spec.algorithm == MULTI_TREE and not task.trees:
        options = planner_request(spec, PlanRequest(1, 1, (), ())).forest
        forest = host_forest(planning_graph(network, workers), options, spec.planner)
        task.trees.extend(map(shared_tree_message, forest.shared_trees))
    return replace(spec, task=task)


def coordinated(spec: JobSpec) -> bool:
    """Whether a job's workers agree on an order of tensors."""
    return spec.task.HasField("coordination") or spec.task.workload.coordinate


def coordination_tree(
    network: Network, workers: Sequence[str], coordination: Coordination, limits: TreeLimits
) -> CoordinationTree:
    """Return the tree by which workers, a process on each host, agree on an order; TreeError."""
    tree = plan_coordination(network, [(host, host) for host in workers], limits)
    match coordination:
        case Coordination.TREE | Coordination.SWITCHES:
            return replace(tree, ring=())
        case Coordination.RING:
            return replace(tree, ring=tree.ring or tuple(range(len(tree.names))))
        case Coordination.AUTO:
            return tree


def vectors_name(name: str) -> str:
    """Return the name of the job that combines the bit vectors of the job of a name."""
    return f"{name}.vectors"


def vectors_spec(spec: JobSpec, placed: Placement) -> JobSpec | None:
    """Return the job by which the switches combine the bit vectors of another's workers ([004][]).

    Its reduction is the bitwise and; it has the same owner, and the same workers, in the same
    order. None if the job needs none. Raises JobError for a name that is too long to be extended.
    """
    if not _has_vectors(spec):
        return None
    name = vectors_name(spec.name)
    if len(name) > MOST_NAME:
        raise JobError(
            f"job {spec.name}: its vectors are combined by a job of its own, {name}, whose name is "
            f"longer than {MOST_NAME} letters; use a name of at most "
            f"{MOST_NAME - len(vectors_name(''))}, or another coordination, such as tree"
        )
    workload = WorkloadSpec(VECTORS, len(placed.workers), 0, 0, DataType.INT32, 0)
    task = pb.Task(workload=workload_message(workload))
    if spec.task.HasField("options"):
        task.options.CopyFrom(spec.task.options)
    return JobSpec(
        name,
        placed.workers,
        placed.servers[:1],
        window=VECTORS_WINDOW,
        task=task,
        owner=spec.owner,
        limited=spec.limited,
        immediate=spec.immediate,
    )


def _has_vectors(spec: JobSpec) -> bool:
    return spec.coordination is Coordination.SWITCHES and coordinated(spec)


def with_vectors(spec: JobSpec, vectors: int) -> JobSpec:
    """Return the spec with job number `vectors` as the one that combines its bit vectors."""
    task = pb.Task()
    task.CopyFrom(spec.task)
    task.vectors = vectors
    return replace(spec, task=task)


def place_spec(
    network: Network, spec: JobSpec, attached: Collection[str], loads: Mapping[str, int]
) -> Placement:
    """Choose the hosts of a job, as in `job_placement`; algorithms among workers need no server.

    Raises NetworkError.
    """
    if spec.among_hosts:
        return place_job(network, spec.workers, (), attached, loads)
    if spec.planner == EMBEDDING:
        return place_helpers(network, spec.workers, spec.servers, attached, loads)
    # The other planners want a server apart.
    serve = spec.planner == DEFAULT_PLANNER
    return place_job(network, spec.workers, spec.servers, attached, loads, workers_serve=serve)


def _check_packets(spec: JobSpec, placed: Placement, settings: ClusterSettings) -> None:
    """Raise PlanError for lanes, a collective or an integrity that a job cannot have."""
    if spec.lanes not in (None, settings.lanes):
        raise PlanError(
            f"job {spec.name}: {spec.lanes} lanes a packet; the switches of this cluster were "
            f"compiled for {settings.lanes}"
        )
    collective = Collective[pb.Collective.Name(spec.task.workload.collective)]
    if collective is not Collective.ALL_REDUCE and (
        spec.among_hosts or spec.planner == EMBEDDING or placed.servers != placed.workers
    ):
        raise PlanError(
            f"job {spec.name}: {collective} takes a tree for each worker, with its root there; "
            "expected 0 servers, algorithm in-network or server, and planner multi-hop"
        )
    if collective is not Collective.ALL_REDUCE and spec.integrity:
        raise PlanError(
            f"job {spec.name}: check lanes protect sums that all workers get; expected "
            f"{Collective.ALL_REDUCE}, or no integrity"
        )


def make_request(
    spec: JobSpec,
    number: int,
    placed: Placement,
    network: Network,
    settings: ClusterSettings,
    free: float = inf,
) -> PlanRequest:
    """Return the request for a job's first plan: windows and trees within its quota of slots.

    `free`: the fewest slots that a summing switch has left.

    Raises PlanError for a job that asks for more, or for other switches.
    """
    _check_packets(spec, placed, settings)
    vectors = spec.task.workload.kind == VECTORS
    servers = placed.servers
    if spec.task.workload.kind == PROCESS and servers == placed.workers:
        # Processes gather and scatter at once.
        servers *= 2
    request = PlanRequest(
        number,
        1,
        placed.workers,
        servers,
        algorithm=SwitchRole.IN_NETWORK if spec.among_hosts else SwitchRole(spec.algorithm),
        lanes=settings.lanes,
        max_hops=settings.max_hops,
        results=spec.results,
        reduction=Reduction.AND if vectors else Reduction.SUM,
        integrity=spec.integrity,
    )
    request = planner_request(spec, request)
    sharing = settings.sharing
    window = spec.window or default_window(
        network,
        request,
        spec.planner,
        quota=min(sharing.quota, QUOTA),
        free=free,
        spare=VECTORS_WINDOW if _has_vectors(spec) else 0,
        most=settings.most_window,
        immediate=spec.immediate,
    )
    request = replace(request, window=window)
    if spec.among_hosts or request.algorithm is not SwitchRole.IN_NETWORK:
        return request
    if spec.planner == EMBEDDING:
        # Servers are its own choice, and it sums less in the switches rather than wait.
        embedding = replace(
            request.embedding,
            auxiliary=placed.servers,
            relays=not coordinated(spec),
            period=settings.replanning.period,
        )
        request = replace(request, servers=(), embedding=embedding)
    sharing.check(network, request)
    room = sharing.trees(network, request.window)
    most = min(room, request.forest.max_trees or EXPECTED_TREES)
    return replace(request, forest=replace(request.forest, max_trees=most))
