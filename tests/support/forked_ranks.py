"""Run as the parent of ranks: imports PyTorch once, and forks them.

python forked_ranks.py SCRIPT, and for each training a line of its standard input: as JSON a list of
[arguments, environment, log], one for each rank. Prints a line with their exit statuses. To import
PyTorch, and what its optimizers import when they are used, takes five seconds.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys

import torch._dynamo
import torch.distributed.fsdp  # noqa: F401

import hopsum_torch  # noqa: F401


def run(script: str, arguments: list[str], environment: dict[str, str], log: str) -> None:
    """Run a script as if it were this process's."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.environ |= environment
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def main() -> None:
    """Fork the ranks of each training, and wait for them."""
    script = sys.argv[1]
    # Ranks that end would look at all of PyTorch for garbage, for a second each.
    gc.freeze()
    for line in sys.stdin:
        ranks = json.loads(line)
        for rank in ranks:
            if not os.fork():
                run(script, *rank)
                return
        print(*(os.waitstatus_to_exitcode(os.wait()[1]) for _ in ranks), flush=True)


main()
