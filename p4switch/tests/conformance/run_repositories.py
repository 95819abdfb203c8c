# ruff: noqa: T201 - a script that reports on its standard output
"""Compile public programs: `python -m tests.conformance.run_repositories CLONE... [--table FILE]`.

Each CLONE is a checkout of one of REPOSITORIES, in a folder of its name; nothing of it is kept
here. Programs that are not compiled stand in refused_programs.txt with a reason each. Exit status 1
if another one is not compiled, or if one of these is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.corpus import Case
from tests.conformance.run_corpus import Tally, judge, read_known, reasons, run_one, version_of

REPOSITORIES: Mapping[str, str] = {
    "tutorials": "p4lang/tutorials",
    "p4-learning": "nsg-ethz/p4-learning",
    "p4-utils": "nsg-ethz/p4-utils",
    "p4-guide": "jafingerhut/p4-guide",
    "sonic-pins": "sonic-net/sonic-pins",
    "p4-spec": "p4lang/p4-spec",
}
"""Names of folders, and the repositories of GitHub that they are clones of."""

REFUSED = Path(__file__).with_name("refused_programs.txt")
PACKAGES = ("V1Switch", "PSA_Switch")
"""Of v1model and PSA: a program that names neither is for another switch, or a part of one."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A clone, and the results of its programs."""

    name: str
    version: str
    tally: Tally


def programs(clone: Path) -> Iterator[Case]:
    """Yield the programs of a clone for v1model or PSA, in the order of their paths."""
    for path in sorted(clone.rglob("*.p4")):
        if path.is_file() and any(
            package in path.read_text(errors="replace") for package in PACKAGES
        ):
            yield Case("compile", str(path.relative_to(clone)), path)


def table(repositories: list[Repository]) -> Iterator[str]:
    """Yield the lines of docs/public-programs.md."""
    yield "# Public programs"
    yield ""
    yield (
        "Programs for v1model and PSA of public repositories, each compiled as it is, without "
        "macros or folders of its own. Written by `make public-programs CLONES='DIR ...'`."
    )
    yield ""
    yield "| repository | commit | programs | compiled | refused for a known reason | others |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for each in repositories:
        tally = each.tally
        count = tally.passed + len(tally.known) + len(tally.failed)
        yield (
            f"| {REPOSITORIES[each.name]} | {each.version} | {count} | {tally.passed} | "
            f"{len(tally.known)} | {len(tally.failed)} |"
        )
    yield from reasons([each.tally for each in repositories], "Refused programs")


def main() -> int:
    """Compile the programs of the clones; print what fails; write the table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("clones", nargs="+", type=Path, help="folders of clones")
    parser.add_argument("--refused", type=Path, default=REFUSED, help="programs, with reasons")
    parser.add_argument("--table", type=Path, help="write the table of results here")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    known = read_known(options.refused, REPOSITORIES)
    done = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for clone in options.clones:
            name = clone.resolve().name
            chosen = list(programs(clone)) if name in REPOSITORIES else []
            if not chosen:
                expected = ", ".join(REPOSITORIES.values())
                parser.error(f"{clone}: no programs: expected a clone of one of {expected}")
            tally = Tally()
            for case, problems in zip(chosen, pool.map(run_one, chosen), strict=True):
                judge(f"{name}/{case.name}", problems, known, tally)
            for title, problem in tally.failed.items():
                print(f"FAIL {title}: {problem}")
            print(f"{name}: {tally.passed} compiled, {len(tally.known)} refused as known")
            done.append(Repository(name, version_of(clone), tally))
    if options.table is not None:
        options.table.write_text("\n".join(table(done)) + "\n", encoding="utf-8")
    return 1 if any(each.tally.failed for each in done) else 0


if __name__ == "__main__":
    sys.exit(main())
