"""Check hopsum_torch on a machine with a GPU: python -m tests.gpu_check [--output FOLDER].

It needs no network and no switches: agents of the tests sum for two ranks that share the GPU. It
takes some minutes, prints a report, and writes it with the card's name as text and as JSON. Exit
status: 0 if all is well, 1 if a part has failed, 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SECONDS = 300
"""Of a run of pytest, after which it is ended."""
CLOSE = 0.01
"""Relative difference of losses."""


@dataclass(frozen=True)
class Part:
    """A part of the check, and what it has found; `problem`: "" if all is well."""

    name: str
    seconds: float
    problem: str
    found: Any


def main(arguments: Sequence[str] | None = None, device: str = "cuda") -> int:
    """Check; return the exit status. `device`: another one, to test this check itself."""
    parser = argparse.ArgumentParser(description="Check hopsum_torch on a machine with a GPU.")
    parser.add_argument("--output", type=Path, default=Path("out/gpu-check"), metavar="FOLDER")
    folder: Path = parser.parse_args(arguments).output
    missing = why_no_gpu() if device == "cuda" else ""
    if missing:
        print(f"gpu_check: {missing}", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    machine = describe(device)
    checks: list[tuple[str, Callable[[], tuple[str, Any]]]] = [
        ("pinned memory", lambda: pinned_memory(device)),
        ("DDP", lambda: training(device, "ddp")),
        ("FSDP", lambda: training(device, "fsdp")),
        ("bandwidth", lambda: bandwidth(device)),
    ]
    parts = [run_part(name, check) for name, check in checks]
    report = "\n".join(report_lines(machine, parts)) + "\n"
    stem = folder / re.sub(r"\W+", "-", machine["card"]).strip("-").lower()
    record = {"machine": machine, "parts": [asdict(part) for part in parts]}
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    stem.with_suffix(".txt").write_text(report)
    print(f"{report}record: {stem}.json, {stem}.txt")
    return int(any(part.problem for part in parts))


def why_no_gpu() -> str:
    """Return why there is nothing to check; "" on a machine with a GPU."""
    try:
        import torch
    except ImportError:
        return f"no torch in {sys.executable}; install a PyTorch that is built for CUDA"
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA; install one that has it"
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no GPU; `nvidia-smi` says what the driver sees"
    return ""


def describe(device: str) -> dict[str, str]:
    """Return what the check runs on."""
    import torch

    machine = {
        "card": "none (the check itself is tested)",
        "driver": "",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "python": platform.python_version(),
        "system": platform.platform(),
        "hopsum_torch": importlib.metadata.version("hopsum-torch"),
        "commit": _printed(["git", "-C", str(HERE), "rev-parse", "HEAD"]),
        "when": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        machine["card"] = f"{card.name}, {card.total_memory >> 20} MiB"
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        machine["driver"] = _printed(query)
    return machine


def _printed(command: Sequence[str]) -> str:
    """Return what a command prints, "" if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def run_part(name: str, check: Callable[[], tuple[str, Any]]) -> Part:
    """Run a part, which returns its problem and what it has found."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    try:
        problem, found = check()
    except Exception as error:  # noqa: BLE001 - the other parts are still to be checked
        problem, found = f"{type(error).__name__}: {error}", None
    return Part(name, round(time.monotonic() - began, 1), problem, found)


def pinned_memory(device: str) -> tuple[str, Any]:
    """Run the tests of pinned memory, all of which must run."""
    options = ["-q", "-p", "no:cacheprovider", "-k", "not cuda"] if device != "cuda" else ["-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/test_pinned.py"],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode or "skipped" in last:
        return f"tests/test_pinned.py: {last}\n{done.stdout[-2000:]}", last
    return "", last


def training(device: str, way: str) -> tuple[str, Any]:
    """Train with two ranks; losses must be those of one process, and sums the agents'."""
    said, targets = _ranks("gpu_training.py", device, way)
    for rank, each in enumerate(said):
        pairs = zip(each["losses"], each["alone"], strict=True)
        if any(abs(ours - theirs) > CLOSE * abs(theirs) for ours, theirs in pairs):
            return f"rank {rank}: losses differ from those of one process", said
        if not each["pinned"] or set(each["pinned"]) != {device == "cuda"}:
            return f"rank {rank}: memory is pinned: {each['pinned']}", said
    # FSDP reduces and scatters: each rank gets its part.
    expected = "all" if way == "ddp" else "parts"
    if expected not in targets:
        return f"the agents summed for {sorted(targets)}, expected {expected!r} among them", said
    return "", {"first": said[0]["losses"][0], "last": said[0]["losses"][-1]}


def bandwidth(device: str) -> tuple[str, Any]:
    """Measure copies and all-reduces; nothing is expected of them."""
    said, _ = _ranks("gpu_bandwidth.py", device)
    return "", said[0]


def _ranks(script: str, device: str, *arguments: str) -> tuple[list[Any], set[str]]:
    """Run two ranks; return what each says, and whom the agents have summed for."""
    from tests.support.agents import Agents
    from tests.support.ranks import SUPPORT, run

    agents = Agents(2)
    try:
        printed = run(list(agents.names.values()), SUPPORT / script, device, *arguments)
    finally:
        agents.close()
    said = []
    for text in printed:
        [line] = [line for line in text.splitlines() if line.startswith("said ")]
        said.append(json.loads(line.removeprefix("said ")))
    return said, set(map(str, agents.whose))


def report_lines(machine: dict[str, str], parts: Sequence[Part]) -> list[str]:
    """Return the report as text."""
    lines = [f"{name}: {value or 'unknown'}" for name, value in machine.items()]
    lines.append("")
    for part in parts:
        verdict = "failed" if part.problem else "good"
        lines.append(f"{verdict:6} {part.name}, {part.seconds:g} s")
        lines += [f"       {line}" for line in part.problem.splitlines()]
    for part in parts:
        if part.name == "bandwidth" and part.found:
            lines += [
                "",
                "GB/s, of copies and of all-reduces (two ranks, sums by the tests' agents)",
            ]
            columns = list(part.found[-1])
            widths = [max(len(column), 8) for column in columns]
            heads = zip(columns, widths, strict=True)
            lines.append("  ".join(f"{column:>{width}}" for column, width in heads))
            for row in part.found:
                cells = [str(row["bytes"]), *(f"{1e-9 * row[each]:.3f}" for each in columns[1:])]
                shown = zip(cells, widths, strict=True)
                lines.append("  ".join(f"{cell:>{width}}" for cell, width in shown))
    return lines


if __name__ == "__main__":
    sys.exit(main())
