"""Two PyTorch trainings at once on the hosts of one cluster, a long one and a short one (root).

Through the switches first, then the same over gloo: their losses, and a picture of their steps.

    python two_trainings.py [--bfloat16]
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hopsum.experiment.training import step_times
from hopsum.reports.step_times import step_times_plot

HOPSUM = Path(sys.executable).with_name("hopsum")
EXAMPLES = Path(__file__).resolve().parent.parent
TRAININGS = {
    "long": [str(EXAMPLES / "fsdp_gpt/train.py"), "--steps", "60"],
    "short": [str(EXAMPLES / "ddp_cnn/train.py"), "--epochs", "2"],
}
AGENTS: dict[str, dict[str, str]] = {"switches": {}, "gloo": {"HOPSUM_AGENT": "none"}}
"""Environment of ranks: without an agent all goes over gloo."""
PICTURE = Path("steps.png")


def environment(folder: Path) -> dict[str, str]:
    """Return what lets commands find this cluster, and no other that is up."""
    return {**os.environ, "XDG_RUNTIME_DIR": str(folder)}


def wait_until_up(cluster: subprocess.Popen[str]) -> None:
    """Return when the cluster says that it is up, with its controller; its agents follow."""
    assert cluster.stderr is not None
    for line in cluster.stderr:
        print(line, end="", file=sys.stderr)
        if " is up, " in line:
            return
    sys.exit("hopsum cluster has ended; it needs root and Mininet")


def train_at_once(folder: Path, way: str, options: Sequence[str]) -> dict[str, str]:
    """Run both trainings, with more options; return what they print."""
    running = {}
    for name, command in TRAININGS.items():
        own = folder / way / name
        own.mkdir(parents=True)
        running[name] = subprocess.Popen(
            [str(HOPSUM), "torchrun", "--workers", "3", *command, *options],
            cwd=own,
            env={**environment(folder), **AGENTS[way]},
            stdout=subprocess.PIPE,
            text=True,
        )
    printed = {name: process.communicate()[0] for name, process in running.items()}
    for name, process in running.items():
        if process.returncode:
            sys.exit(f"{name}, {way}: ended with {process.returncode}\n{printed[name]}")
    return printed


def main() -> None:
    """Bring a cluster up, train, take it down, and draw."""
    parser = argparse.ArgumentParser(description="Train twice at once.")
    parser.add_argument("--bfloat16", action="store_true", help="compute, and sum, in bfloat16")
    options = ["--bfloat16"] if parser.parse_args().bfloat16 else []
    steps = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cluster = subprocess.Popen(
            [str(HOPSUM), "cluster", "star:4", "--link-rate", "50Mbit"],
            cwd=folder,
            env=environment(folder),
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wait_until_up(cluster)
            for way in AGENTS:
                print(f"over {way}" if way == "gloo" else f"through the {way}", flush=True)
                for name, printed in train_at_once(folder, way, options).items():
                    losses = re.findall(r"loss ([\d.]+)", printed)
                    times = steps[f"{name}, {way}"] = step_times(printed)
                    print(f"  {name}: loss {losses[-1]}, {times[-1]:.1f} ms a step", flush=True)
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.wait()
    PICTURE.write_bytes(step_times_plot(steps))


if __name__ == "__main__":
    main()
