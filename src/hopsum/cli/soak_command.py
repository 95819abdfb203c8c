"""`hopsum soak`: random networks, jobs and faults in virtual time, checked against invariants."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopsum.cli.command_options import JsonOption, print_json, print_table
from hopsum.cli.console import complain, console, notify
from hopsum.protocol.errors import InputError

if TYPE_CHECKING:
    from hopsum.simulation.parallel import Parallel
    from hopsum.simulation.soak.campaign import Failure, Summary
    from hopsum.simulation.soak.run import DataPlane, SoakResult
    from hopsum.simulation.soak.schedule import FaultSchedule

MOST_SCHEDULES = 1 << 32
MOST_PROCESSES = 1024
FOLDER = Path("out/soak")


class SoakError(InputError):
    """A schedule that cannot be replayed; the message says why."""


def soak(
    schedules: Annotated[
        int, typer.Option(min=1, max=MOST_SCHEDULES, help="Number of schedules, one a seed.")
    ] = 200,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_SCHEDULES,
            help="Seed of the first schedule; each next one has the next seed.",
        ),
    ] = 1,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_PROCESSES, help="Number of parallel processes. Default: 1."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run them on the Ray cluster there instead, with hopsum on all its machines: "
            "HOST:PORT, auto (of this machine) or local (one for this command).",
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(help="Run the schedule in this file instead, and print every finding."),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder for schedules that fail, original and minimised.")
    ] = FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Test random networks, jobs and faults in virtual time: sums stay exact, nothing leaks."""
    with _quiet():
        if replay is not None:
            _replay(replay, as_json)
        else:
            _try_schedules(range(seed, seed + schedules), _parallel(jobs, ray), output, as_json)


def _parallel(jobs: int | None, ray: str | None) -> Parallel:
    from hopsum.simulation.parallel import in_processes, on_ray

    if ray is None:
        return in_processes(jobs or 1)
    if jobs is not None:
        raise InputError("jobs and ray: expected one of them; Ray uses all CPUs of its cluster")
    return on_ray(ray)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of agents and controller, which the faults cause."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _try_schedules(seeds: range, parallel: Parallel, output: Path, as_json: bool) -> None:
    from hopsum.files.output import make_folder, write_file
    from hopsum.simulation.soak.schedule import to_json

    def found(failure: Failure) -> None:
        file = output / f"{failure.schedule.seed}.json"
        write_file(file, to_json(failure.schedule) + "\n")
        write_file(_minimised(output, failure), to_json(failure.minimised) + "\n")

    make_folder(output)
    summary = _soak(seeds, parallel, found)
    if as_json:
        print_json(_summary_dict(summary, output))
    else:
        _show(summary, output)
    if summary.failures:
        raise typer.Exit(1)


@cache
def make_data_plane() -> DataPlane:
    """Return a function that compiles and loads hopsum.p4, natively if there is a compiler."""
    from hopsum.collectives.choices import Engine
    from hopsum.experiment.pipelines import compile_pipeline
    from hopsum.experiment.simulated import loader
    from hopsum.simulation.soak.run import DataPlane

    return DataPlane(lambda *sizes: compile_pipeline(Engine.EMBEDDED, *sizes), loader())


def _soak(seeds: range, parallel: Parallel, found: Callable[[Failure], None]) -> Summary:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from hopsum.simulation.soak.campaign import soak as run_soak

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(), transient=True) as bar:
        task = bar.add_task("schedules", total=len(seeds))

        def progress(summary: Summary) -> None:
            failed = f", {len(summary.failures)} failed" if summary.failures else ""
            bar.update(task, completed=summary.schedules, description=f"schedules{failed}")

        return run_soak(seeds, make_data_plane, parallel, progress, found)


def _minimised(output: Path, failure: Failure) -> Path:
    return output / f"{failure.schedule.seed}-minimised.json"


def _replay(file: Path, as_json: bool) -> None:
    from hopsum.simulation.soak.campaign import run_one
    from hopsum.simulation.soak.inputs import check

    schedule = _read(file)
    check(schedule)
    result = run_one(schedule, make_data_plane(), twice=True)
    if as_json:
        print_json(_result_dict(result))
    else:
        print_table(
            f"{file}: history {result.digest}, {result.seconds:.3f} s",
            ("job", "outcome", "why"),
            [(name, outcome, why) for name, (outcome, why) in sorted(result.jobs.items())],
        )
        for oracle, text in result.violations:
            complain("failed", f"{oracle}: {text}")
    if result.failed:
        raise typer.Exit(1)


def _read(file: Path) -> FaultSchedule:
    from hopsum.simulation.soak.schedule import from_json

    try:
        return from_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SoakError(f"{file}: cannot be read: {error}") from None


def _show(summary: Summary, output: Path) -> None:
    rows = [
        ("schedules", f"{summary.schedules:,}"),
        ("virtual time", f"{summary.seconds:,.0f} s, {summary.events:,} events"),
        ("jobs", _counts(summary.jobs)),
        ("schedules with", _counts(summary.faults)),
        ("injected", _counts(summary.injected)),
        ("process calls", _counts(summary.calls)),
        ("failures", str(len(summary.failures))),
        *(
            [("interrupted", f"after {summary.schedules:,} schedules")]
            if summary.interrupted
            else []
        ),
    ]
    print_table("soak", ("", ""), rows)
    for failure in summary.failures:
        for oracle, text in failure.violations[:3]:
            complain("failed", f"seed {failure.schedule.seed}: {oracle}: {text}")
        notify(f"  hopsum soak --replay {_minimised(output, failure)}")


def _counts(counter: Any) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counter.items()))


def _summary_dict(summary: Summary, output: Path) -> dict[str, Any]:
    return {
        "schedules": summary.schedules,
        "interrupted": summary.interrupted,
        "virtual_seconds": summary.seconds,
        "events": summary.events,
        "jobs": dict(sorted(summary.jobs.items())),
        "schedules_with": dict(sorted(summary.faults.items())),
        "injected": dict(sorted(summary.injected.items())),
        "calls": dict(sorted(summary.calls.items())),
        "failures": [
            {
                "seed": failure.schedule.seed,
                "violations": [f"{oracle}: {text}" for oracle, text in failure.violations],
                "minimised": str(_minimised(output, failure)),
            }
            for failure in summary.failures
        ],
    }


def _result_dict(result: SoakResult) -> dict[str, Any]:
    return {
        "history": result.digest,
        "virtual_seconds": result.seconds,
        "jobs": {name: {"outcome": o, "reason": r} for name, (o, r) in result.jobs.items()},
        "injected": dict(result.injected),
        "violations": [f"{oracle}: {text}" for oracle, text in result.violations],
    }
