"""Runs of one network with all combinations of some options' values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Unpack

from hopsum.library.progress import progress_bar
from hopsum.library.records import Records
from hopsum.library.runs import RunOptions, run
from hopsum.network.model import Network
from hopsum.protocol.errors import InputError
from hopsum.simulation.parallel import in_processes, on_ray


def sweep(
    network: Network | str | Path,
    over: Mapping[str, Sequence[Any]],
    workers: int | Sequence[str] | None = None,
    *,
    processes: int | None = None,
    ray: str | None = None,
    progress: bool | None = None,
    **options: Unpack[RunOptions],
) -> Records:
    """Run with each combination of options' values, as `{"loss": [0, 0.1], "seed": [1, 2]}`.

    `network`, `workers` and `options` as of `run`, in virtual time; `over` may have `workers` too.
    `processes`: number of processes of this machine, by default 1; `ray`: address of a Ray cluster
    to run on instead, as `ray.init` takes it, with this version of hopsum on all its machines.

    Returns a row for each run, in the order of the combinations: their values, then `seconds`,
    `predicted_seconds`, `goodput` (bit/s), `retransmissions`, and `problems`, a list that is empty
    if every element and byte is right (see `Result`).

    Raises InputError for an option without values, MissingExtraError without Ray, ClusterError
    if its cluster cannot be used, and what `run` raises.
    """
    if ray is not None and processes is not None:
        raise InputError(
            "processes and ray: expected one of them; Ray uses all CPUs of its cluster"
        )
    if empty := [name for name, values in over.items() if not values]:
        raise InputError(f"over: {empty[0]:.50}: expected at least one value")
    world = options.get("world", "simulation")
    if "world" in over or world != "simulation":
        raise InputError("world: expected simulation; runs in Mininet would disturb each other")
    parallel = in_processes(processes or 1) if ray is None else on_ray(ray)
    combinations = [dict(zip(over, values, strict=True)) for values in product(*over.values())]
    measure = partial(_measure, network, {"workers": workers, **options})
    rows: dict[int, dict[str, Any]] = {}
    with progress_bar("sweep", progress) as advance:
        for number, row in parallel(measure, list(enumerate(combinations))):
            rows[number] = row
            advance(len(rows), len(combinations))
    return Records(rows[number] for number in sorted(rows))


def _measure(
    network: Network | str | Path, options: Mapping[str, Any], item: tuple[int, dict[str, Any]]
) -> tuple[int, dict[str, Any]]:
    number, values = item
    result = run(network, progress=False, **{**options, **values})
    measured = {
        "seconds": result.seconds,
        "predicted_seconds": result.predicted_seconds,
        "goodput": result.goodput,
        "retransmissions": result.retransmissions,
        "problems": result.problems,
    }
    return number, {**values, **measured}
