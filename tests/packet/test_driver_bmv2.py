"""The P4Runtime driver against simple_switch_grpc, where it is installed. Needs no ports."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.driver import Driver, DriverError, State, SwitchTarget
from controller.loaders import load_network
from controller.pipeline import Pipeline, load_pipeline
from controller.placement import place
from controller.planners import make_plan
from controller.planning import PlanRequest
from controller.rules import Loss, SwitchRules, rules_for
from protocol.outcomes import Outcome

P4C = shutil.which("p4c")
BMV2 = shutil.which("simple_switch_grpc")
PROGRAM = Path(__file__).parents[2] / "p4src" / "hopsum.p4"
GOLDEN = Path(__file__).parents[1] / "unit" / "golden" / "hopsum.p4info.txtpb"
WAIT = 30.0

needs_p4c = pytest.mark.skipif(P4C is None, reason="p4c is not on PATH")
needs_bmv2 = pytest.mark.skipif(
    P4C is None or BMV2 is None, reason="p4c or simple_switch_grpc is not on PATH"
)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    folder = tmp_path_factory.mktemp("p4c")
    p4info = folder / "hopsum.p4info.txtpb"
    command = ["p4c", "--target", "bmv2", "--arch", "v1model", "--std", "p4-16"]
    command += ["--p4runtime-files", str(p4info), "-o", str(folder), str(PROGRAM)]
    subprocess.run(command, check=True)
    return load_pipeline(p4info, folder / "hopsum.json", lanes=256, slots=4096)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Bmv2:
    """One switch process without ports."""

    def __init__(self) -> None:
        self.target = SwitchTarget("s1", f"127.0.0.1:{free_port()}")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["simple_switch_grpc", "--no-p4", "--device-id", "1", "--log-level", "off"]
        command += ["--thrift-port", str(free_port())]
        command += ["--", "--grpc-server-addr", self.target.address, "--cpu-port", "510"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def bmv2() -> Iterator[Bmv2]:
    switch = Bmv2()
    switch.start()
    yield switch
    switch.kill()


def star_rules(hosts: int) -> SwitchRules:
    network = load_network(f"star:{hosts}")
    placement = place(network)
    plan = make_plan(network, PlanRequest(1, 1, placement.workers, placement.servers, window=32))
    return rules_for(network, [plan], [Loss("h1", "s1", 0.5), Loss("s1", "h1", 0.1)])["s1"]


@needs_p4c
def test_the_golden_p4info_is_that_of_p4c(pipeline: Pipeline) -> None:
    assert pipeline.p4info.read_text() == GOLDEN.read_text(), (
        f"p4src changed the control plane's contract; if it should, copy p4c's P4Info to {GOLDEN}"
    )


@needs_bmv2
def test_rules_slots_and_counters(bmv2: Bmv2, pipeline: Pipeline) -> None:
    async def main() -> None:
        details: list[str] = []
        async with Driver(
            [bmv2.target],
            pipeline,
            {"s1": star_rules(4)},
            listener=lambda name, state, detail: details.append(detail),
        ) as driver:
            await driver.wait(timeout=WAIT)
            await driver.apply({"s1": star_rules(4)}, WAIT)
            assert details[-1] == "0 updates"
            slot = await driver.inspect("s1", 4095)
            assert (slot.slot, slot.valid) == (4095, False)
            assert (await driver.outcomes("s1"))[Outcome.INSPECTED] == 1
            await driver.apply({"s1": star_rules(2)}, WAIT)
            await driver.apply({"s1": SwitchRules()}, WAIT)
            await driver.apply({"s1": SwitchRules()}, WAIT)
            assert details[-1] == "0 updates"

    asyncio.run(main())


@needs_bmv2
def test_a_killed_switch_converges(bmv2: Bmv2, pipeline: Pipeline) -> None:
    async def main() -> None:
        gone = asyncio.Event()

        def listen(name: str, state: State, detail: str) -> None:
            if detail == "lost":
                gone.set()

        async with Driver(
            [bmv2.target], pipeline, {"s1": star_rules(2)}, listener=listen
        ) as driver:
            await driver.wait(timeout=WAIT)
            bmv2.kill()
            await asyncio.wait_for(gone.wait(), WAIT)
            bmv2.start()
            await driver.wait(timeout=WAIT)
            assert driver.states() == {"s1": State.READY}

    asyncio.run(main())


@needs_bmv2
def test_refused_updates_are_named(bmv2: Bmv2, pipeline: Pipeline) -> None:
    async def main() -> None:
        async with Driver([bmv2.target], pipeline) as driver:
            with pytest.raises(DriverError, match="insert multicast group 9: INVALID_ARGUMENT"):
                await driver.apply({"s1": SwitchRules(groups={9: (1, 1)})}, WAIT)

    asyncio.run(main())
