"""Input of an embedding plan: features of the jobs, and free resources of the cluster ([002][]).

Agents report both: the nodes of a job, its tensors and iteration, and the residual bandwidth of
their nodes; switch counters give the residual bandwidth of links between switches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from hopsum.collectives.choices import window_fault
from hopsum.collectives.plan import WINDOW_EMBEDDED, PlanError
from hopsum.network.model import Network, shorten
from hopsum.network.paths import forwards
from hopsum.protocol.wire import HOPS_DEFAULT

DirectedLink = tuple[str, str]
"""A link, directed from its first node to its second."""


class Model(StrEnum):
    """Communication models for a job's parameters."""

    PARAMETER_SERVER = "parameter-server"
    """Every worker sends to one host and gets the sum from there."""
    RING = "ring"
    """Reduce-scatter and all-gather around the workers, in their physical order."""
    AGGREGATION_TREE = "aggregation-tree"
    """The elastic aggregation tree: one aggregating host for each oversubscribed region."""
    IN_NETWORK = "in-network"
    """The switches sum on the path to a host that is not a worker, and copy results."""


@dataclass(frozen=True)
class JobDemand:
    """A job's features, as agents report them.

    `tensors`: bytes of each; all are exchanged once per iteration. `iteration`: the current one.
    `models`: the models allowed. `shares`: the fraction of the data that must use each model (None:
    any mixture). `auxiliary`: hosts without a worker of the job that may aggregate (None: lightly
    loaded ones are chosen); without `relays`, only as servers of trees of switches. `window`: slots
    of a tree at each switch that sums. `max_hops`: entries of a hop stack.
    """

    job: int
    workers: tuple[str, ...]
    tensors: tuple[int, ...]
    iteration: int = 0
    models: frozenset[Model] = frozenset(Model)
    shares: Mapping[Model, Fraction] | None = None
    auxiliary: tuple[str, ...] | None = None
    window: int = WINDOW_EMBEDDED
    max_hops: int = HOPS_DEFAULT
    relays: bool = True

    @property
    def bits(self) -> int:
        """Return the bits exchanged in an iteration."""
        return 8 * sum(self.tensors)


