"""Embedding plans: time and gap of the program, heuristic against it, models, many jobs.

python -m benchmarks.embedding [--output FOLDER] [NAME ...]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from time import process_time
from typing import Any

from benchmarks.report import Rows, arguments, run_benchmarks
from hopsum.network.model import Network
from hopsum.network.topologies import TopologyOptions, make_topology
from hopsum.planning.embedding.choice import PlanOptions
from hopsum.planning.embedding.embedding_plan import Embedding
from hopsum.planning.embedding.planner import plan_embedding
from hopsum.planning.model.demand import JobDemand, Model, Resources, all_resources
from hopsum.planning.model.request import Method

SECOND = (125_000_000,)
"""Bytes that take a second at 1 Gbit/s, the rate of every host's link."""
HOSTS = frozenset(Model) - {Model.IN_NETWORK}
ALL = frozenset(Model)
PATIENCE = 600.0
"""Seconds of wall time: a busy machine must not end a search early."""
QUICK = PlanOptions(method=Method.HEURISTIC, time_limit=PATIENCE)
THOROUGH = PlanOptions(method=Method.EXACT, gap=0.002, time_limit=PATIENCE, nodes=20)
"""The exact method, closer to its bound than by default, with effort limited by nodes."""
CASES = ((1, 0), (2, 1), (4, 2))
"""Numbers of jobs, and seeds of the links' free bandwidth."""
EVEN = -1
"""Seed for links that are completely free."""
NODES_16 = (("leaf-spine:4x4x1", 2e9), ("leaf-spine:4x4x2", 1e9), ("fat-tree:4", 1e9))
NODES_64 = (("leaf-spine:8x8x1", 4e9), ("leaf-spine:8x8x2", 2e9))


def network_of(spec: str, uplink: float) -> Network:
    """Return a network with hosts at 1 Gbit/s and links between switches at `uplink` bit/s."""
    return make_topology(spec, TopologyOptions(1e9, uplink))


def resources_of(network: Network, seed: int) -> Resources:
    """Return random free resources.

    Hosts' links have 80 % or more free, the others 40 % or more.
    """
    resources = all_resources(network)
    if seed == EVEN:
        return resources
    random = Random(seed)
    links = {
        (u, v): free * random.randint(8 if {u, v} & set(network.hosts) else 4, 10) / 10
        for (u, v), free in resources.links.items()
    }
    return replace(resources, links=links)


def interleaved(network: Network, jobs: int, models: frozenset[Model]) -> list[JobDemand]:
    """Return jobs over all hosts but the server's, assigned in turn; windows of 64 slots."""
    hosts = [host for host in network.hosts if host != "ps"]
    return [
        JobDemand(job + 1, tuple(hosts[job::jobs]), SECOND, models=models, window=64)
        for job in range(jobs)
    ]


def timed(
    resources: Resources, demands: Sequence[JobDemand], options: PlanOptions
) -> tuple[dict[str, Any], Embedding]:
    """Return one plan and its row of figures."""
    spent = process_time()
    answer = plan_embedding(resources, demands, options)
    row = {
        "iteration_s": round(float(answer.seconds), 4),
        "bound_s": round(answer.bound, 4),
        "gap_percent": round(100 * answer.gap, 2),
        "topologies": sum(len(job.parts) for job in answer.jobs),
        "candidates": answer.candidates,
        "verdict": answer.verdict.value,
        "cpu_s": round(process_time() - spent, 2),
        "wall_s": round(answer.spent, 2),
    }
    return row, answer


def _models(models: frozenset[Model]) -> str:
    if len(models) == 1:
        return next(iter(models)).value
    return "all" if models == ALL else "of hosts"


def program() -> Rows:
    """Return time and gap of the exact method for one job on 16 and on 64 nodes."""
    rows = []
    for nodes, specs in ((16, NODES_16), (64, NODES_64)):
        for spec, uplink in specs:
            for models in (HOSTS, ALL):
                for seed in (EVEN, 0, 1, 2):
                    network = network_of(spec, uplink)
                    demands = interleaved(network, 1, models)
                    row, _ = timed(
                        resources_of(network, seed),
                        demands,
                        PlanOptions(method=Method.EXACT),
                    )
                    kind = "even" if seed == EVEN else seed
                    rows.append(
                        {"nodes": nodes, "network": spec, "models": _models(models), "free": kind}
                        | row
                    )
    return rows


