"""Keep plain forwarding on the switches of a running Mininet until interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hopsum.collectives.choices import Engine
from hopsum.controller.dataplane.driver import Driver, State, SwitchTarget
from hopsum.controller.dataplane.rules import rules_for
from hopsum.experiment.event_loop import interruption
from hopsum.experiment.pipelines import compile_pipeline, slots_of
from hopsum.mininet_topos.addresses import grpc_address, ready_file
from hopsum.network.model import Network
from hopsum.planning.model.stack_depth import stack_depth


async def drive(
    network: Network, engine: Engine, lanes: int, notify: Callable[[str], None]
) -> None:
    """Push the program and the plain tables to every switch, again whenever one restarts.

    The switches are those of `mn --custom mininet_topos/custom.py`: number n (from 1, in the
    network's order) has device id n. A file per switch shows that it is ready.
    """
    pipeline = compile_pipeline(engine, lanes, slots_of(network), stack_depth(network, lanes))
    targets = [
        SwitchTarget(name, grpc_address(number), number)
        for number, name in enumerate(network.switches, start=1)
    ]

    def listener(switch: str, state: State, detail: str) -> None:
        marker = Path(ready_file(switch))
        if state is State.READY:
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        else:
            marker.unlink(missing_ok=True)
        notify(f"{switch}: {state} {detail}".rstrip())

    try:
        with interruption() as stopped:
            async with Driver(targets, pipeline, rules_for(network), listener=listener):
                await stopped.wait()
    finally:
        for name in network.switches:
            Path(ready_file(name)).unlink(missing_ok=True)
