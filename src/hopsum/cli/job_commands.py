"""Commands for the jobs of a running cluster: submit, list, show, cancel; its hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from hopsum.cli.command_options import (
    ControllerOption,
    JsonOption,
    RanksPerHostOption,
    connect,
    form_options,
    hosts,
    print_json,
    print_table,
    servers_of,
)
from hopsum.cli.option_groups import (
    AlgorithmGroup,
    JobGroup,
    PlannerGroup,
    TrainingGroup,
    with_groups,
)
from hopsum.collectives.choices import LEVEL_WISE, Collective, DataType
from hopsum.collectives.workload import DATA_SETS
from hopsum.controller.api.records import job_dict, node_dict, seconds_of
from hopsum.controller.jobs.job_state import JobError, JobState
from hopsum.files.json_text import parse_json
from hopsum.network.units import format_load

if TYPE_CHECKING:
    from hopsum.controller.api.client import ControllerClient
    from hopsum.controller.api.submission import SubmissionOptions
    from hopsum.protocol import hopsum_pb2 as pb

TASK = (
    'a Task of hopsum.proto as a JSON object, such as {"workload": {"kind": "random", '
    '"workers": 2, "elements": 1000, "rounds": 3, "dtype": "INT32", "seed": 1}}'
)

JobArgument = Annotated[str, typer.Argument(help="Number or name of the job.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Return when the job is over.")]


@with_groups
def submit(
    name: Annotated[str, typer.Argument(help="A name that no other running job has.")],
    work: JobGroup,
    way: AlgorithmGroup,
    trees: PlannerGroup,
    training: TrainingGroup,
    from_processes: Annotated[
        bool,
        typer.Option(
            "--from-processes",
            help="Tensors come from processes on the workers' hosts, such as a PyTorch training.",
        ),
    ] = False,
    ranks_per_host: RanksPerHostOption = 1,
    immediate: Annotated[
        bool,
        typer.Option(
            "--immediate",
            help="Start on free slots now or fail, without a queue and without preempting others.",
        ),
    ] = False,
    task: Annotated[
        Path | None,
        typer.Option(help="JSON file with the agents' task, instead of the options above."),
    ] = None,
    wait: WaitOption = False,
    controller: ControllerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Submit a job to the running controller."""
    train = training.train
    if train is not None and train not in DATA_SETS:
        raise JobError(f"train {train!r}: expected a data set, one of {', '.join(DATA_SETS)}")
    if (train is not None) + from_processes + (task is not None) > 1:
        raise JobError(
            "train, from-processes and task: these options exclude each other; give one of them"
        )
    if ranks_per_host > 1 and not from_processes:
        raise JobError(
            f"ranks-per-host {ranks_per_host}: an option of jobs whose tensors come from "
            "processes; add --from-processes, or omit it"
        )
    kind = "process" if from_processes else train or "random"
    submission = _submission(name, kind, ranks_per_host, work, way, trees, training)
    submission.immediate, submission.awaited = immediate, wait
    if task is not None:
        submission.task.CopyFrom(read_task(task))
    queries = connect(controller)
    if work.workers is None:
        workload = submission.task.workload
        if task is None:
            workload.workers = _all_hosts(queries, work.placed_servers)
        submission.worker_count = workload.workers
    info = queries.submit(submission)
    _show(_wait(queries, info, submitted=True) if wait else info, as_json)


def _submission(
    name: str,
    kind: str,
    ranks_per_host: int,
    work: JobGroup,
    way: AlgorithmGroup,
    trees: PlannerGroup,
    training: TrainingGroup,
) -> pb.Submission:
    """Return a job with a workload of a kind."""
    from hopsum.protocol import hopsum_pb2 as pb

    submission = make_submission(
        name,
        "1" if work.workers is None else work.workers,
        work.servers,
        collective=work.collective,
        ranks_per_host=ranks_per_host,
        elements=work.elements,
        rounds=work.rounds,
        dtype=DataType.FLOAT32 if training.train else work.dtype,
        wire_bits=work.wire_bits or 0,
        kind=kind,
        seed=work.seed,
        coordinate=training.coordinate and training.train is not None,
        algorithm=way.algorithm,
        form=form_options(
            way.level_wise_form, way.siblings, level_wise=way.algorithm == LEVEL_WISE
        ),
    )
    submission.planner, submission.window = trees.planner or "", work.window or 0
    submission.planner_options.update(trees.options)
    submission.seed = work.seed
    submission.coordination = training.coordination
    submission.integrity = training.integrity
    if work.results is not None:
        submission.MergeFrom(pb.Submission(results=work.results.name))
    limits = pb.CoordinationLimits(
        fan_out=training.coordination_fan_out,
        height=training.coordination_height,
        distance=training.coordination_distance,
    )
    submission.coordination_limits.MergeFrom(limits)
    return submission


