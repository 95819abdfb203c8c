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

from collectives.plan import JobPlan, PlanError, Results
from network.model import Network, NetworkError, shorten
from planning.model.allocation import Allocator
from planning.model.forest import Forest, RatedTree
from planning.model.graph import planning_graph
from planning.model.job_plans import MAX_TREES, check_request, job_plan
from planning.model.request import Algorithm, PlanRequest
from planning.model.routes import make_route
from planning.steiner.packing_problem import PackingProblem
from planning.steiner.steiner_packing import pack_trees
from protocol.wire import MAX_CHILDREN


def plan_multi_tree(network: Network, request: PlanRequest, allocator: Allocator) -> JobPlan:
    """Plan a job; PlanError gives the reason if that is impossible.

    With `shares`, which are fixed for a job's lifetime, there are as many trees as shares, and
    these are assigned to the packing's trees so that the last one ends soonest; else shares follow
    the rates.
    """
    check_request(network, request)
    network = network.at_home()
    return plan_of(network, request, pack_in_network(network, request, allocator), allocator)


def plan_of(
    network: Network, request: PlanRequest, forest: Forest, allocator: Allocator
) -> JobPlan:
    """Return the job's plan that runs the trees of a packing.

    PlanError for what agents do not support.
    """
    if request.algorithm is not Algorithm.IN_NETWORK or request.results is Results.UNICAST:
        raise PlanError(
            "planner multi-tree sums in the switches and copies results there; use --algorithm "
            "in-network and replicated results, or the planner multi-hop"
        )
    trees = list(forest.trees)
    _check_links_of_hosts(network, request, trees)
    shares: tuple[float, ...] = tuple(float(tree.rate / forest.throughput) for tree in trees)
    if request.shares is not None:
        shares = request.shares
        trees = [trees[i] for i in spread([tree.rate for tree in trees], shares)]
    sums = {name for name, switch in network.switches.items() if switch.aggregates}
    routes = [make_route(network, request.workers, tree.parents, tree.root, sums) for tree in trees]
    return job_plan(network, request, routes, shares, Results.REPLICATED, allocator)


def _check_links_of_hosts(
    network: Network, request: PlanRequest, trees: Sequence[RatedTree]
) -> None:
    """Raise PlanError if hosts must forward, or use other links than their agents'."""
    for host in (*request.workers, *request.servers):
        try:
            home = network.access_switch(host)
        except NetworkError as error:
            raise PlanError(str(error)) from None
        for tree in trees:
            below = {node for node, parent in tree.parents.items() if parent == host}
            above = {tree.parents[host]} if host in tree.parents else set()
            if not below | above <= {home}:
                links = len(network.ports(host))
                raise PlanError(
                    f"host {host!r} has {links} links, and its agent uses that to {home} only; the "
                    f"tree at {tree.root} leads over {shorten(sorted(below | above))}"
                )


def pack_in_network(
    network: Network, request: PlanRequest, allocator: Allocator | None = None
) -> Forest:
    """Return the trees for a job and their rates, in the units of the links' bandwidths.

    Hosts with several links forward here, as `hopsum plan` allows; a job's agents do not.
    PlanError, with the reason, if no tree meets the request.
    """
    options = request.forest
    most = request.max_hops
    if options.max_height is not None:
        most = min(most, options.max_height)
    trees = MAX_TREES if options.max_trees is None else min(options.max_trees, MAX_TREES)
    problem = packing_problem(network, request, allocator)
    return pack_trees(problem, replace(options, max_height=most, max_trees=trees))


def packing_problem(
    network: Network, request: PlanRequest, allocator: Allocator | None = None
) -> PackingProblem:
    """Return the packing problem of a request; the slots that other jobs leave are limits."""
    allocator = allocator or Allocator(network)
    return PackingProblem(
        planning_graph(network, request.workers),
        request.servers,
        frozenset(network.switches) | {h for h in network.hosts if len(network.ports(h)) > 1},
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
