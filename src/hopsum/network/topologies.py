"""Networks by name: `star:8`, `leaf-spine:4x4`, `fat-tree:4`, `torus:4x4`, `dgx1`, ...

Where the server sits. In `star`, `line`, `leaf-spine` and `dragonfly` the hosts that the name
counts are for workers, and each server is one more host: `ps` (or `ps1`, `ps2`, ... if several),
on the first leaves in turn. A fat-tree has exactly K^3/4 hosts by construction, so there a server
is one of them (the last ones; see `placement`), and an extra `ps` on a core switch appears only
when the workers asked for leave too few. Networks of hosts only (`torus`, `complete`, `hypercube`,
`random-regular`, `dgx1`) get no extra hosts: there every host works and forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import combinations, pairwise, product

import networkx as nx

from hopsum.network.builder import MAX_HOSTS, MAX_LINKS, NetworkBuilder
from hopsum.network.model import DEFAULT_SLOTS, Network, NetworkError, shorten

MAX_DIMENSIONS = 12
DRAWS = 100
NVLINK = 200e9
"""Bit/s of one NVLink 2.0, in each direction (25 GB/s)."""
DGX1_NVLINKS = {
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)], 2),
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)], 1),
}
"""NVLinks between GPUs of a DGX-1V."""


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """How a named network is built.

    `link_rate`: bit/s of every link, None unlimited; `uplink_rate`: of links between switches,
    None: as the others; `latency`: s, one way, of every link; `servers`: hosts for servers;
    `workers`: minimum number of other hosts, None: no minimum; `slots`: registers of a switch;
    `plain`: switches that do not aggregate, or `all`.
    """

    link_rate: float | None = None
    uplink_rate: float | None = None
    latency: float = 0.0
    servers: int = 1
    workers: int | None = None
    slots: int = DEFAULT_SLOTS
    plain: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """A family of networks: the syntax of its names and a description."""

    name: str
    syntax: str
    example: str
    summary: str
    build: Callable[[NetworkBuilder, list[int], TopologyOptions], None]


def _star(builder: NetworkBuilder, sizes: list[int], options: TopologyOptions) -> None:
    switch = builder.add_switch("s1")
    for _ in range(sizes[0]):
        builder.link(builder.add_host(), switch)
    builder.add_servers(options.servers, [switch])


def _line(builder: NetworkBuilder, sizes: list[int], options: TopologyOptions) -> None:
    count, hosts = sizes
    switches = [builder.add_switch(f"s{i + 1}") for i in range(count)]
    for switch, _ in product(switches, range(hosts)):
        builder.link(builder.add_host(), switch)
    for a, b in pairwise(switches):
        builder.link(a, b, options.uplink_rate)
    builder.add_servers(options.servers, switches)


def _leaf_spine(builder: NetworkBuilder, sizes: list[int], options: TopologyOptions) -> None:
    leaves, hosts = sizes[:2]
    spines = sizes[2] if len(sizes) > 2 else leaves
    leaf_names = [builder.add_switch(f"l{i + 1}") for i in range(leaves)]
    spine_names = [builder.add_switch(f"s{i + 1}") for i in range(spines)]
    for leaf, _ in product(leaf_names, range(hosts)):
        builder.link(builder.add_host(), leaf)
    for leaf, spine in product(leaf_names, spine_names):
        builder.link(leaf, spine, options.uplink_rate)
    builder.add_servers(options.servers, leaf_names)


def _fat_tree(builder: NetworkBuilder, sizes: list[int], options: TopologyOptions) -> None:
    """Build the K-ary fat tree of Al-Fares et al. (SIGCOMM 2008)."""
    k = sizes[0]
    if k % 2:
        raise NetworkError(f"fat-tree:{k}: K must be even, such as fat-tree:4")
    half = k // 2
    cores = [builder.add_switch(f"c{i + 1}") for i in range(half * half)]
    aggregations = [builder.add_switch(f"a{i + 1}") for i in range(k * half)]
    edges = [builder.add_switch(f"e{i + 1}") for i in range(k * half)]
    for edge, _ in product(edges, range(half)):
        builder.link(builder.add_host(), edge)
    for pod in range(k):
        for i, j in product(range(half), range(half)):
            builder.link(edges[pod * half + i], aggregations[pod * half + j], options.uplink_rate)
        for j, i in product(range(half), range(half)):
            builder.link(aggregations[pod * half + j], cores[j * half + i], options.uplink_rate)
    missing = (options.workers or 0) + options.servers - len(builder.hosts)
    if options.workers is not None and missing > 0:
        if missing > options.servers:
            raise NetworkError(
                f"fat-tree:{k} has {k * half * half} hosts: too few for {options.workers} workers; "
                f"a fat-tree:{k + 2} has {(k + 2) ** 3 // 4}"
            )
        builder.add_servers(missing, cores)


def _torus(builder: NetworkBuilder, sizes: list[int], options: TopologyOptions) -> None:
    """Join every host with its neighbours in each dimension, with wrap-around."""
    names = {where: builder.add_host() for where in product(*map(range, sizes))}
    linked = set()
    for where, axis in product(names, range(len(sizes))):
        step = (*where[:axis], (where[axis] + 1) % sizes[axis], *where[axis + 1 :])
        if step != where and frozenset((where, step)) not in linked:
            linked.add(frozenset((where, step)))
            builder.link(names[where], names[step])


def _complete(builder: NetworkBuilder, sizes: list[int], options: TopologyOptions) -> None:
    if sizes[0] * (sizes[0] - 1) > 2 * MAX_LINKS:
        raise NetworkError(f"complete:{sizes[0]}: more than {MAX_LINKS} links")
    names = [builder.add_host() for _ in range(sizes[0])]
    for a, b in combinations(names, 2):
        builder.link(a, b)


def _hypercube(builder: NetworkBuilder, sizes: list[int], options: TopologyOptions) -> None:
    """Join hosts whose numbers, from 0, differ in one bit."""
    dimensions = sizes[0]
    if dimensions > MAX_DIMENSIONS:
        raise NetworkError(
            f"hypercube:{dimensions}: expected at most {MAX_DIMENSIONS} dimensions, "
            f"{2**MAX_DIMENSIONS} hosts"
        )
    names = [builder.add_host() for _ in range(2**dimensions)]
    for number, bit in product(range(len(names)), range(dimensions)):
        if not number >> bit & 1:
            builder.link(names[number], names[number | 1 << bit])


def _random_regular(builder: NetworkBuilder, sizes: list[int], options: TopologyOptions) -> None:
    """Draw a connected graph in which every host has as many links (Steger and Wormald 1999)."""
    count, degree = sizes[:2]
    seed = sizes[2] if len(sizes) > 2 else 1
    spec = f"random-regular:{count}x{degree}"
    if degree >= count or count * degree % 2 or (degree < 2 and count > 2):
        raise NetworkError(
            f"{spec}: expected a degree from 2 to below the number of hosts, and an even number "
            "of link ends (one of the two even)"
        )
    if count > MAX_HOSTS or count * degree > 2 * MAX_LINKS:
        raise NetworkError(f"{spec}: expected at most {MAX_HOSTS} hosts, and {MAX_LINKS} links")
    for attempt in range(DRAWS):
        graph = nx.random_regular_graph(degree, count, seed=seed * DRAWS + attempt)
        if nx.is_connected(graph):
            break
    else:
        raise NetworkError(f"{spec}: no connected graph in {DRAWS} draws; try another seed")
    names = [builder.add_host() for _ in range(count)]
    for a, b in sorted(tuple(sorted(edge)) for edge in graph.edges()):
        builder.link(names[a], names[b])


def _dgx1(builder: NetworkBuilder, sizes: list[int], options: TopologyOptions) -> None:
    """Join the 8 GPUs of a DGX-1V as its hybrid cube mesh does (NVIDIA's topology matrix).

    Six NVLinks a GPU, two of them to some neighbours; `link_rate` is that of one NVLink.
    """
    names = [builder.add_host() for _ in range(8)]
    rate = NVLINK if options.link_rate is None else options.link_rate
    for (a, b), bricks in DGX1_NVLINKS.items():
        builder.link(names[a], names[b], bricks * rate)


def _dragonfly(builder: NetworkBuilder, sizes: list[int], options: TopologyOptions) -> None:
    """Build the canonical dragonfly of Kim et al. (ISCA 2008): every two groups share one link.

    A routers a group, P hosts a router, H global links a router; A*H + 1 groups. Global port q of
    group g (q = router * H + link) leads to group (g + q + 1) mod (A*H + 1).
    """
    if len(sizes) == 1:
        sizes = [2 * sizes[0], sizes[0], sizes[0]]
    a, p, h = sizes
    groups = a * h + 1
    routers = [[builder.add_switch(f"r{g * a + i + 1}") for i in range(a)] for g in range(groups)]
    for group in routers:
        for router, _ in product(group, range(p)):
            builder.link(builder.add_host(), router)
    for group in routers:
        for one, other in combinations(group, 2):
            builder.link(one, other, options.uplink_rate)
    for g, q in product(range(groups), range(a * h)):
        peer = (g + q + 1) % groups
        back = (g - peer - 1) % groups
        if g < peer:
            builder.link(routers[g][q // h], routers[peer][back // h], options.uplink_rate)
    builder.add_servers(options.servers, [group[0] for group in routers])


TOPOLOGIES: Mapping[str, Topology] = {
    topology.name: topology
    for topology in (
        Topology("star", "star:H", "star:8", "H hosts on one switch", _star),
        Topology("line", "line:SxH", "line:3x2", "S switches in a row, H hosts on each", _line),
        Topology(
            "leaf-spine",
            "leaf-spine:LxH[xS]",
            "leaf-spine:4x4",
            "L leaves with H hosts each, S spines (by default L)",
            _leaf_spine,
        ),
        Topology("fat-tree", "fat-tree:K", "fat-tree:4", "K pods, K^3/4 hosts (K even)", _fat_tree),
        Topology("torus", "torus:AxB[xC...]", "torus:4x4", "hosts only; hosts forward", _torus),
        Topology("complete", "complete:N", "complete:8", "N hosts, each linked to all", _complete),
        Topology("hypercube", "hypercube:D", "hypercube:4", "2^D hosts only", _hypercube),
        Topology(
            "random-regular",
            "random-regular:NxD[xSEED]",
            "random-regular:64x4",
            "N hosts only, D links each, drawn at random (seed 1)",
            _random_regular,
        ),
        Topology("dgx1", "dgx1", "dgx1", "the 8 GPUs of a DGX-1V, 1 or 2 NVLinks a link", _dgx1),
        Topology(
            "dragonfly",
            "dragonfly:AxPxH or dragonfly:H",
            "dragonfly:4x2x2",
            "A*H+1 groups of A routers, P hosts and H global links each; H alone: A = 2H, P = H",
            _dragonfly,
        ),
    )
}
_SIZES = {
    "star": (1,),
    "line": (2,),
    "leaf-spine": (2, 3),
    "fat-tree": (1,),
    "torus": (2, 3, 4),
    "complete": (1,),
    "hypercube": (1,),
    "random-regular": (2, 3),
    "dgx1": (0,),
    "dragonfly": (1, 3),
}


def known_topologies() -> str:
    """Return the known topologies, one per line, for messages and help."""
    return "\n".join(f"  {t.syntax:32} {t.summary}" for t in TOPOLOGIES.values())


def suggestion(spec: str) -> str:
    """Return `; did you mean star:8?` for a name that is nearly one of a topology, else ''."""
    name, colon, sizes = spec.partition(":")
    near = get_close_matches(name.lower().replace("_", "-"), TOPOLOGIES, n=1, cutoff=0.75)
    return f"; did you mean {near[0]}{colon}{sizes}?" if near else ""


def is_topology(spec: str) -> bool:
    """Return whether a text names a network rather than a file."""
    return spec.partition(":")[0] in TOPOLOGIES


def make_topology(spec: str, options: TopologyOptions | None = None) -> Network:
    """Return the network a name such as `star:8` stands for.

    Raises NetworkError, with what exists, for an unknown name or sizes that do not fit.
    """
    options = options or TopologyOptions()
    name, _, rest = spec.partition(":")
    if name not in TOPOLOGIES:
        raise NetworkError(
            f"there is no topology {name!r}{suggestion(spec)}; there are:\n{known_topologies()}"
        )
    topology = TOPOLOGIES[name]
    try:
        sizes = [int(part) for part in rest.lower().split("x")] if ":" in spec else []
    except ValueError:
        sizes = [0]
    if len(sizes) not in _SIZES[name] or min(sizes, default=1) < 1:
        raise NetworkError(
            f"topology {spec!r}: expected {topology.syntax} with whole numbers from 1, "
            f"such as {topology.example}"
            if _SIZES[name] != (0,)
            else f"topology {spec!r}: expected {topology.syntax}, without sizes"
        )
    builder = NetworkBuilder(spec, options.link_rate, options.latency, options.slots)
    topology.build(builder, sizes, options)
    return set_plain(builder, options.plain).build()


def set_plain(builder: NetworkBuilder, plain: tuple[str, ...]) -> NetworkBuilder:
    """Make the named switches (or `all`) forward only; NetworkError for an unknown name."""
    names = list(builder.switches) if plain == ("all",) else list(plain)
    for name in names:
        if name not in builder.switches:
            raise NetworkError(
                f"plain switch {name!r}: there is no such switch in {builder.name}; "
                f"switches: {shorten(builder.switches)}"
            )
        builder.switches[name] = replace(builder.switches[name], aggregates=False)
    return builder
