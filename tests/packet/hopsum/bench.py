"""How many contributions a second hopsum.p4 sums: both forms of the lanes, each engine.

    python -m tests.packet.hopsum.bench [native|bmv2] [LANES...]

Seven children send windows of 32 fragments in order; a turn is over when its 32 sums have come out
at the server's port (BMv2), or the batch has been processed (native, whose median turn's CPU time
counts). On BMv2 the sender shares the machine's cores with the switch.
"""

from __future__ import annotations

import select
import sys
import time
from statistics import median

from tests.packet.hopsum.bmv2 import Bmv2Process, Bmv2Switch
from tests.packet.hopsum.packets import Packet, add
from tests.packet.hopsum.star import SERVER_PORT, contribution
from tests.packet.hopsum.switches import Build, EngineSwitch, Frame, Switch

FAN_IN = 7
WINDOW = 32
TURNS = 200
TURN_SECONDS = 2.0


def admit(switch: Switch) -> None:
    """The children and the server, with a window of 32."""
    for child in range(FAN_IN):
        switch.admit_children(child + 1, 1 << child, fan_in=FAN_IN, mask=WINDOW - 1)
    switch.admit_results(SERVER_PORT, mask=WINDOW - 1)


def turn(switch: Switch, number: int) -> list[Frame]:
    """The contributions of all children in a window."""
    return [
        (child + 1, contribution(switch, child, number * WINDOW + slot, fan_in=FAN_IN).frame())
        for slot in range(WINDOW)
        for child in range(FAN_IN)
    ]


def total(switch: Switch, fragment: int) -> tuple[int, ...]:
    """The sum that must come out."""
    parts = [contribution(switch, child, fragment, fan_in=FAN_IN) for child in range(FAN_IN)]
    return add(*(part.values for part in parts))


def run_bmv2(process: Bmv2Process, build: Build) -> tuple[float, int]:
    """Contributions a second, and how many sums were missing."""
    switch = Bmv2Switch(process, build)
    admit(switch)
    server = process.sockets[SERVER_PORT]
    missing, seconds = 0, 0.0
    for number in range(TURNS):
        frames = turn(switch, number)
        sums: dict[int, tuple[int, ...]] = {}
        start = time.perf_counter()
        for port, frame in frames:
            process.sockets[port].send(frame)
        while len(sums) < WINDOW and select.select([server], [], [], TURN_SECONDS)[0]:
            packet = Packet.read(server.recv(2048))
            sums[packet.fragment] = packet.values
        seconds += time.perf_counter() - start
        missing += WINDOW - len(sums)
        for fragment, values in list(sums.items())[:1]:
            assert values == total(switch, fragment)
    return TURNS * WINDOW * FAN_IN / seconds, missing


def run_native(build: Build) -> tuple[float, int]:
    """Contributions a second of CPU time in the median turn, and how many sums were missing."""
    switch = EngineSwitch("native", build)
    admit(switch)
    batches = [turn(switch, number) for number in range(TURNS)]
    missing, seconds = 0, []
    for frames in batches:
        start = time.process_time()
        out = switch.engine.process(frames)
        seconds.append(time.process_time() - start)
        missing += WINDOW - len(out)
    return WINDOW * FAN_IN / median(seconds), missing


def main(arguments: list[str]) -> None:
    """Measure and print a line a build."""
    engines = [a for a in arguments if not a.isdigit()] or ["native", "bmv2"]
    builds = [
        Build(lanes, per_lane)
        for lanes in [int(a) for a in arguments if a.isdigit()] or [64, 256, 352]
        for per_lane in (False, True)
    ]
    process = Bmv2Process() if "bmv2" in engines else None
    try:
        for engine in engines:
            for build in builds:
                rate, missing = (
                    run_bmv2(process, build) if process and engine == "bmv2" else run_native(build)
                )
                line = f"{engine:8} {build!s:8} {rate:10,.0f} contributions/s, {missing} missing"
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
    finally:
        if process is not None:
            process.close()


if __name__ == "__main__":
    main(sys.argv[1:])
