# ruff: noqa: T201 - a script that reports on its standard output
"""Run p4c's STF corpus: `python -m tests.conformance.run_corpus DIR [--executor native] [NAME...]`.

DIR is a checkout of p4c (its `testdata` is read; nothing of it is kept here). Programs for
v1model with an STF file are run: P4_16 samples, and P4_14 samples in their P4_16 translation.
Failures that are known stand in known_failures.txt with a reason each. Exit status 1 if
anything else failed, or if a known failure passes.
"""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from p4switch.frontend.program import compile_file
from p4switch.position import P4Error
from p4switch.stf import StfError, engine_factory, run_stf

KNOWN = Path(__file__).with_name("known_failures.txt")
SECONDS_EACH = 60


def find_tests(checkout: Path) -> Iterator[tuple[str, Path, Path]]:
    """(name, program, STF file) of every v1model program that has an STF file."""
    samples = checkout / "testdata" / "p4_16_samples"
    for stf in sorted(samples.rglob("*.stf")):
        program = stf.with_suffix(".p4")
        if program.exists() and "v1model.p4" in program.read_text(errors="replace"):
            yield str(program.relative_to(samples).with_suffix("")), program, stf
    translated = checkout / "testdata" / "p4_14_samples_outputs"
    for stf in sorted((checkout / "testdata" / "p4_14_samples").glob("*.stf")):
        program = translated / f"{stf.stem}.p4"
        if program.exists() and "v1model.p4" in program.read_text(errors="replace"):
            yield f"p4_14/{stf.stem}", program, stf


def read_known(path: Path) -> dict[str, str]:
    """Known failures: `name: reason` a line."""
    known = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, reason = line.partition(":")
            known[name.strip()] = reason.strip()
    return known


def _out_of_time(_: int, __: FrameType | None) -> None:
    raise TimeoutError(f"not done after {SECONDS_EACH} seconds")


def run_one(program: Path, stf: Path, executor: str, show_trace: bool) -> list[str]:
    """What failed."""
    signal.alarm(SECONDS_EACH)
    try:
        return run_stf(engine_factory(executor), compile_file(program), stf)
    except (P4Error, StfError) as error:
        return [f"{type(error).__name__}: {error}"]
    except Exception as error:  # noqa: BLE001 - a crash on one program is that one's failure
        if show_trace:
            traceback.print_exc()
        return [f"crash: {type(error).__name__}: {error}"]
    finally:
        signal.alarm(0)


def main() -> int:
    """Run the corpus and print a line a failure and the totals."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkout", type=Path, help="a checkout of p4c")
    parser.add_argument("names", nargs="*", help="only programs whose name contains one of these")
    parser.add_argument("--executor", default="interpreter", choices=("interpreter", "native"))
    parser.add_argument("--known", type=Path, default=KNOWN, help="file of known failures")
    parser.add_argument("--trace", action="store_true", help="show tracebacks of crashes")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _out_of_time)
    known = read_known(options.known)
    passed = failed = excused = 0
    for name, program, stf in find_tests(options.checkout):
        if options.names and not any(part in name for part in options.names):
            continue
        problems = run_one(program, stf, options.executor, options.trace)
        if name in known and problems:
            excused += 1
            print(f"known {name}: {known[name]}")
        elif name in known or problems:
            failed += 1
            reason = problems[0] if problems else "passes, but stands among the known failures"
            print(f"FAIL {name}: {reason}")
        else:
            passed += 1
    if excused:
        print(f"{excused} known failures, reasons in {options.known.name}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
