# ruff: noqa: T201 - a script that reports on its standard output
"""Run p4c's corpus: `python -m tests.conformance.run_corpus P4C [--suite NAME...] [--table FILE]`.

P4C is a checkout of p4lang/p4c (its `testdata` is read; nothing of it is kept here). Failures that
are known stand in known_failures.txt with a reason each. Exit status 1 if anything else
failed, or if a known failure passes.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tests.conformance.corpus import SUITES, Case, available, cases, run

KNOWN = Path(__file__).with_name("known_failures.txt")
SECONDS_EACH = 600
"""Until a case counts as hung, however busy the machine."""


@dataclass(slots=True)
class Tally:
    """The results of a suite."""

    passed: int = 0
    known: dict[str, str] = field(default_factory=dict)
    """Known failures that failed, with their reasons."""
    failed: dict[str, str] = field(default_factory=dict)
    """All else, with the first thing that was wrong."""


def read_known(path: Path, suites: Collection[str] = SUITES) -> dict[str, str]:
    """Known failures: `suite/name: reason` a line. Raises ValueError for a line without reason."""
    known = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            name, _, reason = line.partition(":")
            if not reason.strip() or name.partition("/")[0] not in suites:
                raise ValueError(f"{path}:{number}: expected SUITE/NAME: REASON, not {line!r}")
            known[name.strip()] = reason.strip()
    return known


def _out_of_time(_: int, __: FrameType | None) -> None:
    raise TimeoutError(f"not done after {SECONDS_EACH} seconds")


def run_one(case: Case) -> list[str]:
    """Return what is wrong with a case; a crash, or no end, is that one's failure."""
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(SECONDS_EACH)
    try:
        return run(case)
    except Exception as error:  # noqa: BLE001 - the other cases run on
        return [f"crash: {type(error).__name__}: {error}"]
    finally:
        signal.alarm(0)


def judge(title: str, problems: Sequence[str], known: Mapping[str, str], tally: Tally) -> None:
    """Enter a result."""
    if title in known and problems:
        tally.known[title] = known[title]
    elif title in known:
        tally.failed[title] = "passes, but is among the known failures"
    elif problems:
        tally.failed[title] = problems[0].splitlines()[0]
    else:
        tally.passed += 1


def table(results: Mapping[str, Tally], version: str) -> Iterator[str]:
    """Yield the lines of docs/conformance.md."""
    yield "# Conformance with p4c's corpus"
    yield ""
    yield (
        f"Written by `make conformance P4C=DIR`, last with p4c {version}. Programs are those of "
        "`testdata/` for v1model, and for PSA where it says so; expected failures are listed "
        "below, each with its reason."
    )
    yield ""
    yield "| suite | cases | pass | expected failures | other failures |"
    yield "| --- | --- | --- | --- | --- |"
    for suite, tally in results.items():
        count = tally.passed + len(tally.known) + len(tally.failed)
        what = SUITES[suite][0]
        yield f"| {what} | {count} | {tally.passed} | {len(tally.known)} | {len(tally.failed)} |"
    yield from reasons(results.values(), "Expected failures")


def reasons(tallies: Collection[Tally], title: str) -> Iterator[str]:
    """Yield a section that lists known failures by their reasons, if there are any."""
    found: dict[str, list[str]] = {}
    for tally in tallies:
        for name, reason in tally.known.items():
            found.setdefault(reason, []).append(name)
    if found:
        yield ""
        yield f"## {title}"
        yield ""
    for reason, names in sorted(found.items()):
        yield f"- {', '.join(f'`{name}`' for name in sorted(names))}: {reason}."


def version_of(checkout: Path) -> str:
    """Return the commit of a checkout, or `of unknown version`."""
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%h of %cs"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "of unknown version"
    return done.stdout.strip()


def main() -> int:
    """Run the suites; print a line a failure and the totals; write the table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkout", type=Path, help="a checkout of p4lang/p4c")
    parser.add_argument("names", nargs="*", help="only programs whose name contains one of these")
    parser.add_argument(
        "--suite",
        action="append",
        choices=tuple(SUITES),
        help="default: all, those through p4c if it is installed",
    )
    parser.add_argument("--known", type=Path, default=KNOWN, help="file of expected failures")
    parser.add_argument("--table", type=Path, help="write the table of results here")
    parser.add_argument("--version", help="how the table calls the checkout; default: its commit")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    known = read_known(options.known)
    results: dict[str, Tally] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for suite in options.suite or available():
            chosen = [
                case
                for case in cases(options.checkout, suite)
                if not options.names or any(part in case.name for part in options.names)
            ]
            tally = results[suite] = Tally()
            for case, problems in zip(chosen, pool.map(run_one, chosen), strict=True):
                judge(case.title, problems, known, tally)
            for title, problem in tally.failed.items():
                print(f"FAIL {title}: {problem}")
            print(
                f"{suite}: {tally.passed} passed, {len(tally.known)} expected failures, "
                f"{len(tally.failed)} failed",
                flush=True,
            )
    if options.table is not None:
        version = options.version or version_of(options.checkout)
        options.table.write_text("\n".join(table(results, version)) + "\n", encoding="utf-8")
    return 1 if any(tally.failed for tally in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
