"""Plans: who sums what where, with bytes, seconds and an upper bound on their rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from html import escape
from math import inf
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from hopsum.collectives.choices import EMBEDDING, Collective, DataType, Results
from hopsum.collectives.plan import JobPlan, PlanError
from hopsum.collectives.workload import check_wire_bits, is_for_trees
from hopsum.controller.dataplane.rule_text import shell_commands
from hopsum.controller.dataplane.rules import SwitchRules, rules_for
from hopsum.library.choices import choice
from hopsum.library.records import Records
from hopsum.network.model import Network
from hopsum.network.units import format_bytes, format_rate, format_time
from hopsum.planning.embedding.job_planner import EmbeddedJob
from hopsum.planning.model.forest import Forest, ForestOptions
from hopsum.planning.model.graph import planning_graph
from hopsum.planning.model.placement import place_ranks
from hopsum.planning.model.request import Planner, PlanRequest, SwitchRole
from hopsum.planning.model.stack_depth import stack_depth
from hopsum.planning.model.window import default_window
from hopsum.planning.registry import (
    MULTI_HOP,
    PLANNERS,
    PlannerResult,
    find_planner,
    make_plan,
    with_options,
)
from hopsum.protocol.wire import LANE_BYTES, LANES_DEFAULT
from hopsum.timing.estimate import Estimate, estimate
from hopsum.timing.work import PlanWork

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes

DirectedLink = tuple[str, str]
BUSIEST = 20
"""Links in a plot."""


@dataclass(frozen=True)
class Plan:
    """A plan of an all-reduce.

    `planner`: its name; `planned`: its result. `prediction`: None without a plan that switches and
    agents run.
    """

    network: Network
    request: PlanRequest
    planner: str
    planned: PlannerResult
    prediction: Estimate | None

    @property
    def job(self) -> JobPlan | None:
        """What controller, switches and agents run; None for trees that run as a schedule."""
        return self.planned.job

    @property
    def forest(self) -> Forest:
        """The trees with their rates and the bound. Raises PlanError for an embedding."""
        return self.planned.forest

    @property
    def embedding(self) -> EmbeddedJob | None:
        """Topologies and weights of the planner embedding, None of the others."""
        return self.planned.embedding

    @property
    def why_not(self) -> str:
        """Reason why the trees cannot run, '' if they can."""
        return self.planned.why_not

    @property
    def rate(self) -> float:
        """Rate at which each worker's data is summed, in bit/s; in links where none has a rate."""
        if self.embedding is None:
            return float(self.forest.throughput)
        return self._embedding_rate(float(self.embedding.found.seconds))

    @property
    def bound(self) -> float:
        """The rate that no plan of the planner's kind exceeds; `why` says why.

        Kinds: multi-hop has one tree for each server; the others, and a planner of one's own, any
        number of trees, or as many as the option max-trees allows.
        """
        if self.embedding is None:
            return float(self.forest.bound)
        return self._embedding_rate(float(self.embedding.found.bound))

    @property
    def gap(self) -> float:
        """Relative gap to the bound, from 0 (optimal) to 1."""
        if self.embedding is None:
            return self.forest.gap
        return 1 - self.rate / self.bound if self.rate < inf else 0.0

    @property
    def why(self) -> str:
        """The argument for the bound, in a sentence."""
        if self.embedding is None:
            return self.forest.certificate.text
        return "no weights of the candidate topologies load the busiest link or host less"

    @property
    def seconds(self) -> float:
        """Predicted duration of all rounds. Raises PlanError if a link has no rate."""
        if any(link.bandwidth is None for link in self.network.links):
            raise PlanError(
                f"{self.network.name}: links without a rate have no predicted time; give link_rate"
            )
        return self._predicted.seconds

    @property
    def bytes(self) -> Mapping[DirectedLink, int]:
        """Predicted bytes on each directed link: Ethernet frames without FCS."""
        return self._predicted.links

    @property
    def links(self) -> Records:
        """A row for each directed link in use: `from`, `to`, `bytes`, busiest first."""
        ranked = sorted(self.bytes.items(), key=lambda item: (-item[1], item[0]))
        return Records({"from": u, "to": v, "bytes": size} for (u, v), size in ranked)

    @property
    def trees(self) -> list[nx.DiGraph[str]]:
        """The trees, edges towards the root; each graph has `root` and `rate` (bit/s).

        Nodes have `role`: `worker`, `sums`, `forwards`, or `root`. Of an embedding only the trees
        in switches.
        """
        import networkx as nx

        made = []
        for number, (root, parents, rate) in enumerate(self._rooted):
            graph: nx.DiGraph[str] = nx.DiGraph(root=root, rate=rate)
            for node, parent in parents.items():
                graph.add_edge(node, parent)
            for node in graph:
                graph.nodes[node]["role"] = self._role(number, node, root)
            made.append(graph)
        return made

    @property
    def switches(self) -> Records:
        """A row for each switch of each tree: what it sums, and from which slot on."""
        return Records(
            {
                "tree": tree.tree,
                "switch": part.switch,
                "sums": part.fan_in if part.aggregate else 0,
                "first_slot": part.slot_base,
                "slots": self._job.window if part.aggregate else 0,
            }
            for tree in self._job.trees
            for part in tree.parts.values()
        )

    @property
    def rules(self) -> Records:
        """A row for each table entry: `switch`, `table`, `match`, `action`, `params`.

        What the controller installs for this job, alone on the network, with plain forwarding.
        """
        return Records(
            {
                "switch": switch,
                "table": entry.table,
                "match": dict(entry.match),
                "action": entry.action,
                "params": dict(entry.params),
            }
            for switch, rules in self.switch_rules().items()
            for entry in rules.entries
        )

    def switch_rules(self) -> dict[str, SwitchRules]:
        """Return the entries, multicast groups and clone sessions of each switch."""
        return rules_for(self.network, [self._job])

    def shell_commands(self, switch: str) -> list[str]:
        """Return the commands of p4runtime-shell (`hopsum shell`) that install them at a switch."""
        return shell_commands(self.switch_rules()[switch])

    def rate_text(self, rate: Fraction | float) -> str:
        """Return a rate of this plan as text."""
        if self.rated:
            return format_rate(float(rate))
        return f"{float(rate):g} {'link' if rate == 1 else 'links'}"

    def to_frame(self) -> Any:
        """Return `links` as a pandas data frame."""
        return self.links.to_frame()

    def explain(self, elements: int | None = None) -> list[str]:
        """Return what limits the rate, in sentences: cuts, links, switches, and other bounds.

        `elements`: of a tensor, for bounds on its time; in 32 bits each.
        """
        from hopsum.reports.plan_report import explanation

        if self.embedding is not None:
            from hopsum.reports.embedding_report import explain_embedding

            return explain_embedding(self.embedding, self.rated)
        rated = with_rates(self.network)
        graph = planning_graph(rated, self.request.workers)
        size = 32 * elements if elements is not None and self.rated else None
        return explanation(graph, self.forest, self.request, rated, size)

    def svg(self) -> str:
        """Return a drawing of the network with the trees in bold."""
        from hopsum.reports.network_drawing import network_svg

        sizes = None if self.prediction is None else self.prediction.links
        parents = [dict(parents) for _, parents, _ in self._rooted]
        return network_svg(self.network, self.job, sizes, parents)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Plot the predicted bytes of the busiest links. Raises MissingExtraError, PlanError."""
        from hopsum.library.plots import new_axes

        axes = axes or new_axes()
        rows = self.links[:BUSIEST][::-1]
        names = [f"{self._label(row['from'])} → {self._label(row['to'])}" for row in rows]
        axes.barh(names, [row["bytes"] for row in rows])
        axes.set(xlabel="bytes", title=str(self))
        axes.title.set_fontsize(9)
        return axes

    @property
    def rated(self) -> bool:
        """Whether links have rates; else rates of plans are in links."""
        return with_rates(self.network) is self.network

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p><div style='max-width:640px'>{self.svg()}</div>"

    def __str__(self) -> str:
        if self.embedding is None:
            trees, kind = len(self.forest.trees), "tree"
        else:
            trees, kind = len(self.embedding.embedding.parts), "topology"
        kinds = {"tree": "trees", "topology": "topologies"}[kind]
        text = (
            f"{self.planner} on {self.network.name}: {self.rate_text(self.rate)} of "
            f"at most {self.rate_text(self.bound)} on {trees} {kind if trees == 1 else kinds}"
        )
        if self.prediction is not None:
            text += f", {format_bytes(self.prediction.total_bytes)} on all links"
            if all(link.bandwidth is not None for link in self.network.links):
                text += f", predicted time {format_time(self.prediction.seconds)}"
        return text

    @property
    def _job(self) -> JobPlan:
        if self.job is None:
            raise PlanError(
                f"planner {self.planner}: {self.why_not or 'trees among hosts have no switches'}"
            )
        return self.job

    @property
    def _predicted(self) -> Estimate:
        if self.prediction is None:
            raise PlanError(
                f"planner {self.planner}: no prediction of trees that switches do not run; use "
                "hopsum.compare with the algorithm multi-tree"
            )
        return self.prediction

    def _embedding_rate(self, seconds: float) -> float:
        assert self.embedding is not None
        return self.embedding.demand.bits / seconds if seconds else inf

    def _label(self, node: str) -> str:
        return self.network.label(node)

    @property
    def _rooted(self) -> list[tuple[str, Mapping[str, str], float]]:
        """Root, parents and rate of each tree."""
        if self.embedding is None:
            return [(tree.root, tree.parents, float(tree.rate)) for tree in self.forest.trees]
        return [(tree.server, tree.parents, tree.share * self.rate) for tree in self._job.trees]

    def _role(self, tree: int, node: str, root: str) -> str:
        if node == root:
            return "root"
        if node in self.network.hosts:
            return "worker"
        if self.job is None:
            return "forwards"
        return "sums" if self.job.trees[tree].parts[node].aggregate else "forwards"


def planners() -> tuple[str, ...]:
    """Return the names of all planners."""
    return tuple(PLANNERS)


def planner_options(planner: str) -> Records:
    """Return a row for each option of a planner: `option`, `type`, `default`, `meaning`."""
    return Records(
        {
            "option": option.name,
            "type": option.kind.value,
            "default": option.default,
            "meaning": option.meaning,
        }
        for option in find_planner(planner).options
    )


class RequestOptions(TypedDict, total=False):
    """Options of every plan.

    `servers`: how many, or their names; 0: each worker is the root of a tree; of an embedding they
    are the hosts that may help. `algorithm`: `in-network` or `server`. `results`: `replicated` or
    `unicast`. `options`: of the planner by name, as `{"max-trees": 3}`; see `planner_options`.
    `seed`: of its random choices. `window`: slots of a tree at a switch, None: as
    a job gets of an idle cluster.
    `max_hops`: entries of a hop stack, None: what the network needs.
    """

    servers: int | Sequence[str]
    algorithm: str
    results: str | None
    options: Mapping[str, object]
    seed: int
    lanes: int
    window: int | None
    max_hops: int | None


def request_of(
    network: Network,
    workers: int | Sequence[str] | None = None,
    planner: str | Planner | None = None,
    **options: Unpack[RequestOptions],
) -> PlanRequest:
    """Return what a planner is asked for. Raises NetworkError, PlanError, InputError."""
    placed = place_ranks(network, workers, options.get("servers", 1))
    lanes, results = options.get("lanes", LANES_DEFAULT), options.get("results")
    request = PlanRequest(
        1,
        1,
        placed.workers,
        placed.servers,
        algorithm=choice(SwitchRole, "algorithm", options.get("algorithm", SwitchRole.IN_NETWORK)),
        lanes=lanes,
        max_hops=stack_depth(network, lanes, options.get("max_hops")),
        results=None if results is None else choice(Results, "results", results),
        forest=ForestOptions(seed=options.get("seed", 0)),
    )
    name = default_planner(network) if planner is None else planner
    given = options.get("options", {})
    if isinstance(name, str):
        request = with_options(request, name, given)
    elif given:
        raise PlanError(f"planner options {', '.join(given)}: a function of your own takes none")
    else:
        name = MULTI_HOP
    if name == EMBEDDING:
        # An embedding chooses its servers, among these hosts.
        servers = options.get("servers", 1)
        auxiliary = None if isinstance(servers, int) else tuple(servers)
        embedding = replace(request.embedding, auxiliary=auxiliary)
        request = replace(request, servers=(), embedding=embedding)
    return replace(request, window=options.get("window") or default_window(network, request, name))


def plan(
    network: Network,
    workers: int | Sequence[str] | None = None,
    *,
    planner: str | Planner | None = None,
    elements: int = 1_000_000,
    dtype: str = "float32",
    wire_bits: int = 0,
    rounds: int = 1,
    **options: Unpack[RequestOptions],
) -> Plan:
    """Plan the all-reduce of `rounds` tensors of `elements` elements.

    `wire_bits`: of a value in packets, 0: as `dtype` has it.
    `workers`: how many, or their names; None: all hosts but the servers. `planner`: a name of
    `planners`, a function of your own (see `Planner`), or None for multi-hop (among hosts alone:
    multi-tree). `options`: see `RequestOptions`. Every plan is checked: each contribution reaches
    its server exactly once. Raises PlanError, NetworkError.
    """
    tensors = [(elements, choice(DataType, "dtype", dtype))]
    request = request_of(network, workers, planner, **options)
    return plan_request(network, request, planner, tensors, rounds, wire_bits=wire_bits)


def plan_request(
    network: Network,
    request: PlanRequest,
    planner: str | Planner | None,
    tensors: Sequence[tuple[int, DataType]],
    rounds: int = 1,
    collective: Collective = Collective.ALL_REDUCE,
    wire_bits: int = 0,
) -> Plan:
    """Return the plan for a request, as `plan`; the prediction is of `rounds` of `tensors`."""
    for _, dtype in tensors:
        check_wire_bits(dtype, wire_bits)
    if planner is None:
        planner = default_planner(network)
    if planner == EMBEDDING:
        if any(is_for_trees(dtype, wire_bits) for _, dtype in tensors):
            raise PlanError(
                f"planner {EMBEDDING}: only switches and servers can sum values of less than 32 "
                "bits; use another planner, or float32 or int32 as they are"
            )
        size = max(1, sum(elements for elements, _ in tensors) * LANE_BYTES)
        request = replace(request, embedding=replace(request.embedding, tensor_bytes=size))
    found = make_plan(with_rates(network), request, planner)
    name = EMBEDDING if found.embedding is not None else found.forest.planner
    prediction = None
    if found.job is not None:
        work = PlanWork(found.job, list(tensors), rounds, collective, wire_bits)
        prediction = estimate(network, work)
    return Plan(network, request, name, found, prediction)


def default_planner(network: Network) -> str:
    """Return the name of the planner for networks with switches, or of hosts alone."""
    return "multi-hop" if network.switches else "multi-tree"


def with_rates(network: Network) -> Network:
    """Return the network; one without any rate gets rate 1 on every link."""
    if any(link.bandwidth is not None for link in network.links):
        return network
    return replace(network, links=tuple(replace(link, bandwidth=1.0) for link in network.links))
