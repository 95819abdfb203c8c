"""Preparation of an experiment for any kind of run: network, job, plan, workload, prediction."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from fractions import Fraction

from hopsum.collectives.algorithms.catalogue import SCHEDULES, make_schedule
from hopsum.collectives.algorithms.level_wise_form import forms_of
from hopsum.collectives.choices import EMBEDDING, Algorithm, Coordination, Engine
from hopsum.collectives.plan import WINDOW_BMV2, WINDOW_EMBEDDED, JobPlan
from hopsum.collectives.plan_checker import check_plans
from hopsum.controller.jobs.job_request import (
    complete_task,
    make_request,
    place_spec,
    planner_request,
    resolve,
    vectors_spec,
)
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.priorities import ONE_LEVEL
from hopsum.controller.jobs.replanning import ReplanningPolicy
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.controller.jobs.sharing import SharingPolicy
from hopsum.coordination.tree import TreeLimits
from hopsum.experiment.description import Experiment, ExperimentError, WorldKind
from hopsum.experiment.result import DirectedLink, RunPrediction
from hopsum.host_agent.memory import too_much
from hopsum.host_agent.node.timing import SLACK, suitable_options
from hopsum.host_agent.task import Task, task_from, task_message
from hopsum.host_agent.workload import WorkloadSpec
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.placement import Placement, place_ranks, without_servers
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.model.stack_depth import stack_depth
from hopsum.planning.registry import option_values, plan_job
from hopsum.simulation.faults import check_outage
from hopsum.timing.estimate import estimate
from hopsum.timing.work import PlanWork, ScheduleWork, Work

JOB, VECTORS_JOB = 1, 2
"""Job numbers of plans for predictions; a cluster assigns its own."""
ALONE = ClusterSettings(
    sharing=SharingPolicy(Fraction(1)),
    priorities=ONE_LEVEL,
    replanning=ReplanningPolicy(live=False),
)
"""Settings of a run: its single job may hold every slot, and keeps its plan unless something fails.
"""


@dataclass(frozen=True, slots=True)
class PreparedExperiment:
    """A prepared experiment.

    `job`: the job for a cluster with these settings; `plan`: the plan that the cluster will make,
    None where workers sum among themselves. `vectors`: the plan of the job that combines the
    workers' bit vectors in the switches, if any. `forms`: forms of the algorithm level-wise.
    """

    experiment: Experiment
    network: Network
    settings: ClusterSettings
    job: JobSpec
    placement: Placement
    plan: JobPlan | None
    vectors: JobPlan | None
    workload: WorkloadSpec
    predicted: RunPrediction
    forms: tuple[str, ...] = ()

    @property
    def tensor_elements(self) -> int:
        """Return the elements that a worker submits over all rounds."""
        return sum(self.workload.tensor_sizes())

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts that take part, or may take part."""
        placed = self.placement
        return tuple(dict.fromkeys((*placed.workers, *placed.servers)))


def prepare(experiment: Experiment, network: Network | None = None) -> PreparedExperiment:
    """Load, place, plan and predict.

    `network`: used as it is instead of the one that the experiment names; in Mininet latencies are
    not emulated, and left out of the prediction.

    Raises NetworkError, PlanError, FaultError or ExperimentError, which name the error and what was
    expected.
    """
    if network is None:
        network = network_of(experiment)
    elif experiment.world is WorldKind.MININET:
        without = tuple(replace(link, latency=0.0) for link in network.links)
        network = replace(network, links=without)
    if not experiment.workers:
        placed = place_ranks(network, None, experiment.server_names or experiment.servers)
        experiment = replace(experiment, workers=len(placed.workers))
    for outage in experiment.outages:
        check_outage(network, outage)
    settings, job = job_on(network, experiment)
    placed = place_spec(network, job, network.hosts, {})
    workload = _workload(experiment)
    # All workers are on this machine, in either world.
    needed = experiment.workers * workload.worker_bytes
    why = too_much(
        needed, f"{experiment.elements} elements at each of {experiment.workers} workers"
    )
    if why is not None:
        raise ExperimentError(f"{why}; use fewer elements, rounds or workers")
    job = complete_task(job, network, placed.workers)
    forms: tuple[str, ...] = ()
    plan = vectors = None
    if job.among_hosts:
        if job.algorithm == Algorithm.LEVEL_WISE:
            forms = forms_of(network, placed.workers, workload.step_sizes(), experiment.form)
        work: Work = _schedules(network, placed, job, workload)
    else:
        job, plan, allocator = plan_of(network, placed, job, settings)
        job = _with_options(job, network, plan, experiment)
        requested = vectors_spec(job, placed)
        if requested is not None:
            servers = placed.servers[:1]
            request = make_request(
                requested, VECTORS_JOB, Placement(placed.workers, servers), network, settings
            )
            vectors = plan_job(network, request, allocator)
            check_plans(network, [plan, vectors])
        tensors = [(size, workload.dtype) for size in workload.step_sizes()]
        kind = workload.collective, workload.wire_bits
        work = PlanWork(plan, tensors, workload.steps, *kind)
    estimated = estimate(network, work)
    links: dict[DirectedLink, int] = {
        link: estimated.links.get(link, 0) for link in network.directed_links()
    }
    chosen = replace(
        experiment,
        algorithm=_algorithm_of(job),
        planner=job.planner,
        planner_options=_options_of(job),
        results=job.results,
        window=job.window,
        max_hops=settings.max_hops,
        coordination=_coordination_of(job),
        coordination_limits=_limits_of(job),
    )
    return PreparedExperiment(
        chosen,
        network,
        settings,
        job,
        placed,
        plan,
        vectors,
        workload,
        # The numbers of TCP's segments and acknowledgements are not predictable.
        RunPrediction(
            links,
            estimated.seconds,
            plan is not None and not plan.host_parts,
            estimated.switches,
        ),
        forms,
    )


