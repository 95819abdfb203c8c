# ruff: noqa: T201 - a script that reports on its standard output
"""Compare executors on generated programs: `python -m tests.fuzz.run_fuzz --minutes 10`.

Each seed is a program and its packets. Two processes run side by side: one compares the
interpreter with native code and, where p4c and simple_switch_grpc are installed, with BMv2; the
other one with native code under ASan and UBSan. As root each sends the packets through the packet
loop on veth pairs, too. A difference is written to out/fuzz/SEED/ and ends
the run with status 1; `--seed N` does one seed again. SIGINT and SIGTERM end a run early: it
prints what it has compared so far and returns status 130.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

from tests.fuzz import wires
from tests.fuzz.differential import Options, compare
from tests.fuzz.programs import frames_of, program_of
from tests.support.bmv2 import missing
from tests.support.sanitizers import address_sanitizer, sanitized_environment
from tests.support.veth import possible

OUT = Path("out/fuzz")
INTERRUPTED = 130
"""A shell's status of a command that SIGINT ended."""


def work(first: int, step: int, minutes: float, options: Options) -> int:
    """Do seeds first, first + step, ... until the time is over; the status."""
    end = time.monotonic() + minutes * 60
    seed, packets, interrupted = first, 0, False
    difference: str | None = None
    label = "sanitized" if options.sanitize else "BMv2" if options.bmv2 else "native"
    with suppress(KeyboardInterrupt), wires.wires() if possible() else nullcontext() as links:
        interrupted = True
        print(f"{label}: seeds {first}, {first + step}, ...", flush=True)
        while time.monotonic() < end or seed == first:
            difference = compare(seed, options, links)
            if difference is not None:
                break
            packets += options.frames * (1 if links is None else 2)
            seed += step
        interrupted = False
    if difference is not None:
        folder = OUT / str(seed)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "program.p4").write_text(program_of(seed, beyond=not options.bmv2))
        frames = "\n".join(f.hex() for f in frames_of(seed, options.frames))
        (folder / "frames.txt").write_text(frames + "\n")
        (folder / "difference.txt").write_text(difference + "\n")
        print(f"seed {seed} ({label}): {difference}\nwritten to {folder}", flush=True)
        return 1
    count = (seed - first) // step
    looped = ", half of them through the packet loop" if possible() else ""
    ended = " (interrupted)" if interrupted else ""
    print(f"{label}: {count} programs, {packets} packets{looped}, no difference{ended}", flush=True)
    return INTERRUPTED if interrupted else 0


def main() -> int:
    """Run the processes and return the worst status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="do this seed and no other")
    parser.add_argument("--first", type=int, help="first seed; default: by the clock")
    parser.add_argument("--frames", type=int, default=3000, help="packets of each program")
    parser.add_argument("--sanitize", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell ignores it for its jobs.
    bmv2 = missing() is None and not options.sanitize
    chosen = Options(options.frames, options.sanitize, bmv2)
    if options.sanitize:
        return work(options.first, 2, options.minutes, chosen)
    if options.seed is not None:
        return work(options.seed, 1, 0, chosen)
    first = int(time.time()) * 1000 if options.first is None else options.first
    library = address_sanitizer()
    other = None
    if library is None:
        print("no address sanitizer: native code runs without", flush=True)
    else:
        command = [sys.executable, "-m", "tests.fuzz.run_fuzz", "--sanitize", "--minutes"]
        command += [str(options.minutes), "--first", str(first + 1), "--frames"]
        other = subprocess.Popen(
            [*command, str(options.frames)], env=sanitized_environment(library)
        )
    status = work(first, 2, options.minutes, chosen)
    if other is None:
        return status
    if status == INTERRUPTED:
        other.terminate()
    found = other.wait()
    return 1 if 1 in (status, found) else max(status, found)


if __name__ == "__main__":
    sys.exit(main())
