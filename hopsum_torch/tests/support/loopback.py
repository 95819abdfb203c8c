"""Every operation on this machine: over gloo, or with the tests' agents, which sum themselves.

python -m tests.support.loopback gloo|hopsum RANKS RESULTS, in the folder hopsum_torch.
"""

from __future__ import annotations

import sys

from tests.support.agents import Agents
from tests.support.ranks import SUPPORT, run


def main() -> None:
    """Run the ranks; RESULTS.RANK gets what `operations.py` says."""
    backend, ranks, results = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    agents = None if backend == "gloo" else Agents(ranks)
    names = ["none"] * ranks if agents is None else list(agents.names.values())
    run(names, SUPPORT / "operations.py", backend, results)
    if agents is not None:
        agents.close()


if __name__ == "__main__":
    main()