def network_of(experiment: Experiment) -> Network:
    """Load the network. Raises NetworkError."""
    return load_network(
        experiment.topology,
        link_rate=experiment.link_rate,
        uplink_rate=experiment.uplink_rate,
        # Latency is not emulated in Mininet (no netem), so its predictions use none.
        latency=0.0 if experiment.world is WorldKind.MININET else experiment.latency,
        servers=1 if experiment.server_names else experiment.servers,
        workers=None if experiment.worker_names else experiment.workers or None,
        largest_piece=experiment.largest_piece,
    )


def job_on(network: Network, experiment: Experiment) -> tuple[ClusterSettings, JobSpec]:
    """Return the settings of an experiment's cluster and its job, with hosts by name.

    Raises NetworkError, PlanError, ExperimentError.
    """
    experiment = experiment.resolved
    placed = _place(network, experiment)
    settings = replace(
        ALONE,
        lanes=experiment.lanes,
        max_hops=stack_depth(network, experiment.lanes, experiment.max_hops),
        # In virtual time all links lose packets, not only those of switches.
        loss=experiment.loss if experiment.world is WorldKind.MININET else 0.0,
        most_window=WINDOW_BMV2 if experiment.engine is Engine.BMV2 else WINDOW_EMBEDDED,
    )
    return settings, resolve(spec_of(experiment, placed), network)


def _place(network: Network, experiment: Experiment) -> Placement:
    """Choose the hosts. Workers that sum among themselves may be all of them. NetworkError."""
    workers = experiment.worker_names or experiment.workers
    count = workers if isinstance(workers, int) else len(workers)
    if (
        experiment.algorithm.among_hosts
        and not experiment.server_names
        and count > len(network.hosts) - experiment.servers
    ):
        return without_servers(network, workers)
    return place_ranks(network, workers, experiment.server_names or experiment.servers)


def spec_of(experiment: Experiment, placed: Placement) -> JobSpec:
    """Return an experiment's job among these hosts."""
    algorithm, planner = experiment.algorithm, experiment.planner
    if algorithm is Algorithm.EMBEDDING:
        algorithm, planner = Algorithm.IN_NETWORK, EMBEDDING
    embedded = planner == EMBEDDING
    task = Task(_workload(experiment), form=experiment.form)
    return JobSpec(
        "run",
        placed.workers,
        # An embedding chooses the helping hosts.
        1 if embedded else placed.servers,
        algorithm.value,
        planner,
        window=experiment.window,
        task=task_message(task),
        results=experiment.results,
        options=experiment.planner_options,
        seed=experiment.seed,
        coordination=experiment.coordination,
        coordination_limits=experiment.coordination_limits,
        integrity=experiment.integrity,
    )


def _algorithm_of(job: JobSpec) -> Algorithm:
    return Algorithm.EMBEDDING if job.planner == EMBEDDING else Algorithm(job.algorithm)


def _options_of(job: JobSpec) -> dict[str, str]:
    """Return all options of a job's planner with their values, {} without a planner."""
    if job.algorithm in SCHEDULES:
        return {}
    return option_values(planner_request(job, PlanRequest(JOB, 1, (), ())), job.planner)


def _coordination_of(job: JobSpec) -> Coordination:
    """Return where a job's bit vectors are combined, once its tree is known."""
    if job.coordination is Coordination.AUTO and job.task.HasField("coordination"):
        return Coordination.RING if job.task.coordination.ring else Coordination.TREE
    return job.coordination


def _limits_of(job: JobSpec) -> TreeLimits:
    """Return the limits of a job's coordination tree, with the height that it has."""
    tree = task_of(job).coordination
    limits = job.coordination_limits
    return limits if tree is None else replace(limits, height=tree.height)


def _workload(experiment: Experiment) -> WorkloadSpec:
    return WorkloadSpec(
        kind=experiment.train or "random",
        workers=experiment.workers,
        elements=experiment.elements,
        rounds=experiment.rounds,
        dtype=experiment.dtype,
        seed=experiment.seed,
        coordinate=experiment.coordinated,
        collective=experiment.collective,
        wire_bits=experiment.wire_bits,
    )


def _with_options(job: JobSpec, network: Network, plan: JobPlan, experiment: Experiment) -> JobSpec:
    """Set the timeouts of a job that has the network to itself."""
    slack = SLACK if experiment.world is WorldKind.MININET else 0.0
    task = task_of(job)
    options = suitable_options(network, plan, task.options, sharing=1, slack=slack)
    options = replace(options, deadline=experiment.limit)
    return replace(job, task=task_message(replace(task, options=asdict(options))))


def task_of(job: JobSpec) -> Task:
    """Return the work of a job's agents."""
    return task_from(job.task)


def _schedules(
    network: Network, placed: Placement, job: JobSpec, workload: WorkloadSpec
) -> ScheduleWork:
    task = task_of(job)
    schedules = [
        make_schedule(job.algorithm, network, placed.workers, size, task.trees, task.form)
        for size in workload.step_sizes()
    ]
    return ScheduleWork(schedules, workload.steps)


def plan_of(
    network: Network, placed: Placement, job: JobSpec, settings: ClusterSettings
) -> tuple[JobSpec, JobPlan, Allocator]:
    """Run the planner. Returns the job with its window, its plan, and its resources at switches."""
    request = make_request(job, JOB, placed, network, settings)
    allocator = Allocator(network)
    plan = plan_job(network, request, allocator, job.planner)
    return replace(job, window=plan.window), plan, allocator
