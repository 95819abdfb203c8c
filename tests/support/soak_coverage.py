"""Count what a soak reaches of hopsum's compiled programs, by gcov, function by function.

python -m tests.support.soak_coverage --schedules 300 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.support.compiler import recompiled
from tests.support.paths import ROOT

FOLDER = ROOT / "build" / "soak-coverage"
FLAGS = "-O0 --coverage -fprofile-filter-files=^hopsum/ -dumpdir {}/"
"""Functions are counted where they are called, and those of switches are not counted."""
TABLE = ROOT / "docs" / "soak-coverage.md"


_PYTHON = "for callers in Python, not in a simulated run"
_MODEL = "for the model checker"
_TESTS = "for its tests"
WHY_IDLE = {
    "check_layout": _TESTS,
    "check_seal_overflow": "needs check lanes and an overflow: one schedule in 120 has both",
    "events_next": _PYTHON,
    "frame_priority": _PYTHON,
    "server_state": _MODEL,
    "stream_retry": _MODEL,
    "world_deliver": _PYTHON,
    "world_use": "for flows that make more frames at once than there is room for",
}
"""Why no schedule, or hardly one, calls a function."""


@dataclass
class Reached:
    """A function: how often it was called, and each of its lines reached, in all programs."""

    calls: int = 0
    lines: Counter[int] = field(default_factory=Counter)

    @property
    def missed(self) -> list[int]:
        """Return the lines that were not reached."""
        return sorted(line for line, count in self.lines.items() if not count)


Functions = dict[tuple[str, str], Reached]
"""Functions by file and name."""


def counting(folder: Path) -> dict[str, str]:
    """Return the environment of a process that adds its counts to files in a folder."""
    return recompiled(FLAGS.format(folder)) | {"XDG_CACHE_HOME": str(folder / "cache")}


def run_soak(schedules: int, seed: int, jobs: int) -> bool:
    """Run schedules with all programs compiled anew; return whether none failed.

    Each process ends as usual, which is when it adds its counts to the files.
    """
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    environment = counting(FOLDER)
    hopsum = Path(sys.executable).with_name("hopsum")
    starts = [seed + schedules * number // jobs for number in range(jobs + 1)]
    processes = [
        subprocess.Popen(
            [str(hopsum), "soak", "--schedules", str(stop - start), "--seed", str(start)],
            env=environment,
            cwd=ROOT,
        )
        for start, stop in pairwise(starts)
        if stop > start
    ]
    return [process.wait() for process in processes] == [0] * len(processes)


def read_counts(folder: Path) -> Functions:
    """Return what programs reached that were compiled with FLAGS for a folder."""
    functions: defaultdict[tuple[str, str], Reached] = defaultdict(Reached)
    for counts in sorted(folder.glob("*.gcda")):
        command = ["gcov", "--json-format", "--stdout", counts.name]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        for file in json.loads(done.stdout)["files"]:
            name = file["file"].removeprefix("hopsum/")
            for each in file["functions"]:
                functions[name, plain(each["name"])].calls += each["execution_count"]
            for line in file["lines"]:
                if function := line.get("function_name"):
                    reached = functions[name, plain(function)]
                    reached.lines[line["line_number"]] += line["count"]
    return functions


def plain(name: str) -> str:
    """Return a function's name without the processor that a clone of it is for."""
    return name.partition(".")[0]


def table(functions: Functions, schedules: int, seed: int) -> Iterator[str]:
    """Yield the lines of the document."""
    lines = sum(len(each.lines) for each in functions.values())
    missed = sum(len(each.missed) for each in functions.values())
    idle = sum(not each.calls for each in functions.values())
    yield f"""# What the soak reaches of the compiled code

Lines and calls of hopsum's compiled programs over {schedules} schedules of the [soak](soak.md),
counted by gcov: `make soak-coverage SCHEDULES={schedules} SEED={seed}`. Of {lines:,} lines
{lines - missed:,} are reached ({(lines - missed) / lines:.1%}); of {len(functions)} functions
{idle} are never called.

| function | lines | reached | calls | not reached |
| --- | ---: | ---: | ---: | --- |"""
    for (file, name), each in sorted(functions.items()):
        reached = len(each.lines) - len(each.missed)
        cells = (f"`{name}` in {file}", len(each.lines), reached, f"{each.calls:,}")
        missed_lines = ranges(each.missed) if each.calls else WHY_IDLE.get(name, "all")
        yield f"| {' | '.join(map(str, cells))} | {missed_lines} |"


def ranges(numbers: list[int]) -> str:
    """Return numbers in words, neighbours as first-last."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in found)


def main() -> None:
    """Run the soak and write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", type=Path, default=TABLE)
    asked = parser.parse_args()
    clean = run_soak(asked.schedules, asked.seed, asked.jobs)
    text = "\n".join(table(read_counts(FOLDER), asked.schedules, asked.seed))
    asked.output.write_text(text + "\n")
    sys.exit(not clean)


if __name__ == "__main__":
    main()
