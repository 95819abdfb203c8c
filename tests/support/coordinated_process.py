"""Run by test_coordination_tcp: starts one operator again and again until another process is lost.

Arguments: rank, and where all listen as JSON. Says `started`, and at the end who is lost.
"""

from __future__ import annotations

import json
import sys
from itertools import count

from hopsum.coordination.failure import ProcessLost
from hopsum.coordination.operators import Operator
from hopsum.coordination.tree import balanced_tree
from tests.support.waiting_coordinator import WaitingCoordinator

rank = int(sys.argv[1])
addresses = [(host, port) for host, port in json.loads(sys.argv[2])]
tree = balanced_tree([f"w{number}" for number in range(len(addresses))], fan_out=2)
coordinator = WaitingCoordinator(tree, rank, addresses)
coordinator.start()
try:
    for step in count(1):
        coordinator.begin_iteration(step)
        coordinator.ready(Operator("gradient", (8,), "float32"))
        coordinator.next_start()
        if step == 1:
            sys.stdout.write("started\n")
            sys.stdout.flush()
except ProcessLost as error:
    sys.stdout.write(f"{error.name}\n")
finally:
    coordinator.close()
