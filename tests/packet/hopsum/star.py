"""The scene of most tests: children 0, 1, ... of job 1 at ports 1, 2, ..., the server at port 8."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hopsum.protocol.wire import Hop, Kind
from tests.packet.hopsum.packets import LAST_HOP, Packet, lanes_of
from tests.packet.hopsum.switches import Switch

SERVER_PORT = 8
WINDOW = 4


def star(switch: Switch, fan_in: int = 2, *, job: int = 1, tree: int = 0, base: int = 0) -> None:
    """Admit `fan_in` children and the server."""
    for child in range(fan_in):
        switch.admit_children(
            child + 1,
            1 << child,
            fan_in=fan_in,
            job=job,
            tree=tree,
            base=base,
            mask=WINDOW - 1,
        )
    switch.admit_results(SERVER_PORT, job=job, tree=tree, base=base, mask=WINDOW - 1)


def contribution(
    switch: Switch, child: int = 0, fragment: int = 0, *, fan_in: int = 2, **fields: object
) -> Packet:
    """The contribution of child `child` of the star to a fragment."""
    packet = Packet(
        values=lanes_of(switch.build.lanes, 100 * fragment + child),
        fragment=fragment,
        worker=child,
        hops=(Hop(aggregate=True, child=child, fan_in=fan_in, port=SERVER_PORT), LAST_HOP),
    )
    return replace(packet, **fields)  # type: ignore[arg-type]


def result(
    switch: Switch, child: int = 0, fragment: int = 0, *, clear: bool = True, **fields: object
) -> Packet:
    """The server's answer to child `child` of the star."""
    packet = Packet(
        values=lanes_of(switch.build.lanes, 7777),
        kind=Kind.RESULT,
        fragment=fragment,
        worker=child,
        weight=2,
        hops=(Hop(clear=clear, port=child + 1),),
    )
    return replace(packet, **fields)  # type: ignore[arg-type]


def send(switch: Switch, port: int, *packets: Packet) -> list[tuple[int, Packet]]:
    """Send packets in at a port; what leaves, read."""
    return send_all(switch, ((port, packet) for packet in packets))


def send_all(switch: Switch, packets: Iterable[tuple[int, Packet]]) -> list[tuple[int, Packet]]:
    """Send packets in at their ports, all at once; what leaves, read."""
    out = switch.send_all((port, packet.frame()) for port, packet in packets)
    return [(left_at, Packet.read(frame)) for left_at, frame in out]


def up(switch: Switch, *packets: Packet) -> list[Packet]:
    """Send contributions, each at the port of its child, and return what reaches the server."""
    arrived: list[Packet] = []
    for packet in packets:
        out = send(switch, packet.hops[0].child + 1, packet)
        assert all(port == SERVER_PORT for port, _ in out)
        arrived += [read for _, read in out]
    return arrived
