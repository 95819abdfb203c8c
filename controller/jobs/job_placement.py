"""Placement of a cluster's jobs whose owners only give numbers of hosts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from hopsum.network.model import Network, NetworkError
from hopsum.planning.model.placement import Placement, place

HELPERS = 16
"""Maximum number of auxiliary hosts that an embedding may choose from."""


def place_job(
    network: Network,
    workers: tuple[str, ...] | int,
    servers: tuple[str, ...] | int,
    attached: Collection[str],
    loads: Mapping[str, int],
    *,
    workers_serve: bool = True,
) -> Placement:
    """Choose hosts that have an agent first, then those with the fewest jobs, in network order.

    Names given are kept; 0 servers: the workers. A host without a job serves, else one of two
    workers or more, whose link carries no more for it, if `workers_serve`, else another host. Those
    named `ps`, `ps1`, ... serve before others that are as busy, and never work unless named.
    `loads`: jobs a host has a part in. Raises NetworkError as `placement.place`.
    """
    if servers == 0:
        placed = place_job(network, workers, (), attached, loads).workers
        return Placement(placed, placed)
    place(network, workers, () if isinstance(servers, int) else servers)
    order = {host: number for number, host in enumerate(network.hosts)}
    hosts = sorted(
        network.hosts, key=lambda host: (host not in attached, loads.get(host, 0), order[host])
    )
    marked = [host for host in hosts if re.fullmatch(r"ps\d*", host)]
    if isinstance(workers, int):
        serving = () if isinstance(servers, int) else servers
        free = [host for host in hosts if host not in serving and host not in marked]
        workers = tuple(sorted(free[:workers], key=order.__getitem__))
    if isinstance(servers, int):
        own = workers if workers_serve and len(workers) > 1 else ()
        free = [host for host in hosts if host in own or host not in workers]
        if not 1 <= servers <= len(free):
            which = "its hosts" if own else "its hosts that are not workers"
            raise NetworkError(
                f"{network.name}: {servers} servers: expected 0 to {len(free)}, {which}"
            )

        def preference(host: str) -> tuple[object, ...]:
            load = loads.get(host, 0)
            kind = 1 if host in own else 2 if load else 0
            return host not in attached, kind, load, host not in marked

        servers = tuple(sorted(free, key=preference)[:servers])
    return place(network, workers, servers)


def place_helpers(
    network: Network,
    workers: tuple[str, ...] | int,
    helpers: tuple[str, ...] | int,
    attached: Collection[str],
    loads: Mapping[str, int],
) -> Placement:
    """Place an embedding job; its `servers` are auxiliary hosts.

    Those named; else hosts that have an agent, with the fewest jobs first, at most `HELPERS`.
    """
    placed = place_job(
        network, workers, () if isinstance(helpers, int) else helpers, attached, loads
    )
    if not isinstance(helpers, int):
        both = [host for host in placed.workers if host in helpers]
        if both:
            raise NetworkError(f"host {both[0]} cannot be worker and helper of one job")
        return placed
    idle = [host for host in network.hosts if host in attached and host not in placed.workers]
    idle.sort(key=lambda host: loads.get(host, 0))
    return Placement(placed.workers, tuple(idle[:HELPERS]))
