"""Start a node of a network in its container: `start.py NETWORK NODE`.

Containers have no cables. A link is a VXLAN tunnel between the containers of its ends, whose
addresses are those of their names; then the switch, or the host's agent, takes this process's
place.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from hopsum.mininet_topos.interfaces import neighbour_lines, offload_command
from hopsum.network.loaders import load_network
from hopsum.network.model import Network

CONTROLLER = "controller:9600"
VXLAN_PORT = 4789


def make_links(network: Network, node: str) -> dict[int, str]:
    """Make a node's interfaces; return them by port."""
    interfaces = {}
    here = socket.gethostbyname(node)
    for number, link in enumerate(network.links, 1):
        if node not in (link.a, link.b):
            continue
        port, peer = (link.a_port, link.b) if link.a == node else (link.b_port, link.a)
        interfaces[port] = name = f"{node}-eth{port}"
        there = socket.gethostbyname(peer)
        tunnel = f"type vxlan id {number} dstport {VXLAN_PORT} local {here} remote {there}"
        run(f"ip link add {name} {tunnel}".split())
        subprocess.run(offload_command(name), capture_output=True, check=False)
        run(f"ip link set {name} {'arp off ' if node in network.switches else ''}up".split())
    return interfaces


def give_address(network: Network, host: str, interface: str) -> None:
    """Give a host's interface its addresses, and the addresses of the other hosts."""
    own = network.hosts[host]
    run(f"ip link set {interface} address {own.mac}".split())
    run(f"ip address add {own.ip}/8 dev {interface}".split())
    others = [(other.ip, other.mac) for other in network.hosts.values() if other is not own]
    for line in neighbour_lines(interface, others):
        run(["ip", *line.split()])


def run(command: list[str]) -> None:
    """Run a command, which must succeed."""
    subprocess.run(command, check=True)


def main() -> None:
    """Make the links of a node, and become its process."""
    network, node = load_network(sys.argv[1]), sys.argv[2]
    interfaces = make_links(network, node)
    if node in network.switches:
        command = ["p4switch", "run", "--no-p4", "--cpu-port", "510"]
        command += ["--device-id", str([*network.switches].index(node) + 1)]
        command += [part for port, name in interfaces.items() for part in ("-i", f"{port}@{name}")]
        command += ["--grpc-server-addr", "0.0.0.0:9559"]
    else:
        [interface] = interfaces.values()
        give_address(network, node, interface)
        command = ["hopsum-agent", "serve", "--controller", CONTROLLER, "--host", node]
        command += ["--interface", interface]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
