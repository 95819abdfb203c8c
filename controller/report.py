"""A plan for people (a tree) and for programs (a dictionary)."""

from __future__ import annotations

from typing import Any

from rich.tree import Tree

from collectives.flows import tree_flows
from collectives.network import Network
from collectives.plan import JobPlan, TreePlan
from collectives.prediction import Prediction
from collectives.units import format_rate


def plan_tree(network: Network, plan: JobPlan, tree: TreePlan) -> Tree:
    """The tree from the server down, with what each switch does."""
    flows = tree_flows(network, plan, tree)
    children: dict[str, list[str]] = {}
    for node, parent in tree.parents.items():
        children.setdefault(parent, []).append(node)
    arriving = len(flows.inputs[tree.server])
    shown = Tree(
        f"job {plan.job}, tree {tree.tree}: server [bold]{tree.server}[/] takes "
        f"{arriving} {'flow' if arriving == 1 else 'flows'}, "
        f"{tree.share:.0%} of the data, results {plan.results}"
    )

    def grow(branch: Tree, parent: str) -> None:
        for node in children.get(parent, ()):
            rate = format_rate(network.link(node, parent).bandwidth)
            if node in tree.parts:
                part = tree.parts[node]
                came, went = len(flows.inputs[node]), len(flows.up[node])
                if part.aggregate:
                    role = (
                        f"[green]sums {part.fan_in}[/], slots {part.slot_base} to "
                        f"{part.slot_base + plan.window - 1}"
                    )
                    if went > 1:
                        role += f", passes {went - 1}"
                else:
                    role = f"passes {came}"
                grow(branch.add(f"[bold]{node}[/]: {role} ({rate})"), node)
            else:
                number = plan.workers.index(node)
                branch.add(f"{node}: worker {number} ({rate})")

    grow(shown, tree.server)
    return shown


def plan_dict(network: Network, plan: JobPlan, prediction: Prediction) -> dict[str, Any]:
    """The plan and its prediction for `--json`. Bytes, seconds."""
    return {
        "network": network.name,
        "job": plan.job,
        "epoch": plan.epoch,
        "workers": list(plan.workers),
        "lanes": plan.lanes,
        "window": plan.window,
        "results": plan.results.value,
        "reduction": plan.reduction.name.lower(),
        "trees": [_tree_dict(tree) for tree in plan.trees],
        "prediction": {
            "seconds": prediction.seconds,
            "seconds_a_round": prediction.seconds_a_round,
            "total_bytes": prediction.total_bytes,
            "links": [
                {"from": u, "to": v, "bytes": size}
                for (u, v), size in sorted(prediction.links.items())
            ],
        },
    }


def _tree_dict(tree: TreePlan) -> dict[str, Any]:
    return {
        "tree": tree.tree,
        "server": tree.server,
        "share": tree.share,
        "parents": dict(tree.parents),
        "server_children": [list(workers) for workers in tree.server_children],
        "switches": {
            name: {
                "aggregate": part.aggregate,
                "children": {str(child): port for child, port in part.children.items()},
                "ports_up": list(part.ports_up),
                "port_server": part.port_server,
                "ports_down": list(part.ports_down),
                "slot_base": part.slot_base,
                "group": part.group,
            }
            for name, part in tree.parts.items()
        },
        "up": [[f"{hop.pack():08x}" for hop in stack] for stack in tree.up],
        "down": [[f"{hop.pack():08x}" for hop in stack] for stack in tree.down],
    }
