"""The multi-tree planner for networks with switches: several aggregation trees at once.

Each tree has a server at its root (one server may hold several), a range of slots at every switch
that sums for it, and a share of the tensor in proportion to its rate. The trees are a fractional
Steiner packing (`steiner_packing`) of a network in which only switches forward. Switches copy the
results, one per link: a tree uses its rate of every link in both directions, and more upwards above
switches that do not sum, or where more than MAX_CHILDREN flows meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from hopsum.collectives.plan import JobPlan, PlanError, Results
from hopsum.network.model import Network, shorten
from hopsum.planning.model.allocation import Allocator
from hopsum.planning.model.forest import Forest, RatedTree
from hopsum.planning.model.graph import planning_graph
from hopsum.planning.model.job_plans import MAX_TREES, job_plan
from hopsum.planning.model.request import PlanRequest, SwitchRole
from hopsum.planning.model.routes import make_route
from hopsum.planning.steiner.packing_problem import PackingProblem
from hopsum.planning.steiner.split_roots import SplitRoots
from hopsum.planning.steiner.steiner_packing import pack_trees
from hopsum.protocol.wire import MAX_CHILDREN


def plan_of(
    network: Network, request: PlanRequest, forest: Forest, allocator: Allocator
) -> JobPlan:
    """Return the job's plan that runs the trees of a packing.

    With `shares`, which are fixed for a job's lifetime, there are as many trees as shares, and
    these are assigned to the packing's trees so that the last one ends soonest; else shares follow
    the rates. PlanError for what agents do not support.
    """
    if request.algorithm is not SwitchRole.IN_NETWORK or request.results is Results.UNICAST:
        raise PlanError(
            "planner multi-tree sums in the switches and copies results there; use --algorithm "
            "in-network and replicated results, or the planner multi-hop"
        )
    trees = list(forest.trees)
    _check_hosts(network, trees)
    shares: tuple[float, ...] = tuple(float(tree.rate / forest.throughput) for tree in trees)
    if request.shares is not None:
        shares = request.shares
        trees = [trees[i] for i in spread([tree.rate for tree in trees], shares)]
    sums = {name for name, switch in network.switches.items() if switch.aggregates}
    routes = [make_route(network, request.workers, tree.parents, tree.root, sums) for tree in trees]
    return job_plan(network, request, routes, shares, Results.REPLICATED, allocator)


def _check_hosts(network: Network, trees: Sequence[RatedTree]) -> None:
    """Raise PlanError if hosts must forward: agents do not."""
    for tree in trees:
        forwards = sorted(set(tree.parents.values()) & network.hosts.keys() - {tree.root})
        if forwards:
            raise PlanError(
                f"in the tree at {tree.root} packets cross {shorten(forwards)}, and agents of "
                "hosts do not forward; without that the hosts are not connected over switches"
            )


def pack_in_network(
    network: Network, request: PlanRequest, allocator: Allocator | None = None
) -> Forest:
    """Return the trees for a job and their rates, in the units of the links' bandwidths.

    A tree uses one link of each host, which may be another one on each tree. Hosts forward only
    where the network is not connected otherwise: `hopsum plan` shows such trees, agents do not run
    them. PlanError, with the reason, if no tree meets the request.
    """
    options = request.forest
    most = request.max_hops
    if options.max_height is not None:
        most = min(most, options.max_height)
    trees = MAX_TREES if options.max_trees is None else min(options.max_trees, MAX_TREES)
    limited = replace(options, max_height=most, max_trees=trees)
    split = SplitRoots(planning_graph(network, request.workers), request.servers)
    problem = packing_problem(network, request, allocator)
    try:
        apart = replace(problem, graph=split.graph, roots=split.roots)
        return split.joined(pack_trees(apart, limited))
    except PlanError as error:
        forwarding = {host for host in network.hosts if len(network.ports(host)) > 1}
        if not forwarding:
            raise
        try:
            passing = replace(problem, passes=problem.passes | forwarding)
            return pack_trees(passing, limited)
        except PlanError:
            raise error from None


def packing_problem(
    network: Network, request: PlanRequest, allocator: Allocator | None = None
) -> PackingProblem:
    """Return the packing problem of a request; the slots that other jobs leave are limits."""
    allocator = allocator or Allocator(network)
    return PackingProblem(
        planning_graph(network, request.workers),
        request.servers,
        frozenset(network.switches),
        MAX_CHILDREN,
        {
            name: allocator.room(name, request.job, request.window)
            for name, switch in network.switches.items()
            if switch.aggregates
        },
    )


def spread(rates: list[Fraction], shares: tuple[float, ...]) -> list[int]:
    """Assign each share, largest first, to the tree that would end soonest; return tree numbers."""
    loads = [Fraction(0) for _ in rates]
    taken = [0] * len(shares)
    for i in sorted(range(len(shares)), key=lambda i: (-shares[i], i)):
        share = Fraction(shares[i])
        best = min(range(len(rates)), key=lambda t: ((loads[t] + share) / rates[t], t))
        loads[best] += share
        taken[i] = best
    return taken
