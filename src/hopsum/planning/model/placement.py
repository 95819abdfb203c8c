"""Placement: choice of workers and servers where the user gives only how many."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hopsum.network.model import Network, NetworkError, shorten


@dataclass(frozen=True, slots=True)
class Placement:
    """The hosts of a job: worker number w is `workers[w]`, the server of tree t `servers[t]`."""

    workers: tuple[str, ...]
    servers: tuple[str, ...]


def place(
    network: Network,
    workers: int | Sequence[str] | None = None,
    servers: int | Sequence[str] = 1,
) -> Placement:
    """Choose hosts; those given by name are kept.

    Servers: hosts named `ps`, `ps1`, ... first, then the last of the others; 0: the workers. The
    first `workers` hosts that are left work (None: all of them). Raises NetworkError if there are
    too few, or a name is unknown.
    """
    if servers == 0:
        placed = place(network, workers, ()).workers
        return Placement(placed, placed)
    named_workers = (
        () if workers is None or isinstance(workers, int) else hosts_named(network, workers)
    )
    named_servers = () if isinstance(servers, int) else hosts_named(network, servers)
    if isinstance(servers, int):
        free = [host for host in network.hosts if host not in named_workers]
        marked = [host for host in free if re.fullmatch(r"ps\d*", host)]
        others = [host for host in free if host not in marked]
        ordered = marked + others[::-1]
        if servers < 1 or servers > len(ordered):
            raise NetworkError(
                f"{network.name}: {servers} servers: expected 1 to {len(ordered)} "
                "(the hosts that are not workers)"
            )
        chosen = tuple(ordered[:servers])
    else:
        chosen = named_servers
    if named_workers:
        return Placement(named_workers, chosen)
    free = [
        host for host in network.hosts if host not in chosen and not re.fullmatch(r"ps\d*", host)
    ]
    count = len(free) if not isinstance(workers, int) else workers
    if not 1 <= count <= len(free):
        raise NetworkError(
            f"{network.name}: {count} workers: expected 1 to {len(free)} "
            f"({len(network.hosts)} hosts, of which {len(chosen)} serve)"
        )
    return Placement(tuple(free[:count]), chosen)


def place_ranks(
    network: Network, workers: int | Sequence[str] | None, servers: int | Sequence[str] = 1
) -> Placement:
    """Choose hosts as `place` does; without switches no host serves, and every host may work.

    Raises NetworkError.
    """
    return (
        place(network, workers, servers) if network.switches else without_servers(network, workers)
    )


def without_servers(network: Network, workers: int | Sequence[str] | None) -> Placement:
    """Choose the first hosts of a network (None: all), or keep those named. Raises NetworkError."""
    hosts = tuple(network.hosts)
    if isinstance(workers, int):
        if not 1 <= workers <= len(hosts):
            raise NetworkError(f"{network.name}: {workers} workers: expected 1 to {len(hosts)}")
        return Placement(hosts[:workers], ())
    return Placement(hosts_named(network, workers or hosts), ())


def hosts_named(network: Network, names: Sequence[str]) -> tuple[str, ...]:
    """Return hosts by their names or labels. Raises NetworkError for an unknown one."""
    labels = {host.label: name for name, host in network.hosts.items() if host.label}
    found = tuple(name if name in network.hosts else labels.get(name, name) for name in names)
    for name in found:
        if name not in network.hosts:
            raise NetworkError(
                f"there is no host {name!r:.80} in {network.name}; hosts: {shorten(network.hosts)}"
            )
    return found
