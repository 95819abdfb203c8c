"""Many fault schedules, and a summary of their results."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import FrameType

from hopsum.simulation.parallel import Parallel
from hopsum.simulation.soak.generator import make_schedule
from hopsum.simulation.soak.minimise import minimise
from hopsum.simulation.soak.oracles import Oracle, Violation
from hopsum.simulation.soak.run import DataPlane, SoakResult, run_schedule
from hopsum.simulation.soak.schedule import FaultSchedule, kind_of

MakeDataPlane = Callable[[], DataPlane]
CPU_SECONDS = 300.0
"""CPU time limit of one schedule, which is stuck if it takes longer."""
HANG_SECONDS = 2 * CPU_SECONDS
"""Seconds after which a schedule is named that is stuck all the same: nothing interrupts compiled
code."""
REPEAT_EVERY = 50
"""One in this many schedules runs twice and must have the same history."""
RUNS = 200
"""Maximum number of runs to minimise a failure."""
MINIMISE_SECONDS = 600.0
"""CPU time after which no further run minimises a failure: each may be as stuck as the first."""


class _CpuTimeExceeded(Exception):
    """A schedule has exceeded its CPU time."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A schedule that violates an invariant, and the smallest one that fails like it."""

    schedule: FaultSchedule
    violations: tuple[Violation, ...]
    minimised: FaultSchedule
    minimised_violations: tuple[Violation, ...]


@dataclass(slots=True)
class Summary:
    """Summary of schedules. `faults`: number of schedules with each kind of fault.

    `calls`: of processes, by how they ended.
    """

    schedules: int = 0
    jobs: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    events: int = 0
    failures: list[Failure] = field(default_factory=list)
    interrupted: bool = False

    def add(self, result: SoakResult) -> None:
        """Add a schedule's result."""
        self.schedules += 1
        self.jobs.update(outcome for outcome, _ in result.jobs.values())
        self.faults.update({kind_of(fault) for fault in result.schedule.faults} or {"none"})
        self.injected.update(result.injected)
        self.calls.update(result.calls)
        self.seconds += result.seconds
        self.events += result.events


def run_one(schedule: FaultSchedule, data_plane: DataPlane, *, twice: bool = False) -> SoakResult:
    """Run a schedule, and again if `twice`, which must give the same history."""
    result = _bounded(schedule, data_plane)
    if twice and not result.failed:
        again = _bounded(schedule, data_plane)
        if again.digest != result.digest:
            text = f"digest {result.digest}, then {again.digest}"
            result.violations = (Violation(Oracle.HISTORY, text),)
    return result


def _bounded(schedule: FaultSchedule, data_plane: DataPlane) -> SoakResult:
    def stuck(number: int, frame: FrameType | None) -> None:
        raise _CpuTimeExceeded(f"{CPU_SECONDS:g} s of processor time, and no end")

    def name() -> None:
        sys.stderr.write(
            f"seed {schedule.seed}: not over after {HANG_SECONDS:g} s; `py-spy dump` shows where\n"
        )

    watchdog = threading.Timer(HANG_SECONDS, name)
    watchdog.daemon = True
    watchdog.start()
    before = signal.signal(signal.SIGVTALRM, stuck)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        return run_schedule(schedule, data_plane)
    except Exception as error:  # noqa: BLE001 - escaping exceptions are what the soak looks for
        text = f"{type(error).__name__}: {error}"
        return SoakResult(schedule, (Violation(Oracle.DEFECT, text),), "", {})
    finally:
        watchdog.cancel()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def fails_like(result: SoakResult, data_plane: DataPlane) -> Callable[[FaultSchedule], bool]:
    """Return whether another schedule violates one of the invariants that a result violates."""
    oracles = {violation.oracle for violation in result.violations}

    def fails(schedule: FaultSchedule) -> bool:
        again = run_one(schedule, data_plane, twice=Oracle.HISTORY in oracles)
        return any(violation.oracle in oracles for violation in again.violations)

    return fails


def failure_of(
    result: SoakResult, data_plane: DataPlane, runs: int = RUNS, seconds: float = MINIMISE_SECONDS
) -> Failure:
    """Minimise a schedule that fails, as far as `runs` and `seconds` of CPU time allow."""
    fails = fails_like(result, data_plane)
    until = time.process_time() + seconds

    def fails_in_time(schedule: FaultSchedule) -> bool:
        return time.process_time() < until and fails(schedule)

    smallest = minimise(result.schedule, fails_in_time, runs)
    found = run_one(smallest, data_plane, twice=True).violations
    return Failure(result.schedule, result.violations, smallest, found)


def soak(
    seeds: Iterable[int],
    make_data_plane: MakeDataPlane,
    parallel: Parallel,
    progress: Callable[[Summary], None] = lambda summary: None,
    found: Callable[[Failure], None] = lambda failure: None,
    *,
    minimised: int = 10,
) -> Summary:
    """Run the schedules of these seeds, and minimise the first failures.

    `make_data_plane`: a module-level function, called in each process. `found`: called with each
    failure. An interrupt ends the soak with the results so far.
    """
    summary = Summary()
    try:
        for result in parallel(partial(_run_seed, make_data_plane), seeds):
            summary.add(result)
            if result.failed:
                if len(summary.failures) < minimised:
                    failure = failure_of(result, make_data_plane())
                else:
                    schedule, violations = result.schedule, result.violations
                    failure = Failure(schedule, violations, schedule, violations)
                summary.failures.append(failure)
                found(failure)
            progress(summary)
    except KeyboardInterrupt:
        summary.interrupted = True
    return summary


def _run_seed(make_data_plane: MakeDataPlane, seed: int) -> SoakResult:
    return run_one(make_schedule(seed), make_data_plane(), twice=seed % REPEAT_EVERY == 0)
