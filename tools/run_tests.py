"""Run pytest for each distribution: hopsum, p4switch, and hopsum_torch where torch is installed.

One of them may have no test that matches (pytest's status 5); that none has is an error. Options
that are not listed below are passed to pytest.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

PYTEST = [sys.executable, "-m", "pytest", "--dist", "loadgroup", "--no-loadscope-reorder"]
NO_TEST_MATCHED = 5
LOG = Path("build/test-parts.log")


def run_hopsum(options: list[str]) -> list[int]:
    """Run hopsum's tests and return pytest's status."""
    return [subprocess.call([*PYTEST, *options])]


def run_parts(
    options: list[str], output: IO[str] | None = None, environment: dict[str, str] | None = None
) -> list[int]:
    """Run the tests of the other distributions and return a status for each."""
    statuses = []
    for part in ("p4switch", "hopsum_torch"):
        if part == "hopsum_torch" and importlib.util.find_spec("torch") is None:
            print(f"{part}: skipped, torch is not installed (make torch)", file=output, flush=True)
            continue
        command = [*PYTEST, *options, "-c", f"{part}/pyproject.toml", f"{part}/tests"]
        statuses.append(
            subprocess.call(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
            if output
            else subprocess.call(command, env=environment)
        )
    return statuses


def run_in_parallel(options: list[str], processes: int) -> list[int]:
    """Run the parts in one process while hopsum's run, which are idle at times; print them last.

    Programs are compiled for their tests, which run them for less time than the optimizer takes:
    p4switch's for a few packets each.
    """
    parts_environment = {"P4SWITCH_CFLAGS": "-O0"} | os.environ
    os.environ.setdefault("P4SWITCH_CFLAGS", "-O1")
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("w+") as log, ThreadPoolExecutor(1) as pool:
        parts = pool.submit(run_parts, [*options, "-n", "0"], log, parts_environment)
        statuses = run_hopsum([*options, "-n", str(processes)]) + parts.result()
        log.seek(0)
        print(log.read(), end="")
    return statuses


def main() -> int:
    """Return 0 if all tests that match passed, and there is one."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--processes", type=int, required=True, help="for hopsum's tests")
    parser.add_argument("--in-parallel", action="store_true", help="hopsum's and the others'")
    parser.add_argument("--matching", metavar="NAME", help="pytest's -k")
    arguments, options = parser.parse_known_args()
    if arguments.matching:
        options += ["-k", arguments.matching]
    if arguments.in_parallel:
        statuses = run_in_parallel(options, arguments.processes)
    else:
        options += ["-n", str(arguments.processes)]
        statuses = run_hopsum(options) + run_parts(options)
    if all(status == NO_TEST_MATCHED for status in statuses):
        meant = f"TEST={arguments.matching}" if arguments.matching else " ".join(options)
        print(f"{meant}: no test of any distribution matches", file=sys.stderr)
        return NO_TEST_MATCHED
    return next((status for status in statuses if status not in (0, NO_TEST_MATCHED)), 0)


if __name__ == "__main__":
    sys.exit(main())
