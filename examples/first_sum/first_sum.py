"""Two packets, one switch, one sum: everything that hopsum is about, by hand."""

from pathlib import Path

import hopsum.p4src as p4src
import hopsum_scapy as layer
from hopsum_scapy import IP, UDP, Ether, Hop, Hopsum
from p4switch.frontend.program import compile_file
from p4switch.stf import engine_factory
from p4switch.testing import Switch

LANES = 32  # values a packet
SERVER = 3  # the switch's port towards the parameter server; workers are at ports 1 and 2

program = compile_file(Path(p4src.__path__[0], "hopsum.p4"), defines={"LANES": str(LANES)})
switch = Switch(engine_factory("interpreter")(program))

# The controller's part: which packets are admitted where, and which slots sum them.
slots = {"slot_base": 0, "window_mask": 3}
for child in (0, 1):
    keys = {"job": 1, "tree": 0, "ingress_port": child + 1}
    switch.add("admission", keys, "admit_children", fan_in=2, children=1 << child, **slots)
switch.add("admission", {"job": 1, "tree": 0, "ingress_port": SERVER}, "admit_results", **slots)

# What a worker does: one packet with its values, and with what the switch is to do with it.
for child, values in enumerate(([1, 2, 3], [10, 20, 30])):
    up = Ether() / IP(flags="DF", id=0) / UDP(sport=layer.UDP_PORT, dport=layer.UDP_PORT, chksum=0)
    stack = [Hop(aggregate=1, child=child, fan_in=2, port=SERVER), Hop(fan_in=1)]
    lanes = values + [0] * (LANES - len(values))
    packet = up / Hopsum(job=1, epoch=1, worker=child, stack=stack, lanes=lanes)
    print(f"worker {child} sends {values}")
    switch.send(child + 1, packet)
    sent = switch.take_all(SERVER)
    print(f"  the switch keeps it: {len(sent)} packets leave" if not sent else "  a sum leaves:")

# What the server gets: one packet, of weight 2, for two workers.
total = layer.parse(sent[0])[Hopsum]
print(f"the server gets {total.lanes[:3]}, the values of {total.weight} workers")