def heuristic() -> Rows:
    """Compare the heuristic with the bound, and on 16 nodes with the exact method.

    Mean and worst of 3 cases of 1, 2 and 4 jobs. `over_bound`: an iteration's time relative to the
    bound on any weights of the models (of trees of switches: of the candidates); `over_program`:
    relative to the exact method, which is not run on 64 nodes, where its integer program takes
    minutes.
    """
    rows = []
    for nodes, networks in ((16, NODES_16), (64, NODES_64)):
        for spec, uplink in networks:
            network = network_of(spec, uplink)
            for models in (HOSTS, ALL):
                cases = [_against(network, *case, models, exact=nodes == 16) for case in CASES]
                row = {"nodes": nodes, "network": spec, "models": _models(models)}
                rows.append(row | _mean_and_worst(cases))
    return rows


def _against(
    network: Network, jobs: int, seed: int, models: frozenset[Model], *, exact: bool
) -> dict[str, float]:
    """Return the heuristic's answer against its bound and, if `exact`, the exact method's."""
    resources, demands = resources_of(network, seed), interleaved(network, jobs, models)
    row, found = timed(resources, demands, QUICK)
    figures = {
        "over_bound": float(found.seconds) / found.bound - 1,
        "heuristic_cpu": row["cpu_s"],
    }
    if exact:
        thorough, proved = timed(resources, demands, THOROUGH)
        figures["over_bound"] = float(found.seconds) / max(found.bound, proved.bound) - 1
        figures["over_program"] = float(found.seconds / proved.seconds) - 1
        figures["program_cpu"] = thorough["cpu_s"]
    return figures


def _mean_and_worst(cases: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return mean and worst of some cases: ratios in percent, processor time in seconds."""
    row: dict[str, Any] = {"cases": len(cases)}
    for key in ("over_bound", "over_program", "heuristic_cpu", "program_cpu"):
        values = [case[key] for case in cases if key in case]
        if not values:
            row |= dict.fromkeys((f"{key}_mean{_unit(key)[1]}", f"{key}_worst{_unit(key)[1]}"), "")
            continue
        scale, unit = _unit(key)
        row[f"{key}_mean{unit}"] = round(scale * sum(values) / len(values), 2)
        row[f"{key}_worst{unit}"] = round(scale * max(values), 2)
    return row


def _unit(key: str) -> tuple[int, str]:
    return (1, "_s") if key.endswith("_cpu") else (100, "_percent")


def models() -> Rows:
    """Return each model alone, and mixed, under 1:1, 2:1 and 4:1 oversubscription."""
    rows = []
    for uplink in (4e9, 2e9, 1e9):
        network = network_of("leaf-spine:4x4x1", uplink)
        for allowed in (*(frozenset({model}) for model in Model), HOSTS, ALL):
            try:
                row, _ = timed(
                    all_resources(network), interleaved(network, 1, allowed), PlanOptions()
                )
            except ValueError as error:
                row = {"iteration_s": str(error).partition(":")[2].partition(" is possible")[0]}
            rows.append(
                {
                    "oversubscription": f"{4e9 / uplink:g}:1",
                    "models": _models(allowed),
                    **{key: row.get(key, "") for key in ("iteration_s", "bound_s", "topologies")},
                }
            )
    return rows


def jobs() -> Rows:
    """Return several interleaved jobs at once, up to 16 on 256 hosts."""
    rows = []
    for spec, uplink, counts in (
        ("leaf-spine:4x4x1", 1e9, (2, 4)),
        ("leaf-spine:8x8x2", 2e9, (2, 4, 8)),
        ("fat-tree:4", 1e9, (2, 4)),
        ("leaf-spine:16x16x4", 4e9, (16,)),
    ):
        for count in counts:
            for allowed in (HOSTS, ALL):
                network = network_of(spec, uplink)
                row, answer = timed(
                    all_resources(network),
                    interleaved(network, count, allowed),
                    PlanOptions(),
                )
                rows.append(
                    {"network": spec, "jobs": count, "models": _models(allowed)}
                    | {"method": answer.method}
                    | row
                )
    return rows


BENCHMARKS: dict[str, Callable[[], Rows]] = {
    "program": program,
    "heuristic": heuristic,
    "models": models,
    "jobs": jobs,
}


def rows() -> Rows:
    """Time and gap of the program."""
    return program()


def main() -> None:
    """Run the benchmarks named, or all."""
    run_benchmarks(BENCHMARKS, arguments(__doc__, BENCHMARKS).parse_args(), prefix="embedding-")


if __name__ == "__main__":
    main()
