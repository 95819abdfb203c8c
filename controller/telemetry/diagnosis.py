"""Descriptions of the state of switches and links, and their effect on plans and hosts.

Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from hopsum.collectives.plan import JobPlan
from hopsum.controller.telemetry.health import Element, Health, link_element
from hopsum.network.model import Network
from hopsum.network.paths import forwards

SHOWN = 3
"""Maximum number of causes of a kind that are named."""


def element_name(element: Element) -> str:
    """Return the name of a switch or link for display."""
    return f"switch {element}" if isinstance(element, str) else f"link {'-'.join(element)}"


def outage(health: Health, elements: Iterable[Element], now: float) -> str:
    """Return which of these elements are unreachable or held down, and for how long."""
    words = []
    for element in sorted(elements, key=element_name):
        seconds = health.unreachable_for(element, now)
        held = health.held_for(element, now)
        if seconds is not None:
            words.append(f"{element_name(element)} unreachable for {seconds:.0f} s")
        elif held:
            words.append(f"{element_name(element)} held down for flapping, {held:.0f} s more")
        else:
            words.append(f"{element_name(element)} is being reconnected")
    return listed(words)


def condition(health: Health, element: Element, now: float) -> str:
    """Return the fault of a switch or link; empty: it is in use."""
    held = health.held_for(element, now)
    if held:
        return f"held down for flapping, {held:.0f} s more"
    down = health.unreachable_for(element, now)
    around = "planned around" if element in health.out else ""
    return around if down is None else f"unreachable{', ' if around else ''}{around}"


def link_condition(health: Health, u: str, v: str, now: float) -> str:
    """Return the fault of a link or of a switch at its end; empty: it is in use."""
    for element in (link_element(u, v), u, v):
        words = condition(health, element, now)
        if words:
            return words if isinstance(element, tuple) else f"{element_name(element)} {words}"
    return ""


def listed(words: Collection[str]) -> str:
    """Return the first few causes, and the number of others."""
    more = f", and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return ", ".join([*words][:SHOWN]) + more


def used_elements(plan: JobPlan) -> frozenset[Element]:
    """Return the switches and links in the trees of a plan."""
    pairs = [pair for tree in plan.trees for pair in tree.parents.items()]
    switches = {part for tree in plan.trees for part in tree.parts}
    return frozenset({*switches, *(node for pair in pairs for node in pair)}) | {
        link_element(*pair) for pair in pairs
    }


def cut_off(network: Network, hosts: Iterable[str]) -> tuple[str, ...]:
    """Return the hosts from which there is no path to most of the others, in the order given."""
    left = list(dict.fromkeys(hosts))
    groups: list[set[str]] = []
    while remaining := [host for host in left if not any(host in group for group in groups)]:
        groups.append(_reachable(network, remaining[0]) & set(left))
    largest = max(groups, key=len, default=set())
    return tuple(host for host in left if host not in largest)


def _reachable(network: Network, start: str) -> set[str]:
    """Return the nodes reachable from a node, itself included."""
    neighbours: dict[str, list[str]] = {}
    for link in network.links:
        neighbours.setdefault(link.a, []).append(link.b)
        neighbours.setdefault(link.b, []).append(link.a)
    found, queue = {start}, deque([start])
    while queue:
        node = queue.popleft()
        if node != start and not forwards(network, node):
            continue
        for peer in neighbours.get(node, ()):
            if peer not in found:
                found.add(peer)
                queue.append(peer)
    return found
