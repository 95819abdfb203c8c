"""For `mn --custom`: networks by name, P4 switches, and a controller for plain forwarding.

    mn --custom mininet_topos/custom.py --topo hopsum,fat-tree:4 --switch p4switch \
       --controller hopsum --test pingall

`--topo hopsum,NAME[,RATE]` takes any name or file that `hopsum topology` takes; `--switch` is
`p4switch` or `bmv2`. The system's Python reads this file: what needs more than the standard
library runs as commands of the checkout's virtual environment. Hosts have one link each: routes of
hosts with several are set in `hopsum run --world mininet`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

# `mn` executes this file's text, so __file__ is not set; the code object knows where it is from.
CHECKOUT = Path(sys._getframe().f_code.co_filename).resolve().parent.parent
sys.path[:0] = [str(CHECKOUT / "src"), str(CHECKOUT / "p4switch" / "src")]
# Commands import the same: another checkout's would look elsewhere for what these leave.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2])}

from mininet.node import Controller  # noqa: E402
from mininet.topo import Topo  # noqa: E402

from hopsum.mininet_topos.addresses import program  # noqa: E402
from hopsum.mininet_topos.interfaces import offload_command  # noqa: E402
from hopsum.mininet_topos.lifetime import END_WITH_STARTER  # noqa: E402
from hopsum.mininet_topos.link_queues import shaping_lines  # noqa: E402
from hopsum.mininet_topos.switches import Bmv2Switch, EmbeddedSwitch, P4Switch  # noqa: E402

HOPSUM = program("hopsum")


class HopsumTopo(Topo):
    """Any network that hopsum can load."""

    spec = "star:4"
    rates: ClassVar[dict[frozenset[str], float]] = {}
    """Link rates in bits per second by the names of the link's ends."""

    def build(self, spec="star:4", rate=None):
        """Ask hopsum for the network and add its nodes and links."""
        HopsumTopo.spec = spec
        command = [HOPSUM, "topology", spec, "--json"]
        if rate is not None:
            command += ["--link-rate", rate]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
        if done.returncode != 0:
            raise SystemExit(done.stderr.strip())
        network = json.loads(done.stdout)
        check_hosts(spec, network)
        number = 0
        for node in network["nodes"]:
            if node["kind"] == "host":
                self.addHost(node["id"], ip=f"{node['ip']}/8", mac=node["mac"])
            else:
                number += 1
                self.addSwitch(node["id"], device_id=number)
        for edge in network["edges"]:
            self.addLink(
                edge["source"],
                edge["target"],
                port1=edge["source_port"],
                port2=edge["target_port"],
            )
            if "bandwidth" in edge:
                ends = frozenset((edge["source"], edge["target"]))
                HopsumTopo.rates[ends] = edge["bandwidth"]


def check_hosts(spec, network):
    """Raise SystemExit for hosts with several links: `mn` sets one address and no routes."""
    ends = [end for edge in network["edges"] for end in (edge["source"], edge["target"])]
    for node in network["nodes"]:
        links = ends.count(node["id"])
        if node["kind"] == "host" and links > 1:
            raise SystemExit(
                f"{spec}: host {node['id']} has {links} links, and `mn` sets no routes; use a "
                "network whose hosts have one link each, or `hopsum run --world mininet`"
            )


class HopsumController(Controller):
    """`hopsum drive`: plain forwarding in every switch."""

    def __init__(self, name, engine="embedded", **parameters):
        """`engine`: which compiler made the switches' program."""
        self.engine = engine
        self.process = None
        super().__init__(name, **parameters)

    def checkListening(self):  # Mininet's name
        """Do nothing: the controller connects to the switches."""

    def start(self):
        """Start driving."""
        self.process = subprocess.Popen(
            [*END_WITH_STARTER, HOPSUM, "drive", HopsumTopo.spec, "--engine", self.engine],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=CHECKOUT,
            env=ENVIRONMENT,
        )

    def stop(self, *arguments, **keywords):
        """Stop driving."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None
        super().stop(*arguments, **keywords)


class PreparedSwitch(P4Switch):
    """A switch with offloads off and links shaped before its process starts."""

    def start(self, controllers):
        """Prepare both ends of every link, then start."""
        for interface in self.intfList():
            if interface.link is None:
                continue
            ends = (interface.link.intf1, interface.link.intf2)
            rate = HopsumTopo.rates.get(frozenset(end.node.name for end in ends))
            for end in ends:
                # A switch at the other end prepares its own.
                if end.node is not self and not end.node.inNamespace:
                    continue
                # Not `cmd`, which has a shell read what it is given.
                end.node.pexec(offload_command(end.name))
                for line in shaping_lines(end.name, rate) if rate else ():
                    end.node.pexec(["tc", *line.split()])
        super().start(controllers)
        self.wait_until_ready()


class CustomEmbeddedSwitch(PreparedSwitch, EmbeddedSwitch):
    """p4switch under `mn`."""


class CustomBmv2Switch(PreparedSwitch, Bmv2Switch):
    """BMv2 under `mn`."""


topos = {"hopsum": HopsumTopo}
switches = {"p4switch": CustomEmbeddedSwitch, "bmv2": CustomBmv2Switch}
controllers = {"hopsum": HopsumController}