@dataclass(frozen=True)
class Resources:
    """Free resources. `links`: bit/s of each directed link; `slots`: registers of each switch.

    `nodes`: bit/s that a host may send on all its links together, and as much that it may receive;
    a host that is not listed is limited by its links alone. Switches that do not aggregate have no
    slots.
    """

    network: Network
    links: Mapping[DirectedLink, Fraction]
    slots: Mapping[str, int]
    nodes: Mapping[str, Fraction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = set(self.network.directed_links())
        if set(self.links) != known:
            odd = sorted(set(self.links) ^ known)[0]
            raise PlanError(
                f"free bandwidth of link {odd[0]}->{odd[1]}: expected one for each directed link "
                f"of {self.network.name}, and no others"
            )
        for (u, v), free in self.links.items():
            if free < 0:
                raise PlanError(f"link {u}->{v}: free bandwidth {free}: expected 0 bit/s or more")
        for host, free in self.nodes.items():
            if host not in self.network.hosts:
                raise PlanError(f"free bandwidth of {host!r}: no such host in {self.network.name}")
            if free < 0:
                raise PlanError(f"host {host}: free bandwidth {free}: expected 0 bit/s or more")
        for name, slots in self.slots.items():
            if name not in self.network.switches or not 0 <= slots <= (
                size := self.network.switches[name].slots
            ):
                where = f"0 to {size}" if name in self.network.switches else "a switch's name"
                raise PlanError(f"switch {name!r} with {slots} free slots: expected {where}")

    def host_rate(self, host: str) -> Fraction:
        """Return the bit/s that a host can both send and receive: the lesser of the two."""
        peers = self.network.ports(host).values()
        out = sum((self.links[host, peer] for peer in peers), Fraction(0))
        back = sum((self.links[peer, host] for peer in peers), Fraction(0))
        return min(out, back, self.nodes.get(host, out))


def all_resources(network: Network) -> Resources:
    """Return all resources of a network. PlanError for a link without bandwidth."""
    links: dict[DirectedLink, Fraction] = {}
    for link in network.links:
        if link.bandwidth is None:
            raise PlanError(
                f"link {link.a}-{link.b} has no bandwidth; an embedding plan needs one on every "
                "link (in the file, or --link-rate)"
            )
        links[link.a, link.b] = links[link.b, link.a] = Fraction(str(link.bandwidth))
    slots = {name: switch.slots for name, switch in network.switches.items() if switch.aggregates}
    return Resources(network, links, slots)


def lightly_loaded(
    resources: Resources, demand: JobDemand, least: Fraction = Fraction(1, 2), most: int = 16
) -> tuple[str, ...]:
    """Return auxiliary nodes for a job: hosts that are not its workers, most free bandwidth first.

    Only hosts that the workers can reach, with `least` of their links' bandwidth free, and at most
    `most` of them; equally free hosts are taken at intervals, so that concurrent jobs choose
    different ones. Empty where hosts forward for others (without switches): there each host's links
    are on other hosts' paths.
    """
    network = resources.network.around(demand.workers)
    working = set(demand.workers)
    rates: dict[str, Fraction] = {}
    for host in network.hosts:
        if host in working or forwards(network, host):
            continue
        bandwidths = [network.link(host, peer).bandwidth for peer in network.ports(host).values()]
        whole = sum((Fraction(str(rate)) for rate in bandwidths if rate is not None), Fraction(0))
        free = resources.host_rate(host)
        if free > 0 and free >= least * whole:
            rates[host] = free
    chosen: list[str] = []
    for rate in sorted(set(rates.values()), reverse=True):
        equal = [host for host in rates if rates[host] == rate]
        room = most - len(chosen)
        stride = max(1, len(equal) // max(1, room))
        chosen += equal[demand.job % stride :: stride][:room]
    return tuple(chosen)


def check_demands(resources: Resources, demands: Sequence[JobDemand], steps: int) -> None:
    """Raise PlanError for a job that no embedding plan with weights of k / `steps` can serve."""
    job, count = Counter(demand.job for demand in demands).most_common(1)[0] if demands else (0, 0)
    if count != 1:
        raise PlanError(f"job {job} is asked for {count} times: expected one demand a job")
    for demand in demands:
        _check_nodes(resources.network, demand)
        _check_sizes(resources, demand)
        if demand.shares is not None:
            _check_shares(demand, demand.shares, steps)


def _check_nodes(network: Network, demand: JobDemand) -> None:
    if not demand.workers:
        raise PlanError(f"job {demand.job}: no workers: expected at least one")
    for role, names in (("worker", demand.workers), ("auxiliary node", demand.auxiliary or ())):
        for name in names:
            if name not in network.hosts:
                raise PlanError(
                    f"job {demand.job}, {role} {name!r}: there is no such host in {network.name}; "
                    f"hosts: {shorten(network.hosts)}"
                )
            if not network.ports(name):
                raise PlanError(f"job {demand.job}, {role} {name!r}: no link leads to it")
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise PlanError(f"job {demand.job}: {role} {twice[0]!r} is named twice")
    both = [name for name in demand.auxiliary or () if name in demand.workers]
    if both:
        raise PlanError(
            f"job {demand.job}: {both[0]!r} is a worker; auxiliary nodes belong to no worker"
        )


def _check_sizes(resources: Resources, demand: JobDemand) -> None:
    if not demand.tensors or min(demand.tensors) < 1:
        raise PlanError(
            f"job {demand.job}: tensors of {demand.tensors} bytes: expected one or more, each of "
            "at least 1 byte"
        )
    if demand.iteration < 0:
        raise PlanError(f"job {demand.job}: iteration {demand.iteration}: expected 0 or more")
    if not demand.models:
        raise PlanError(
            f"job {demand.job}: no communication model: expected some of {', '.join(Model)}"
        )
    window = demand.window
    if fault := window_fault(window):
        raise PlanError(f"job {demand.job}: {fault}")
    free = max(resources.slots.values(), default=0)
    if demand.models == {Model.IN_NETWORK} and window > free:
        raise PlanError(
            f"job {demand.job} asks for {window} slots at a switch, and no switch has more than "
            f"{free} free; use a smaller window, another model, or wait for a job to end"
        )


def _check_shares(demand: JobDemand, shares: Mapping[Model, Fraction], steps: int) -> None:
    strange = [model for model in shares if model not in demand.models]
    if strange:
        raise PlanError(f"job {demand.job}: a weight for {strange[0]}, which is not in its models")
    if any(share < 0 for share in shares.values()) or sum(shares.values()) != 1:
        raise PlanError(
            f"job {demand.job}: weights {', '.join(map(str, shares.values()))}: expected 0 or more "
            "each, together 1"
        )
    for model, share in shares.items():
        if (Fraction(share) * steps).denominator != 1:
            raise PlanError(
                f"job {demand.job}: weight {share} of {model}: expected a multiple of the step, "
                f"1/{steps}; choose another weight or step"
            )
