"""hopsum: gradients summed hop by hop inside the network.

    import hopsum

    network = hopsum.fat_tree(4, link_rate="25Mbit")
    plan = hopsum.plan(network, workers=8)          # who sums what where, and the bound
    result = hopsum.run(network, workers=8)         # in virtual time; world="mininet": for real

Networks: `load`, `save`, `star`, `line`, `leaf_spine`, `fat_tree`, `torus`, `complete`,
`hypercube`, `random_regular`, `dgx1`, `dragonfly`, `to_networkx`. Plans: `plan`, `planners`,
`planner_options`. Runs: `run`, `sweep`. Algorithms at flow level: `compare`, `algorithms`.
Collectives as schedules: `schedule`. A running cluster: `connect`. Every error is a `HopsumError`:
an `InputError` (also a ValueError) or an `OperationError` (also a RuntimeError).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopsum.collectives.plan import JobPlan
    from hopsum.collectives.schedule import Schedule
    from hopsum.library.cluster import Cluster, Job, connect
    from hopsum.library.comparison import Comparisons, algorithms, compare
    from hopsum.library.networks import (
        complete,
        dgx1,
        dragonfly,
        fat_tree,
        hypercube,
        leaf_spine,
        line,
        load,
        random_regular,
        save,
        star,
        to_networkx,
        torus,
    )
    from hopsum.library.plans import Plan, plan, planner_options, planners
    from hopsum.library.records import Records
    from hopsum.library.runs import Result, run
    from hopsum.library.schedules import schedule
    from hopsum.library.sweeps import sweep
    from hopsum.network.model import Host, Link, Network, Switch
    from hopsum.planning.model.allocation import Allocator
    from hopsum.planning.model.forest import ForestOptions
    from hopsum.planning.model.request import Planner, PlanRequest
    from hopsum.protocol.errors import HopsumError, InputError, OperationError

# Imported when they are first used: commands and agents start without numpy and networkx.
_MODULES = {
    "collectives.plan": ("JobPlan",),
    "collectives.schedule": ("Schedule",),
    "library.cluster": ("Cluster", "Job", "connect"),
    "library.comparison": ("Comparisons", "algorithms", "compare"),
    "library.networks": (
        "complete", "dgx1", "dragonfly", "fat_tree", "hypercube", "leaf_spine", "line", "load",
        "random_regular", "save", "star", "to_networkx", "torus",
    ),
    "library.plans": ("Plan", "plan", "planner_options", "planners"),
    "library.records": ("Records",),
    "library.runs": ("Result", "run"),
    "library.schedules": ("schedule",),
    "library.sweeps": ("sweep",),
    "network.model": ("Host", "Link", "Network", "Switch"),
    "planning.model.allocation": ("Allocator",),
    "planning.model.forest": ("ForestOptions",),
    "planning.model.request": ("Planner", "PlanRequest"),
    "protocol.errors": ("HopsumError", "InputError", "OperationError"),
}  # fmt: skip
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Allocator",
    "Cluster",
    "Comparisons",
    "ForestOptions",
    "HopsumError",
    "Host",
    "InputError",
    "Job",
    "JobPlan",
    "Link",
    "Network",
    "OperationError",
    "Plan",
    "PlanRequest",
    "Planner",
    "Records",
    "Result",
    "Schedule",
    "Switch",
    "algorithms",
    "compare",
    "complete",
    "connect",
    "dgx1",
    "dragonfly",
    "fat_tree",
    "hypercube",
    "leaf_spine",
    "line",
    "load",
    "plan",
    "planner_options",
    "planners",
    "random_regular",
    "run",
    "save",
    "schedule",
    "star",
    "sweep",
    "to_networkx",
    "torus",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hopsum' has no attribute {name!r}")
    found = getattr(import_module(f"hopsum.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