def _all_hosts(queries: ControllerClient, servers: int | tuple[str, ...]) -> int:
    """Return the number of hosts but the servers; networks without switches have none."""
    network = queries.state().network
    serving = servers if isinstance(servers, int) else len(servers)
    return max(1, len(network.hosts) - (serving if network.switches else 0))


def make_submission(
    name: str, workers: str, servers: str | None = None, **options: Unpack[SubmissionOptions]
) -> pb.Submission:
    """Return a job whose `workers` and `servers` are given as the command takes them.

    The rest as in `submission_of`, whose errors it raises.
    """
    from hopsum.controller.api.submission import submission_of

    collective = options.get("collective", Collective.ALL_REDUCE)
    requested = hosts("workers", workers), servers_of(servers, collective)
    return submission_of(name, *requested, **options)


def read_task(file: Path) -> pb.Task:
    """Return the task in a file.

    JobError names the file, the line or field, and what is expected.
    """
    from google.protobuf.json_format import ParseDict, ParseError

    from hopsum.protocol import hopsum_pb2 as pb

    try:
        values = parse_json(file.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        return ParseDict(values, pb.Task())
    except (OSError, ValueError, ParseError) as error:
        words = " ".join(str(error).split())
        raise JobError(f"task {file}: cannot be read: {words:.400}; expected {TASK}") from None


def job(
    job: JobArgument,
    wait: WaitOption = False,
    controller: ControllerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a job of the running controller: its progress, and its workers' verdicts."""
    queries = connect(controller)
    info = queries.job(job)
    _show(_wait(queries, info) if wait else info, as_json)


def cancel(
    job: JobArgument, controller: ControllerOption = None, as_json: JsonOption = False
) -> None:
    """Cancel a job, queued or running."""
    _show(connect(controller).cancel(job), as_json)


def jobs(controller: ControllerOption = None, as_json: JsonOption = False) -> None:
    """List the jobs of the running controller, including finished ones."""
    found = connect(controller).jobs()
    if as_json:
        print_json([job_dict(info) for info in found])
        return
    rows = [
        (
            info.job,
            info.name,
            info.state,
            info.epoch,
            len(info.workers),
            info.round,
            seconds_of(info),
            _why(info),
        )
        for info in found
    ]
    columns = ("job", "name", "state", "epoch", "workers", "round", "seconds", "why")
    if rows:
        print_table("jobs", columns, rows)
    else:
        typer.echo("no job yet; `hopsum submit NAME --workers 4` submits one")


def nodes(controller: ControllerOption = None, as_json: JsonOption = False) -> None:
    """List the hosts: which have an agent, their jobs, and the load of their links."""
    found = connect(controller).nodes()
    if as_json:
        print_json([node_dict(info) for info in found])
        return
    rows = [
        (
            info.host,
            f"{'attached' if info.attached else 'away'} for {info.seconds:.0f} s",
            ", ".join(map(str, info.jobs)),
            *_rates(info),
        )
        for info in found
    ]
    columns = ("host", "agent", "jobs", "sends", "receives")
    print_table("hosts", columns, rows)


def _why(info: pb.JobInfo) -> str:
    """Return why a job waits, or ended, or aggregates at fewer switches."""
    bypasses = f"bypasses {', '.join(info.bypassed)}" if info.bypassed else ""
    return "; ".join(filter(None, (info.reason, bypasses)))


def _rates(info: pb.NodeInfo) -> tuple[str, str]:
    interfaces = info.report.interfaces
    return (
        ", ".join(format_load(interface.sent) for interface in interfaces),
        ", ".join(format_load(interface.received) for interface in interfaces),
    )


def _wait(queries: ControllerClient, info: pb.JobInfo, *, submitted: bool = False) -> pb.JobInfo:
    """Wait for a job; if interrupted, withdraw one that this command `submitted` and is queued."""
    try:
        return queries.wait(info.job)
    except KeyboardInterrupt as error:
        if submitted and queries.job(info.job).state == JobState.QUEUED:
            queries.cancel(str(info.job))
            error.add_note(f"job {info.job} was queued, and is withdrawn")
            raise
        error.add_note(
            f"job {info.job} continues; `hopsum job {info.job} --wait` waits for it, "
            f"`hopsum cancel {info.job}` ends it"
        )
        raise


def _show(info: pb.JobInfo, as_json: bool) -> None:
    """Print a job; exit code 1 when it failed or its sums are wrong."""
    shown = job_dict(info)
    if as_json:
        print_json(shown)
    else:
        rows = [(key, _plain(value)) for key, value in shown.items() if value not in ("", None, [])]
        print_table(f"job {info.job}", ("", ""), rows)
    if info.outcome == JobState.FAILED or shown.get("wrong"):
        raise typer.Exit(1)


def _plain(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value
